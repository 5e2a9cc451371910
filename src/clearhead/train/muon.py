"""Muon: a matrix moves by the nearest orthogonal one to its gradient, so that all its directions learn alike."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from clearhead.optimisers import Muon
from clearhead.train.team import Alone

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al.: steep at 0, and 1 ± 0.3 after five rounds


class Stacks:
    """Matrices of one shape are stacked, so that one product orthogonalises all of them."""

    def __init__(
        self, shapes: Mapping[str, torch.Size], weights: Mapping[str, Tensor], option: Muon, team: Alone
    ) -> None:
        self.option, self.weights, self.team = option, weights, team
        self.names: dict[torch.Size, list[str]] = {}
        for name, shape in shapes.items():
            self.names.setdefault(shape, []).append(name)
        self.stacks = [torch.stack([torch.zeros_like(weights[n]) for n in names]) for names in self.names.values()]

    def momenta(self) -> Iterator[tuple[str, Tensor]]:
        for names, stack in zip(self.names.values(), self.stacks, strict=True):
            yield from zip(names, stack.unbind(), strict=True)

    def step(self, gradients: Mapping[str, Tensor], factor: float | Tensor) -> None:
        rate, keep = self.option.rate * factor, self.option.momentum
        for (shape, names), momentum in zip(self.names.items(), self.stacks, strict=True):
            gradient = torch.stack([gradients[name] for name in names]).to(momentum.dtype)
            momentum.lerp_(gradient, 1 - keep)
            ahead = gradient.lerp_(momentum, keep)  # Nesterov: a step ahead along the momentum
            whole = self.team.whole(self.team.named(ahead, (len(names), *shape), dim=1))
            update = self.team.part(orthogonal(whole), dim=1)
            rows, columns = shape
            # the output then moves as much for any width, so that a rate found for a small model fits a large one
            far = rate * max(1.0, rows / columns) ** 0.5
            weights = [self.weights[name] for name in names]
            torch._foreach_mul_(weights, 1 - rate * self.option.decay)
            torch._foreach_sub_(weights, (update.to(momentum.dtype) * far).unbind())


def orthogonal(x: Tensor) -> Tensor:
    """The nearest orthogonal matrices to a stack of them, roughly: UV^T of UΣV^T, by Newton–Schulz rounds.

    A round is aX + (bA + cA²)X with A = XXᵀ, which takes every singular value closer to 1.
    """
    a, b, c = _NEWTON_SCHULZ
    tall = x.shape[-2] > x.shape[-1]
    x = x.float()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    x = x.bfloat16() if x.is_cuda else x  # CPUs are slower in bf16, and the rounding of a direction does no harm
    x = x.mT if tall else x
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
