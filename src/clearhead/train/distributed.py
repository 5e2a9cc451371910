"""Who trains: one process alone, or one of several that torchrun started. Alone, nothing is asked of anybody.

A step is `train.batch_size` × `train.grad_accum` rows whatever the number of processes: each makes the same batches and
passes its share of their rows, so the same run goes on with more processes or fewer.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from clearhead.config.training import TrainConfig
from clearhead.data.batch import PackedBatch
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer


class SingleProcess:
    """One process that has everything; what several do together is overridden by `parallel`."""

    rank = 0
    size = 1
    is_sharded = False  # whether the weights are shared out, so that every pass is made by all

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    # ---- what is whose
    def device(self, wanted: str) -> str:
        """Where this process computes, where the user wants this kind of device."""
        return wanted

    def split_batch(self, batch: PackedBatch) -> tuple[PackedBatch, bool]:
        """The rows that this process passes, and whether they count."""
        return batch, True

    # ---- what is agreed on
    def any_process(self, here: bool) -> bool:
        """Whether it is so anywhere."""
        return here

    def should_stop(self, here: bool) -> bool:
        """Whether all stop after this step, because some process was asked to."""
        return here

    def all_reduce(self, here: Tensor) -> Tensor:
        """The sum over all processes."""
        return here

    def barrier(self) -> None:
        """Until all are here."""

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """The first process goes first; the others find done what it did."""
        yield

    # ---- gradients
    def all_reduce_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Gradients of each process's rows become those of all rows, in place."""

    def global_norm(self, here: Tensor) -> Tensor:
        """The norm of a whole of which this process holds a part with this norm."""
        return here

    # ---- weights, and what is as large as they are
    def wrap_model(
        self, net: Transformer, device: torch.device, compiled: bool, say: Callable[[str], None]
    ) -> Transformer:
        """The network on the devices, as training needs it."""
        return net.to(device)

    def reshard(self, net: Transformer) -> None:
        """After passes without a backward: what was gathered for them is let go, and read anew by the next."""

    def local_tensor(self, tensor: Tensor) -> Tensor:
        """What this process holds of a parameter or its gradient."""
        return tensor

    def from_local(self, own: Tensor, shape: Sequence[int], dim: int = 0) -> Tensor:
        """A whole of this shape, of which this process holds `own`."""
        return own

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """All of it, in every process."""
        return tensor

    def local_shard(self, whole: Tensor, dim: int = 0) -> Tensor:
        """What this process holds of it."""
        return whole

    def copy_full_tensor(self, tensor: Tensor, whole: Tensor) -> None:
        """Copies the numbers of a whole into what this process holds of it."""
        tensor.copy_(whole)

    def gather_full_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All of them whole, in the first process, to be written."""
        return tensors

    def full_model(self, net: Transformer) -> Transformer:
        """The network with whole weights, in the first process, to be written."""
        return net


SINGLE_PROCESS = SingleProcess()


@contextmanager
def distributed_training(device: str, options: TrainConfig) -> Iterator[SingleProcess]:
    """The processes that torchrun started together with this one, for a run on this kind of device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield SINGLE_PROCESS
        return
    if options.batch_size % size:
        raise ClearheadError(
            f"train.batch_size = {options.batch_size} cannot be shared out among {size} processes evenly."
        )
    from clearhead.train.data_parallel import DDP, FSDP, process_group

    kind = FSDP if options.strategy == "fsdp" else DDP
    with process_group(device, kind) as team:
        yield cast(SingleProcess, team)
