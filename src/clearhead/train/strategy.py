"""Distribution strategy: one process, or several that torchrun started (see `distributed`).

A step is `train.batch_size` × `train.grad_accum` rows for any number of processes: every process
builds the same batches and computes its slice of their rows, so a run can be resumed with more
processes or fewer.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from clearhead.config.training import TrainConfig
from clearhead.data.packed_batch import PackedBatch
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer

Echo = Callable[[str], None]


class SingleProcess:
    """Training in one process. `DDP` and `FSDP` override the collective operations."""

    rank = 0
    size = 1
    is_sharded = False  # sharded weights need every process in every forward pass

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def device(self, requested: str) -> str:
        """Device of this process, given the requested kind of device."""
        return requested

    def split_batch(self, batch: PackedBatch) -> tuple[PackedBatch, bool]:
        """Rows of a batch that this process computes, and whether they count in the loss."""
        return batch, True

    # --- agreement
    def any_process(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return flag

    def should_stop(self, requested: bool) -> bool:
        """Whether all processes stop after this step because one of them was asked to."""
        return requested

    def all_reduce(self, value: Tensor) -> Tensor:
        """Sum over all processes."""
        return value

    def barrier(self) -> None:
        """Wait for all processes."""

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the main process run the block first; the others then reuse its files."""
        yield

    # --- gradients
    def all_reduce_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Sum the gradients over all processes, in place."""

    def global_norm(self, local_norm: Tensor) -> Tensor:
        """Norm of a sharded vector, given the norm of the local shard."""
        return local_norm

    # --- weights and optimizer state
    def wrap_model(
        self,
        net: Transformer,
        device: torch.device,
        compile: bool,
        echo: Echo,
    ) -> Transformer:
        """Move the network to the devices, sharded if the strategy shards."""
        return net.to(device)

    def reshard(self, net: Transformer) -> None:
        """Free weights that were gathered for forward passes without a backward pass."""

    def local_tensor(self, tensor: Tensor) -> Tensor:
        """Local shard of a parameter or of its gradient."""
        return tensor

    def from_local(self, local: Tensor, shape: Sequence[int], dim: int = 0) -> Tensor:
        """Distributed tensor of this full shape, given the local shard."""
        return local

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Full tensor, gathered in every process."""
        return tensor

    def local_shard(self, full: Tensor, dim: int = 0) -> Tensor:
        """Local shard of a full tensor."""
        return full

    def copy_full_tensor(self, tensor: Tensor, full: Tensor) -> None:
        """Copy the local shard of a full tensor into `tensor`."""
        tensor.copy_(full)

    def gather_full_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Gather full tensors in the main process, to be saved."""
        return tensors

    def full_model(self, net: Transformer) -> Transformer:
        """Network with full weights in the main process, to be saved."""
        return net


SINGLE_PROCESS = SingleProcess()


@contextmanager
def distributed_training(device: str, config: TrainConfig) -> Iterator[SingleProcess]:
    """Join the processes that torchrun started, on this kind of device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield SINGLE_PROCESS
        return
    if config.batch_size % size:
        raise ClearheadError(
            f"train.batch_size must be divisible by the {size} processes, got {config.batch_size}."
        )
    # Importing torch.distributed.fsdp takes most of a second, which one process does not need.
    from clearhead.train.distributed import DDP, FSDP, process_group

    with process_group(device, FSDP if config.strategy == "fsdp" else DDP) as strategy:
        yield strategy
