"""`clearhead classify`: the class of texts, pictures or sounds, or their number."""

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli import hints
from clearhead.cli.flags import MODEL
from clearhead.cli.lines import INPUT, answered, check_given, read_texts
from clearhead.errors import ClearheadError, Unreadable

if TYPE_CHECKING:
    from clearhead.api import Model

TAB = "\t"  # stands between the two texts of a pair


def classify(
    model: str = MODEL,
    what: str = typer.Argument(
        None, help="A text; or a picture or sound file, where the model reads those.", show_default=False
    ),
    second: str = typer.Option("", help="A second text, to be judged together with the first.", show_default=False),
    file: str = INPUT,
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line, with the probability of each class."),
) -> None:
    """Judge texts, pictures or sounds.

    Two texts are judged together with --second; in the lines of a file, a tab stands between them.
    clearhead models digits names a picture to try.
    """
    from clearhead import api

    if second and what is None:
        raise ClearheadError("--second goes with a text; in the lines of a file, a tab stands between two texts.")
    check_given(what, file, "a text, or the name of a picture or a sound")
    loaded = api.load(model)
    if second and not loaded.config.use.end:
        raise ClearheadError("this model reads one text at a time; leave out --second.")
    if loaded.config.model.input.kind == "tokens":
        hints.if_file(what)
    blocks = read_texts(f"{what}{TAB}{second}" if second else what, file)
    for line, answer in answered(blocks, file, partial(judged, loaded)):
        typer.echo(json.dumps(_tree(line, answer), ensure_ascii=False) if as_json else _words(answer))


def judged(model: "Model", some: list[str]) -> list[Any]:
    """Lines are texts, or pairs of them, for a model of texts, and names of files for others."""
    reads = model.config.model.input.kind
    if reads != "tokens":
        return model.classify(**{"pictures" if reads == "pictures" else "sound": some})
    for number, line in enumerate(some):
        if TAB in line and not model.config.use.end:
            raise Unreadable(number, "has a tab, which separates two texts; this model reads one at a time.")
        if line.count(TAB) > 1:
            raise Unreadable(number, "has several tabs; one stands between the two texts of a pair.")
    given: list[Any] = [tuple(line.split(TAB)) if TAB in line else line for line in some]
    return model.classify(given)


def _tree(line: str, answer: Any) -> dict[str, Any]:
    if isinstance(answer, float):
        return {"input": line, "number": answer}
    return {"input": line, "label": answer.label, "probability": answer.probability, "all": answer.all}


def _words(answer: Any) -> str:
    return f"{answer:.4f}" if isinstance(answer, float) else f"{answer.label}\t{answer.probability:.1%}"
