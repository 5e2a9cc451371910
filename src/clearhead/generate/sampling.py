"""Drawing the next token (L5.2): from logits to one choice, for rows that may each want it otherwise.

    logits ─ penalties ─ bias, banned ─ ÷ temperature ─ top-k ─ top-p ─ min-p ─ + noise ─▶ the largest

A draw from softmax(x) is the largest of x + g, with g drawn from Gumbel's distribution. The noise of a token depends on
the seed, the place in the text and the token alone: so the same seed writes the same text, alone or among others, and
a stricter top-k or top-p only ever takes candidates away.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import ClearheadError, nearest

Logits = Float[Tensor, "row vocabulary"]
Counts = Int[Tensor, "row vocabulary"]
Each = Float[Tensor, "row 1"]
WHOLE = ("max_tokens", "top_k", "seed")


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
    seed: int = 0

    def __post_init__(self) -> None:
        for name in WHOLE:
            if not isinstance(value := getattr(self, name), int) or isinstance(value, bool) or value < (name[0] == "m"):
                least = 1 if name == "max_tokens" else 0
                raise ClearheadError(f"{name} = {value} must be a whole number of at least {least}.")
        for name, low, high in (
            ("temperature", 0.0, math.inf),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.0, math.inf),
            ("presence_penalty", -math.inf, math.inf),
            ("frequency_penalty", -math.inf, math.inf),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not low <= value <= high or math.isinf(value):
                right = f"from {low:g} to {high:g}" if high == 1 else "of at least 0" if low == 0 else "that is finite"
                raise ClearheadError(f"{name} = {value} must be a number {right}.")
        if not self.top_p or not self.repetition_penalty:
            name = "repetition_penalty" if self.top_p else "top_p"
            raise ClearheadError(f"{name} = 0 would leave nothing to draw from; it must be more than 0.")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise ClearheadError("what a text stops at must be texts, and none of them empty.")


def sampling(**options: Any) -> Sampling:
    """Options by name; one text to stop at may stand alone."""
    known = Sampling.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ClearheadError(f"{name} is no option of writing; {nearest(name, known)}")
    if isinstance(stop := options.get("stop"), str):
        options["stop"] = (stop,)
    return Sampling(**options)


class Draw:
    """The draws of some rows, each by its own options; all it needs is on the device, and it never asks it."""

    def __init__(self, rows: Sequence[Sampling], keys: Sequence[int], device: torch.device) -> None:
        def each(name: str) -> Each:
            return torch.tensor([[float(getattr(row, name))] for row in rows], device=device)

        def used(name: str, idle: float) -> Each | None:
            return each(name) if any(getattr(row, name) != idle for row in rows) else None

        self.keys = torch.tensor([[key] for key in keys], device=device)
        self.temperature = each("temperature")
        self.top_k = used("top_k", 0)
        self.most = max(row.top_k for row in rows)
        self.top_p, self.min_p = used("top_p", 1.0), used("min_p", 0.0)
        self.repetition = used("repetition_penalty", 1.0)
        self.presence, self.frequency = used("presence_penalty", 0.0), used("frequency_penalty", 0.0)

    @property
    def looks_back(self) -> bool:
        """Whether what was read and written matters."""
        return any(penalty is not None for penalty in (self.repetition, self.presence, self.frequency))

    def __call__(
        self, logits: Logits, places: Int[Tensor, "row 1"], read: Counts | None, written: Counts | None
    ) -> Int[Tensor, " row"]:
        """The token of each row, which comes at this place of its text; how often each token was read and written."""
        x = logits
        if read is not None and written is not None:
            x = penalised(x, read, written, self.repetition, self.presence, self.frequency)
        x = x / self.temperature.clamp(min=1e-6)
        if self.top_k is not None:
            x = likeliest(x, self.top_k, self.most)
        if self.top_p is not None:
            x = nucleus(x, self.top_p)
        if self.min_p is not None:
            x = x.masked_fill(x < x.amax(dim=-1, keepdim=True) + self.min_p.log(), -torch.inf)
        noisy = x + noise(self.keys, places, x.shape[1])
        return torch.where(self.temperature > 0, noisy, x).argmax(dim=-1)


def penalised(
    logits: Logits,
    read: Counts,
    written: Counts,
    repetition: Each | None = None,
    presence: Each | None = None,
    frequency: Each | None = None,
) -> Logits:
    """Tokens that were there already become less likely."""
    x = logits
    if repetition is not None:
        x = torch.where(read + written > 0, torch.where(x > 0, x / repetition, x * repetition), x)
    if presence is not None:
        x = x - presence * (written > 0)
    if frequency is not None:
        x = x - frequency * written
    return x


def likeliest(x: Logits, k: Each, most: int) -> Logits:
    """Only the k likeliest of each row, and what is as likely as the last of them; 0 = all."""
    best = x.topk(min(most, x.shape[1])).values
    least = best.gather(1, (k.long() - 1).clamp(0, best.shape[1] - 1))
    return x.masked_fill((x < least) & (k > 0), -torch.inf)


def nucleus(x: Logits, share: Each) -> Logits:
    """Only the likeliest that have this share of the probability together; 1 = all."""
    p = x.softmax(dim=-1)
    falling = p.sort(dim=-1, descending=True).values
    before = falling.cumsum(dim=-1) - falling
    least = falling.masked_fill(before >= share, torch.inf).amin(dim=-1, keepdim=True)
    return x.masked_fill((p < least) & (share < 1), -torch.inf)


def noise(keys: Int[Tensor, "row 1"], places: Int[Tensor, "row 1"], vocabulary: int) -> Logits:
    """−log(−log u) of numbers u in (0, 1) that are mixed from key, place and token, the same on any device."""
    tokens = torch.arange(vocabulary, device=keys.device)
    mixed = _mix(_mix(keys ^ _mix(places + 1)) ^ _mix(tokens * 2 + 1))
    u = ((mixed >> 8).float() + 0.5) / 2**24
    return -torch.log(-torch.log(u))


def key_of(seed: int, sample: int = 0) -> int:
    """The key of one text; each of several samples from one seed has its own."""
    key = 0x9E3779B9
    for part in (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, sample):
        key = int(_mix(torch.tensor(key ^ part)))
    return key


def _mix(x: Tensor) -> Tensor:
    """A number of 32 bits whose every bit depends on all bits of another (Wellons' lowbias32)."""
    x = x & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16
