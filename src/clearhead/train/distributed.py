"""Data parallelism: full weights in every process (DDP) or sharded weights (FSDP2).

DDP all-reduces gradients once per step, after the last backward pass, in a few large buckets.
FSDP gathers the weights of a block when a pass reaches it and reduce-scatters its gradients.

All processes see the same folder. Tensors go through NCCL on GPUs and gloo on CPUs; control flags
always go through gloo, so that no process waits for a GPU.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, Shard

from clearhead.data.packed_batch import PackedBatch
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Block, Transformer, build_transformer
from clearhead.train.strategy import Echo, SingleProcess
from clearhead.train.train_step import COMPILE_FAILED

BUCKET_NUMEL = 2**23
# Long, because the others wait while the main process tokenizes. A dead process is noticed at once.
GROUP_TIMEOUT = timedelta(days=2)

Call = TypeVar("Call", bound=Callable[..., Any])


class DDP(SingleProcess):
    """Distributed data parallel: every process holds the full network."""

    def __init__(self, device: str) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.current_device = device
        self.control_group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
        self.pending_stop: tuple[Tensor, dist.Work] | None = None

    def device(self, requested: str) -> str:
        return self.current_device

    def split_batch(self, batch: PackedBatch) -> tuple[PackedBatch, bool]:
        """Slice the rows; some processes compute a row that does not count if there are too few."""
        rows = len(batch.targets)
        start = rows * self.rank // self.size
        end = rows * (self.rank + 1) // self.size
        has_rows = end > start
        local_rows = slice(start, end) if has_rows else slice(0, 1)
        return batch.map(lambda t: t[local_rows]), has_rows

    def any_process(self, flag: bool) -> bool:
        value = torch.tensor([int(flag)])
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.control_group)
        return bool(value)

    def should_stop(self, requested: bool) -> bool:
        """Read the flags of the previous step, so that no process waits for the reduction."""
        previous = self.pending_stop
        flag = torch.tensor([int(requested)])
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.control_group, async_op=True)
        assert work is not None
        self.pending_stop = flag, work
        if previous is None:
            return False
        previous_flag, previous_work = previous
        previous_work.wait()
        return bool(previous_flag)

    def all_reduce(self, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    def barrier(self) -> None:
        self.any_process(False)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        if not self.is_main_process and self.any_process(False):
            raise SystemExit(2)  # the main process has printed the reason
        try:
            yield
        except BaseException:
            if self.is_main_process:
                self.any_process(True)
            raise
        if self.is_main_process:
            self.barrier()

    @torch.no_grad()
    def all_reduce_gradients(self, gradients: Sequence[Tensor]) -> None:
        bucket: list[Tensor] = []
        for n, gradient in enumerate(gradients, start=1):
            bucket.append(gradient)
            if n == len(gradients) or sum(g.numel() for g in bucket) >= BUCKET_NUMEL:
                flat = torch.cat([g.flatten() for g in bucket])
                dist.all_reduce(flat)
                sums = flat.split([g.numel() for g in bucket])
                torch._foreach_copy_(
                    bucket, [s.view_as(g) for s, g in zip(sums, bucket, strict=True)]
                )
                bucket = []


class FSDP(DDP):
    """Fully sharded data parallel: each process holds a shard of the rows of every weight."""

    is_sharded = True

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.mesh = init_device_mesh(torch.device(device).type, (self.size,))

    def wrap_model(
        self,
        net: Transformer,
        device: torch.device,
        compile: bool,
        echo: Echo,
    ) -> Transformer:
        """Shard each block, and compile each alone: weights are gathered between blocks."""
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for block in [module for module in net.modules() if isinstance(module, Block)]:
            if compile:
                forward = compile_with_fallback(block.forward, echo)
                setattr(block, "forward", forward)  # noqa: B010 - a method, to the type checker
            fully_shard(block, mesh=self.mesh, mp_policy=policy)
        # The rest stays gathered after the forward pass, because the loss uses the head.
        fully_shard(net, mesh=self.mesh, mp_policy=policy, reshard_after_forward=False)
        for module in net.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        return net

    def reshard(self, net: Transformer) -> None:
        assert isinstance(net, FSDPModule)
        net.reshard()

    def all_reduce_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Do nothing: FSDP reduced them in the backward pass."""

    def global_norm(self, local_norm: Tensor) -> Tensor:
        return self.all_reduce(local_norm.square()).sqrt()

    def local_tensor(self, tensor: Tensor) -> Tensor:
        return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor

    def from_local(self, local: Tensor, shape: Sequence[int], dim: int = 0) -> Tensor:
        if local.dim() == 0:  # replicated, such as Adam's step
            return local
        like = torch.empty(shape, device="meta")
        placements = [Shard(dim)]
        return DTensor.from_local(
            local, self.mesh, placements, shape=like.shape, stride=like.stride()
        )

    def full_tensor(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor

    def local_shard(self, full: Tensor, dim: int = 0) -> Tensor:
        shards = full.chunk(self.size, dim)
        return shards[self.rank] if self.rank < len(shards) else full.narrow(dim, 0, 0)

    def copy_full_tensor(self, tensor: Tensor, full: Tensor) -> None:
        source = self.local_shard(full) if isinstance(tensor, DTensor) else full
        self.local_tensor(tensor).copy_(source)

    def gather_full_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Gather one tensor at a time, so that a device holds at most one full tensor."""
        gathered = {}
        for name, tensor in tensors.items():
            full = self.full_tensor(tensor)
            if self.is_main_process:
                gathered[name] = full.cpu()
        return gathered

    def full_model(self, net: Transformer) -> Transformer:
        weights = self.gather_full_tensors(dict(net.named_parameters()))
        copy = build_transformer(net.config, seed=None)
        copy.load_state_dict(weights, strict=False, assign=True)
        return copy


def compile_with_fallback(function: Call, echo: Echo) -> Call:
    """Compile a function; if compilation fails, print one line and run it uncompiled."""
    compiled: Any = torch.compile(function, dynamic=False)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiled
        try:
            return compiled(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            if compiled is function:
                raise
            echo(COMPILE_FAILED.format(type(error).__name__))
            compiled = function
            return compiled(*args, **kwargs)

    return cast(Call, call)


@contextmanager
def process_group(device: str, strategy_class: type[DDP]) -> Iterator[DDP]:
    """Initialize the process group: one GPU per process, or all processes on the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device.startswith("cuda"):
        num_gpus = torch.cuda.device_count()
        if local_rank >= num_gpus:
            raise ClearheadError(
                f"process {local_rank} on this machine has no GPU: there are {num_gpus}. "
                f"Start at most {num_gpus} processes."
            )
        device = f"cuda:{local_rank}"
        torch.cuda.set_device(local_rank)
    elif device != "cpu":
        raise ClearheadError(
            f"distributed training needs device cuda or cpu, got {device}; use a single process."
        )
    store, rank, size = next(iter(rendezvous("env://")))
    dist.init_process_group(
        "gloo" if device == "cpu" else "nccl",
        store=PrefixStore(_rendezvous_name(store, rank, size), store),
        rank=rank,
        world_size=size,
        device_id=None if device == "cpu" else torch.device(device),
    )
    strategy = strategy_class(device)
    yield strategy
    strategy.barrier()
    dist.destroy_process_group()
    # gloo's threads need a moment to finish the last message; they crash if Python exits first.
    time.sleep(0.2)


def _rendezvous_name(store: Store, rank: int, size: int) -> str:
    """Agree on a unique key prefix for this start of the processes.

    torchrun's store outlives a restart, and without a prefix it would still hold the addresses of
    killed processes (pytorch #135712). Each process announces a fresh id until rank 0 of the same
    start replies to it.
    """
    own_id = uuid4().hex
    if rank:
        store.set(f"clearhead/here/{rank}", own_id)
        name = store.get(f"clearhead/named/{own_id}").decode()  # blocks
        store.set(f"clearhead/heard/{name}/{rank}", "")
        return name
    missing = set(range(1, size))
    while missing:
        for other in list(missing):
            if not store.check([f"clearhead/here/{other}"]):
                continue
            other_id = store.get(f"clearhead/here/{other}").decode()  # maybe of a killed process
            store.set(f"clearhead/named/{other_id}", own_id)
            if store.check([f"clearhead/heard/{own_id}/{other}"]):
                missing.discard(other)
        time.sleep(0.01)
    return own_id
