"""`clearhead see`: what a model does with a text, as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.common import ABLATE_HEAD_OPTION, MODEL_ARGUMENT, ablate_heads, warn_if_file_name

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.lens.view import View

    Some = dict[str, Any]

HEADS = ("layer", "head", "source")
ANSWERS = ("source", "token", "against")
VIEW_OPTIONS: dict[
    str, tuple[str, ...]
] = {  # what can be seen, and which options have a part in it
    "tokens": (),
    "positions": (),
    "encoder": HEADS,  # none of whose heads can be left out
    **dict.fromkeys(("attention", "cross", "scores", "contribution"), (*HEADS, "without")),
    **dict.fromkeys(
        ("written", "rollout", "atlas", "residual", "lens", "logits"), ("source", "without")
    ),
    "attribution": (*ANSWERS, "without"),
    "heads": ANSWERS,
    "patching": (*ANSWERS, "other"),
    "looks": ("find",),
}
WHAT = ", ".join(VIEW_OPTIONS)


def see(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(
        help="What the model reads; of an encoder-decoder, the output.", show_default=False
    ),
    what: str = typer.Option("", help=f"{WHAT}; attention without it.", show_default=False),
    layer: int = typer.Option(
        None,
        help="Which block, from 0, or from the end: -1; the first, or all in a file.",
        show_default=False,
    ),
    head: int = typer.Option(
        None,
        help="Which head, from 0, or from the end: -1; the first, or all in a file.",
        show_default=False,
    ),
    source: str = typer.Option(None, help="What an encoder-decoder reads.", show_default=False),
    token: str = typer.Option(
        None, help="The answer that is asked about; the likeliest.", show_default=False
    ),
    against: str = typer.Option(None, help="An answer to compare it with.", show_default=False),
    patch_from: str = typer.Option(
        None,
        help="Another text of as many tokens: its values are put in, its answer asked for.",
        show_default=False,
    ),
    ablate_head: list[str] = ABLATE_HEAD_OPTION,
    find_head: tuple[str, str] = typer.Option(
        None,
        help="Two words: the heads in which the first looks most at the second.",
        show_default=False,
    ),
    output: Path = typer.Option(
        None,
        help="Save as .png, .svg, .html, .csv or .npy; without it, draw here.",
        show_default=False,
    ),
) -> None:
    """Show what a model does with a text.

    Where each token looks, what heads write, what each layer would answer, and which parts an answer comes from.
    """
    from clearhead import lens
    from clearhead.api import load
    from clearhead.cli.common import show_or_save
    from clearhead.lens.view import check_output_path

    if output is not None:
        check_output_path(output)
    what = what or ("looks" if find_head else "patching" if patch_from is not None else "attention")
    where = {"layer": layer, "head": head}
    asked = {"token": token, "against": against}
    given = {"source": source} if source is not None else {}
    others = {"find": find_head, "other": patch_from, "without": ablate_head or None}
    _check(
        what,
        [name for name, value in (where | asked | given | others).items() if value is not None],
    )
    loaded = load(model)
    if loaded.config.model.main_input.kind == "tokens":
        warn_if_file_name(text, '"$(cat {})" in its place gives what it holds')
    if find_head is not None:
        first, second = find_head
        show_or_save(lens.word_attention(loaded, first, text).find_heads(second), output)
        return
    _check_source(loaded, what, source)
    if ablate_head:
        given |= {"edits": ablate_heads(loaded, ablate_head)}
    if patch_from is not None:
        show_or_save(lens.patching(loaded, text, patch_from, **asked, **given), output)
        return
    show_or_save(_view(loaded, text, what, output is None, where, asked, given), output)


def _check(what: str, options: list[str]) -> None:
    """Refuses what cannot be seen, and options that would change nothing."""
    from clearhead.errors import ClearheadError, suggest

    if what not in VIEW_OPTIONS:
        raise ClearheadError(f"there is no {what!r} to see; {suggest(what, VIEW_OPTIONS)}")
    for name in options:
        if name not in VIEW_OPTIONS[what]:
            others = ", ".join(other for other, takes in VIEW_OPTIONS.items() if name in takes)
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
    reads = m.main_input
    if "source" not in VIEW_OPTIONS[what]:
        return
    if not isinstance(reads, c.Tokens):
        kind = "images" if isinstance(reads, c.Images) else "audio"
        call = f"ch.lens.rollout(model, {kind}=…)"
        raise ClearheadError(
            f"this model reads {kind}, and here only texts are seen; in Python, {call} sees it."
        )
    if what in ("cross", "encoder") and not isinstance(m.architecture, c.EncoderDecoder):
        raise ClearheadError(
            f"--what {what} is of an encoder-decoder; this model is of shape {m.architecture.kind}."
        )
    if isinstance(m.architecture, c.EncoderDecoder) and source is None:
        raise ClearheadError(
            "this model also reads a source, from which the text is made; give it with --source."
        )


def _view(
    model: "Model", text: str, what: str, here: bool, where: "Some", asked: "Some", given: "Some"
) -> "View":
    """`here` is a screen, which holds less than a file; the rest are arguments of those views that take them."""
    from clearhead import lens
    from clearhead.lens.positions import positional_encodings

    if here and "head" in VIEW_OPTIONS[what]:  # one picture fits a screen
        where = {name: place or 0 for name, place in where.items()}
    match what:
        case "tokens":
            return lens.tokens(model, text)
        case "positions":
            return positional_encodings(
                model, **({"count": 16, "dimensions": 20} if here else {})
            )  # so much fits a screen
        case "attention" | "cross" | "encoder":
            return lens.attention(model, text, part=what, **where, **given)
        case "scores":
            return lens.attention(model, text, what="masked", **where, **given)
        case "contribution":
            return lens.value_weighted_attention(model, text, **where, **given)
        case "written":
            return lens.head_output_norms(model, text, **given)
        case "rollout":
            return lens.rollout(model, text, **given)
        case "atlas":
            return lens.head_scores(model, text, **given)
        case "residual":
            return lens.residual_norms(model, text, **given)
        case "lens":
            return lens.logit_lens(model, text, **given)
        case "logits":
            return lens.logit_lens(model, text, **given, top=10).final_predictions()
        case "attribution":
            return lens.attribution(model, text, **asked, **given)
        case _:
            return lens.ablation(model, text, **asked, **given)
