"""How a text is to be written on: the options people give, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import ClearheadError, check_int, suggest
from clearhead.kernels import TRITON_AVAILABLE

# ---- sampling: How a text is to be written on: the options people give, checked.

MAX_SEED = 2**64 - 1
# what is more may be infinite in 32 bits, and what is less 0
MAX_NUMBER = 1e38
MIN_POSITIVE = 1e-37
MAX_COUNT = 2**31


@dataclass(frozen=True)
class SamplingConfig:
    """How a text is written on: when it ends, and how each of its tokens is drawn."""

    max_tokens: int = 40
    temperature: float = 1.0  # 0 takes the likeliest
    top_k: int = 0  # only so many of the likeliest; 0 = all
    top_p: float = 1.0  # only the likeliest that have this share together
    min_p: float = 0.0  # only those that are this share as likely as the likeliest
    repetition_penalty: float = (
        1.0  # divides the logits of all that was read or written, if they are positive
    )
    presence_penalty: float = 0.0  # taken from the logits of all that was written
    frequency_penalty: float = 0.0  # the same, for each time
    logit_bias: Mapping[int, float] = field(
        default_factory=dict
    )  # added to the logits of these tokens
    suppress_tokens: tuple[int, ...] = ()
    prefix_tokens: tuple[int, ...] = ()  # what it begins with
    stop: tuple[str, ...] = ()  # texts that end it; they are not shown
    stop_tokens: tuple[int, ...] = ()  # tokens that end it, besides the model's own
    seed: int = 0
    overflow: str = (
        "refuse"  # or slide: a context that is full goes on from its newer half, which is read anew
    )

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, 1, MAX_COUNT)
        check_int("top_k", self.top_k, most=MAX_COUNT)
        check_int("seed", self.seed, most=MAX_SEED)
        for name, low, high in (
            ("temperature", 0.0, MAX_NUMBER),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.0, MAX_NUMBER),
            ("presence_penalty", -MAX_NUMBER, MAX_NUMBER),
            ("frequency_penalty", -MAX_NUMBER, MAX_NUMBER),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not low <= value <= high:
                right = (
                    f"of at least 0 and at most {high:g}"
                    if low == 0 and high > 1
                    else f"from {low:g} to {high:g}"
                )
                raise ClearheadError(f"{name} = {value!r:.60} must be a number {right}.")
        for name in ("top_p", "repetition_penalty"):
            if (value := getattr(self, name)) < MIN_POSITIVE:
                raise ClearheadError(
                    f"{name} = {value} would leave nothing to draw from; it must be more than 0."
                )
        for name in ("suppress_tokens", "prefix_tokens", "stop_tokens"):
            tokens = getattr(self, name)
            if not isinstance(tokens, list | tuple) or not all(
                type(token) is int for token in tokens
            ):
                raise ClearheadError(f"{name} = {tokens!r:.60} must be a list of ids.")
        if not isinstance(self.logit_bias, Mapping) or not all(
            type(token) is int and isinstance(value, int | float) and abs(value) <= MAX_NUMBER
            for token, value in self.logit_bias.items()
        ):
            raise ClearheadError(
                f"bias = {self.logit_bias!r:.60} must give ids finite numbers: {{5: 2.0}}."
            )
        if not isinstance(self.stop, list | tuple):
            raise ClearheadError(f"stop = {self.stop!r:.60} must be a text or a list of texts.")
        check_overflow(self.overflow)
        if not all(isinstance(text, str) and text for text in self.stop):
            raise ClearheadError("what a text stops at must be texts, and none of them empty.")

    @property
    def has_penalties(self) -> bool:
        """Whether what was read and written matters."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


def check_overflow(overflow: str) -> None:
    if overflow not in ("refuse", "slide"):
        raise ClearheadError(
            f"overflow {overflow!r} is unknown; what exceeds the context is refused, or made to slide."
        )


def sampling_config(**options: Any) -> SamplingConfig:
    """Options by name; one text to stop at may stand alone."""
    known = SamplingConfig.__dataclass_fields__
    for name in options:
        if name in ("beam", "beams", "n_best"):
            raise ClearheadError(
                f"{name} is for searching, not for drawing: model.beams(prompt, beam=5, n_best=1)."
            )
        if name not in known:
            raise ClearheadError(f"{name} is no option of writing; {suggest(name, known)}")
    if isinstance(stop := options.get("stop"), str):
        options["stop"] = (stop,)
    return SamplingConfig(**options)


# ---- draw: Drawing the next token (L5.2): from logits to one choice, for rows that may each want it otherwise.

if TRITON_AVAILABLE:
    from clearhead.kernels.sampling import sample_tokens

