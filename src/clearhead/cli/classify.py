"""`clearhead classify`: the class of texts, pictures or sounds, or their number."""

import json
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.flags import MODEL
from clearhead.cli.lines import INPUT, read_lines

if TYPE_CHECKING:
    from clearhead.api import Model

SOME = 64  # texts that are judged at once


def classify(
    model: str = MODEL,
    what: str = typer.Argument("", help="A text; or a picture or sound file, where the model reads those."),
    file: str = INPUT,
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line, with the probability of each class."),
) -> None:
    """Judge texts, pictures or sounds."""
    from clearhead import api

    loaded, lines = api.load(model), read_lines(what, file)
    for start in range(0, len(lines), SOME):
        some = lines[start : start + SOME]
        for line, answer in zip(some, judged(loaded, some), strict=True):
            typer.echo(json.dumps(_tree(line, answer), ensure_ascii=False) if as_json else _words(answer))


def judged(model: "Model", some: list[str]) -> list[Any]:
    """Lines are texts for a model of texts, and names of files for others."""
    kind = model.config.model.input.kind
    if kind == "tokens":
        return model.classify(some)
    return model.classify(pictures=some) if kind == "pictures" else model.classify(sound=some)


def _tree(line: str, answer: Any) -> dict[str, Any]:
    if isinstance(answer, float):
        return {"input": line, "number": answer}
    return {"input": line, "label": answer.label, "probability": answer.probability, "all": answer.all}


def _words(answer: Any) -> str:
    return f"{answer:.4f}" if isinstance(answer, float) else f"{answer.label}\t{answer.probability:.1%}"
