"""Who trains: one process alone, or one of several that torchrun started. Alone, nothing is asked of anybody.

A step is `train.rows` × `train.accumulate` rows whatever the number of processes: each makes the same batches and
passes its share of their rows, so the same run goes on with more processes or fewer.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from clearhead.data.packed import Packed
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer
from clearhead.training import Train


class Alone:
    """One process that has everything; what several do together is overridden by `parallel`."""

    rank, size = 0, 1
    sharded = False  # whether the weights are shared out, so that every pass is made by all

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    # ---- what is whose
    def device(self, wanted: str) -> str:
        """Where this process computes, where the user wants this kind of device."""
        return wanted

    def share(self, batch: Packed) -> tuple[Packed, bool]:
        """The rows that this process passes, and whether they count."""
        return batch, True

    # ---- what is agreed on
    def any(self, here: bool) -> bool:
        """Whether it is so anywhere."""
        return here

    def asked(self, here: bool) -> bool:
        """Whether all stop after this step, because some process was asked to."""
        return here

    def total(self, here: Tensor) -> Tensor:
        """The sum over all processes."""
        return here

    def wait(self) -> None:
        """Until all are here."""

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process goes first; the others find done what it did."""
        yield

    # ---- gradients
    def add_up(self, gradients: Sequence[Tensor]) -> None:
        """Gradients of each process's rows become those of all rows, in place."""

    def norm(self, here: Tensor) -> Tensor:
        """The norm of a whole of which this process holds a part with this norm."""
        return here

    # ---- weights, and what is as large as they are
    def spread(self, net: Transformer, device: torch.device, compiled: bool, say: Callable[[str], None]) -> Transformer:
        """The network on the devices, as training needs it."""
        return net.to(device)

    def fold(self, net: Transformer) -> None:
        """After passes without a backward: what was gathered for them is let go, and read anew by the next."""

    def own(self, tensor: Tensor) -> Tensor:
        """What this process holds of a parameter or its gradient."""
        return tensor

    def named(self, own: Tensor, shape: Sequence[int], dim: int = 0) -> Tensor:
        """A whole of this shape, of which this process holds `own`."""
        return own

    def whole(self, tensor: Tensor) -> Tensor:
        """All of it, in every process."""
        return tensor

    def part(self, whole: Tensor, dim: int = 0) -> Tensor:
        """What this process holds of it."""
        return whole

    def fill(self, tensor: Tensor, whole: Tensor) -> None:
        """Copies the numbers of a whole into what this process holds of it."""
        tensor.copy_(whole)

    def collect(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All of them whole, in the first process, to be written."""
        return tensors

    def complete(self, net: Transformer) -> Transformer:
        """The network with whole weights, in the first process, to be written."""
        return net


ALONE = Alone()


@contextmanager
def join(device: str, options: Train) -> Iterator[Alone]:
    """The processes that torchrun started together with this one, for a run on this kind of device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    if options.rows % size:
        raise ClearheadError(f"train.rows = {options.rows} cannot be shared out among {size} processes evenly.")
    from clearhead.train import parallel

    kind = parallel.Shards if options.sharded else parallel.Copies
    with parallel.connected(device, kind) as team:
        yield cast(Alone, team)
