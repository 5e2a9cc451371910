"""`clearhead vectors`: what vectors of words tell."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from clearhead.lens.view import View
    from clearhead.word_vectors.vectors import Vectors

Where = typer.Argument(
    help="A model, as for other commands; or vectors: a folder of clearhead train vectors, a .txt, .vec or .bin file.",
    show_default=False,
)
Sum = typer.Argument(
    "", metavar="sum", help='A word, or a sum of words: "king - man + woman".', show_default=False
)
Layer = typer.Option(
    None, help="Of a model: the stream after this layer, each word read alone; its embeddings without it.",
    show_default=False,
)  # fmt: skip
Pairs = typer.Option(
    "", "--direction", help='Pairs that make a direction: "cat:cats dog:dogs".', show_default=False
)
Words = typer.Option(
    "", help="Words, to be measured along the direction, or each with each.", show_default=False
)
Test = typer.Option(
    [], "--benchmark", help="A file of analogies or similarities, as published; may be given several times.",
    show_default=False,
)  # fmt: skip
Top = typer.Option(10, help="How many near words.")
Out = typer.Option(
    None,
    help="Save as .png, .svg, .html, .csv or .npy; without it it is shown here.",
    show_default=False,
)


def vectors(
    model: str = Where,
    written: str = Sum,
    layer: int = Layer,
    direction: str = Pairs,
    words: str = Words,
    benchmark: list[Path] = Test,
    top_k: int = Top,
    output: Path = Out,
) -> None:
    """Find near words, solve analogies, measure directions.

    --direction with --words tells how far each word lies along it; --words alone how similar they are.
    """
    from clearhead.api import load
    from clearhead.cli.common import show_or_save
    from clearhead.errors import ClearheadError
    from clearhead.lens.view import check_output_path
    from clearhead.weights import hub
    from clearhead.word_vectors.io import has_word_vectors
    from clearhead.word_vectors.vectors import vectors as vectors_of

    if sum(map(bool, (written, direction or words, benchmark))) != 1 or (direction and not words):
        raise ClearheadError(
            'give a sum ("king - man + woman"), or --words, --direction and --words, or --benchmark.'
        )
    if output is not None:
        check_output_path(output)
        if len(benchmark) > 1:
            raise ClearheadError(f"{output} takes one result; give one --benchmark with --out.")
    pairs = [_pair(pair) for pair in direction.split()]
    path = hub.find_model(model) or Path(model)
    known = vectors_of(path if has_word_vectors(path) else load(model), layer)
    for view in _views(known, written, pairs, words.split(), benchmark, top_k):
        show_or_save(view, output)


def _views(
    known: "Vectors",
    written: str,
    pairs: list[tuple[str, str]],
    words: list[str],
    files: list[Path],
    top: int,
) -> "list[View]":
    from clearhead.word_vectors.benchmark import evaluate_vectors

    if written:
        return [known.solve(written, top)]
    if pairs:
        return [known.direction(pairs).scores(words)]
    return [known.similarity(words)] if words else [evaluate_vectors(known, file) for file in files]


def _pair(written: str) -> tuple[str, str]:
    from clearhead.errors import ClearheadError

    first, colon, second = written.partition(":")
    if not (first and colon and second):
        raise ClearheadError(f"{written!r} is no pair; write --direction as cat:cats dog:dogs.")
    return first, second
