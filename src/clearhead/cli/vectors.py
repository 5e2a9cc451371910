"""`clearhead vectors`: similar words, analogies and directions."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clearhead.cli.common import VIEW_OUTPUT_OPTION, show_or_save
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from clearhead.lens.view import View
    from clearhead.word_vectors.vectors import Vectors


def vectors(
    model: str = typer.Argument(
        metavar="MODEL",
        help="A model, the output of clearhead train vectors, or a .txt, .vec or .bin file.",
        show_default=False,
    ),
    expression: str = typer.Argument(
        "",
        metavar="EXPRESSION",
        help='A word, or an expression such as "king - man + woman" or '
        '"E(king) - E(man) + E(woman)"; "queen - king = woman - man" compares both sides.',
        show_default=False,
    ),
    layer: int = typer.Option(
        None,
        help="Use the residual stream after this layer of a model. Default: the embeddings.",
        show_default=False,
    ),
    direction: str = typer.Option(
        "", help='Word pairs that define a direction: "cat:cats dog:dogs".', show_default=False
    ),
    words: str = typer.Option(
        "", help="Words to project on the direction, or to compare.", show_default=False
    ),
    benchmark: list[Path] = typer.Option(
        [],
        metavar="FILE",
        help="A published file of analogies or word similarities. May be repeated.",
        show_default=False,
    ),
    top_k: int = typer.Option(10, help="Number of similar words."),
    output: Path = VIEW_OUTPUT_OPTION,
) -> None:
    """Find similar words, solve analogies, measure directions.

    --direction with --words projects words on a direction; --words alone compares them. Unknown
    words are left out with a warning.
    """
    from clearhead.api import load
    from clearhead.lens.view import check_output_path
    from clearhead.weights import hub
    from clearhead.word_vectors.io import has_word_vectors
    from clearhead.word_vectors.vectors import vectors as load_vectors

    num_tasks = bool(expression) + bool(direction or words) + bool(benchmark)
    if num_tasks != 1 or (direction and not words):
        raise ClearheadError(
            'give one of: an expression such as "king - man + woman", --words, --direction with '
            "--words, or --benchmark."
        )
    if output is not None:
        check_output_path(output)
        if len(benchmark) > 1:
            raise ClearheadError("--output saves one result; give one --benchmark.")
    pairs = [_parse_pair(pair) for pair in direction.split()]
    path = hub.find_model(model) or Path(model)
    loaded = load_vectors(path if has_word_vectors(path) else load(model), layer)
    views = _views(loaded, expression, pairs, words.split(), benchmark, top_k)
    for view in views if output is None else views[:1]:
        show_or_save(view, output)


def _views(
    vectors: "Vectors",
    expression: str,
    pairs: list[tuple[str, str]],
    words: list[str],
    benchmarks: list[Path],
    top_k: int,
) -> "list[View]":
    from clearhead.word_vectors.benchmark import evaluate_vectors

    if re.search(r"\S\s*[=≈]\s*\S", expression):
        comparison = vectors.compare(expression, top_k)
        return [comparison, *comparison.neighbors]
    if expression:
        return [vectors.solve(expression, top_k)]
    if pairs:
        return [vectors.direction(pairs).scores(words)]
    if words:
        return [vectors.similarity(words)]
    return [evaluate_vectors(vectors, path) for path in benchmarks]


def _parse_pair(text: str) -> tuple[str, str]:
    first, _, second = text.partition(":")
    if not (first and second):
        raise ClearheadError(f"--direction must be pairs such as cat:cats dog:dogs, got {text!r}.")
    return first, second
