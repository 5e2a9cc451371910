"""Several processes that train one model: each with all of the weights, or each with a part of them (FSDP2).

Copies add their gradients up once a step, after its last backward, in few large messages. Shards gather the weights of
a block when a pass comes to it, and get the part of each gradient that belongs to their weights.

All see the same folder. Numbers go through nccl on GPUs and gloo elsewhere; what is agreed on goes through gloo, so
that no GPU is waited for.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, Shard

from clearhead.data.batch import PackedBatch
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Block, Transformer, build_transformer
from clearhead.train.distributed import SingleProcess
from clearhead.train.trainer import compile_with_fallback

BUCKET_NUMEL = 2**23  # numbers that are sent together
GROUP_TIMEOUT = timedelta(
    days=2
)  # while the first process reads a corpus; one that dies is noticed at once


class DDP(SingleProcess):
    """One of several processes that all have the whole network."""

    def __init__(self, where: str) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.current_device = where
        self.control_group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
        self.pending_stop: tuple[Tensor, dist.Work] | None = None

    def device(self, wanted: str) -> str:
        return self.current_device

    def split_batch(self, batch: PackedBatch) -> tuple[PackedBatch, bool]:
        """A slice of the rows; where there are fewer than processes, some pass a row that does not count."""
        rows = len(batch.targets)
        start, end = (rows * n // self.size for n in (self.rank, self.rank + 1))
        mine = slice(start, end) if end > start else slice(0, 1)
        parts = {f.name: getattr(batch, f.name) for f in fields(batch)}
        return replace(
            batch, **{name: t[mine] for name, t in parts.items() if t is not None}
        ), end > start

    def any_process(self, here: bool) -> bool:
        flag = torch.tensor([int(here)])
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.control_group)
        return bool(flag)

    def should_stop(self, here: bool) -> bool:
        """What was asked by the step before is known by now, to all alike, and nobody waits for it."""
        before = self.pending_stop
        flag = torch.tensor([int(here)])
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.control_group, async_op=True)
        assert work is not None
        self.pending_stop = flag, work
        if before is None:
            return False
        before[1].wait()
        return bool(before[0])

    def all_reduce(self, here: Tensor) -> Tensor:
        there = here.clone()
        dist.all_reduce(there)
        return there

    def barrier(self) -> None:
        self.any_process(False)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        if not self.is_main_process and self.any_process(False):
            raise SystemExit(2)  # the first has said why
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
        message: list[Tensor] = []
        for n, gradient in enumerate(gradients, start=1):
            message.append(gradient)
            if n == len(gradients) or sum(g.numel() for g in message) >= BUCKET_NUMEL:
                flat = torch.cat([g.flatten() for g in message])
                dist.all_reduce(flat)
                sums = flat.split([g.numel() for g in message])
                torch._foreach_copy_(
                    message, [s.view_as(g) for s, g in zip(sums, message, strict=True)]
                )
                message = []


class FSDP(DDP):
    """One of several processes that each have a part of the rows of every weight, and of all that belongs to it."""

    is_sharded = True

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.mesh = init_device_mesh(torch.device(where).type, (self.size,))

    def wrap_model(
        self, net: Transformer, device: torch.device, compiled: bool, say: Callable[[str], None]
    ) -> Transformer:
        """Blocks are compiled one by one: between them weights are gathered."""
        exact = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # of gradients, which are added up
        for block in [module for module in net.modules() if isinstance(module, Block)]:
            if compiled:
                setattr(block, "forward", compile_with_fallback(block.forward, say))  # noqa: B010 - a method, to the type checker
            fully_shard(block, mesh=self.mesh, mp_policy=exact)
        # what lies around the blocks stays gathered after a pass: the head is used after it
        fully_shard(net, mesh=self.mesh, mp_policy=exact, reshard_after_forward=False)
        for module in net.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        return net

    def reshard(self, net: Transformer) -> None:
        assert isinstance(net, FSDPModule)
        net.reshard()

    def all_reduce_gradients(self, gradients: Sequence[Tensor]) -> None:
        """They came added up."""

    def global_norm(self, here: Tensor) -> Tensor:
        return self.all_reduce(here.square()).sqrt()

    def local_tensor(self, tensor: Tensor) -> Tensor:
        return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor

    def from_local(self, own: Tensor, shape: Sequence[int], dim: int = 0) -> Tensor:
        if own.dim() == 0:  # the same everywhere
            return own
        like = torch.empty(shape, device="meta")
        return DTensor.from_local(
            own, self.mesh, [Shard(dim)], shape=like.shape, stride=like.stride()
        )

    def full_tensor(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor

    def local_shard(self, whole: Tensor, dim: int = 0) -> Tensor:
        parts = whole.chunk(self.size, dim)
        return parts[self.rank] if self.rank < len(parts) else whole.narrow(dim, 0, 0)

    def copy_full_tensor(self, tensor: Tensor, whole: Tensor) -> None:
        self.local_tensor(tensor).copy_(
            self.local_shard(whole) if isinstance(tensor, DTensor) else whole
        )

    def gather_full_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """One after the other, so that no device holds more than one of them."""
        found = {}
        for name, tensor in tensors.items():
            whole = self.full_tensor(tensor)
            if self.is_main_process:
                found[name] = whole.cpu()
        return found

    def full_model(self, net: Transformer) -> Transformer:
        weights = self.gather_full_tensors(dict(net.named_parameters()))
        copy = build_transformer(net.config, seed=None)
        copy.load_state_dict(weights, strict=False, assign=True)
        return copy


@contextmanager
def process_group(device: str, kind: type[DDP]) -> Iterator[DDP]:
    """Each process on its own GPU, or all on the CPU; when all is well they part as well."""
    here = int(os.environ.get("LOCAL_RANK", "0"))
    if device.startswith("cuda"):
        if here >= (there := torch.cuda.device_count()):
            raise ClearheadError(
                f"process {here} of this machine has no GPU of its own; there are {there}."
            )
        device = f"cuda:{here}"
        torch.cuda.set_device(here)
    elif device != "cpu":
        raise ClearheadError(
            f"several processes train on cuda or cpu, not on {device}; use one process."
        )
    store, rank, size = next(iter(rendezvous("env://")))
    dist.init_process_group(
        "gloo" if device == "cpu" else "nccl",
        store=PrefixStore(_rendezvous_name(store, rank, size), store),
        rank=rank,
        world_size=size,
        device_id=None if device == "cpu" else torch.device(device),
    )
    team = kind(device)
    yield team
    team.barrier()
    dist.destroy_process_group()
    time.sleep(
        0.2
    )  # gloo's threads let go of the last message; they would crash if Python had ended by then


def _rendezvous_name(store: Store, rank: int, size: int) -> str:
    """One name for this start, known to all of its processes.

    torchrun's store outlives a restart, and without a name addresses of processes that were killed would be found in
    it (pytorch #135712). So each process tells who it is until it hears the name from the first one of this start.
    """
    who = uuid4().hex
    if rank:
        store.set(f"clearhead/here/{rank}", who)
        name = store.get(f"clearhead/named/{who}").decode()  # waits
        store.set(f"clearhead/heard/{name}/{rank}", "")
        return name
    missing = set(range(1, size))
    while missing:
        for other in [n for n in missing if store.check([f"clearhead/here/{n}"])]:
            store.set(
                f"clearhead/named/{store.get(f'clearhead/here/{other}').decode()}", who
            )  # maybe to a dead one
            if store.check([f"clearhead/heard/{who}/{other}"]):
                missing.discard(other)
        time.sleep(0.01)
    return who
