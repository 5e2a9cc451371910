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

from clearhead.cli import hints
from clearhead.cli.chosen import chosen_tree, table, token_table
from clearhead.cli.flags import DTYPE, ENGINE, MODEL
from clearhead.cli.lines import INPUT, check_given, shown_lines, told_by_line
from clearhead.data.unpacked import text_lines
from clearhead.errors import ClearheadError, check_whole

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.translate import Translated

BLOCK = 2048  # lines that are read, sorted by length and translated before the next


def translate(
    model: str = MODEL,
    text: str = typer.Argument(None, help="One sentence.", show_default=False),
    file: str = INPUT,
    output: str = typer.Option("-", help="Where the lines go, and tables where asked for; - is the screen."),
    beam: int = typer.Option(5, help="How many translations are followed at once; 1 is greedy."),
    length_penalty: float = typer.Option(1.0, help="More than 1 prefers long ones, less short ones."),
    max_tokens: int = typer.Option(0, help="How long one may get; 0 = as the context allows."),
    n_best: int = typer.Option(1, help="So many for each line, with the line's number and their scores."),
    early: bool = typer.Option(False, "--early", help="Be content with the first that end; sooner done."),
    no_repeat: int = typer.Option(0, help="Runs of so many tokens stand only once in a translation; 0 = as they come."),
    prefix: str = typer.Option("", help="What each translation begins with.", show_default=False),
    alternatives: int = typer.Option(
        None, help="The --n-best keep so many tokens of the best and differ in the next.", show_default=False
    ),
    align: str = typer.Option(
        "",
        help="Tell which source token each token attends to most, in a layer of the decoder (-2), or in all.",
        show_default=False,
    ),
    logprobs: int = typer.Option(
        None, help="Show each token with this many of the likeliest in its place.", show_default=False
    ),
    split: bool = typer.Option(False, "--split", help="Sentence by sentence, not only where a line is too long."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object for each line."),
    dtype: str = DTYPE,
    engine: str = ENGINE,
) -> None:
    """Translate a sentence, or a file line by line."""
    from clearhead import api

    check_given(text, file)
    check_whole("--beam", beam, 1)
    hints.if_file(text)
    options = {
        "beam": beam, "max_tokens": max_tokens, "length_penalty": length_penalty, "n_best": n_best, "early": early,
        "no_repeat": no_repeat, "prefix": prefix, "alternatives": alternatives, "split": split,
        "align": _layer(align) if align else None, "logprobs": logprobs,
    }  # fmt: skip
    reader = api.load(model, dtype="" if engine else dtype)
    loaded: Any = reader.through(engine, dtype) if engine else reader
    count, tables = 0, not as_json and (bool(align) or logprobs is not None)
    with written_to(output) as out:
        for lines in [[text]] if text is not None else shown_lines(blocks(file), file, quiet=output == "-"):
            with told_by_line(file, count):
                made = translated(loaded, lines, options)
            for number, (line, found) in enumerate(zip(lines, made, strict=True), count + 1):
                out.write(_json(reader, line, found) if as_json else _plain(number, found, n_best))
                if tables:
                    out.writelines(_tables(reader, line, found))
            out.flush()
            count += len(lines)
    if output != "-":
        typer.echo(f"{count:,} line{'s' * (count != 1)} in {output}")


def translated(model: "Model", lines: list[str], options: dict[str, Any]) -> list[list["Translated"]]:
    """Each line's best."""
    found = model.translate(lines, **options)
    return found if options["n_best"] > 1 else [[best] for best in found]


def blocks(file: str) -> Iterator[list[str]]:
    """The lines of a file, some at a time."""
    lines = text_lines(file)
    while block := list(islice(lines, BLOCK)):
        yield block


@contextmanager
def written_to(output: str) -> Iterator[IO[str]]:
    """The screen, or a file that is there when all is written, and not before."""
    from clearhead.files import rewritten

    if output == "-":
        yield sys.stdout
        return
    try:
        with rewritten(Path(output)) as file, TextIOWrapper(file, "utf-8", newline="\n") as out:
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


def _plain(number: int, found: list["Translated"], n_best: int) -> str:
    texts = [" ".join(one.text.splitlines()).strip() for one in found]  # a line stays one
    if n_best == 1:
        return f"{texts[0]}\n"
    return "".join(f"{number}\t{one.score:.4f}\t{text}\n" for one, text in zip(found, texts, strict=True))


def _tables(model: "Model", line: str, found: list["Translated"]) -> Iterator[str]:
    """What else was asked about each translation: its tokens and how likely they were, and where they looked."""
    source, trees = _told(model, line, found)
    for tree, one in zip(trees, found, strict=True):
        if one.chosen is not None:
            yield token_table(model.tokenizer, one.chosen)
        if one.alignment is not None:
            looked = (source["source_pieces"][place] for place in one.alignment)
            yield table(("written", "looked at"), zip(tree["pieces"], looked, strict=True))


def _told(model: "Model", line: str, found: list["Translated"]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from clearhead.generate.told import told

    return told(line, found, model.tokenizers, model.config.use, any(one.alignment for one in found))


def _json(model: "Model", line: str, found: list["Translated"]) -> str:
    """A line with its translations."""
    source, trees = _told(model, line, found)
    for tree, one in zip(trees, found, strict=True):
        if one.chosen is not None:
            tree["logprobs"] = chosen_tree(model.tokenizer, one.chosen)
    return json.dumps(source | {"translations": trees}, ensure_ascii=False) + "\n"
