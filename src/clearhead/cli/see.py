"""`clearhead see`: what a model does with a text, as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.flags import MODEL

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.lens.view import View

    Some = dict[str, Any]

WHAT = (
    "tokens, positions, attention, cross, encoder, scores, contribution, written, rollout, atlas, "
    "residual, lens, logits, attribution, heads"
)


def see(
    model: str = MODEL,
    text: str = typer.Argument(help="What the model reads; of an encoder-decoder, the output.", show_default=False),
    what: str = typer.Option("attention", help=f"{WHAT}."),
    layer: int = typer.Option(None, help="Which block, from 0; the first, or all in a file.", show_default=False),
    head: int = typer.Option(None, help="Which head, from 0; the first, or all in a file.", show_default=False),
    source: str = typer.Option(None, help="What an encoder-decoder reads.", show_default=False),
    token: str = typer.Option(None, help="The answer that is asked about; the likeliest.", show_default=False),
    against: str = typer.Option(None, help="An answer to compare it with.", show_default=False),
    out: Path = typer.Option(
        None, help="Save as .png, .svg, .html, .csv or .npy; without it, draw here.", show_default=False
    ),
) -> None:
    """Show what a model does with a text: where each token looks, and what comes of it."""
    from clearhead import api
    from clearhead.cli.pictures import give
    from clearhead.lens.view import check_out

    if out is not None:
        check_out(out)
    where, given = {"layer": layer, "head": head}, {"source": source} if source else {}
    view = _view(api.load(model), text, what, out is None, where, {"token": token, "against": against}, given)
    give(view, out)


def _view(model: "Model", text: str, what: str, here: bool, where: "Some", asked: "Some", given: "Some") -> "View":
    """`here` is a screen, which holds less than a file; the rest are arguments of those views that take them."""
    from clearhead import lens
    from clearhead.errors import ClearheadError, nearest
    from clearhead.lens.positions import positions

    known = WHAT.split(", ")
    if what not in known:
        raise ClearheadError(f"there is no {what!r} to see; {nearest(what, known)}")
    if here and what in ("attention", "cross", "encoder", "scores", "contribution"):  # one picture fits a screen
        where = {name: place or 0 for name, place in where.items()}
    match what:
        case "tokens":
            return lens.tokens(model, text)
        case "positions":
            return positions(model, **({"count": 16, "dimensions": 20} if here else {}))  # so much fits a screen
        case "attention" | "cross" | "encoder":
            return lens.attention(model, text, part=what, **where, **given)
        case "scores":
            return lens.attention(model, text, what="masked", **where, **given)
        case "contribution":
            return lens.contribution(model, text, **where, **given)
        case "written":
            return lens.written(model, text, **given)
        case "rollout":
            return lens.rollout(model, text, **given)
        case "atlas":
            return lens.atlas(model, text, **given)
        case "residual":
            return lens.residual(model, text, **given)
        case "lens":
            return lens.logit_lens(model, text, **given).view()
        case "logits":
            return lens.logit_lens(model, text, **given, top=10).answers()
        case "attribution":
            return lens.attribution(model, text, **asked, **given)
        case _:
            return lens.sweep(model, text, **asked, **given)
