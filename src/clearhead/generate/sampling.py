"""How a text is to be written on: the options people give, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clearhead.errors import ClearheadError, check_whole, nearest

LARGEST_SEED = 2**64 - 1
LARGEST, LEAST = 1e38, 1e-37  # what is more may be infinite in 32 bits, and what is less 0
LARGEST_COUNT = 2**31


@dataclass(frozen=True)
class Sampling:
    """How a text is written on: when it ends, and how each of its tokens is drawn."""

    max_tokens: int = 40
    temperature: float = 1.0  # 0 takes the likeliest
    top_k: int = 0  # only so many of the likeliest; 0 = all
    top_p: float = 1.0  # only the likeliest that have this share together
    min_p: float = 0.0  # only those that are this share as likely as the likeliest
    repetition_penalty: float = 1.0  # divides the logits of all that was read or written, if they are positive
    presence_penalty: float = 0.0  # taken from the logits of all that was written
    frequency_penalty: float = 0.0  # the same, for each time
    bias: Mapping[int, float] = field(default_factory=dict)  # added to the logits of these tokens
    banned: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()  # what it begins with
    stop: tuple[str, ...] = ()  # texts that end it; they are not shown
    stop_tokens: tuple[int, ...] = ()  # tokens that end it, besides the model's own
    seed: int = 0
    overflow: str = "refuse"  # or slide: a context that is full goes on from its newer half, which is read anew

    def __post_init__(self) -> None:
        check_whole("max_tokens", self.max_tokens, 1, LARGEST_COUNT)
        check_whole("top_k", self.top_k, most=LARGEST_COUNT)
        check_whole("seed", self.seed, most=LARGEST_SEED)
        for name, low, high in (
            ("temperature", 0.0, LARGEST),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.0, LARGEST),
            ("presence_penalty", -LARGEST, LARGEST),
            ("frequency_penalty", -LARGEST, LARGEST),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not low <= value <= high:
                right = f"of at least 0 and at most {high:g}" if low == 0 and high > 1 else f"from {low:g} to {high:g}"
                raise ClearheadError(f"{name} = {value!r:.60} must be a number {right}.")
        for name in ("top_p", "repetition_penalty"):
            if (value := getattr(self, name)) < LEAST:
                raise ClearheadError(f"{name} = {value} would leave nothing to draw from; it must be more than 0.")
        for name in ("banned", "forced", "stop_tokens"):
            tokens = getattr(self, name)
            if not isinstance(tokens, list | tuple) or not all(type(token) is int for token in tokens):
                raise ClearheadError(f"{name} = {tokens!r:.60} must be a list of ids.")
        if not isinstance(self.bias, Mapping) or not all(
            type(token) is int and isinstance(value, int | float) and abs(value) <= LARGEST
            for token, value in self.bias.items()
        ):
            raise ClearheadError(f"bias = {self.bias!r:.60} must give ids finite numbers: {{5: 2.0}}.")
        if not isinstance(self.stop, list | tuple):
            raise ClearheadError(f"stop = {self.stop!r:.60} must be a text or a list of texts.")
        check_overflow(self.overflow)
        if not all(isinstance(text, str) and text for text in self.stop):
            raise ClearheadError("what a text stops at must be texts, and none of them empty.")

    @property
    def looks_back(self) -> bool:
        """Whether what was read and written matters."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


def check_overflow(overflow: str) -> None:
    if overflow not in ("refuse", "slide"):
        raise ClearheadError(
            f"overflow {overflow!r} is unknown; what exceeds the context is refused, or made to slide."
        )


def sampling(**options: Any) -> Sampling:
    """Options by name; one text to stop at may stand alone."""
    known = Sampling.__dataclass_fields__
    for name in options:
        if name in ("beam", "beams", "n_best"):
            raise ClearheadError(f"{name} is for searching, not for drawing: model.beams(prompt, beam=5, n_best=1).")
        if name not in known:
            raise ClearheadError(f"{name} is no option of writing; {nearest(name, known)}")
    if isinstance(stop := options.get("stop"), str):
        options["stop"] = (stop,)
    return Sampling(**options)
