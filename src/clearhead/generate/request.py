"""What is asked of the engine, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clearhead.generate.sampling import Sampling


class Chosen(NamedTuple):
    """A token that was written: its log-probability under the model, and those of the likeliest tokens."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Request:
    """A prompt, how it is to be written on, and what has been written."""

    prompt: list[int]
    sampling: Sampling
    sample: int = 0  # which of several from one seed
    top: int = 0  # how many of the likeliest are told with each token
    written: list[Chosen] = field(default_factory=list)
    reason: str = ""  # why it ended: stop or length
    asked: int = 0  # tokens that were begun; the last may not be known yet
    start: int = 0  # where in the text it reads begins what the memory holds

    @property
    def tokens(self) -> list[int]:
        """The whole text so far."""
        return [*self.prompt, *(chosen.token for chosen in self.written)]

    def end(self, reason: str) -> None:
        """Ends it before the next step; the first reason holds."""
        self.reason = self.reason or reason


def alike(one: Sequence[object], other: Sequence[object]) -> int:
    """How much two texts have in common at their beginning, in tokens or in characters."""
    for at, (here, there) in enumerate(zip(one, other, strict=False)):
        if here != there:
            return at
    return min(len(one), len(other))
