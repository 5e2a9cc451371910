"""Training speed in tokens per second, and the time that is left."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from clearhead import config as c
from clearhead.data.packed_batch import PackedBatch, count_targets


@dataclass(frozen=True)
class Throughput:
    """Converts targets per second, which training counts, into tokens per second."""

    tokens_per_target: float  # tokens that are not padding, or patches
    targets_per_batch: float

    @classmethod
    def from_batches(cls, config: c.Config, batches: Iterable[PackedBatch]) -> "Throughput":
        """Average over a few batches."""
        num_tokens = 0
        num_targets = 0
        num_batches = 0
        for batch in batches:
            if batch.segment_ids is not None:
                num_tokens += int((batch.segment_ids != 0).sum())
            elif isinstance(config.model.input, c.Tokens):
                num_tokens += batch.tokens.numel()
            else:
                num_tokens += len(batch.tokens) * c.num_input_tokens(config.model.input)
            num_targets += count_targets(batch.targets)
            num_batches += 1
        return cls(num_tokens / max(1, num_targets), num_targets / max(1, num_batches))


@dataclass
class ETA:
    """Remaining time, from the last reports; the first, which includes compilation, is left out."""

    max_steps: int
    history: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=32))

    def remaining(self, step: int, now: float) -> float | None:
        """Seconds left, or None before the second report."""
        self.history.append((step, now))
        first_step, first_time = self.history[0]
        if step == first_step:
            return None
        return (now - first_time) / (step - first_step) * (self.max_steps - step)


def format_duration(seconds: float) -> str:
    """0:42, 12:05, 1:02:03, 2 d 03:04."""
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"
