"""Positions (L2): what each scheme tells a model of where a token stands, and what a shift of the text changes."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import Recorder, force_eager
from clearhead.lens.activations import check_arguments, token_labels
from clearhead.lens.view import Axis, View
from clearhead.model import positions as schemes

if TYPE_CHECKING:
    from clearhead.api import Model

DEFAULT_POSITION_COUNT = 32  # positions, unless more are asked for
SCHEME_NOTES = {
    "learned": "what is added to the token at each position, as it was learned",
    "sinusoidal": "what is added to the token at each position: waves, ever slower; "
    "beside them bits of the position's number (full: 1), which slow down alike",
    "rotary": "the cosine of the angle by which each pair of dimensions is turned at each position",
}


@check_arguments
def positional_encodings(
    model: "Model", count: int = DEFAULT_POSITION_COUNT, dimensions: int | None = None
) -> View:
    """scheme × position × dimension: what is added at each position; of rotary ones the cosine of each pair's angle.

    Sinusoidal ones stand beside binary counting: bits of the position's number, full for a one, empty for a zero, which
    from column to column flip as much less often as the waves grow slower; the lowest bit flips at every position. With
    `dimensions`, only so many of them, evenly spread.
    """
    scheme, values, rates = _waves(model, count)
    shown = _spread(len(rates), dimensions)
    maps = {scheme: values}
    if scheme == "sinusoidal":
        bits = (torch.arange(count)[:, None] >> _bits(rates)) % 2
        maps["binary counting"] = bits * values.abs().max()  # as strong as the waves
    axes = (
        Axis.from_labels("scheme", list(maps)),
        Axis.from_labels("position", count),
        Axis.from_labels("dimension", list(map(str, shown))),
    )
    both = torch.stack(list(maps.values()))[..., shown]
    return View(both, axes, f"{scheme} positions", "value", signed=True, note=SCHEME_NOTES[scheme])


def _bits(rates: Tensor) -> Tensor:
    """For each wave the bit that flips as much less often than the lowest as the wave is slower than the fastest.

    Where waves are few, and each far slower than the one before, no bit is left out.
    """
    paces, place = rates.unique(return_inverse=True)
    return (rates.max() / rates).log2().round().long().minimum(len(paces) - 1 - place)


def _spread(size: int, some: int | None) -> list[int]:
    """All places of a row, or some of them, evenly."""
    if some is not None and (isinstance(some, bool) or not isinstance(some, int) or some < 1):
        raise ClearheadError(f"dimensions = {some!r} must be a whole number, at least 1.")
    return (
        [i * size // some for i in range(some)]
        if some is not None and some < size
        else list(range(size))
    )


@check_arguments
def position_similarity(model: "Model", count: int = DEFAULT_POSITION_COUNT) -> View:
    """position × position: the cosine of their vectors; of rotary ones, the mean cosine of the angle between them."""
    scheme, values, rates = _waves(model, count)
    if scheme == "rotary":
        away = torch.arange(count)[:, None] - torch.arange(count)
        alike = (away[..., None] * rates).cos().mean(dim=-1)
    else:
        unit = F.normalize(values, dim=-1)
        alike = unit @ unit.mT
    axes = Axis.from_labels("position", count), Axis.from_labels("other", count)
    return View(alike, axes, f"similarity of {scheme} positions", "cosine", signed=True, vmax=1.0)


@check_arguments
def rotary_angles(model: "Model", count: int = DEFAULT_POSITION_COUNT) -> View:
    """position × pair of dimensions: the angle by which queries and keys are turned, in turns of 360°."""
    _check(model, count)
    position = model.net.position
    if not isinstance(position, schemes.Rotary):
        raise ClearheadError(
            f"only rotary positions turn; those of this model are {_kind(model)!r}."
        )
    rates = position.frequencies(torch.device("cpu"))
    turns = torch.arange(count)[:, None] * rates / (2 * math.pi)
    axes = Axis.from_labels("position", count), Axis.from_labels("pair", len(rates))
    note = "full turns at each position; pair i is dimensions i and i + half of those that turn"
    return View(turns, axes, "rotary angles", "turns", note=note)


@check_arguments
def relative_bias(model: "Model", count: int = DEFAULT_POSITION_COUNT) -> View:
    """head × distance: what is added to a score, by how far the key lies before the query (below 0: after it)."""
    _check(model, count)
    position = model.net.position
    if not isinstance(position, schemes.T5 | schemes.ALiBi):
        raise ClearheadError(
            f"only relative and alibi positions are a bias by distance alone; those of this model are {_kind(model)!r}."
        )
    back = list(range(count) if model.net.is_causal else range(1 - count, count))
    like = next(model.net.parameters())
    query = torch.tensor([[count - 1]], device=like.device)
    place = position.layer_positions(query, query - torch.tensor([back], device=like.device), 1)[0]
    heads = model.config.model.attention.n_heads
    with torch.no_grad():
        bias = place.bias(like.new_zeros(1, heads, 1, 1), 1.0)
    assert bias is not None
    axes = Axis.from_labels("head", heads), Axis.from_labels("distance", [str(b) for b in back])
    return View(
        bias[0, :, 0],
        axes,
        f"{_kind(model)} bias",
        "bias",
        signed=True,
        note="added to a head's scores",
    )


@dataclass(frozen=True, eq=False, repr=False)
class PositionShift(View):
    """layer × token: how far the stream after a layer moved, as a share of its length. `patterns` is of attention."""

    patterns: View | None = None


@check_arguments
def position_shift(model: "Model", x: Any, by: int = 1) -> PositionShift:
    """What changes when a text starts `by` positions later: nothing, where only distances count (L2.4, L2.5)."""
    m = model.config.model
    if not isinstance(m.input, c.Tokens) or isinstance(m.architecture, c.EncoderDecoder):
        raise ClearheadError("a text can be shifted in decoders and encoders of text.")
    batch = model.make_batch(x)
    if len(batch.inputs) != 1:
        raise ClearheadError(f"this shifts one text at a time, not {len(batch.inputs)}.")
    tokens = batch.inputs.shape[1]
    if isinstance(by, bool) or not isinstance(by, int) or by < 1:
        raise ClearheadError(f"by = {by!r} must be a whole number of positions, at least 1.")
    if isinstance(m.position, c.Learned) and tokens + by > m.context_length:
        most = m.context_length - tokens
        raise ClearheadError(
            f"{tokens} tokens cannot start {by} later: there are {m.context_length} learned positions, so {most} at most."
        )
    streams = [f"blocks.{i}.resid_post" for i in range(m.n_layers)]
    looks = [f"blocks.{i}.attn.pattern" for i in range(m.n_layers)]
    runs = []
    for start in (0, by):
        watch = Recorder([*streams, *looks])
        at = torch.arange(start, start + tokens, device=batch.inputs.device)[None]
        with torch.no_grad(), force_eager():
            model.net(batch.inputs, position_ids=at, hooks=watch)
        runs.append(watch.values)
    old, new = ([run[name][0].float().cpu() for name in streams] for run in runs)
    moved = torch.stack(
        [(b - a).norm(dim=-1) / a.norm(dim=-1) for a, b in zip(old, new, strict=True)]
    )
    most_moved = torch.stack(
        [
            (runs[1][name] - runs[0][name])[0].float().abs().amax(dim=(-1, -2)).cpu()
            for name in looks
        ]
    )
    layer = Axis.from_labels("layer", m.n_layers)
    title = f"{by} positions later"
    note = "largest change of a weight of each head's pattern"
    patterns = View(
        most_moved,
        (layer, Axis.from_labels("head", most_moved.shape[1])),
        title,
        "change",
        note=note,
    )
    note = "how far the stream after each layer moved, as a share of its length"
    return PositionShift(
        moved,
        (layer, Axis.from_labels("token", token_labels(model.tokenizer, batch.unpadded_rows()[0]))),
        title,
        "change",
        note=note,
        patterns=patterns,
    )


def _waves(model: "Model", count: int) -> tuple[str, Tensor, Tensor]:
    """The scheme's name, position × dimension, and the radians a position of each dimension's wave."""
    _check(model, count)
    position = model.net.position
    device = torch.device("cpu")
    if isinstance(position, schemes.Rotary):
        rates = position.frequencies(device)
        return "rotary", (torch.arange(count)[:, None] * rates).cos(), rates
    like = next(model.net.parameters())
    with torch.no_grad():
        added = position.embed(torch.arange(count, device=like.device)[None], torch.float32)
    if added is None:
        biased = isinstance(position, schemes.T5 | schemes.ALiBi)
        instead = "relative_bias shows their bias" if biased else "shifted shows what they do"
        raise ClearheadError(f"positions of the kind {_kind(model)!r} are no vectors; {instead}.")
    rates = schemes.inverse_frequencies(
        added.shape[-1] + added.shape[-1] % 2, schemes.DEFAULT_THETA, device
    )
    halves = isinstance(position, schemes.Sinusoidal) and position.layout == "halves"
    by_dimension = rates.repeat(2) if halves else rates.repeat_interleave(2)
    return _kind(model), added[0].float().cpu(), by_dimension[: added.shape[-1]]


def _check(model: "Model", count: int) -> None:
    context = model.net.context_length
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= context:
        raise ClearheadError(
            f"count = {count!r} must be from 2 to {context}, the positions this model has."
        )


def _kind(model: "Model") -> str:
    return model.config.model.position.kind
