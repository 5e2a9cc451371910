"""Drawing the next token (L5.2): from logits to one choice, for rows that may each want it otherwise.

    logits ─ penalties ─ bias, banned ─ ÷ temperature ─ top-k ─ top-p ─ min-p ─ + noise ─▶ the largest

A draw from softmax(x) is the largest of x + g, with g drawn from Gumbel's distribution. The noise of a token depends on
the seed, the place in the text and the token alone: so the same seed writes the same text, alone or among others, and
a stricter top-k or top-p only ever takes candidates away.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.generate.sampling import Sampling
from clearhead.kernels import TRITON

if TRITON:
    from clearhead.kernels import draw as drawing

Logits = Float[Tensor, "row vocabulary"]
Counts = Int[Tensor, "row known"]
Each = Float[Tensor, "row 1"]
Number = TypeVar("Number", int, Tensor)
OPTIONS = ("temperature", "top_k", "top_p", "min_p")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class Draw:
    """The draws of some rows, each by its own options; all it needs is on the device, and it never asks it.

    With `kernel`, one kernel does all but the penalties, where it can.
    """

    def __init__(
        self, rows: Sequence[Sampling], keys: Sequence[int], device: torch.device, kernel: bool = False
    ) -> None:
        def table(names: Sequence[str]) -> Tensor:
            return torch.tensor([[float(getattr(row, name)) for name in names] for row in rows], device=device)

        self.kernel = kernel and TRITON and device.type == "cuda"
        self.options, self.penalties = table(OPTIONS), table(PENALTIES)
        self.keys = torch.tensor([[key] for key in keys], device=device)
        self.most = max(row.top_k for row in rows)
        self.nucleus, self.min_p = any(row.top_p < 1 for row in rows), any(row.min_p > 0 for row in rows)
        self.noisy = any(row.temperature > 0 for row in rows)
        self.looks_back = any(row.looks_back for row in rows)

    @property
    def form(self) -> tuple[object, ...]:
        """Draws of the same form are the same operations."""
        alike = () if self.kernel else (self.most, self.nucleus, self.min_p, self.noisy)
        return (len(self.keys), self.looks_back, *alike)

    def become(self, other: "Draw") -> None:
        """The same draws in the same memory; what is asked of them must be alike."""
        for name in ("options", "penalties", "keys"):
            getattr(self, name).copy_(getattr(other, name))

    def __call__(
        self,
        logits: Logits,
        places: Int[Tensor, "row 1"],
        known: int | None = None,
        counts: tuple[Counts, Counts] | None = None,
        extra: Float[Tensor, "row known"] | None = None,
    ) -> tuple[Int[Tensor, " row"], Float[Tensor, " row"]]:
        """The token of each row, one of the first `known`, and its log-probability under the model.

        It comes at this place of its text; so often each token was read and written; `extra` is added to the logits.
        """
        x = logits[:, :known]
        if counts is not None:
            x = penalised(x, *counts, *self.penalties[:, :, None].unbind(1))
        if extra is not None:
            x = x + extra
        if self.kernel:
            return drawing.draw(x, logits, self.options, self.keys, places)
        tokens = self._drawn(x, places)
        log_probs = logits.gather(1, tokens[:, None]) - logits.logsumexp(dim=-1, keepdim=True)
        return tokens, log_probs[:, 0]

    def _drawn(self, x: Logits, places: Int[Tensor, "row 1"]) -> Int[Tensor, " row"]:
        temperature, top_k, top_p, min_p = self.options[:, :, None].unbind(1)
        if not self.noisy:
            return x.argmax(dim=-1)
        x = torch.where(temperature > 0, x / temperature.clamp(min=1e-6), x)
        if self.most:
            x = likeliest(x, top_k, self.most)
        if self.nucleus:
            x = nucleus(x, top_p)
        if self.min_p:
            x = x.masked_fill(x < x.amax(dim=-1, keepdim=True) + min_p.log(), -torch.inf)
        return torch.where(temperature > 0, x + noise(self.keys, places, x.shape[1]), x).argmax(dim=-1)


def penalised(
    logits: Logits, read: Counts, written: Counts, repetition: Each, presence: Each, frequency: Each
) -> Logits:
    """Tokens that were there already become less likely."""
    x = torch.where(read + written > 0, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    return x - presence * (written > 0) - frequency * written


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
    return gumbel(mixed)


def gumbel(bits: Tensor) -> Tensor:
    """−log(−log u), u from 32 bits; of these 23, so that u is exact in fp32 and never 0 or 1."""
    return -torch.log(-torch.log(((bits >> 9).float() + 0.5) / 2**23))


def key_of(seed: int, sample: int = 0) -> int:
    """The key of one text; each of several samples from one seed has its own."""
    key = 0x9E3779B9
    for part in (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, sample):
        key = _mix(key ^ part)
    return key


def _mix(x: Number) -> Number:
    """A number of 32 bits whose every bit depends on all bits of another (Wellons' lowbias32)."""
    x = x & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16
