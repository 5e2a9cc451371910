"""Each law is a function: a subject in, the largest difference from what must be equal out."""

import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.packed import IGNORE
from clearhead.evaluate.subject import DoesNotApply, Inputs, Subject, apart, worst
from clearhead.model.attention import fused, spelled
from clearhead.model.int8 import quantised
from clearhead.model.masks import across
from clearhead.tap import SILENT, Watch
from clearhead.weights import formats
from clearhead.weights.checkpoint import Checkpoint, Home


@torch.no_grad()
def the_same_input_gives_the_same_output(s: Subject) -> float:
    x = s.inputs()
    return apart(s.net(**x), s.net(**x))


@torch.no_grad()
def watched_equals_fused(s: Subject) -> float:
    """Attention written out, every value seen, against the one kernel."""
    x = s.inputs()
    return apart(s.net(**x, tap=Watch(["**"])), s.net(**x))


@torch.no_grad()
def attention_rows_add_up_to_one(s: Subject) -> float:
    watch = Watch(["**.pattern"])
    s.net(**s.inputs(), tap=watch)
    return worst(apart(p.sum(-1), torch.ones_like(p.sum(-1))) for p in watch.values.values())


@torch.no_grad()
def cached_equals_full(s: Subject) -> float:
    """A prompt at once, then token by token, against everything at once."""
    s.need_causal()
    x = s.inputs()
    tokens, rest = x.pop("tokens"), x
    memory, prompt = s.net.remember(len(tokens), s.length), max(1, s.length // 2)
    pieces = [tokens[:, :prompt], *tokens[:, prompt:].split(1, dim=1)]
    steps = [s.net(piece, memory=memory, **rest) for piece in pieces]
    return apart(torch.cat(steps, dim=1), s.net(tokens, **rest))


@torch.no_grad()
def reordered_cache_equals_reordered_rows(s: Subject) -> float:
    """Beams that split and die."""
    s.need_causal()
    x, index = s.inputs(), torch.tensor([2, 0, 0], device=s.like.device)
    memory = s.net.remember(3, s.length)
    s.net(**{**x, "tokens": x["tokens"][:, :-1]}, memory=memory)
    memory.reorder(index)
    x = {name: value[index] for name, value in x.items()}
    return apart(s.net(**{**x, "tokens": x["tokens"][:, -1:]}, memory=memory), s.net(**x)[:, -1:])


@torch.no_grad()
def batched_equals_single(s: Subject) -> float:
    x = s.inputs()
    together = s.net.predict(s.net(**x))
    alone = [s.net.predict(s.net(**{name: value[i : i + 1] for name, value in x.items()})) for i in range(3)]
    return apart(torch.cat(alone), together)


@torch.no_grad()
def packed_equals_separate(s: Subject) -> float:
    """Two documents in one row, each blind to the other, against two rows."""
    s.need_text()
    x = s.inputs(2, max(1, s.length // 2))
    if any(value.dim() != 2 for value in x.values()) or s.length < 2:
        raise DoesNotApply("what it reads is always of one size, so rows hold one document")
    row = {name: torch.cat(list(value))[None] for name, value in x.items()}
    segments = {_segments(name): _numbered(value) for name, value in x.items()}
    return apart(s.net(**row, **segments)[0], torch.cat(list(s.net(**x))))


@torch.no_grad()
def padding_changes_nothing(s: Subject) -> float:
    s.need_text()
    short = max(1, s.length - 3)
    x = s.inputs(2, short)
    padded, segments = dict(x), {}
    for name, value in x.items():
        if value.dim() == 2:
            room = s.length - short
            padded[name] = torch.cat((value, s.ids(2, room, 1)), dim=1)
            segments[_segments(name)] = (
                (torch.arange(value.shape[1] + room) < value.shape[1]).long().expand(2, -1).to(value.device)
            )
    return apart(s.net(**padded, **segments)[:, :short], s.net(**x))


@torch.no_grad()
def the_future_is_not_seen(s: Subject) -> float:
    """Another last token leaves every earlier output as it was, to the bit."""
    s.need_causal()
    x = s.inputs()
    before = s.net(**x)
    x["tokens"] = x["tokens"].clone()
    x["tokens"][:, -1] = (x["tokens"][:, -1] + 1) % s.m.vocabulary
    return apart(s.net(**x)[:, :-1], before[:, :-1]) if s.length > 1 else 0.0


@torch.no_grad()
def only_distance_matters(s: Subject) -> float:
    """The same sentence further on in the text gives the same result."""
    if isinstance(s.m.position, c.Learned | c.Sinusoidal):
        raise DoesNotApply(f"{s.m.position.kind} positions are absolute")
    x = s.inputs()
    at = torch.arange(s.net(**x).shape[1], device=s.like.device)[None]
    return apart(s.net(**x, at=at + 7), s.net(**x, at=at))


@torch.no_grad()
def order_is_not_seen_without_positions(s: Subject) -> float:
    """Shuffled words give the same results, shuffled."""
    if s.net.causal or not isinstance(s.m.position, c.NoPositions):
        raise DoesNotApply("it has positions" if not s.net.causal else "the causal mask gives order away")
    s.need_text()
    if s.m.attention.window:
        raise DoesNotApply("a sliding window gives order away")
    x, order = s.inputs(), torch.randperm(s.length, generator=s.generator)
    return apart(s.net(x["tokens"][:, order]), s.net(**x)[:, order])


def a_row_that_sees_nothing_is_finite(s: Subject) -> float:
    """Its result is zero and so is its gradient, fused and spelled."""
    m = s.m
    q, k, v = (
        torch.randn(1, heads, 4, m.head_width, generator=s.generator).to(s.like).requires_grad_()
        for heads in (m.attention.heads, m.kv_heads, m.kv_heads)
    )
    lost = across(
        torch.tensor([[1, 1, 2, 1]], device=s.like.device), torch.ones(1, 4, dtype=torch.long, device=s.like.device)
    )
    largest = 0.0
    for attend in (fused, spelled):
        z = attend(q, k, v, None, lost, 1.0, 0.0, SILENT)
        grads = torch.autograd.grad(z.square().sum(), (q, k, v))
        largest = max(largest, z[..., 2, :].abs().max().item(), grads[0][..., 2, :].abs().max().item())
        if not all(x.isfinite().all() for x in (z, *grads)):
            return math.inf
    return largest


@torch.no_grad()
def loss_is_minus_log_probability(s: Subject) -> float:
    if not isinstance(s.m.head, c.Language | c.MaskedWord | c.Classes):
        raise DoesNotApply("it does not predict words or classes")
    x = s.inputs()
    targets, hidden = s.targets(x), s.net(**x)
    total, count = s.net.loss(hidden, targets)
    logits = s.net.predict(hidden).float()
    chosen = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    real = targets != IGNORE
    return apart(total / count, -(chosen * real).sum() / real.sum())


def accumulated_gradients_equal_the_full_batch(s: Subject) -> float:
    """Row by row, summed and divided by the whole count, against the batch at once."""
    x = s.inputs()
    targets = s.targets(x)
    whole = _gradients(s, x, targets, [slice(None)])
    return worst(apart(a, b) for a, b in zip(_gradients(s, x, targets, [slice(0, 1), slice(1, 3)]), whole, strict=True))


def _gradients(s: Subject, x: Inputs, targets: Tensor, parts: list[slice]) -> list[Tensor]:
    parameters = [p for p in s.net.parameters() if p.requires_grad]
    if not parameters:
        raise DoesNotApply("every parameter is frozen")
    sums, counts = [torch.zeros_like(p) for p in parameters], 0
    for part in parts:
        total, count = s.net.loss(s.net(**{name: value[part] for name, value in x.items()}), targets[part])
        counts += int(count)
        found = torch.autograd.grad(total, parameters, allow_unused=True)
        sums = [a if g is None else a + g for a, g in zip(sums, found, strict=True)]
    return [a / counts for a in sums]


@torch.no_grad()
def saved_and_loaded_is_identical(s: Subject) -> float:
    if quantised(s.net):
        raise DoesNotApply("a model in int8 is not saved; it is made when one in float32 is read")
    with tempfile.TemporaryDirectory() as there:
        formats.write(Path(there) / "model", Checkpoint(s.net, c.Config(s.m)))
        loaded = formats.read(Path(there) / "model", Home(str(s.like.device), s.like.dtype)).net
    x = s.inputs()
    return apart(loaded(**x), s.net(**x))


EXACT = (the_same_input_gives_the_same_output, the_future_is_not_seen, saved_and_loaded_is_identical)


def _segments(name: str) -> str:
    return "segments" if name == "tokens" else "source_segments"


def _numbered(rows: Tensor) -> Tensor:
    """1 1 1 2 2 2 for two rows of three, as one row."""
    return torch.arange(1, len(rows) + 1, device=rows.device).repeat_interleave(rows.shape[1])[None]
