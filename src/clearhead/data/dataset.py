"""Training data as batches, whose order is a pure function of seed and step."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from clearhead.data.packed_batch import PackedBatch
from clearhead.data.readers import DataReport


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
