"""Positions (L2): what each scheme adds or rotates, and what changes when a text is shifted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError, check_int
from clearhead.hooks import Recorder, force_eager
from clearhead.lens.argument_checks import (
    check_head,
    check_layer,
    check_model,
    check_single_text,
)
from clearhead.lens.text_stack import TextStack
from clearhead.lens.tokens import token_labels
from clearhead.lens.view import View, label_axes
from clearhead.model import positions as schemes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from clearhead.api import Model, TextInput

DEFAULT_NUM_POSITIONS = 32
SCHEME_NOTES = {
    "learned": "the learned vector that is added to the token at each position",
    "sinusoidal": "the vector that is added to the token at each position: sines and cosines of "
    "decreasing frequency, next to the bits of the position, which also flip ever more slowly",
    "rotary": "the cosine of the angle by which each pair of dimensions is rotated",
}


def positional_encodings(
    model: "Model", count: int = DEFAULT_NUM_POSITIONS, dimensions: int | None = None
) -> View:
    """scheme × position × dimension: what is added at each position; for rotary, cosines of angles.

    Sinusoidal encodings are shown next to binary counting: from column to column, the bits of the
    position flip less often, by the same factor as the frequency of the sinusoids decreases.
    `dimensions` limits the number of dimensions, which are evenly spaced.
    """
    check_model(model)
    scheme, values, frequencies = _encodings(model, count)
    shown = _evenly_spaced(len(frequencies), dimensions)
    maps = {scheme: values}
    if scheme == "sinusoidal":
        bits = (torch.arange(count)[:, None] >> _bit_of_dimension(frequencies)) % 2
        maps["binary counting"] = bits * values.abs().max()  # the same range of colors
    return View(
        torch.stack(list(maps.values()))[..., shown],
        label_axes({"scheme": list(maps), "position": count, "dimension": list(map(str, shown))}),
        f"{scheme} positions",
        "value",
        signed=True,
        note=SCHEME_NOTES[scheme],
    )


def _bit_of_dimension(frequencies: Tensor) -> Tensor:
    """For each dimension the bit that is as much slower than the lowest bit as its wave is slower.

    Where there are few waves, each far slower than the one before, no bit is skipped.
    """
    distinct, index = frequencies.unique(return_inverse=True)
    octaves = (frequencies.max() / frequencies).log2().round().long()
    return octaves.minimum(len(distinct) - 1 - index)


def _evenly_spaced(size: int, count: int | None) -> list[int]:
    """All indices below `size`, or `count` of them."""
    if count is None:
        return list(range(size))
    check_int("dimensions", count, minimum=1)
    return [i * size // count for i in range(count)] if count < size else list(range(size))


def position_similarity(model: "Model", count: int = DEFAULT_NUM_POSITIONS) -> View:
    """position × position: cosine of their vectors; for rotary, the mean cosine of angles."""
    check_model(model)
    scheme, values, frequencies = _encodings(model, count)
    if scheme == "rotary":
        distance = torch.arange(count)[:, None] - torch.arange(count)
        similarity = (distance[..., None] * frequencies).cos().mean(dim=-1)
    else:
        unit = F.normalize(values, dim=-1)
        similarity = unit @ unit.mT
    return View(
        similarity,
        label_axes({"position": count, "other": count}),
        f"similarity of {scheme} positions",
        "cosine",
        signed=True,
        vmax=1.0,
    )


def rotary_angles(model: "Model", count: int = DEFAULT_NUM_POSITIONS) -> View:
    """position × pair of dimensions: the angle of rotation of queries and keys, in full turns."""
    check_model(model)
    _check_count(model, count)
    position = model.net.position
    if not isinstance(position, schemes.Rotary):
        raise ClearheadError(f"rotary_angles needs rotary positions, got {_scheme(model)!r}.")
    frequencies = position.frequencies(torch.device("cpu"))
    return View(
        torch.arange(count)[:, None] * frequencies / (2 * math.pi),
        label_axes({"position": count, "pair": len(frequencies)}),
        "rotary angles",
        "turns",
        note="full turns at each position; pair i is dimensions i and i + half of the rotated ones",
    )


def relative_bias(model: "Model", count: int = DEFAULT_NUM_POSITIONS) -> View:
    """head × distance: what is added to a score if the key lies that far before the query."""
    check_model(model)
    _check_count(model, count)
    position = model.net.position
    if not isinstance(position, schemes.T5 | schemes.ALiBi):
        raise ClearheadError(f"relative_bias needs t5 or alibi positions, got {_scheme(model)!r}.")
    distances = list(range(count) if model.net.is_causal else range(1 - count, count))
    parameter = next(model.net.parameters())
    query = torch.tensor([[count - 1]], device=parameter.device)
    keys = query - torch.tensor([distances], device=parameter.device)
    n_heads = model.config.model.attention.n_heads
    with torch.no_grad():
        layer_position = position.layer_positions(query, keys, 1)[0]
        bias = layer_position.bias(parameter.new_zeros(1, n_heads, 1, 1), 1.0)
    assert bias is not None
    return View(
        bias[0, :, 0],
        label_axes({"head": n_heads, "distance": [str(distance) for distance in distances]}),
        f"{_scheme(model)} bias",
        "bias",
        signed=True,
        note="added to the scores of a head",
    )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PositionShift(View):
    """layer × token: the relative change of the residual stream; `patterns`: that of attention."""

    patterns: View


def position_shift(model: "Model", x: "TextInput", offset: int = 1) -> PositionShift:
    """What changes when a text starts `offset` positions later (L2.4, L2.5).

    Nothing, if the scheme depends on distances only.
    """
    check_model(model)
    m = model.config.model
    if not isinstance(m.input, c.Tokens) or isinstance(m.architecture, c.EncoderDecoder):
        raise ClearheadError("position_shift needs a decoder or encoder of text.")
    batch = model.make_batch(x)
    check_single_text(batch.inputs)
    num_tokens = batch.inputs.shape[1]
    check_int("offset", offset, minimum=1)
    if isinstance(m.position, c.Learned) and num_tokens + offset > m.context_length:
        raise ClearheadError(
            f"offset must be at most {m.context_length - num_tokens}, got {offset}: the model has "
            f"{m.context_length} learned positions, the text {num_tokens} tokens."
        )
    residuals = [f"blocks.{i}.resid_post" for i in range(m.n_layers)]
    patterns = [f"blocks.{i}.attn.pattern" for i in range(m.n_layers)]
    runs = []
    for start in (0, offset):
        recorder = Recorder([*residuals, *patterns])
        position_ids = torch.arange(start, start + num_tokens, device=batch.inputs.device)[None]
        with torch.no_grad(), force_eager():
            model.net(batch.inputs, position_ids=position_ids, hooks=recorder)
        runs.append({name: value[0].float().cpu() for name, value in recorder.values.items()})
    before, after = runs
    residual_change = torch.stack(
        [
            (after[name] - before[name]).norm(dim=-1) / before[name].norm(dim=-1)
            for name in residuals
        ]
    )
    pattern_change = torch.stack(
        [(after[name] - before[name]).abs().amax(dim=(-1, -2)) for name in patterns]
    )
    tokens = token_labels(model.tokenizer, batch.unpadded_rows()[0])
    title = f"shifted by {offset} positions"
    return PositionShift(
        values=residual_change,
        axes=label_axes({"layer": m.n_layers, "token": tokens}),
        title=title,
        value_name="change",
        note="|change of the residual stream| / |residual stream| after each layer",
        patterns=View(
            pattern_change,
            label_axes({"layer": m.n_layers, "head": pattern_change.shape[1]}),
            title,
            "change",
            note="largest change of a weight in the pattern of each head",
        ),
    )


@dataclass(frozen=True, eq=False, repr=False)
class PositionCurves(View):
    """position × dimension, drawn as a curve over the dimensions for each position."""

    def figure(self, dark: bool = False) -> "Figure":
        """A matplotlib figure."""
        from clearhead.lens.render.matplotlib import render_curves_figure

        return render_curves_figure(self, dark)

    def terminal(self) -> "Text":
        """The curves in characters."""
        from clearhead.lens.render.terminal import render_curves_text

        return render_curves_text(self)

    def _repr_html_(self) -> str:
        from clearhead.lens.render.html import render_curves_html

        return render_curves_html(self)


def position_curves(model: "Model", positions: Sequence[int] = (2, 50)) -> PositionCurves:
    """What is added at these positions, as curves over the dimensions; for rotary, cosines."""
    check_model(model)
    if not isinstance(positions, list | tuple) or not positions:
        raise ClearheadError(f"positions must be a list such as [2, 50], got {positions!r:.60}.")
    for position in positions:
        check_int("positions", position, maximum=model.net.context_length - 1)
    scheme, values, _ = _encodings(model, max(*positions, 1) + 1)
    names = [str(position) for position in positions]
    return PositionCurves(
        values[list(positions)],
        label_axes({"position": names, "dimension": values.shape[1]}),
        f"{scheme} positions {', '.join(names)}",
        "value",
        signed=True,
        note=SCHEME_NOTES[scheme].partition(":")[0],
    )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PhraseShift(View):
    """Scores of a phrase in two texts, (head ×) text × query × key."""

    differences: View  # the largest difference of a score in each head


def phrase_shift(
    model: "Model", first: str, second: str, *, layer: int = 0, head: int | None = None
) -> PhraseShift:
    """Attention scores among words that two texts share at different positions (L2.4, L2.5).

    "I walk my dog every day" and "every single day I walk my dog" share "I walk my dog". In layer 0
    relative and rotary positions give the words the same scores among themselves; absolute
    positions do not. After it the words differ, because they have read what surrounds them.
    """
    check_model(model)
    text_stack = TextStack(model)
    layer = check_layer(layer, len(text_stack.stack.blocks))
    n_heads = model.config.model.attention.n_heads
    if head is not None:
        head = check_head(head, n_heads)
    rows = [text_stack.tokenizer.encode(text) for text in (first, second)]
    match = SequenceMatcher(None, rows[0], rows[1], autojunk=False).find_longest_match()
    starts = (match.a, match.b)
    phrase = text_stack.to_str_tokens(rows[0][match.a : match.a + match.size])
    if match.size < 2 or match.a == match.b:
        found = f"{' '.join(phrase)!r} stands at the same one" if match.size > 1 else "none found"
        raise ClearheadError(
            "the two texts must share at least two tokens in a row, at different positions; "
            f"{found}."
        )
    name = f"{text_stack.prefix}blocks.{layer}.attn.scores"
    num_bos = len(text_stack.bos_tokens)
    scores = []
    for row, start in zip(rows, starts, strict=True):
        ids = [*text_stack.bos_tokens, *row, *text_stack.sep_tokens]
        span = slice(num_bos + start, num_bos + start + match.size)
        scores.append(text_stack.watch([ids], [name])[name][0, :, span, span].float().cpu())
    both = torch.stack(scores, dim=1)  # head text query key
    largest = (both[:, 0] - both[:, 1]).abs().amax(dim=(-1, -2))
    names = [f"from token {num_bos + start}" for start in starts]
    axes = label_axes({"head": n_heads, "text": names, "query": phrase, "key": phrase})
    title = f"layer {layer}, scores among {' '.join(phrase)}, {_scheme(model)} positions"
    return PhraseShift(
        both if head is None else both[head],
        axes if head is None else axes[1:],
        title if head is None else f"{title}, head {head}",
        "score",
        signed=True,
        note=f"largest difference between the two texts, all heads: {float(largest.max()):.2g}",
        differences=View(
            largest,
            axes[:1],
            title,
            "difference",
            note="largest difference of a score between the two texts",
        ),
    )


def _encodings(model: "Model", count: int) -> tuple[str, Tensor, Tensor]:
    """The scheme, its values position × dimension, and each dimension's frequency (radians)."""
    _check_count(model, count)
    position = model.net.position
    device = torch.device("cpu")
    if isinstance(position, schemes.Rotary):
        frequencies = position.frequencies(device)
        return "rotary", (torch.arange(count)[:, None] * frequencies).cos(), frequencies
    position_ids = torch.arange(count, device=next(model.net.parameters()).device)[None]
    with torch.no_grad():
        added = position.embed(position_ids, torch.float32)
    if added is None:
        has_bias = isinstance(position, schemes.T5 | schemes.ALiBi)
        instead = "relative_bias" if has_bias else "position_shift"
        raise ClearheadError(f"{_scheme(model)!r} positions have no vectors; use {instead}.")
    d_model = added.shape[-1]
    frequencies = schemes.inverse_frequencies(d_model + d_model % 2, schemes.DEFAULT_THETA, device)
    has_halves = isinstance(position, schemes.Sinusoidal) and position.layout == "halves"
    by_dimension = frequencies.repeat(2) if has_halves else frequencies.repeat_interleave(2)
    return _scheme(model), added[0].float().cpu(), by_dimension[:d_model]


def _check_count(model: "Model", count: int) -> None:
    check_int("count", count, minimum=2, maximum=model.net.context_length)


def _scheme(model: "Model") -> str:
    return model.config.model.position.kind
