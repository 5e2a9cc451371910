"""Positions (L2): what each scheme tells a model of where a token stands, and what a shift of the text changes."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.given import known_names
from clearhead.lens.logit_lens import token_labels
from clearhead.lens.view import Axis, View
from clearhead.model import positions as schemes
from clearhead.tap import Watch, eager

if TYPE_CHECKING:
    from clearhead.inside import Inside

SHOWN = 32  # positions, unless more are asked for
NOTES = {
    "learned": "what is added to the token at each position, as it was learned",
    "sinusoidal": "what is added to the token at each position: waves, ever slower; "
    "beside them bits of the position's number (full: 1), which slow down alike",
    "rotary": "the cosine of the angle by which each pair of dimensions is turned at each position",
}


@known_names
def positions(model: "Inside", count: int = SHOWN, dimensions: int | None = None) -> View:
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
    axes = Axis.of("scheme", list(maps)), Axis.of("position", count), Axis.of("dimension", list(map(str, shown)))
    both = torch.stack(list(maps.values()))[..., shown]
    return View(both, axes, f"{scheme} positions", "value", signed=True, note=NOTES[scheme])


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
    return [i * size // some for i in range(some)] if some is not None and some < size else list(range(size))


@known_names
def position_similarity(model: "Inside", count: int = SHOWN) -> View:
    """position × position: the cosine of their vectors; of rotary ones, the mean cosine of the angle between them."""
    scheme, values, rates = _waves(model, count)
    if scheme == "rotary":
        away = torch.arange(count)[:, None] - torch.arange(count)
        alike = (away[..., None] * rates).cos().mean(dim=-1)
    else:
        unit = F.normalize(values, dim=-1)
        alike = unit @ unit.mT
    axes = Axis.of("position", count), Axis.of("other", count)
    return View(alike, axes, f"similarity of {scheme} positions", "cosine", signed=True, most=1.0)


@known_names
def rotary_angles(model: "Inside", count: int = SHOWN) -> View:
    """position × pair of dimensions: the angle by which queries and keys are turned, in turns of 360°."""
    _check(model, count)
    position = model.net.position
    if not isinstance(position, schemes.Rotary):
        raise ClearheadError(f"only rotary positions turn; those of this model are {_kind(model)!r}.")
    rates = position.rates(torch.device("cpu"))
    turns = torch.arange(count)[:, None] * rates / (2 * math.pi)
    axes = Axis.of("position", count), Axis.of("pair", len(rates))
    note = "full turns at each position; pair i is dimensions i and i + half of those that turn"
    return View(turns, axes, "rotary angles", "turns", note=note)


@known_names
def relative_bias(model: "Inside", count: int = SHOWN) -> View:
    """head × distance: what is added to a score, by how far the key lies before the query (below 0: after it)."""
    _check(model, count)
    position = model.net.position
    if not isinstance(position, schemes.Relative | schemes.Alibi):
        raise ClearheadError(
            f"only relative and alibi positions are a bias by distance alone; those of this model are {_kind(model)!r}."
        )
    back = list(range(count) if model.net.causal else range(1 - count, count))
    like = next(model.net.parameters())
    query = torch.tensor([[count - 1]], device=like.device)
    place = position.places(query, query - torch.tensor([back], device=like.device), 1)[0]
    heads = model.config.model.attention.heads
    with torch.no_grad():
        bias = place.bias(like.new_zeros(1, heads, 1, 1), 1.0)
    assert bias is not None
    axes = Axis.of("head", heads), Axis.of("distance", [str(b) for b in back])
    return View(bias[0, :, 0], axes, f"{_kind(model)} bias", "bias", signed=True, note="added to a head's scores")


@dataclass(frozen=True, eq=False, repr=False)
class Shifted(View):
    """layer × token: how far the stream after a layer moved, as a share of its length. `patterns` is of attention."""

    patterns: View | None = None


@known_names
def shifted(model: "Inside", x: Any, by: int = 1) -> Shifted:
    """What changes when a text starts `by` positions later: nothing, where only distances count (L2.4, L2.5)."""
    m = model.config.model
    if not isinstance(m.input, c.Tokens) or isinstance(m.shape, c.EncoderDecoder):
        raise ClearheadError("a text can be shifted in decoders and encoders of text.")
    batch = model._batch(x)
    if len(batch.ids) != 1:
        raise ClearheadError(f"this shifts one text at a time, not {len(batch.ids)}.")
    tokens = batch.ids.shape[1]
    if isinstance(by, bool) or not isinstance(by, int) or by < 1:
        raise ClearheadError(f"by = {by!r} must be a whole number of positions, at least 1.")
    if isinstance(m.position, c.Learned) and tokens + by > m.context:
        most = m.context - tokens
        raise ClearheadError(
            f"{tokens} tokens cannot start {by} later: there are {m.context} learned positions, so {most} at most."
        )
    streams = [f"blocks.{i}.post" for i in range(m.layers)]
    looks = [f"blocks.{i}.attn.pattern" for i in range(m.layers)]
    runs = []
    for start in (0, by):
        watch = Watch([*streams, *looks])
        at = torch.arange(start, start + tokens, device=batch.ids.device)[None]
        with torch.no_grad(), eager():
            model.net(batch.ids, at=at, tap=watch)
        runs.append(watch.values)
    old, new = ([run[name][0].float().cpu() for name in streams] for run in runs)
    moved = torch.stack([(b - a).norm(dim=-1) / a.norm(dim=-1) for a, b in zip(old, new, strict=True)])
    most_moved = torch.stack(
        [(runs[1][name] - runs[0][name])[0].float().abs().amax(dim=(-1, -2)).cpu() for name in looks]
    )
    layer, title = Axis.of("layer", m.layers), f"{by} positions later"
    note = "largest change of a weight of each head's pattern"
    patterns = View(most_moved, (layer, Axis.of("head", most_moved.shape[1])), title, "change", note=note)
    note = "how far the stream after each layer moved, as a share of its length"
    return Shifted(
        moved,
        (layer, Axis.of("token", token_labels(model.tokenizer, batch.rows()[0]))),
        title,
        "change",
        note=note,
        patterns=patterns,
    )


def _waves(model: "Inside", count: int) -> tuple[str, Tensor, Tensor]:
    """The scheme's name, position × dimension, and the radians a position of each dimension's wave."""
    _check(model, count)
    position, device = model.net.position, torch.device("cpu")
    if isinstance(position, schemes.Rotary):
        rates = position.rates(device)
        return "rotary", (torch.arange(count)[:, None] * rates).cos(), rates
    like = next(model.net.parameters())
    with torch.no_grad():
        added = position.embed(torch.arange(count, device=like.device)[None], torch.float32)
    if added is None:
        biased = isinstance(position, schemes.Relative | schemes.Alibi)
        instead = "relative_bias shows their bias" if biased else "shifted shows what they do"
        raise ClearheadError(f"positions of the kind {_kind(model)!r} are no vectors; {instead}.")
    rates = schemes.wave_rates(added.shape[-1] + added.shape[-1] % 2, schemes.THETA, device)
    halves = isinstance(position, schemes.Sinusoidal) and position.layout == "halves"
    by_dimension = rates.repeat(2) if halves else rates.repeat_interleave(2)
    return _kind(model), added[0].float().cpu(), by_dimension[: added.shape[-1]]


def _check(model: "Inside", count: int) -> None:
    context = model.net.context
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= context:
        raise ClearheadError(f"count = {count!r} must be from 2 to {context}, the positions this model has.")


def _kind(model: "Inside") -> str:
    return model.config.model.position.kind
