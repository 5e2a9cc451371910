"""One step: the gradients of some batches' summed loss, clipped, and new weights; on a GPU recorded and replayed."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import cast

import torch
from torch import Tensor

from clearhead.data.packed import Packed
from clearhead.model import heads
from clearhead.model.transformer import Transformer
from clearhead.train.ema import Ema
from clearhead.train.lesson import GAVE_UP, loss_of, to
from clearhead.train.optim import Optimiser
from clearhead.train.team import Alone
from clearhead.training import Train

WARM = 3  # steps until compilers and libraries have settled
Work = Callable[[Sequence[Packed], Sequence[float | Tensor], float | Tensor], Tensor]
Say = Callable[[str], None]


class Step:
    """Called with batches, the count of all their lessons and the schedule's factor; gives this process' mean loss.

    What makes it fast (the compiler, the recording, the kernel for the loss) is left out where it fails, with a line.
    """

    def __init__(
        self,
        net: Transformer,
        optimiser: Optimiser,
        ema: Ema | None,
        options: Train,
        device: torch.device,
        compiled: bool,
        team: Alone,
        say: Say,
    ) -> None:
        self.net, self.optimiser, self.ema, self.options, self.device = net, optimiser, ema, options, device
        self.team, self.say, self.compiled = team, say, compiled and not team.sharded
        if device.type == "cuda" and heads.FUSED and not heads.settle_kernel(device):
            say("triton cannot make the kernel for the loss here; going on without it")
        self.loss = torch.compile(self._loss, dynamic=False) if self.compiled else self._loss
        recorded = compiled and device.type == "cuda" and team.size == 1
        self.replay = Replay(self.work, self.placed, device) if recorded else None

    def __call__(self, batches: Sequence[Packed], count: int, factor: float) -> Tensor:
        self.net.train()
        if self.replay is not None:
            try:
                return self.replay(batches, 1 / count, factor)
            except NoRecording as error:
                self.say(f"the step cannot be recorded ({error}); going on without")
                self.replay = None
        mine = [self.team.share(batch) for batch in batches]
        shares = [counts / count for _, counts in mine]
        return self.work([self.placed(batch) for batch, _ in mine], shares, factor)

    def placed(self, batch: Packed) -> Packed:
        return to(batch, self.device, self.net)

    def work(self, batches: Sequence[Packed], shares: Sequence[float | Tensor], factor: float | Tensor) -> Tensor:
        try:
            mean = self._gradients(batches, shares)
        except torch._dynamo.exc.TorchDynamoException as error:
            if not self.compiled:
                raise
            self.say(GAVE_UP.format(type(error).__name__))
            self.compiled, self.loss = False, self._loss
            self.optimiser.zero()
            torch.manual_seed(torch.initial_seed())  # what the broken pass drew is drawn again
            mean = self._gradients(batches, shares)
        self.optimiser.add_up()
        if self.options.clip:
            self.optimiser.clip(self.options.clip)
        self.optimiser.step(factor)
        self.optimiser.zero()
        if self.ema is not None:
            self.ema.update()
        return mean

    def _gradients(self, batches: Sequence[Packed], shares: Sequence[float | Tensor]) -> Tensor:
        mean = torch.zeros((), device=self.device)
        for batch, share in zip(batches, shares, strict=True):
            part = self.loss(batch) * share
            part.backward()
            mean += part.detach()
            if len(batches) > 1 or self.team.size > 1:
                self.optimiser.collect()
        return mean

    def _loss(self, batch: Packed) -> Tensor:
        return loss_of(self.net, batch, self.options.smoothing)[0]


class NoRecording(Exception):
    """The GPU's work cannot be recorded, for the reason given; nothing of it was done."""


class Replay:
    """Work for a GPU that is recorded once and then replayed as a whole (CUDA graphs): no kernel waits for Python.

    The recording reads from fixed places, into which each batch is copied; so all batches must be of one form.
    """

    def __init__(self, work: Work, placed: Callable[[Packed], Packed], device: torch.device) -> None:
        self.work, self.placed, self.stream, self.calls = work, placed, torch.cuda.Stream(device), 0
        self.share, self.factor = (torch.zeros((), device=device) for _ in range(2))
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batches: Sequence[Packed], share: float, factor: float) -> Tensor:
        self.share.fill_(share)
        self.factor.fill_(factor)
        self.calls += 1
        if self.calls <= WARM:
            return self._aside([self.placed(batch) for batch in batches])
        if self.graph is None:
            self._record([self.placed(batch) for batch in batches])
        for there, here in zip(map(_parts, self.places), map(_parts, batches), strict=True):
            for place, given in zip(there, here, strict=True):
                place.copy_(given.pin_memory(), non_blocking=True)
        cast(torch.cuda.CUDAGraph, self.graph).replay()
        return self.mean.clone()

    def _record(self, places: list[Packed]) -> None:
        self.places, graph = places, torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.mean = self.work(places, [self.share] * len(places), self.factor)
        except RuntimeError as error:
            with warnings.catch_warnings(action="ignore"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                pass  # nothing: but chance, which still believes in the recording that broke, is free again
            raise NoRecording(str(error).splitlines()[0]) from None
        self.graph = graph

    def _aside(self, batches: list[Packed]) -> Tensor:
        """On another stream, as the steps before a recording must be."""
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            mean = self.work(batches, [self.share] * len(batches), self.factor)
        here.wait_stream(self.stream)
        return mean


def _parts(batch: Packed) -> list[Tensor]:
    return [t for field in fields(batch) if (t := getattr(batch, field.name)) is not None]
