"""`clearhead see`: visualize what a model does with a text."""

import re
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
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.lens.view import View

HEAD_OPTIONS = ("layer", "head", "source")
ANSWER_OPTIONS = ("source", "token", "against")
VIEW_OPTIONS: dict[str, tuple[str, ...]] = {  # value of --what -> the options that apply to it
    "tokens": (),
    "positions": ("at",),
    "position-shift": ("offset",),
    "phrase-shift": ("layer", "head", "shifted"),
    "encoder": HEAD_OPTIONS,
    "attention": (*HEAD_OPTIONS, "ablate-head"),
    "cross": (*HEAD_OPTIONS, "ablate-head"),
    "simple-attention": ("layer", "source", "ablate-head"),
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
    "context": ("sentence",),
}
REQUIRED_OPTION = {
    "find-head": ("find-head", "--find-head creature:fluffy or --find-head adjectives"),
    "patching": ("patch-from", "--patch-from TEXT"),
    "phrase-shift": ("shifted", "--shifted TEXT"),
    "context": ("sentence", "two sentences with the word TEXT: --sentence TEXT --sentence TEXT"),
}
# What fits on a terminal.
MAX_POSITIONS = 16
MAX_DIMENSIONS = 20


def see(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(
        None,
        metavar="[TEXT]",
        help="The input text; of an encoder-decoder, the output. --what positions and --find-head "
        "CONTRAST need none.",
        show_default=False,
    ),
    what: str = typer.Option(
        "",
        metavar="VIEW",
        help=f"{', '.join(VIEW_OPTIONS)}. Default: attention.",
        show_default=False,
    ),
    layer: int = typer.Option(
        None,
        help="Layer; negative ones count from the end. Default: 0, or all with --output; "
        "for simple-attention the embeddings.",
        show_default=False,
    ),
    head: int = typer.Option(
        None,
        help="Head; negative ones count from the end. Default: 0, or all with --output.",
        show_default=False,
    ),
    source: str = typer.Option(None, help="Source text of an encoder-decoder.", show_default=False),
    token: str = typer.Option(
        None,
        help="The token or label to explain; a word with the space before it, if that is a token. "
        "Default: the most likely one.",
        show_default=False,
    ),
    against: str = typer.Option(
        None, help="Explain the logit difference to this token or label.", show_default=False
    ),
    patch_from: str = typer.Option(
        None,
        help="Patch activations from this text, which has the same number of tokens.",
        show_default=False,
    ),
    at: list[int] = typer.Option(
        [],
        metavar="POSITION",
        help="Draw the curve of this position. May be repeated: --at 2 --at 50.",
        show_default=False,
    ),
    offset: int = typer.Option(
        None, help="Shift the text by this many positions. Default: 1.", show_default=False
    ),
    shifted: str = typer.Option(
        None,
        metavar="TEXT",
        help="A text with the same words at other positions.",
        show_default=False,
    ),
    sentence: list[str] = typer.Option(
        [],
        metavar="TEXT",
        help="Compare the vectors of the word TEXT in these sentences. May be repeated.",
        show_default=False,
    ),
    ablate_head: list[str] = ABLATE_HEAD_OPTION,
    find_head: str = typer.Option(
        None,
        metavar="WORD:WORD|CONTRAST",
        help="Find the heads where the first word attends most to the second in the text; or those "
        "with the effect of a contrast, with controls: a table of sentences, or adjectives, "
        "described-noun, it or pronouns.",
        show_default=False,
    ),
    output: Path = VIEW_OUTPUT_OPTION,
) -> None:
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
        "at": at or None,
        "offset": offset,
        "shifted": shifted,
        "sentence": sentence or None,
        "ablate-head": ablate_head or None,
        "find-head": find_head,
    }
    what = what or _implied_view(options)
    _check_options(what, [name for name, value in options.items() if value is not None])
    if what == "positions":  # they are those of any text
        if text is not None:
            raise ClearheadError("--what positions needs no text; positions are those of any text.")
        text = ""
    if against == "":
        raise ClearheadError("--against must be a token or a label, got an empty text.")
    _check_text(text, find_head)
    loaded = load(model)
    if find_head is not None and text is None:
        show_or_save(lens.find_heads(loaded, find_head), output)
        return
    if loaded.config.model.main_input.kind == "tokens":
        warn_if_file_name(text, 'use "$(cat {})" to pass its content')
    if find_head is not None:
        word, _, attended = find_head.partition(":")
        show_or_save(lens.word_attention(loaded, word, text).find_heads(attended), output)
        return
    _check_model(loaded, what, source)
    if what == "simple-attention":
        _check_ablated(loaded, layer, ablate_head)
    if output is None and what != "simple-attention":  # a terminal shows one head
        layer = layer or 0
        head = head or 0
    view = _make_view(
        loaded,
        text,
        what,
        heads={"layer": layer, "head": head},
        answer={"token": token, "against": against},
        patch_from=patch_from,
        sentences=sentence,
        positions={"at": at, "offset": 1 if offset is None else offset, "shifted": shifted},
        inputs={
            "source": source,
            "edits": ablate_heads(loaded, ablate_head) if ablate_head else None,
        },
        limits=() if output else (MAX_POSITIONS, MAX_DIMENSIONS),
    )
    show_or_save(view, output)


