"""A batch in which several documents or pairs share a row."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

IGNORE_INDEX = -100  # a target without loss: padding, or a token that was not masked


@dataclass(frozen=True)
class PackedBatch:
    """One batch of static shape, in which several documents or pairs may share a row."""

    tokens: Tensor  # token ids, images or mel frames
    targets: Tensor  # per token: a token id or IGNORE_INDEX; or one label or number per row
    segment_ids: Tensor | None = None  # documents of a row, numbered from 1; 0 is padding
    source: Tensor | None = None
    source_segment_ids: Tensor | None = None
    token_type_ids: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "PackedBatch":
        """Apply a function to each tensor."""
        tensors = {name: function(t) for name, t in vars(self).items() if t is not None}
        return PackedBatch(**tensors)

    def tensors(self) -> list[Tensor]:
        return [t for t in vars(self).values() if t is not None]


def count_targets(targets: Tensor) -> int:
    """The number of targets in the loss: all but IGNORE_INDEX, and all regression targets."""
    return targets.numel() if targets.is_floating_point() else int((targets != IGNORE_INDEX).sum())
