"""Sampling: the options of text generation, and drawing the next token from the logits (L5.2).

    logits ─ penalties ─ bias ─ ÷ temperature ─ top-k ─ top-p ─ min-p ─ + Gumbel noise ─▶ argmax

A sample from softmax(x) is the argmax of x + g with Gumbel noise g. The noise depends only on the
seed, the position and the token. So the same seed gives the same text, alone or in a batch, and a
stricter top-k or top-p only removes candidates.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeGuard, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import ClearheadError, check_int, suggest
from clearhead.kernels import TRITON_AVAILABLE, can_use_triton

if TRITON_AVAILABLE:
    from clearhead.kernels.sampling import sample_tokens

MAX_SEED = 2**64 - 1
MAX_COUNT = 2**31
# Bounds that keep a value finite and nonzero in float32.
MAX_NUMBER = 1e38
MIN_POSITIVE = 1e-37

Logits = Float[Tensor, "row vocabulary"]
TokenCounts = Int[Tensor, "row vocabulary"]
PerRow = Float[Tensor, "row 1"]
Number = TypeVar("Number", int, Tensor)

# Options of Hugging Face's `generate`, and ours for the same purpose: for sampling, beam search.
HUGGING_FACE_NAMES = {
    "max_new_tokens": ("max_tokens",),
    "max_length": ("max_tokens",),
    "do_sample": ("temperature",),
    "num_return_sequences": ("n", "n_best"),
    "stop_strings": ("stop",),
    "eos_token_id": ("stop_tokens",),
    "bad_words_ids": ("suppress_tokens",),
    "sequence_bias": ("logit_bias",),
    "output_scores": ("logprobs",),
}
# Options of Hugging Face's `generate` that are functions here, by the function that was called.
HUGGING_FACE_FUNCTIONS = {
    ("generate", "streamer"): "model.stream",
    ("chat", "streamer"): "model.chat_stream",
    ("generate", "num_beams"): "model.beam_search",
    ("generate", "length_penalty"): "model.beam_search",
    ("generate", "early_stopping"): "model.beam_search",
    ("generate", "no_repeat_ngram_size"): "model.beam_search",
}


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of `Model.generate`, `stream` and `chat`, explained in `SamplingConfig`."""

    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    suppress_tokens: Sequence[int]
    prefix_tokens: Sequence[int]
    stop: str | Sequence[str]
    stop_tokens: Sequence[int]
    seed: int
    overflow: str


class AnswerOptions(SamplingOptions, total=False):
    """Keyword arguments of the methods of `ChatSession`."""

    temperature: float


@dataclass(frozen=True)
class SamplingConfig:
    """When a generated text ends, and how each of its tokens is sampled."""

    max_tokens: int = 40
    temperature: float = 1.0  # 0 is greedy decoding
    top_k: int = 0  # keep the k most likely tokens; 0 = all
    top_p: float = 1.0  # nucleus sampling: keep the smallest set with this total probability
    min_p: float = 0.0  # keep tokens with at least this fraction of the highest probability
    repetition_penalty: float = 1.0  # divides positive logits of tokens in the prompt or output
    presence_penalty: float = 0.0  # subtracted from the logits of tokens in the output
    frequency_penalty: float = 0.0  # the same, once per occurrence
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to the logits
    suppress_tokens: Sequence[int] = ()  # never generated
    prefix_tokens: Sequence[int] = ()  # the output starts with these
    stop: Sequence[str] = ()  # strings that end the text; not part of it
    stop_tokens: Sequence[int] = ()  # tokens that end the text, besides the model's own
    seed: int = 0
    overflow: str = "error"  # or "slide": a full context continues from its second half

    def __post_init__(self) -> None:
        original_stop = self.stop
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if self.logit_bias is None:
            object.__setattr__(self, "logit_bias", {})
        check_int("max_tokens", self.max_tokens, 1, MAX_COUNT)
        check_int("top_k", self.top_k, maximum=MAX_COUNT)
        check_int("seed", self.seed, maximum=MAX_SEED)
        check_temperature(self.temperature)
        _check_number("top_p", self.top_p, MIN_POSITIVE, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, MIN_POSITIVE, MAX_NUMBER)
        _check_number("presence_penalty", self.presence_penalty, -MAX_NUMBER, MAX_NUMBER)
        _check_number("frequency_penalty", self.frequency_penalty, -MAX_NUMBER, MAX_NUMBER)
        _check_token_ids("suppress_tokens", self.suppress_tokens)
        _check_token_ids("prefix_tokens", self.prefix_tokens)
        _check_token_ids("stop_tokens", self.stop_tokens)
        if not isinstance(self.logit_bias, Mapping) or not all(
            type(token) is int and is_number(value) and abs(value) <= MAX_NUMBER
            for token, value in self.logit_bias.items()
        ):
            raise ClearheadError(
                "logit_bias must map token ids to finite numbers, as in {5: 2.0}, "
                f"got {self.logit_bias!r:.60}."
            )
        if not isinstance(self.stop, list | tuple) or not all(
            isinstance(text, str) and text for text in self.stop
        ):
            raise ClearheadError(
                f"stop must be a non-empty string or a list of them, got {original_stop!r:.60}."
            )
        check_overflow(self.overflow)

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on how often each token occurred."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


