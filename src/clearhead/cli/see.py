"""`clearhead see`: visualize what a model does with a text."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.common import (
    ABLATE_HEAD_OPTION,
    MODEL_ARGUMENT,
    VIEW_OUTPUT_OPTION,
    ablate_heads,
    show_or_save,
    warn_if_file_name,
)
from clearhead.errors import ClearheadError, suggest

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.lens.view import View

HEAD_OPTIONS = ("layer", "head", "source")
ANSWER_OPTIONS = ("source", "token", "against")
VIEW_OPTIONS: dict[str, tuple[str, ...]] = {  # value of --what -> the options that apply to it
    "tokens": (),
    "positions": (),
    "encoder": HEAD_OPTIONS,
    "attention": (*HEAD_OPTIONS, "ablate-head"),
    "cross": (*HEAD_OPTIONS, "ablate-head"),
    "scores": (*HEAD_OPTIONS, "ablate-head"),
    "value-weighted": (*HEAD_OPTIONS, "ablate-head"),
    "head-norms": ("source", "ablate-head"),
    "rollout": ("source", "ablate-head"),
    "head-scores": ("source", "ablate-head"),
    "residual": ("source", "ablate-head"),
    "lens": ("source", "ablate-head"),
    "logits": ("source", "ablate-head"),
    "attribution": (*ANSWER_OPTIONS, "ablate-head"),
    "ablation": ANSWER_OPTIONS,
    "patching": (*ANSWER_OPTIONS, "patch-from"),
    "find-head": ("find-head",),
}
REQUIRED_OPTION = {
    "find-head": ("find-head", "--find-head creature fluffy"),
    "patching": ("patch-from", "--patch-from TEXT"),
}
# What fits on a terminal.
MAX_POSITIONS = 16
MAX_DIMENSIONS = 20


def see(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(
        help="The input; for an encoder-decoder, the output.", show_default=False
    ),
    what: str = typer.Option(
        "", help=f"{', '.join(VIEW_OPTIONS)}. Default: attention.", show_default=False
    ),
    layer: int = typer.Option(
        None, help="Layer from 0, or from the end: -1. Default: 0; all in a file.",
        show_default=False,
    ),
    head: int = typer.Option(
        None, help="Head from 0, or from the end: -1. Default: 0; all in a file.",
        show_default=False,
    ),
    source: str = typer.Option(None, help="Source text of an encoder-decoder.", show_default=False),
    token: str = typer.Option(
        None, help="The answer to explain. Default: the most likely token.", show_default=False
    ),
    against: str = typer.Option(
        None, help="Explain the logit difference to this answer.", show_default=False
    ),
    patch_from: str = typer.Option(
        None,
        help="Activation patching from this text with the same number of tokens.",
        show_default=False,
    ),
    ablate_head: list[str] = ABLATE_HEAD_OPTION,
    find_head: tuple[str, str] = typer.Option(
        None, help="Find the heads where the first word attends most to the second.",
        show_default=False,
    ),
    output: Path = VIEW_OUTPUT_OPTION,
) -> None:  # fmt: skip
    """Visualize what a model does with a text.

    Attention, logit lens, attribution, ablation, activation patching, and more.
    """
    from clearhead import lens
    from clearhead.api import load
    from clearhead.lens.view import check_output_path

    if output is not None:
        check_output_path(output)
    options = {
        "layer": layer,
        "head": head,
        "source": source,
        "token": token,
        "against": against,
        "patch-from": patch_from,
        "ablate-head": ablate_head or None,
        "find-head": find_head,
    }
    what = what or _implied_view(options)
    _check_options(what, [name for name, value in options.items() if value is not None])
    loaded = load(model)
    if loaded.config.model.main_input.kind == "tokens":
        warn_if_file_name(text, '"$(cat {})" passes its content')
    if find_head is not None:
        word, attended = find_head
        show_or_save(lens.word_attention(loaded, word, text).find_heads(attended), output)
        return
    _check_model(loaded, what, source)
    inputs: dict[str, Any] = {} if source is None else {"source": source}
    if ablate_head:
        inputs["edits"] = ablate_heads(loaded, ablate_head)
    answer = {"token": token, "against": against}
    if patch_from is not None:
        view: View = lens.patching(loaded, text, patch_from, **answer, **inputs)
    elif what in ("attribution", "ablation"):
        explain = lens.attribution if what == "attribution" else lens.ablation
        view = explain(loaded, text, **answer, **inputs)
    elif "head" in VIEW_OPTIONS[what]:
        if output is None:  # a terminal shows one head
            layer = layer or 0
            head = head or 0
        view = _attention_view(loaded, text, what, {"layer": layer, "head": head, **inputs})
    else:
        view = _text_view(loaded, text, what, output is None, inputs)
    show_or_save(view, output)


def _implied_view(options: dict[str, Any]) -> str:
    if options["find-head"] is not None:
        return "find-head"
    return "patching" if options["patch-from"] is not None else "attention"


def _check_options(what: str, names: list[str]) -> None:
    """Raise if the view does not exist, ignores an option, or lacks one."""
    if what not in VIEW_OPTIONS:
        raise ClearheadError(f"--what {what} does not exist; {suggest(what, VIEW_OPTIONS)}")
    for name in names:
        if name not in VIEW_OPTIONS[what]:
            views = ", ".join(view for view, options in VIEW_OPTIONS.items() if name in options)
            raise ClearheadError(f"--{name} does not apply to --what {what}, only to {views}.")
    if what in REQUIRED_OPTION:
        name, usage = REQUIRED_OPTION[what]
        if name not in names:
            raise ClearheadError(f"--what {what} needs {usage}.")


def _check_model(model: "Model", what: str, source: str | None) -> None:
    """Raise if the model does not read texts, or a source text is missing."""
    from clearhead.config import EncoderDecoder, Tokens

    if "source" not in VIEW_OPTIONS[what]:
        return
    m = model.config.model
    is_encoder_decoder = isinstance(m.architecture, EncoderDecoder)
    if not isinstance(m.main_input, Tokens):
        argument = "images" if m.main_input.kind == "images" else "audio"
        raise ClearheadError(
            f"this model reads {argument}; use Python: ch.lens.rollout(model, {argument}=…)."
        )
    if what in ("cross", "encoder") and not is_encoder_decoder:
        raise ClearheadError(f"--what {what} needs an encoder-decoder, not {m.architecture.kind}.")
    if is_encoder_decoder and source is None:
        raise ClearheadError("this model is an encoder-decoder; give its input with --source.")


def _attention_view(model: "Model", text: str, what: str, options: dict[str, Any]) -> "View":
    from clearhead import lens

    match what:
        case "scores":
            return lens.attention(model, text, activation="masked_scores", **options)
        case "value-weighted":
            return lens.value_weighted_attention(model, text, **options)
        case "encoder" | "cross":
            return lens.attention(model, text, kind=what, **options)
        case _:
            return lens.attention(model, text, **options)


def _text_view(
    model: "Model", text: str, what: str, is_terminal: bool, inputs: dict[str, Any]
) -> "View":
    from clearhead import lens

    match what:
        case "tokens":
            return lens.tokens(model, text)
        case "positions" if is_terminal:
            return lens.positional_encodings(model, MAX_POSITIONS, MAX_DIMENSIONS)
        case "positions":
            return lens.positional_encodings(model)
        case "head-norms":
            return lens.head_output_norms(model, text, **inputs)
        case "rollout":
            return lens.rollout(model, text, **inputs)
        case "head-scores":
            return lens.head_scores(model, text, **inputs)
        case "residual":
            return lens.residual_norms(model, text, **inputs)
        case "lens":
            return lens.logit_lens(model, text, **inputs)
        case _:
            return lens.logit_lens(model, text, top_k=10, **inputs).final_predictions()
