"""`clearhead classify`: classify texts, images or audio, or predict their number."""

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.common import (
    INPUT_OPTION,
    MODEL_ARGUMENT,
    check_one_input,
    echo,
    map_batches,
    read_text_batches,
    warn_if_file_name,
)
from clearhead.errors import ClearheadError, InputTextError

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.tasks import Classification

PAIR_SEPARATOR = "\t"
TAB_PROBLEM = (
    "contains a tab, but this model does not read text pairs. If the file has labels, use "
    "clearhead evaluate."
)


def classify(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(
        None,
        metavar="TEXT",
        help="A text; for models of images or audio, a file.",
        show_default=False,
    ),
    text_pair: str = typer.Option("", help="The second text of a pair.", show_default=False),
    file: str = INPUT_OPTION,
    as_json: bool = typer.Option(
        False, "--json", help="Print one JSON object per line, with all probabilities."
    ),
) -> None:
    """Classify texts, images or audio, or predict a number.

    For text pairs use --text-pair, or a tab between the two texts of each line of a file.
    Run `clearhead models digits` for an example image.
    """
    from clearhead.api import load

    if text_pair and text is None:
        raise ClearheadError("--text-pair needs a text; in a file, separate pairs by a tab.")
    check_one_input(text, file)
    loaded = load(model)
    if text_pair and not loaded.config.inference.sep_tokens:
        raise ClearheadError("this model does not read text pairs; omit --text-pair.")
    if loaded.config.model.input.kind == "tokens":
        warn_if_file_name(text)
    batches = read_text_batches(f"{text}{PAIR_SEPARATOR}{text_pair}" if text_pair else text, file)
    for line, result in map_batches(batches, file, partial(classify_lines, loaded)):
        if as_json:
            echo(json.dumps(_to_dict(line, result), ensure_ascii=False))
        elif result.probabilities:
            echo(f"{result.label}\t{result.score:.1%}")
        else:
            echo(f"{result.score:.4f}")


def classify_lines(model: "Model", lines: list[str]) -> "list[Classification]":
    """Classify lines: texts or tab-separated pairs, or file names for models of images or audio."""
    input_kind = model.config.model.input.kind
    if input_kind == "images":
        return model.classify(images=lines)
    if input_kind != "tokens":
        return model.classify(audio=lines)
    reads_pairs = bool(model.config.inference.sep_tokens)
    texts: list[Any] = []
    for index, line in enumerate(lines):
        parts = line.split(PAIR_SEPARATOR)
        if len(parts) > 1 and not reads_pairs:
            raise InputTextError(index, TAB_PROBLEM)
        if len(parts) > 2:
            raise InputTextError(index, "contains several tabs; a pair has one.")
        texts.append(tuple(parts) if len(parts) > 1 else line)
    return model.classify(texts)


def _to_dict(line: str, result: "Classification") -> dict[str, Any]:
    if not result.probabilities:
        return {"input": line, "score": result.score}
    return {
        "input": line,
        "label": result.label,
        "score": result.score,
        "probabilities": result.probabilities,
    }
