"""One step: the gradients of some batches' summed loss, clipped, and new weights; on a GPU recorded and replayed."""

from collections.abc import Callable, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from clearhead.data.packed import Packed
from clearhead.model.transformer import Transformer
from clearhead.recipe import Train
from clearhead.train.lesson import compiled_or_not, loss_of, to
from clearhead.train.optim import Ema, Optimiser
from clearhead.train.team import Alone

WARM = 3  # steps until compilers and libraries have settled
Work = Callable[[Sequence[Packed], Sequence[float | Tensor], float | Tensor], Tensor]


class Step:
    """Called with batches, the count of all their lessons and the schedule's factor; gives this process' mean loss."""

    def __init__(
        self,
        net: Transformer,
        optimiser: Optimiser,
        ema: Ema | None,
        options: Train,
        device: torch.device,
        compiled: bool,
        team: Alone,
    ) -> None:
        self.net, self.optimiser, self.ema, self.options, self.device = net, optimiser, ema, options, device
        self.team = team
        self.loss: Callable[[Packed], Tensor] = lambda batch: loss_of(net, batch, options.smoothing)[0]
        if compiled and not team.sharded:
            self.loss = compiled_or_not(self.loss)
        recorded = compiled and device.type == "cuda" and team.size == 1
        self.replay = Replay(self.work, self.placed, device) if recorded else None

    def __call__(self, batches: Sequence[Packed], count: int, factor: float) -> Tensor:
        self.net.train()
        if self.replay is not None:
            return self.replay(batches, 1 / count, factor)
        mine = [self.team.share(batch) for batch in batches]
        shares = [counts / count for _, counts in mine]
        return self.work([self.placed(batch) for batch, _ in mine], shares, factor)

    def placed(self, batch: Packed) -> Packed:
        return to(batch, self.device, self.net)

    def work(self, batches: Sequence[Packed], shares: Sequence[float | Tensor], factor: float | Tensor) -> Tensor:
        o, mean = self.options, torch.zeros((), device=self.device)
        for batch, share in zip(batches, shares, strict=True):
            part = self.loss(batch) * share
            part.backward()
            mean += part.detach()
            if o.accumulate > 1 or self.team.size > 1:
                self.optimiser.collect()
        self.optimiser.add_up()
        if o.clip:
            self.optimiser.clip(o.clip)
        self.optimiser.step(factor)
        self.optimiser.zero()
        if self.ema is not None:
            self.ema.update()
        return mean


class Replay:
    """Work for a GPU that is recorded once and then replayed as a whole (CUDA graphs): no kernel waits for Python.

    The recording reads from fixed places, into which each batch is copied; batches of another form get their own.
    """

    def __init__(self, work: Work, placed: Callable[[Packed], Packed], device: torch.device) -> None:
        self.work, self.placed, self.device, self.calls = work, placed, device, 0
        self.recorded: dict[object, tuple[torch.cuda.CUDAGraph, list[Packed], Tensor]] = {}
        self.share, self.factor = (torch.zeros((), device=device) for _ in range(2))

    def __call__(self, batches: Sequence[Packed], share: float, factor: float) -> Tensor:
        self.share.fill_(share)
        self.factor.fill_(factor)
        self.calls += 1
        if self.calls <= WARM:
            return self._aside([self.placed(batch) for batch in batches])
        form = tuple(None if t is None else t.shape for batch in batches for t in _parts(batch))
        if form not in self.recorded:
            self.recorded[form] = self._record([self.placed(batch) for batch in batches])
        graph, places, mean = self.recorded[form]
        for place, batch in zip(places, batches, strict=True):
            for there, here in zip(_parts(place), _parts(batch), strict=True):
                if there is not None and here is not None:
                    there.copy_(here.pin_memory(), non_blocking=True)
        graph.replay()
        return mean.clone()

    def _record(self, places: list[Packed]) -> tuple[torch.cuda.CUDAGraph, list[Packed], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            mean = self.work(places, [self.share] * len(places), self.factor)
        return graph, places, mean

    def _aside(self, batches: list[Packed]) -> Tensor:
        """On another stream, as the steps before a recording must be."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            mean = self.work(batches, [self.share] * len(batches), self.factor)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return mean


def _parts(batch: Packed) -> list[Tensor | None]:
    return [getattr(batch, field.name) for field in fields(batch)]