def _implied_view(options: dict[str, Any]) -> str:
    if options["find-head"] is not None:
        return "find-head"
    return "patching" if options["patch-from"] is not None else "attention"


def _check_options(what: str, names: list[str]) -> None:
    """Raise if the view does not exist, ignores an option, or lacks one."""
    if what not in VIEW_OPTIONS:
        parts = re.split("[-_ ]", what)  # logit-lens is lens
        meant = [view for view in VIEW_OPTIONS if view in parts]
        hint = f" Did you mean {meant[0]}?" if meant else ""
        raise ClearheadError(
            f"--what must be one of {', '.join(VIEW_OPTIONS)}; got {what!r}.{hint}"
        )
    for name in names:
        if name not in VIEW_OPTIONS[what]:
            views = ", ".join(view for view, options in VIEW_OPTIONS.items() if name in options)
            raise ClearheadError(f"--{name} does not apply to --what {what}, only to {views}.")
    if what in REQUIRED_OPTION:
        name, usage = REQUIRED_OPTION[what]
        if name not in names:
            raise ClearheadError(f"--what {what} needs {usage}.")


def _check_text(text: str | None, find_head: str | None) -> None:
    """Raise if the text is missing, or the value of --find-head does not fit it."""
    is_pair = find_head is not None and re.fullmatch(r"[^:]+:[^:]+", find_head) is not None
    if text is None and find_head is None:
        raise ClearheadError("give the model a text, as in: clearhead see story 'Once upon a time'")
    if text is None and is_pair and not Path(str(find_head)).is_file():
        raise ClearheadError(f"--find-head {find_head} needs a text with these words.")
    if text is not None and find_head is not None and not is_pair:
        raise ClearheadError(
            f"--find-head must be WORD:WORD, as in creature:fluffy, got {find_head!r:.80}; "
            "a contrast has its own sentences, so leave out the text."
        )


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


def _check_ablated(model: "Model", layer: int | None, ablated: list[str]) -> None:
    """Raise for an ablated head that the embeddings, or the stream after a layer, do not depend on.

    Wrong heads and layers are left to the functions that use them.
    """
    n_layers = model.config.model.n_layers
    last = -1 if layer is None else layer + n_layers if layer < 0 else layer
    for head in ablated:
        head_layer = head.partition(".")[0]
        if head_layer.isdecimal() and last < int(head_layer) < n_layers:
            raise ClearheadError(
                f"--ablate-head {head} does not change simple-attention; it needs --layer "
                f"{int(head_layer)} or a later one."
            )


def _make_view(
    model: "Model",
    text: str,
    what: str,
    heads: dict[str, Any],
    answer: dict[str, Any],
    patch_from: Any,
    sentences: list[str],
    positions: dict[str, Any],
    inputs: dict[str, Any],
    limits: tuple[int, ...],
) -> "View":
    from clearhead import lens

    match what:
        case "tokens":
            return lens.tokens(model, text)
        case "positions" if positions["at"]:
            return lens.position_curves(model, positions["at"])
        case "context":
            return lens.context(model, text, sentences)
        case "position-shift":
            return lens.position_shift(model, text, positions["offset"])
        case "phrase-shift":
            layer = heads["layer"] or 0
            return lens.phrase_shift(
                model, text, positions["shifted"], layer=layer, head=heads["head"]
            )
        case "positions":
            return lens.positional_encodings(model, *limits)
        case "attention":
            return lens.attention(model, text, **heads, **inputs)
        case "encoder" | "cross":
            return lens.attention(model, text, kind=what, **heads, **inputs)
        case "simple-attention":
            return lens.simple_attention(model, text, layer=heads["layer"], **inputs)
        case "scores":
            return lens.attention(model, text, activation="masked_scores", **heads, **inputs)
        case "value-weighted":
            return lens.value_weighted_attention(model, text, **heads, **inputs)
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
        case "logits":
            if model.config.model.head.kind == "regression":
                return lens.logit_lens(model, text, **inputs).final_predictions()
            return lens.logits(model, text, **inputs)
        case "attribution":
            return lens.attribution(model, text, **answer, **inputs)
        case "ablation":
            return lens.ablation(model, text, **answer, source=inputs["source"])
        case _:
            return lens.patching(model, text, patch_from, **answer, source=inputs["source"])
