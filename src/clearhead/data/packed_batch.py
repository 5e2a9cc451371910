"""Packed training batches, and the order of data as a pure function of seed and step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from clearhead.data.readers import DataReport

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


class Dataset(Protocol):
    """Training batches as a pure function of the step, and validation batches."""

    packing_efficiency: float  # fraction of tokens that are not padding
    batches_per_epoch: float  # not an integer if an epoch ends within a batch
    report: DataReport

    def batch(self, step: int) -> PackedBatch: ...

    def valid_batches(self) -> Iterator[PackedBatch]: ...


@lru_cache(maxsize=4)
def shuffled_indices(count: int, seed: int, epoch: int) -> Tensor:
    """The indices 0 … count - 1 in the order of an epoch."""
    return torch.randperm(count, generator=seeded_generator(seed, epoch))


def seeded_generator(seed: int, index: int) -> torch.Generator:
    """A random generator for one epoch or step."""
    return torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)


def select_rows(step: int, batch_size: int, count: int, seed: int) -> list[tuple[int, int]]:
    """(epoch, index) of each row of a batch; a batch may continue into the next epoch."""
    rows: list[tuple[int, int]] = []
    while len(rows) < batch_size:
        epoch, start = divmod(step * batch_size + len(rows), count)
        indices = shuffled_indices(count, seed, epoch)[start : start + batch_size - len(rows)]
        rows.extend((epoch, index) for index in indices.tolist())
    return rows
