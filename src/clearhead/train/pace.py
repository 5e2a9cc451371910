"""How fast a run is, against what the machine can do, and how long it still takes."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from clearhead import config as c
from clearhead.data.packed import Packed, lessons_in

LONGEST = 0.15  # seconds in which the machine shows what it can do
SIDE = 8192  # of the largest matrices it is shown with


def flops(m: c.ModelConfig, tokens: int, source: int = 0) -> int:
    """Floating-point operations of one row of `tokens`, forward and backward, that a model of this shape needs.

        6 · (tokens × weights they multiply) + 12 · layers · heads · head width · (queries × keys)

    A product of n numbers is n multiplications and n additions, once forward and twice backward: 6. An embedding is
    looked up and multiplies nothing, the unembedding does, tied or not. Attention has two products, scores and
    weighted sum: 2 · 6; all keys of the row count for each query, as is usual, though a causal one sees half of them.
    Cross-attention's queries and results belong to the tokens, its keys and values to the source.
    """
    d, q, kv = m.width, m.attention.heads * m.head_width, m.kv_heads * m.head_width
    ffn = (3 if m.ffn.gated else 2) * d * m.ffn_width
    block = 2 * d * q + 2 * d * kv + ffn
    weights = tokens * (m.layers * block + _input(m.input, d)) + _head(m, tokens)
    pairs = m.layers * tokens * _keys(m, tokens)
    if isinstance(m.shape, c.EncoderDecoder):
        weights += tokens * m.layers * 2 * d * q
        weights += source * (m.layers * 2 * d * kv + m.shape.layers * block + _input(m.shape.input, d))
        pairs += m.layers * tokens * source + m.shape.layers * source * _keys(m, source)
    return 6 * weights + 12 * q * pairs


def _keys(m: c.ModelConfig, tokens: int) -> int:
    return min(tokens, m.attention.window or tokens)


def _input(source: c.Input, d: int) -> int:
    """Weights that one token meets before the blocks."""
    match source:
        case c.Tokens():
            return 0
        case c.Pictures():
            return source.channels * source.patch**2 * d
        case c.Spectrogram():
            return source.patch_mels * source.patch_frames * d
        case c.Sound():
            return 2 * 3 * source.mels * d + 3 * d * d  # the first convolution sees two frames for a token


def _head(m: c.ModelConfig, tokens: int) -> int:
    """Products of a whole row: each token becomes logits, or the row becomes one answer."""
    d = m.width
    match m.head:
        case c.Language():
            return tokens * d * m.vocabulary
        case c.MaskedWord():
            return tokens * (d * d + d * m.vocabulary)
        case c.Classes() | c.Number():
            outputs = m.head.classes if isinstance(m.head, c.Classes) else 1
            return d * outputs + (d * d if m.head.pooler else 0)
        case c.Hidden():
            return 0


@dataclass(frozen=True)
class Speed:
    """What turns lessons (targets that teach) a second into tokens a second and a share of the machine's peak."""

    peak: float  # operations a second; 0 where it was not measured
    flops: float  # a lesson
    tokens: float  # a lesson: the real ones of the side that is learned, or patches
    lessons: float  # a batch

    @classmethod
    def of(cls, config: c.Config, batches: Iterable[Packed], peak: float = 0.0) -> "Speed":
        """As some batches show it, on average."""
        m, cost, real, lessons, count = config.model, 0, 0, 0, 0
        for batch in batches:
            rows, length = len(batch.tokens), _length(m.input, batch.tokens)
            cost += rows * flops(m, length, 0 if batch.source is None else _length(m.reads, batch.source))
            real += rows * length if batch.segments is None else int((batch.segments != 0).sum())
            lessons += lessons_in(batch.targets)
            count += 1
        cost //= 3 if config.train.learns == "head" else 1  # nothing goes back through the blocks
        return cls(peak, cost / max(1, lessons), real / max(1, lessons), lessons / max(1, count))

    def share(self, lessons: float) -> float:
        """Of the peak, at so many lessons a second."""
        return lessons * self.flops / self.peak if self.peak else 0.0


def _length(source: c.Input, rows: torch.Tensor) -> int:
    return rows.shape[1] if isinstance(source, c.Tokens) else c.tokens_of(source)


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the best matrix product this device shows in 0.15 s, with numbers of this type.

    The matrices grow as long as one product takes less than a fifth of that time.
    """
    best, side, end = 0.0, 256, time.perf_counter() + LONGEST
    while True:
        a = torch.ones(side, side, device=device, dtype=dtype)
        took = min(_seconds(a) for _ in range(3))  # the first one warms up
        best = max(best, 2 * side**3 / took)
        if time.perf_counter() + 3 * 8 * took < end and side < SIDE:
            side *= 2
        elif time.perf_counter() + 3 * took > end:
            return best


def _seconds(a: torch.Tensor) -> float:
    start = time.perf_counter()
    a @ a
    if a.device.type != "cpu":
        torch.accelerator.synchronize(a.device)
    return time.perf_counter() - start


@dataclass
class Left:
    """The time left, from how long the last reports took; the first one, with its compiler, does not count."""

    steps: int
    seen: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=32))

    def seconds(self, step: int, now: float) -> float | None:
        self.seen.append((step, now))
        (first, then), done = self.seen[0], self.seen[-1][0]
        return (now - then) / (done - first) * (self.steps - step) if done > first else None


def duration(seconds: float) -> str:
    """0:42, 12:05, 1:02:03, 2 d 03:04."""
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"