Logits = Float[Tensor, "row vocabulary"]
TokenCounts = Int[Tensor, "row known"]
PerRow = Float[Tensor, "row 1"]
Number = TypeVar("Number", int, Tensor)
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p")
PENALTY_OPTIONS = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class Sampler:
    """The draws of some rows, each by its own options; all it needs is on the device, and it never asks it.

    With `kernel`, one kernel does all but the penalties, where it can.
    """

    def __init__(
        self,
        configs: Sequence[SamplingConfig],
        rng_keys: Sequence[int],
        device: torch.device,
        use_kernel: bool = False,
    ) -> None:
        def table(names: Sequence[str]) -> Tensor:
            return torch.tensor(
                [[float(getattr(row, name)) for name in names] for row in configs], device=device
            )

        self.use_kernel = use_kernel and TRITON_AVAILABLE and device.type == "cuda"
        self.options = table(SAMPLING_OPTIONS)
        self.penalties = table(PENALTY_OPTIONS)
        self.rng_keys = torch.tensor([[key] for key in rng_keys], device=device)
        self.max_top_k = max(row.top_k for row in configs)
        self.uses_top_p = any(row.top_p < 1 for row in configs)
        self.uses_min_p = any(row.min_p > 0 for row in configs)
        self.is_random = any(row.temperature > 0 for row in configs)
        self.has_penalties = any(row.has_penalties for row in configs)

    @property
    def graph_key(self) -> tuple[object, ...]:
        """Draws of the same form are the same operations."""
        alike = (
            ()
            if self.use_kernel
            else (self.max_top_k, self.uses_top_p, self.uses_min_p, self.is_random)
        )
        return (len(self.rng_keys), self.has_penalties, *alike)

    def copy_from(self, other: "Sampler") -> None:
        """The same draws in the same memory; what is asked of them must be alike."""
        for name in ("options", "penalties", "rng_keys"):
            getattr(self, name).copy_(getattr(other, name))

    def __call__(
        self,
        logits: Logits,
        steps: Int[Tensor, "row 1"],
        vocab_size: int | None = None,
        counts: tuple[TokenCounts, TokenCounts] | None = None,
        logit_bias: Float[Tensor, "row known"] | None = None,
    ) -> tuple[Int[Tensor, " row"], Float[Tensor, " row"]]:
        """The token of each row, one of the first `known`, and its log-probability under the model.

        It comes at this place of its text; so often each token was read and written; `extra` is added to the logits.
        """
        x = logits[:, :vocab_size]
        if counts is not None:
            x = apply_penalties(x, *counts, *self.penalties[:, :, None].unbind(1))
        if logit_bias is not None:
            x = x + logit_bias
        if self.use_kernel:
            return sample_tokens(x, logits, self.options, self.rng_keys, steps)
        tokens = self._drawn(x, steps)
        log_probs = logits.gather(1, tokens[:, None]) - logits.logsumexp(dim=-1, keepdim=True)
        return tokens, log_probs[:, 0]

    def _drawn(self, x: Logits, places: Int[Tensor, "row 1"]) -> Int[Tensor, " row"]:
        temperature, top_k, top_p, min_p = self.options[:, :, None].unbind(1)
        if not self.is_random:
            return x.argmax(dim=-1)
        x = torch.where(temperature > 0, x / temperature.clamp(min=1e-6), x)
        if self.max_top_k:
            x = apply_top_k(x, top_k, self.max_top_k)
        if self.uses_top_p:
            x = apply_top_p(x, top_p)
        if self.uses_min_p:
            x = x.masked_fill(x < x.amax(dim=-1, keepdim=True) + min_p.log(), -torch.inf)
        return torch.where(
            temperature > 0, x + gumbel_noise(self.rng_keys, places, x.shape[1]), x
        ).argmax(dim=-1)


def apply_penalties(
    logits: Logits,
    read: TokenCounts,
    written: TokenCounts,
    repetition: PerRow,
    presence: PerRow,
    frequency: PerRow,
) -> Logits:
    """Tokens that were there already become less likely."""
    x = torch.where(
        read + written > 0,
        torch.where(logits > 0, logits / repetition, logits * repetition),
        logits,
    )
    return x - presence * (written > 0) - frequency * written


def apply_top_k(x: Logits, k: PerRow, most: int) -> Logits:
    """Only the k likeliest of each row, and what is as likely as the last of them; 0 = all."""
    best = x.topk(min(most, x.shape[1])).values
    least = best.gather(1, (k.long() - 1).clamp(0, best.shape[1] - 1))
    return x.masked_fill((x < least) & (k > 0), -torch.inf)


def apply_top_p(x: Logits, share: PerRow) -> Logits:
    """Only the likeliest that have this share of the probability together; 1 = all."""
    p = x.softmax(dim=-1)
    falling = p.sort(dim=-1, descending=True).values
    before = falling.cumsum(dim=-1) - falling
    least = falling.masked_fill(before >= share, torch.inf).amin(dim=-1, keepdim=True)
    return x.masked_fill((p < least) & (share < 1), -torch.inf)


def gumbel_noise(
    rng_keys: Int[Tensor, "row 1"], steps: Int[Tensor, "row 1"], vocab_size: int
) -> Logits:
    """−log(−log u) of numbers u in (0, 1) that are mixed from key, place and token, the same on any device."""
    tokens = torch.arange(vocab_size, device=rng_keys.device)
    mixed = _mix(_mix(rng_keys ^ _mix(steps + 1)) ^ _mix(tokens * 2 + 1))
    return gumbel_from_bits(mixed)


def gumbel_from_bits(bits: Tensor) -> Tensor:
    """−log(−log u), u from 32 bits; of these 23, so that u is exact in fp32 and never 0 or 1."""
    return -torch.log(-torch.log(((bits >> 9).float() + 0.5) / 2**23))


def rng_key(seed: int, sample: int = 0) -> int:
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
