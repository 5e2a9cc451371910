"""The optimisers to choose from, as tagged values; they are read without torch."""

from dataclasses import dataclass, field
from typing import Literal

from clearhead.errors import ClearheadError
from clearhead.variants import kind, say


def within(option: object, **limits: float) -> None:
    """Refuses a field that is negative, or not below its limit."""
    for name, limit in limits.items():
        if not 0 <= (value := getattr(option, name)) < limit:
            right = "at least 0" if limit == float("inf") else f"at least 0 and less than {limit:g}"
            raise ClearheadError(f"{type(option).__name__.lower()}.{name} = {value} must be {right}.")


@dataclass(frozen=True)
class Adam:
    """Each weight moves by the mean of its gradients over the root of their mean square."""

    rate: float = say("how far a weight moves in a step at the peak of the schedule", 1e-3)
    beta1: float = say("share of the mean gradient that is kept in a step", 0.9)
    beta2: float = say("share of the mean squared gradient that is kept in a step", 0.95)
    eps: float = say("added to the root of the mean square", 1e-8)

    def __post_init__(self) -> None:
        within(self, rate=float("inf"), beta1=1.0, beta2=1.0, eps=float("inf"))


@dataclass(frozen=True)
class AdamW(Adam):
    kind: Literal["adamw"] = kind("Adam with decay apart from the gradient", "adamw")
    decay: float = say("matrices of the blocks shrink by decay x rate in a step", 0.1, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, decay=float("inf"))


@dataclass(frozen=True)
class Muon:
    kind: Literal["muon"] = kind("matrices of the blocks move by orthogonal matrices, the rest by Adam", "muon")
    rate: float = say("the size of the step of a matrix at the peak of the schedule", 0.02)
    momentum: float = say("share of the mean gradient that is kept in a step", 0.95)
    decay: float = say("matrices of the blocks shrink by decay x rate in a step", 0.1, least=0)
    adam: Adam = field(default=Adam())

    def __post_init__(self) -> None:
        within(self, rate=float("inf"), momentum=1.0, decay=float("inf"))


Option = AdamW | Muon
