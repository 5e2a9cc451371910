"""Arithmetic written out: sums of products with their largest terms, norms step by step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

SHOWN = 8  # terms of a sum that are told one by one

Term = tuple[str, float | None, float | None, float]  # what it is, a, b, and a · b; or what it is and how much


@dataclass(frozen=True)
class Step:
    """A sentence, the number it leads to, and what that is the sum of."""

    words: str
    value: float
    terms: list[Term] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        terms = [[label, *map(finite, numbers)] for label, *numbers in self.terms]
        return {"words": self.words, **number(self.value), "terms": terms}


def dimension(i: int) -> str:
    """What most terms are called."""
    return f"dimension {i}"


def finite(value: float | Tensor | None) -> float | None:
    """A number that JSON can hold, or nothing."""
    return None if value is None or not math.isfinite(value) else float(value)


def number(value: float) -> dict[str, Any]:
    """JSON has no infinities, and no word for what is no number."""
    return {"value": finite(value), **({} if math.isfinite(value) else {"special": str(value)})}


def dot(words: str, a: Tensor, b: Tensor, label: Callable[[int], str], bias: Tensor | float | None = None) -> Step:
    """a · b, and a bias: the largest products one by one, the rest as their sum."""
    products = (a.float() * b.float()).cpu()
    first, rest = parted(products.abs().nan_to_num(0).argsort(descending=True))
    terms: list[Term] = [(label(i), float(a[i]), float(b[i]), float(products[i])) for i in first.tolist()]
    if len(rest):
        terms.append((f"{len(rest)} others", None, None, float(products[rest].double().sum())))
    if bias is not None:
        terms.append(("bias", None, None, float(bias)))
    return Step(words, float(products.double().sum()) + float(bias or 0.0), terms)


def parted(order: Tensor) -> tuple[Tensor, Tensor]:
    """Those that are told one by one, and the others, of which there are several or none."""
    shown = SHOWN if len(order) > SHOWN + 1 else len(order)
    return order[:shown], order[shown:]


def total(words: str, parts: Sequence[tuple[str, float]]) -> Step:
    """A plain sum."""
    return Step(words, sum(value for _, value in parts), [(label, None, None, value) for label, value in parts])


def linear(words: str, layer: nn.Module, row: int, x: Tensor, label: Callable[[int], str]) -> Step | None:
    """One output of a linear layer; None where its matrix is of whole numbers with scales of their own."""
    if not isinstance(layer, nn.Linear):
        return None
    return dot(words, x, layer.weight[row], label, None if layer.bias is None else layer.bias[row])


def normalised(norm: nn.Module, x: Tensor, at: int) -> list[Step]:
    """One place of a vector after a norm: its mean and deviation, then scale and shift (L4.3)."""
    x = x.float()
    if isinstance(norm, nn.LayerNorm):
        mean, deviation = float(x.mean()), float((x.var(correction=0) + norm.eps).sqrt())
        gamma, beta = float(norm.weight[at]), 0.0 if norm.bias is None else float(norm.bias[at])
        value = gamma * (float(x[at]) - mean) / deviation + beta
        return [
            Step("μ, the mean of the token's vector", mean),
            Step("σ, its deviation", deviation),
            Step(f"γ (x − μ) / σ + β, with γ = {gamma:.5g}, x = {float(x[at]):.5g}, β = {beta:.5g}", value),
        ]
    if isinstance(norm, nn.RMSNorm):
        root = float((x.square().mean() + (norm.eps or 0.0)).sqrt())
        gamma = float(norm.weight[at])
        return [
            Step("root of the mean square of the token's vector", root),
            Step(f"γ x / root, with γ = {gamma:.5g}, x = {float(x[at]):.5g}", gamma * float(x[at]) / root),
        ]
    return [Step("the same: there is no norm here", float(x[at]))]
