"""`clearhead translate`: translate by beam search."""

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
    LOGPROBS_HELP,
    MODEL_ARGUMENT,
    Backend,
    check_one_input,
    count_of,
    echo,
    for_stream,
    format_table,
    logprob_table,
    logprobs_to_dicts,
    show_line_progress,
    warn_if_file_name,
    with_line_number,
)
from clearhead.errors import ClearheadError, check_int

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.translation import Translation

STDOUT = "-"
LINES_PER_BATCH = 2048  # read, sorted by length and translated together


def translate(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(None, metavar="TEXT", help="A sentence.", show_default=False),
    file: str = INPUT_OPTION,
    output: str = typer.Option(STDOUT, metavar="FILE", help="Output file; - is stdout."),
    num_beams: int = typer.Option(5, help="Number of beams; 1 is greedy."),
    length_penalty: float = typer.Option(
        1.0, help="Above 1 favors longer translations, below 1 shorter ones."
    ),
    max_tokens: int = typer.Option(
        0, help="Maximum number of tokens; 0 = as many as the context allows."
    ),
    n_best: int = typer.Option(
        1, help="Number of translations per line, printed with line number and score."
    ),
    early_stopping: bool = typer.Option(
        False, "--early-stopping", help="Stop as soon as num_beams hypotheses have finished."
    ),
    no_repeat_ngram_size: int = typer.Option(
        0, help="Never repeat an n-gram of this size; 0 = off."
    ),
    prefix: str = typer.Option("", help="Start every translation with this.", show_default=False),
    alternatives: int = typer.Option(
        None,
        help="Let the n-best translations differ at this token of the best one.",
        show_default=False,
    ),
    align: str = typer.Option(
        "",
        metavar="LAYER",
        help="Print the source token that each token attends to most in this decoder layer, such "
        "as -2, or in all.",
        show_default=False,
    ),
    logprobs: int = typer.Option(0, help=LOGPROBS_HELP),
    split_sentences: bool = typer.Option(
        False, "--split-sentences", help="Translate sentence by sentence."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per line."),
    dtype: str = DTYPE_OPTION,
    backend: Backend | None = BACKEND_OPTION,
) -> None:
    """Translate a sentence, or a file line by line."""
    from clearhead.api import load

    check_one_input(text, file)
    check_int("--num-beams", num_beams, 1)
    warn_if_file_name(text)
    options: dict[str, Any] = {
        "num_beams": num_beams,
        "max_tokens": max_tokens,
        "length_penalty": length_penalty,
        "n_best": n_best,
        "early_stopping": early_stopping,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "prefix": prefix,
        "alternatives": alternatives,
        "split_sentences": split_sentences,
        "align": _parse_layer(align) if align else None,
        "logprobs": logprobs,
    }
    loaded = load(model, dtype="" if backend else dtype)
    translator: Any = loaded.with_backend(backend, dtype) if backend else loaded
    batches: Iterator[list[str]] = iter([[text]]) if text is not None else read_line_batches(file)
    if file:
        batches = show_line_progress(batches, file, prints_results=output == STDOUT)
    num_lines = 0
    with open_output(output) as out:
        for lines in batches:
            with with_line_number(file, num_lines):
                translations = translator.translate(lines, **options)
            for line, translation in zip(lines, translations, strict=True):
                num_lines += 1
                if as_json:
                    out.write(_to_json(loaded, line, translation))
                else:
                    out.write(for_stream(_to_text(num_lines, translation), out))
                    out.writelines(_tables(loaded, line, translation))
            out.flush()
    if output != STDOUT:
        echo(f"wrote {count_of(num_lines, 'line')} to {output}")


def read_line_batches(file: str) -> Iterator[list[str]]:
    from clearhead.data.readers import read_lines

    lines = read_lines(file)
    while batch := list(islice(lines, LINES_PER_BATCH)):
        yield batch


@contextmanager
def open_output(output: str) -> Iterator[IO[str]]:
    """Standard output, or a file that appears when it is complete."""
    from clearhead.io import open_atomic

    if output == STDOUT:
        yield sys.stdout
        return
    try:
        with open_atomic(Path(output)) as file, TextIOWrapper(file, "utf-8", newline="\n") as out:
            yield out
    except BrokenPipeError:  # of stdout: handled by `main`
        raise
    except OSError as error:
        raise ClearheadError(f"cannot write {output}: {error.strerror}.") from None


def _parse_layer(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _to_text(line_number: int, translation: "Translation") -> str:
    if not translation.other_choices:
        return f"{_single_line(translation.text)}\n"
    return "".join(
        f"{line_number}\t{choice.score:.4f}\t{_single_line(choice.text)}\n"
        for choice in translation.choices
    )


def _single_line(text: str) -> str:
    return " ".join(text.splitlines()).strip()


def _tables(model: "Model", line: str, translation: "Translation") -> Iterator[str]:
    """Tables of log-probabilities and alignments, if requested."""
    source, records = _to_dicts(model, line, translation)
    for record, choice in zip(records, translation.choices, strict=True):
        if choice.token_logprobs is not None:
            yield logprob_table(model.tokenizer, choice.token_logprobs)
        if choice.alignment is not None:
            aligned = (source["source_pieces"][position] for position in choice.alignment)
            yield format_table(("target", "source"), zip(record["pieces"], aligned, strict=True))


def _to_dicts(
    model: "Model", line: str, translation: "Translation"
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from clearhead.generate.translation import translation_to_json

    return translation_to_json(line, translation, model.tokenizers, model.config.inference)


def _to_json(model: "Model", line: str, translation: "Translation") -> str:
    source, records = _to_dicts(model, line, translation)
    for record, choice in zip(records, translation.choices, strict=True):
        if choice.token_logprobs is not None:
            record["logprobs"] = logprobs_to_dicts(model.tokenizer, choice.token_logprobs)
    return json.dumps(source | {"translations": records}, ensure_ascii=False) + "\n"