def sampling_config(
    function: str,
    max_tokens: int,
    temperature: float,
    options: Mapping[str, Any],
    more_names: Collection[str] = (),
) -> SamplingConfig:
    """The config of a call of this function; an unknown option is an error that names it.

    `more_names` are the options of the function besides those of sampling.
    """
    names = ("max_tokens", "temperature", *SamplingOptions.__annotations__, *more_names)
    check_option_names(function, options, names)
    return SamplingConfig(max_tokens=max_tokens, temperature=temperature, **options)


def check_option_names(
    function: str, options: Mapping[str, object], known: Collection[str]
) -> None:
    """Raise for the first option that the function does not have."""
    for name in options:
        if name in known:
            continue
        ours = [ours for ours in HUGGING_FACE_NAMES.get(name, ()) if ours in known]
        ours += filter(None, [HUGGING_FACE_FUNCTIONS.get((function, name))])
        hint = f"use {ours[0]}." if ours else suggest(name, known)
        raise ClearheadError(f"{function} has no option {name!r}; {hint}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether this is an int or a float; Python counts booleans as ints."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_temperature(temperature: object) -> None:
    """Raise unless this is a temperature; 0 is greedy decoding."""
    _check_number("temperature", temperature, 0.0, MAX_NUMBER)


def _check_number(name: str, value: object, minimum: float, maximum: float) -> None:
    if is_number(value) and minimum <= value <= maximum:
        return
    if minimum == MIN_POSITIVE:
        expected = f"a positive number, at most {maximum:g}"
    else:
        expected = f"a number from {minimum:g} to {maximum:g}"
    raise ClearheadError(f"{name} must be {expected}, got {value!r:.60}.")


def _check_token_ids(name: str, tokens: object) -> None:
    if not isinstance(tokens, list | tuple) or not all(type(token) is int for token in tokens):
        raise ClearheadError(f"{name} must be a list of token ids, got {tokens!r:.60}.")


def check_overflow(overflow: str) -> None:
    """Raise unless this says what to do with text that exceeds the context."""
    if overflow not in ("error", "slide"):
        raise ClearheadError(f"overflow must be 'error' or 'slide', got {overflow!r}.")


class Sampler:
    """Samples one token per row, each row with its own options, without synchronization.

    With `use_kernel`, one Triton kernel does everything but the penalties.
    """

    def __init__(
        self,
        configs: Sequence[SamplingConfig],
        rng_keys: Sequence[int],
        device: torch.device,
        use_kernel: bool = False,
    ) -> None:
        self.use_kernel = use_kernel and can_use_triton(device)
        options = [[c.temperature, c.top_k, c.top_p, c.min_p] for c in configs]
        penalties = [
            [c.repetition_penalty, c.presence_penalty, c.frequency_penalty] for c in configs
        ]
        self.options = torch.tensor(options, dtype=torch.float32, device=device)
        self.penalties = torch.tensor(penalties, dtype=torch.float32, device=device)
        self.rng_keys = torch.tensor([[key] for key in rng_keys], device=device)
        self.max_top_k = max(c.top_k for c in configs)
        self.uses_top_p = any(c.top_p < 1 for c in configs)
        self.uses_min_p = any(c.min_p > 0 for c in configs)
        self.is_random = any(c.temperature > 0 for c in configs)
        self.has_penalties = any(c.has_penalties for c in configs)

    @property
    def graph_key(self) -> tuple[object, ...]:
        """Samplers with equal keys execute the same operations, so they can share a CUDA graph."""
        shape = (len(self.rng_keys), self.has_penalties)
        if self.use_kernel:
            return shape
        return (*shape, self.max_top_k, self.uses_top_p, self.uses_min_p, self.is_random)

    def copy_from(self, other: "Sampler") -> None:
        """Copy the options of a sampler with the same `graph_key` into this one's tensors."""
        self.options.copy_(other.options)
        self.penalties.copy_(other.penalties)
        self.rng_keys.copy_(other.rng_keys)

    def __call__(
        self,
        logits: Logits,
        steps: Int[Tensor, "row 1"],
        vocab_size: int | None = None,
        counts: tuple[TokenCounts, TokenCounts] | None = None,
        logit_bias: Float[Tensor, "row vocabulary"] | None = None,
    ) -> tuple[Int[Tensor, " row"], Float[Tensor, " row"]]:
        """Sample a token for each row. Returns tokens and their log-probabilities under the model.

        `steps` are the output positions, `counts` the occurrences of each token in prompt and
        output.
        """
        x = logits[:, :vocab_size]
        if counts is not None:
            x = apply_penalties(x, *counts, *self.penalties[:, :, None].unbind(1))
        if logit_bias is not None:
            x = x + logit_bias
        if self.use_kernel:
            return sample_tokens(x, logits, self.options, self.rng_keys, steps)
        tokens = self._sample(x, steps)
        logprobs = logits.gather(1, tokens[:, None]) - logits.logsumexp(dim=-1, keepdim=True)
        return tokens, logprobs[:, 0]

    def _sample(self, x: Logits, steps: Int[Tensor, "row 1"]) -> Int[Tensor, " row"]:
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
        noisy = x + gumbel_noise(self.rng_keys, steps, x.shape[1])
        return torch.where(temperature > 0, noisy, x).argmax(dim=-1)


def apply_penalties(
    logits: Logits,
    prompt_counts: TokenCounts,
    output_counts: TokenCounts,
    repetition: PerRow,
    presence: PerRow,
    frequency: PerRow,
) -> Logits:
    """Lower the logits of tokens that occurred already."""
    penalized = torch.where(logits > 0, logits / repetition, logits * repetition)
    x = torch.where(prompt_counts + output_counts > 0, penalized, logits)
    return x - presence * (output_counts > 0) - frequency * output_counts


def apply_top_k(x: Logits, k: PerRow, max_k: int) -> Logits:
    """Keep the k largest logits of each row, including ties with the last; k = 0 keeps all."""
    largest = x.topk(min(max_k, x.shape[1])).values
    threshold = largest.gather(1, (k.long() - 1).clamp(0, largest.shape[1] - 1))
    return x.masked_fill((x < threshold) & (k > 0), -torch.inf)


def apply_top_p(x: Logits, top_p: PerRow) -> Logits:
    """Keep the smallest set of tokens whose probabilities sum to at least `top_p`; 1 keeps all."""
    p = x.softmax(dim=-1)
    descending = p.sort(dim=-1, descending=True).values
    sum_before = descending.cumsum(dim=-1) - descending
    threshold = descending.masked_fill(sum_before >= top_p, torch.inf).amin(dim=-1, keepdim=True)
    return x.masked_fill((p < threshold) & (top_p < 1), -torch.inf)


def gumbel_noise(
    rng_keys: Int[Tensor, "row 1"], steps: Int[Tensor, "row 1"], vocab_size: int
) -> Logits:
    """Gumbel noise hashed from key, step and token: the same numbers on every device."""
    tokens = torch.arange(vocab_size, device=rng_keys.device)
    bits = _hash(_hash(rng_keys ^ _hash(steps + 1)) ^ _hash(tokens * 2 + 1))
    return gumbel_from_bits(bits)


def gumbel_from_bits(bits: Tensor) -> Tensor:
    """−log(−log u), u from the upper 23 of 32 bits: exact in fp32 and never 0 or 1."""
    return -torch.log(-torch.log(((bits >> 9).float() + 0.5) / 2**23))


def rng_key(seed: int, sample: int = 0) -> int:
    """The noise key of one text; each of several samples with one seed has its own."""
    key = 0x9E3779B9
    for part in (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, sample):
        key = _hash(key ^ part)
    return key


def _hash(x: Number) -> Number:
    """A 32-bit integer hash (Wellons' lowbias32)."""
    x = x & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16
