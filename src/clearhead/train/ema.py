"""A moving average of the weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from clearhead.errors import ClearheadError
from clearhead.train.optim import Optimiser, State, restore


class Ema:
    """A moving average of the weights that move, in fp32: often a better model than the last step's."""

    def __init__(self, optimiser: Optimiser, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ClearheadError(f"the decay of a moving average is {decay}; it must be at least 0 and less than 1.")
        self.decay, self.optimiser, self.team = decay, optimiser, optimiser.team
        self.averages = [weight.detach().float().clone() for weight in optimiser.weights.values()]

    @torch.no_grad()
    def update(self) -> None:
        """average ← decay · average + (1 − decay) · weight"""
        torch._foreach_lerp_(self.averages, [w.float() for w in self.optimiser.weights.values()], 1 - self.decay)

    def state(self) -> State:
        return {f"{name}.ema": average for name, average in self._named(self.averages).items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        restore(self.state(), state, self.team)

    @contextmanager
    def swapped(self) -> Iterator[State]:
        """The net has the averages for its weights meanwhile; its own are given."""
        own = [held.detach().clone() for held in self.optimiser.held.values()]
        self._put(self.averages)
        try:
            yield self._named(own)
        finally:
            self._put(own)

    def _named(self, values: list[Tensor]) -> State:
        parameters = self.optimiser.parameters.items()
        return {name: self.team.named(t, p.shape) for (name, p), t in zip(parameters, values, strict=True)}

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(list(self.optimiser.held.values()), values)
