"""`clearhead translate`: by beam search, a line for each line."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from clearhead.cli.common import (
    BACKEND_OPTION,
    DTYPE_OPTION,
    INPUT_OPTION,
    MODEL_ARGUMENT,
    check_one_input,
    format_table,
    logprob_table,
    logprobs_to_dicts,
    show_line_progress,
    warn_if_file_name,
    with_line_number,
)
from clearhead.data.readers import read_lines
from clearhead.errors import ClearheadError, check_int

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.translation import Translation

BLOCK = 2048  # lines that are read, sorted by length and translated before the next


def translate(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(None, help="One sentence.", show_default=False),
    file: str = INPUT_OPTION,
    output: str = typer.Option(
        "-", help="Where the lines go, and tables where asked for; - is the screen."
    ),
    num_beams: int = typer.Option(
        5, help="How many translations are followed at once; 1 is greedy."
    ),
    length_penalty: float = typer.Option(
        1.0, help="More than 1 prefers long ones, less short ones."
    ),
    max_tokens: int = typer.Option(0, help="How long one may get; 0 = as the context allows."),
    n_best: int = typer.Option(
        1, help="So many for each line, with the line's number and their scores."
    ),
    early_stopping: bool = typer.Option(
        False, "--early", help="Be content with the first that end; sooner done."
    ),
    no_repeat_ngram_size: int = typer.Option(
        0, help="Runs of so many tokens stand only once in a translation; 0 = as they come."
    ),
    prefix: str = typer.Option("", help="What each translation begins with.", show_default=False),
    alternatives: int = typer.Option(
        None,
        help="The --n-best keep so many tokens of the best and differ in the next.",
        show_default=False,
    ),
    align: str = typer.Option(
        "",
        help="Tell which source token each token attends to most, in a layer of the decoder (-2), or in all.",
        show_default=False,
    ),
    logprobs: int = typer.Option(
        None,
        help="Show each token with this many of the likeliest in its place.",
        show_default=False,
    ),
    split_sentences: bool = typer.Option(
        False, "--split", help="Sentence by sentence, not only where a line is too long."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object for each line."),
    dtype: str = DTYPE_OPTION,
    backend: str = BACKEND_OPTION,
) -> None:
    """Translate a sentence, or a file line by line."""
    from clearhead.api import load

    check_one_input(text, file)
    check_int("--beam", num_beams, 1)
    warn_if_file_name(text)
    options = {
        "beam": num_beams, "max_tokens": max_tokens, "length_penalty": length_penalty, "n_best": n_best, "early": early_stopping,
        "no_repeat": no_repeat_ngram_size, "prefix": prefix, "alternatives": alternatives, "split": split_sentences,
        "align": _layer(align) if align else None, "logprobs": logprobs,
    }  # fmt: skip
    reader = load(model, dtype="" if backend else dtype)
    loaded: Any = reader.with_backend(backend, dtype) if backend else reader
    count = 0
    tables = not as_json and (bool(align) or logprobs is not None)
    with open_output(output) as out:
        for lines in (
            [[text]]
            if text is not None
            else show_line_progress(read_line_batches(file), file, quiet=output == "-")
        ):
            with with_line_number(file, count):
                made = translate_lines(loaded, lines, options)
            for number, (line, found) in enumerate(zip(lines, made, strict=True), count + 1):
                out.write(_json(reader, line, found) if as_json else _plain(number, found, n_best))
                if tables:
                    out.writelines(_tables(reader, line, found))
            out.flush()
            count += len(lines)
    if output != "-":
        typer.echo(f"{count:,} line{'s' * (count != 1)} in {output}")


def translate_lines(
    model: "Model", lines: list[str], options: dict[str, Any]
) -> list[list["Translation"]]:
    """Each line's best."""
    return [best.choices for best in model.translate(lines, **options)]


def read_line_batches(file: str) -> Iterator[list[str]]:
    """The lines of a file, some at a time."""
    lines = read_lines(file)
    while block := list(islice(lines, BLOCK)):
        yield block


@contextmanager
def open_output(output: str) -> Iterator[IO[str]]:
    """The screen, or a file that is there when all is written, and not before."""
    from clearhead.io import open_atomic

    if output == "-":
        yield sys.stdout
        return
    try:
        with open_atomic(Path(output)) as file, TextIOWrapper(file, "utf-8", newline="\n") as out:
            yield out
    except BrokenPipeError:  # of the screen: whoever read it has seen enough
        raise
    except OSError as error:
        raise ClearheadError(f"{output} cannot be written: {error.strerror}.") from None


def _layer(align: str) -> int | str:
    try:
        return int(align)
    except ValueError:
        return align


def _plain(number: int, found: list["Translation"], n_best: int) -> str:
    texts = [" ".join(one.text.splitlines()).strip() for one in found]  # a line stays one
    if n_best == 1:
        return f"{texts[0]}\n"
    return "".join(
        f"{number}\t{one.score:.4f}\t{text}\n" for one, text in zip(found, texts, strict=True)
    )


def _tables(model: "Model", line: str, found: list["Translation"]) -> Iterator[str]:
    """What else was asked about each translation: its tokens and how likely they were, and where they looked."""
    source, trees = _told(model, line, found)
    for tree, one in zip(trees, found, strict=True):
        if one.token_logprobs is not None:
            yield logprob_table(model.tokenizer, one.token_logprobs)
        if one.alignment is not None:
            looked = (source["source_pieces"][place] for place in one.alignment)
            yield format_table(("written", "looked at"), zip(tree["pieces"], looked, strict=True))


def _told(
    model: "Model", line: str, found: list["Translation"]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from clearhead.generate.generation import with_choices
    from clearhead.generate.translation import translation_to_json

    return translation_to_json(
        line, with_choices(found), model.tokenizers, model.config.inference
    )


def _json(model: "Model", line: str, found: list["Translation"]) -> str:
    """A line with its translations."""
    source, trees = _told(model, line, found)
    for tree, one in zip(trees, found, strict=True):
        if one.token_logprobs is not None:
            tree["logprobs"] = logprobs_to_dicts(model.tokenizer, one.token_logprobs)
    return json.dumps(source | {"translations": trees}, ensure_ascii=False) + "\n"
