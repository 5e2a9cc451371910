"""How fast a run is, against what the machine can do, and how long it still takes."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from clearhead import config as c
from clearhead.data.batch import PackedBatch, count_targets

PEAK_MEASURE_SECONDS = 0.15  # seconds in which the machine shows what it can do
MAX_MATRIX_SIZE = 8192  # of the largest matrices it is shown with


def training_flops(m: c.ModelConfig, tokens: int, source: int = 0) -> int:
    """Floating-point operations of one row of `tokens`, forward and backward, that a model of this shape needs.

        6 · (tokens × weights they multiply) + 12 · layers · heads · head width · (queries × keys)

    A product of n numbers is n multiplications and n additions, once forward and twice backward: 6. An embedding is
    looked up and multiplies nothing, the unembedding does, tied or not. Attention has two products, scores and
    weighted sum: 2 · 6; all keys of the row count for each query, as is usual, though a causal one sees half of them.
    Cross-attention's queries and results belong to the tokens, its keys and values to the source.
    """
    d = m.d_model
    q = m.attention.n_heads * m.d_head
    kv = m.n_kv_heads * m.d_head
    ffn = (3 if m.ffn.is_gated else 2) * d * m.d_ff
    block = 2 * d * q + 2 * d * kv + ffn
    weights = tokens * (m.n_layers * block + _input(m.input, d)) + _head(m, tokens)
    pairs = m.n_layers * tokens * _keys(m, tokens)
    if isinstance(m.architecture, c.EncoderDecoder):
        weights += tokens * m.n_layers * 2 * d * q
        weights += source * (
            m.n_layers * 2 * d * kv
            + m.architecture.encoder_layers * block
            + _input(m.architecture.source_input, d)
        )
        pairs += m.n_layers * tokens * source + m.architecture.encoder_layers * source * _keys(
            m, source
        )
    return 6 * weights + 12 * q * pairs


def _keys(m: c.ModelConfig, tokens: int) -> int:
    return min(tokens, m.attention.sliding_window or tokens)


def _input(source: c.Input, d: int) -> int:
    """Weights that one token meets before the blocks."""
    match source:
        case c.Tokens():
            return 0
        case c.Images():
            return source.num_channels * source.patch_size**2 * d
        case c.Spectrogram():
            return source.patch_mels * source.patch_frames * d
        case c.Audio():
            return (
                2 * 3 * source.n_mels * d + 3 * d * d
            )  # the first convolution sees two frames for a token


def _head(m: c.ModelConfig, tokens: int) -> int:
    """Products of a whole row: each token becomes logits, or the row becomes one answer."""
    d = m.d_model
    match m.head:
        case c.LMHead():
            return tokens * d * m.vocab_size
        case c.MLMHead():
            return tokens * (d * d + d * m.vocab_size)
        case c.ClassificationHead() | c.RegressionHead():
            outputs = m.head.num_labels if isinstance(m.head, c.ClassificationHead) else 1
            return d * outputs + (d * d if m.head.pooler else 0)
        case c.NoHead():
            return 0


@dataclass(frozen=True)
class Throughput:
    """What turns lessons (targets that teach) a second into tokens a second and a share of the machine's peak."""

    peak_flops: float  # operations a second; 0 where it was not measured
    flops_per_target: float  # a lesson
    tokens_per_target: float  # a lesson: the real ones of the side that is learned, or patches
    targets_per_batch: float  # a batch

    @classmethod
    def from_batches(
        cls, config: c.Config, batches: Iterable[PackedBatch], peak: float = 0.0
    ) -> "Throughput":
        """As some batches show it, on average."""
        m = config.model
        cost = 0
        real = 0
        lessons = 0
        count = 0
        for batch in batches:
            rows = len(batch.tokens)
            length = _length(m.input, batch.tokens)
            cost += rows * training_flops(
                m, length, 0 if batch.source is None else _length(m.main_input, batch.source)
            )
            real += (
                rows * length if batch.segment_ids is None else int((batch.segment_ids != 0).sum())
            )
            lessons += count_targets(batch.targets)
            count += 1
        cost //= (
            3 if config.train.trainable == "head" else 1
        )  # nothing goes back through the blocks
        return cls(peak, cost / max(1, lessons), real / max(1, lessons), lessons / max(1, count))

    def utilization(self, lessons: float) -> float:
        """Of the peak, at so many lessons a second."""
        return lessons * self.flops_per_target / self.peak_flops if self.peak_flops else 0.0


def _length(source: c.Input, rows: torch.Tensor) -> int:
    return rows.shape[1] if isinstance(source, c.Tokens) else c.num_input_tokens(source)


def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the best matrix product this device shows in 0.15 s, with numbers of this type.

    The matrices grow as long as one product takes less than a fifth of that time.
    """
    best = 0.0
    side = 256
    end = time.perf_counter() + PEAK_MEASURE_SECONDS
    while True:
        a = torch.ones(side, side, device=device, dtype=dtype)
        took = min(_seconds(a) for _ in range(3))  # the first one warms up
        best = max(best, 2 * side**3 / took)
        if time.perf_counter() + 3 * 8 * took < end and side < MAX_MATRIX_SIZE:
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
class ETA:
    """The time left, from how long the last reports took; the first one, with its compiler, does not count."""

    max_steps: int
    history: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=32))

    def remaining(self, step: int, now: float) -> float | None:
        self.history.append((step, now))
        (first, then), done = self.history[0], self.history[-1][0]
        return (now - then) / (done - first) * (self.max_steps - step) if done > first else None


def format_duration(seconds: float) -> str:
    """0:42, 12:05, 1:02:03, 2 d 03:04."""
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"
