"""How large a step is, as a share of the peak rate: pure functions of the step, read without torch.

Every schedule rises in a straight line over the first `warmup` steps. Steps count from 0, and none is lost at rate 0.
"""

import math
from dataclasses import dataclass
from typing import Literal

from clearhead.variants import kind, say


@dataclass(frozen=True)
class Constant:
    kind: Literal["constant"] = kind("the same rate to the end", "constant")

    def factor(self, step: int, steps: int, warmup: int) -> float:
        return rise(step, warmup)


@dataclass(frozen=True)
class Cosine:
    kind: Literal["cosine"] = kind("down along half a cosine", "cosine")
    final: float = say("share of the peak rate at the end", 0.1, least=0, most=1)

    def factor(self, step: int, steps: int, warmup: int) -> float:
        way = min(1.0, max(0, step - warmup) / max(1, steps - warmup))
        return rise(step, warmup) * (self.final + (1 - self.final) * (1 + math.cos(math.pi * way)) / 2)


@dataclass(frozen=True)
class Trapezoid:
    kind: Literal["trapezoid"] = kind("flat, then down in a straight line to zero (WSD)", "trapezoid")
    cooldown: float = say("share of all steps in which the rate goes down; 1 = from the start", 0.4, least=0, most=1)

    def factor(self, step: int, steps: int, warmup: int) -> float:
        left, down = max(0, steps - step), self.cooldown * steps
        return min(rise(step, warmup), left / down if left < down else 1.0)


@dataclass(frozen=True)
class InverseSquareRoot:
    """min(n^-1/2, n · warmup^-3/2) for the n-th step (Vaswani et al. 2017), divided by its peak, warmup^-1/2."""

    kind: Literal["inverse-square-root"] = kind("down with the root of the step, as in 2017", "inverse-square-root")

    def factor(self, step: int, steps: int, warmup: int) -> float:
        return min(rise(step, warmup), math.sqrt(max(1, warmup) / (step + 1)))


Schedule = Constant | Cosine | Trapezoid | InverseSquareRoot


def rise(step: int, warmup: int) -> float:
    """From 1/warmup at the first step to 1 at the last of the warm-up; with no warm-up, 1."""
    return min(1.0, (step + 1) / max(1, warmup))
