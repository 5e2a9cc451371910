"""The optimisers to choose from, as tagged values; they are read without torch."""

from dataclasses import dataclass, field
from typing import Literal

from clearhead.variants import kind, say


@dataclass(frozen=True)
class Adam:
    """Each weight moves by the mean of its gradients over the root of their mean square."""

    rate: float = say("how far a weight moves in a step at the peak of the schedule", 1e-3)
    beta1: float = say("share of the mean gradient that is kept in a step", 0.9, least=0, below=1)
    beta2: float = say("share of the mean squared gradient that is kept in a step", 0.95, least=0, below=1)
    eps: float = say("added to the root of the mean square", 1e-8)


@dataclass(frozen=True)
class AdamW(Adam):
    kind: Literal["adamw"] = kind("Adam with decay apart from the gradient", "adamw")
    decay: float = say("matrices of the blocks shrink by decay x rate in a step", 0.1, least=0)


@dataclass(frozen=True)
class Muon:
    kind: Literal["muon"] = kind("matrices of the blocks move by orthogonal matrices, the rest by Adam", "muon")
    rate: float = say("the size of the step of a matrix at the peak of the schedule", 0.02)
    momentum: float = say("share of the mean gradient that is kept in a step", 0.95, least=0, below=1)
    decay: float = say("matrices of the blocks shrink by decay x rate in a step", 0.1, least=0)
    adam: Adam = field(default=Adam())


Option = AdamW | Muon
