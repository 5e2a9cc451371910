"""`clearhead classify`: the class of texts, pictures or sounds, or their number."""

import json
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.flags import MODEL
from clearhead.cli.lines import INPUT, read_texts

if TYPE_CHECKING:
    from clearhead.api import Model

TAB = "\t"  # stands between the two texts of a pair
BRIGHT = 2.0  # deviations of a point, above the mean of what a model expects, that a whole picture may have


def classify(
    model: str = MODEL,
    what: str = typer.Argument("", help="A text; or a picture or sound file, where the model reads those."),
    second: str = typer.Option("", help="A second text, to be judged together with the first.", show_default=False),
    file: str = INPUT,
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line, with the probability of each class."),
) -> None:
    """Judge texts, pictures or sounds.

    Two texts are judged together with --second; in the lines of a file, a tab stands between them.
    clearhead models digits names a picture to try.
    """
    from clearhead import api
    from clearhead.errors import ClearheadError

    if second and not what:
        raise ClearheadError("--second goes with a text; in the lines of a file, a tab stands between two texts.")
    blocks, loaded = read_texts(f"{what}{TAB}{second}" if second else what, file), api.load(model)
    for some in blocks:
        for line, answer in zip(some, judged(loaded, some), strict=True):
            typer.echo(json.dumps(_tree(line, answer), ensure_ascii=False) if as_json else _words(answer))


def judged(model: "Model", some: list[str]) -> list[Any]:
    """Lines are texts, or pairs of them, for a model of texts, and names of files for others."""
    reads = model.config.model.input
    if reads.kind == "tokens":
        given: list[Any] = [tuple(line.split(TAB)) if TAB in line else line for line in some]
        return model.classify(given)
    if reads.kind != "pictures":
        return model.classify(sound=some)
    from clearhead.tokens.pictures import batch

    pictures = batch(some, reads)
    for name in (name for name, picture in zip(some, pictures, strict=True) if picture.mean() > BRIGHT):
        bright = f"{name} is far brighter than what this model expects (about {reads.mean[0]:.2f} of white)"
        typer.echo(f"{bright}; what it reads may have to be light on dark.", err=True)
        break  # of many, one tells enough
    return model.classify(pictures=pictures)


def _tree(line: str, answer: Any) -> dict[str, Any]:
    if isinstance(answer, float):
        return {"input": line, "number": answer}
    return {"input": line, "label": answer.label, "probability": answer.probability, "all": answer.all}


def _words(answer: Any) -> str:
    return f"{answer:.4f}" if isinstance(answer, float) else f"{answer.label}\t{answer.probability:.1%}"
