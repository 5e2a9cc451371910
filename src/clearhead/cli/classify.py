"""`clearhead classify`: the class of texts, pictures or sounds, or their number."""

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.common import (
    INPUT_OPTION,
    MODEL_ARGUMENT,
    check_one_input,
    map_batches,
    read_text_batches,
    warn_if_file_name,
)
from clearhead.errors import ClearheadError, InputTextError

if TYPE_CHECKING:
    from clearhead.api import Model

TAB = "\t"  # stands between the two texts of a pair


def classify(
    model: str = MODEL_ARGUMENT,
    what: str = typer.Argument(
        None,
        help="A text; or a picture or sound file, where the model reads those.",
        show_default=False,
    ),
    text_pair: str = typer.Option(
        "", help="A second text, to be judged together with the first.", show_default=False
    ),
    file: str = INPUT_OPTION,
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object a line, with the probability of each class."
    ),
) -> None:
    """Judge texts, pictures or sounds.

    Two texts are judged together with --second; in the lines of a file, a tab stands between them.
    clearhead models digits names a picture to try.
    """
    from clearhead.api import load

    if text_pair and what is None:
        raise ClearheadError(
            "--second goes with a text; in the lines of a file, a tab stands between two texts."
        )
    check_one_input(what, file, "a text, or the name of a picture or a sound")
    loaded = load(model)
    if text_pair and not loaded.config.inference.sep_tokens:
        raise ClearheadError("this model reads one text at a time; leave out --second.")
    if loaded.config.model.input.kind == "tokens":
        warn_if_file_name(what)
    blocks = read_text_batches(f"{what}{TAB}{text_pair}" if text_pair else what, file)
    for line, answer in map_batches(blocks, file, partial(classify_lines, loaded)):
        typer.echo(
            json.dumps(_tree(line, answer), ensure_ascii=False) if as_json else _words(answer)
        )


def classify_lines(model: "Model", some: list[str]) -> list[Any]:
    """Lines are texts, or pairs of them, for a model of texts, and names of files for others."""
    reads = model.config.model.input.kind
    if reads != "tokens":
        return model.classify(**{"images" if reads == "images" else "audio": some})
    for number, line in enumerate(some):
        if TAB in line and not model.config.inference.sep_tokens:
            raise InputTextError(
                number, "has a tab, which separates two texts; this model reads one at a time."
            )
        if line.count(TAB) > 1:
            raise InputTextError(
                number, "has several tabs; one stands between the two texts of a pair."
            )
    given: list[Any] = [tuple(line.split(TAB)) if TAB in line else line for line in some]
    return model.classify(given)


def _tree(line: str, answer: Any) -> dict[str, Any]:
    if isinstance(answer, float):
        return {"input": line, "number": answer}
    return {
        "input": line,
        "label": answer.label,
        "probability": answer.probability,
        "all": answer.all,
    }


def _words(answer: Any) -> str:
    return (
        f"{answer:.4f}"
        if isinstance(answer, float)
        else f"{answer.label}\t{answer.probability:.1%}"
    )
