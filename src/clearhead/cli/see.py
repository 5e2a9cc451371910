"""`clearhead see`: what a model does with a text, as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli import hints
from clearhead.cli.flags import MODEL
from clearhead.cli.without import WITHOUT, edits

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.lens.view import View

    Some = dict[str, Any]

HEADS, ANSWERS = ("layer", "head", "source"), ("source", "token", "against")
TAKES: dict[str, tuple[str, ...]] = {  # what can be seen, and which options have a part in it
    "tokens": (),
    "positions": (),
    "encoder": HEADS,  # none of whose heads can be left out
    **dict.fromkeys(("attention", "cross", "scores", "contribution"), (*HEADS, "without")),
    **dict.fromkeys(("written", "rollout", "atlas", "residual", "lens", "logits"), ("source", "without")),
    "attribution": (*ANSWERS, "without"),
    "heads": ANSWERS,
    "patching": (*ANSWERS, "other"),
    "looks": ("find",),
}
WHAT = ", ".join(TAKES)


def see(
    model: str = MODEL,
    text: str = typer.Argument(help="What the model reads; of an encoder-decoder, the output.", show_default=False),
    what: str = typer.Option("", help=f"{WHAT}; attention without it.", show_default=False),
    layer: int = typer.Option(
        None, help="Which block, from 0, or from the end: -1; the first, or all in a file.", show_default=False
    ),
    head: int = typer.Option(
        None, help="Which head, from 0, or from the end: -1; the first, or all in a file.", show_default=False
    ),
    source: str = typer.Option(None, help="What an encoder-decoder reads.", show_default=False),
    token: str = typer.Option(None, help="The answer that is asked about; the likeliest.", show_default=False),
    against: str = typer.Option(None, help="An answer to compare it with.", show_default=False),
    other: str = typer.Option(
        None, help="Another text of as many tokens: its values are put in, its answer asked for.", show_default=False
    ),
    without: list[str] = WITHOUT,
    find: tuple[str, str] = typer.Option(
        None, help="Two words: the heads in which the first looks most at the second.", show_default=False
    ),
    out: Path = typer.Option(
        None, help="Save as .png, .svg, .html, .csv or .npy; without it, draw here.", show_default=False
    ),
) -> None:
    """Show what a model does with a text.

    Where each token looks, what heads write, what each layer would answer, and which parts an answer comes from.
    """
    from clearhead import api, lens
    from clearhead.cli.pictures import give
    from clearhead.lens.view import check_out

    if out is not None:
        check_out(out)
    what = what or ("looks" if find else "patching" if other is not None else "attention")
    where, asked = {"layer": layer, "head": head}, {"token": token, "against": against}
    given = {"source": source} if source is not None else {}
    others = {"find": find, "other": other, "without": without or None}
    _check(what, [name for name, value in (where | asked | given | others).items() if value is not None])
    loaded = api.load(model)
    if loaded.config.model.reads.kind == "tokens":
        hints.if_file(text, '"$(cat {})" in its place gives what it holds')
    if find is not None:
        first, second = find
        give(lens.looks(loaded, first, text).heads(second), out)
        return
    _check_source(loaded, what, source)
    if without:
        given |= {"edits": edits(loaded, without)}
    if other is not None:
        give(lens.patching(loaded, text, other, **asked, **given), out)
        return
    give(_view(loaded, text, what, out is None, where, asked, given), out)


def _check(what: str, options: list[str]) -> None:
    """Refuses what cannot be seen, and options that would change nothing."""
    from clearhead.errors import ClearheadError, nearest

    if what not in TAKES:
        raise ClearheadError(f"there is no {what!r} to see; {nearest(what, TAKES)}")
    for name in options:
        if name not in TAKES[what]:
            others = ", ".join(other for other, takes in TAKES.items() if name in takes)
            raise ClearheadError(f"--{name} has no part in --what {what}; it has one in {others}.")
    for view, needed, why in (
        ("looks", "find", "is of two words of the text; name them: --find creature fluffy."),
        ("patching", "other", "puts in what another text has; give it: --other TEXT."),
    ):
        if what == view and needed not in options:
            raise ClearheadError(f"--what {view} {why}")


def _check_source(model: "Model", what: str, source: str | None) -> None:
    """Refuses, in words of the shell, models that read more than a text, and those that read something else."""
    from clearhead import config as c
    from clearhead.errors import ClearheadError

    m = model.config.model
    reads = m.reads
    if "source" not in TAKES[what]:
        return
    if not isinstance(reads, c.Tokens):
        kind = "pictures" if isinstance(reads, c.Pictures) else "sound"
        call = f"ch.lens.rollout(model, {kind}=…)"
        raise ClearheadError(f"this model reads {kind}, and here only texts are seen; in Python, {call} sees it.")
    if what in ("cross", "encoder") and not isinstance(m.shape, c.EncoderDecoder):
        raise ClearheadError(f"--what {what} is of an encoder-decoder; this model is of shape {m.shape.kind}.")
    if isinstance(m.shape, c.EncoderDecoder) and source is None:
        raise ClearheadError("this model also reads a source, from which the text is made; give it with --source.")


def _view(model: "Model", text: str, what: str, here: bool, where: "Some", asked: "Some", given: "Some") -> "View":
    """`here` is a screen, which holds less than a file; the rest are arguments of those views that take them."""
    from clearhead import lens
    from clearhead.lens.positions import positions

    if here and "head" in TAKES[what]:  # one picture fits a screen
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
            return lens.logit_lens(model, text, **given)
        case "logits":
            return lens.logit_lens(model, text, **given, top=10).answers()
        case "attribution":
            return lens.attribution(model, text, **asked, **given)
        case _:
            return lens.sweep(model, text, **asked, **given)
