"""Invariants that hold for every model whatever its weights are; `clearhead verify` checks them.

Each invariant is a function from a model to the largest difference between two tensors that must
be equal.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.packed_batch import IGNORE_INDEX
from clearhead.hooks import NO_HOOKS, Recorder, force_eager
from clearhead.lens.argument_checks import check_model
from clearhead.model.attention import cross_attention_mask, eager_attention, fused_attention
from clearhead.model.int8 import is_quantized
from clearhead.model.transformer import Transformer, eval_mode
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.load import load_model, save_model
from clearhead.weights.tensors import Placement

if TYPE_CHECKING:
    from clearhead.api import Model

Inputs = dict[str, Tensor]
# Relative to the largest value; sums in another order differ by a few units in the last place.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
DEFAULT_TOLERANCE = 5e-2  # of 16-bit types


class NotApplicableError(Exception):
    """Raised when an invariant does not apply to a model; the message says why."""


class ModelUnderTest:
    """A network with random inputs and targets."""

    def __init__(self, net: Transformer, seed: int = 0) -> None:
        self.net = net
        self.config = net.config
        self.example_parameter = next(net.parameters())
        self.device = self.example_parameter.device
        self.generator = torch.Generator().manual_seed(seed)
        encoder = net.encoder
        source_length = net.context_length if encoder is None else encoder.context_length
        self.length = min(11, net.context_length, source_length)

    @property
    def tolerance(self) -> float:
        return TOLERANCES.get(self.example_parameter.dtype, DEFAULT_TOLERANCE)

    @property
    def reads_text(self) -> bool:
        return isinstance(self.config.input, c.Tokens)

    def require_text(self) -> None:
        """Raise NotApplicableError unless the input is text."""
        if not self.reads_text:
            raise NotApplicableError(f"the size of {self.config.input.kind} input is fixed")

    def require_causal(self) -> None:
        """Raise NotApplicableError unless attention is causal."""
        if not self.net.is_causal:
            raise NotApplicableError("attention is not causal")

    def random_ids(self, rows: int, tokens: int, vocab_size: int = 0) -> Tensor:
        """Random token ids."""
        high = vocab_size or self.config.vocab_size
        return torch.randint(high, (rows, tokens), generator=self.generator).to(self.device)

    def random_inputs(self, rows: int = 3, tokens: int = 0) -> Inputs:
        """Arguments of the network: `tokens`, and `source` of an encoder-decoder."""
        m = self.config
        tokens = tokens or self.length
        inputs = {"tokens": self._random_input(m.input, rows, tokens, m.vocab_size)}
        if isinstance(m.architecture, c.EncoderDecoder):
            # Another length than the target's, and two of them fit the context.
            length = max(1, tokens - 1)
            vocab_size = m.architecture.source_vocab_size or m.vocab_size
            source_input = m.architecture.source_input
            inputs["source"] = self._random_input(source_input, rows, length, vocab_size)
        return inputs

    def _random_input(self, kind: c.Input, rows: int, tokens: int, vocab_size: int) -> Tensor:
        match kind:
            case c.Tokens():
                return self.random_ids(rows, tokens, vocab_size)
            case c.Images():
                shape: tuple[int, ...] = (kind.num_channels, kind.image_size, kind.image_size)
            case c.Audio() | c.Spectrogram():
                shape = (kind.n_mels, kind.n_frames)
        values = torch.randn((rows, *shape), generator=self.generator)
        return values.to(self.example_parameter)

    def random_targets(self, inputs: Inputs) -> Tensor:
        """Random targets; one of several per row is ignored."""
        rows = len(inputs["tokens"])
        match self.config.head:
            case c.LMHead() | c.MLMHead():
                targets = self.random_ids(*inputs["tokens"].shape)
                targets[0, 0] = IGNORE_INDEX
                return targets
            case c.ClassificationHead(num_labels=num_labels):
                labels = torch.randint(num_labels, (rows,), generator=self.generator)
                return labels.to(self.device)
            case c.RegressionHead():
                return torch.randn(rows, generator=self.generator).to(self.device)
            case c.NoHead():
                raise NotApplicableError("the model has no head")


Invariant = Callable[[ModelUnderTest], float]


def relative_difference(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest value if that is above 1."""
    a = a.detach().double()
    b = b.detach().double()
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


def max_difference(differences: Iterable[float]) -> float:
    """The largest difference; NaN if any is NaN."""
    return torch.tensor(list(differences)).max().item()


# --- the invariants
@torch.no_grad()
def forward_is_deterministic(model: ModelUnderTest) -> float:
    x = model.random_inputs()
    return relative_difference(model.net(**x), model.net(**x))


@torch.no_grad()
def eager_attention_equals_fused_attention(model: ModelUnderTest) -> float:
    """Scores, mask, softmax and weighted sum step by step, with all hooks, against one kernel."""
    x = model.random_inputs()
    return relative_difference(model.net(**x, hooks=Recorder(["**"])), model.net(**x))


@torch.no_grad()
def attention_rows_sum_to_one(model: ModelUnderTest) -> float:
    recorder = Recorder(["**.pattern"])
    model.net(**model.random_inputs(), hooks=recorder)
    sums = [pattern.sum(-1) for pattern in recorder.values.values()]
    return max_difference(relative_difference(x, torch.ones_like(x)) for x in sums)


@torch.no_grad()
def cached_equals_full(model: ModelUnderTest) -> float:
    """A prompt, then token by token with a KV cache, against one pass."""
    model.require_causal()
    x = model.random_inputs()
    tokens = x.pop("tokens")
    cache = model.net.init_cache(len(tokens), model.length)
    prompt_length = max(1, model.length // 2)
    pieces = [tokens[:, :prompt_length], *tokens[:, prompt_length:].split(1, dim=1)]
    steps = [model.net(piece, cache=cache, **x) for piece in pieces]
    return relative_difference(torch.cat(steps, dim=1), model.net(tokens, **x))


@torch.no_grad()
def reordered_cache_equals_reordered_batch(model: ModelUnderTest) -> float:
    """As in beam search."""
    model.require_causal()
    x = model.random_inputs()
    index = torch.tensor([2, 0, 0], device=model.device)
    cache = model.net.init_cache(3, model.length)
    model.net(**{**x, "tokens": x["tokens"][:, :-1]}, cache=cache)
    cache.reorder(index)
    x = {name: value[index] for name, value in x.items()}
    last = model.net(**{**x, "tokens": x["tokens"][:, -1:]}, cache=cache)
    return relative_difference(last, model.net(**x)[:, -1:])


@torch.no_grad()
def batched_equals_single(model: ModelUnderTest) -> float:
    x = model.random_inputs()
    batched = model.net.compute_logits(model.net(**x))
    rows = [{name: value[i : i + 1] for name, value in x.items()} for i in range(3)]
    single = [model.net.compute_logits(model.net(**row)) for row in rows]
    return relative_difference(torch.cat(single), batched)


@torch.no_grad()
def packed_equals_separate(model: ModelUnderTest) -> float:
    """Two documents packed in one row, which do not see each other, against two rows."""
    model.require_text()
    x = model.random_inputs(2, max(1, model.length // 2))
    if any(value.dim() != 2 for value in x.values()) or model.length < 2:
        raise NotApplicableError("a row holds one document")
    row = {name: torch.cat(list(value))[None] for name, value in x.items()}
    segment_ids = {_segment_name(name): _packed_segment_ids(value) for name, value in x.items()}
    return relative_difference(model.net(**row, **segment_ids)[0], torch.cat(list(model.net(**x))))


@torch.no_grad()
def padding_changes_nothing(model: ModelUnderTest) -> float:
    model.require_text()
    length = max(1, model.length - 3)
    num_padding = model.length - length
    x = model.random_inputs(2, length)
    padded = dict(x)
    segment_ids = {}
    for name, value in x.items():
        if value.dim() == 2:
            padded[name] = torch.cat((value, model.random_ids(2, num_padding, 1)), dim=1)
            segment_ids[_segment_name(name)] = torch.cat(
                (torch.ones_like(value), value.new_zeros(2, num_padding)), dim=1
            )
    return relative_difference(model.net(**padded, **segment_ids)[:, :length], model.net(**x))


@torch.no_grad()
def causal_mask_hides_the_future(model: ModelUnderTest) -> float:
    """Changing the last token leaves all earlier outputs bit-identical."""
    model.require_causal()
    if model.length < 2:
        return 0.0
    x = model.random_inputs()
    before = model.net(**x)
    x["tokens"] = x["tokens"].clone()
    x["tokens"][:, -1] = (x["tokens"][:, -1] + 1) % model.config.vocab_size
    return relative_difference(model.net(**x)[:, :-1], before[:, :-1])


@torch.no_grad()
def position_shift_changes_nothing(model: ModelUnderTest) -> float:
    """With relative positions, a text later in the context gives the same output."""
    if isinstance(model.config.position, c.Learned | c.Sinusoidal):
        raise NotApplicableError(f"{model.config.position.kind} positions are absolute")
    x = model.random_inputs()
    position_ids = torch.arange(model.net(**x).shape[1], device=model.device)[None]
    shifted = model.net(**x, position_ids=position_ids + 7)
    return relative_difference(shifted, model.net(**x, position_ids=position_ids))


@torch.no_grad()
def permutation_equivariant_without_positions(model: ModelUnderTest) -> float:
    """Without positions, permuting the input permutes the output."""
    if model.net.is_causal:
        raise NotApplicableError("the causal mask depends on the order")
    if not isinstance(model.config.position, c.NoPosition):
        raise NotApplicableError("the model has positions")
    model.require_text()
    if model.config.attention.sliding_window:
        raise NotApplicableError("a sliding window depends on the order")
    x = model.random_inputs()
    order = torch.randperm(model.length, generator=model.generator)
    return relative_difference(model.net(x["tokens"][:, order]), model.net(**x)[:, order])


def fully_masked_rows_are_finite(model: ModelUnderTest) -> float:
    """A query that sees no key has output and gradient zero."""
    m = model.config
    q, k, v = (
        torch.randn(1, heads, 4, m.d_head, generator=model.generator)
        .to(model.example_parameter)
        .requires_grad_()
        for heads in (m.attention.n_heads, m.n_kv_heads, m.n_kv_heads)
    )
    segment_ids = torch.tensor([[1, 1, 2, 1]], device=model.device)
    mask = cross_attention_mask(segment_ids, torch.ones_like(segment_ids))
    largest = 0.0
    for attention in (fused_attention, eager_attention):
        z = attention(q, k, v, None, mask, 1.0, 0.0, NO_HOOKS)
        gradients = torch.autograd.grad(z.square().sum(), (q, k, v))
        if not all(x.isfinite().all() for x in (z, *gradients)):
            return math.inf
        for x in (z, gradients[0]):
            largest = max(largest, x[..., 2, :].abs().max().item())
    return largest


@torch.no_grad()
def loss_equals_negative_log_likelihood(model: ModelUnderTest) -> float:
    if not isinstance(model.config.head, c.LMHead | c.MLMHead | c.ClassificationHead):
        raise NotApplicableError("the head predicts no probabilities")
    x = model.random_inputs()
    targets = model.random_targets(x)
    hidden = model.net(**x)
    total, count = model.net.loss(hidden, targets)
    logprobs = model.net.compute_logits(hidden).float().log_softmax(-1)
    target_logprobs = logprobs.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    is_target = targets != IGNORE_INDEX
    expected = -(target_logprobs * is_target).sum() / is_target.sum()
    return relative_difference(total / count, expected)


def accumulated_gradients_equal_full_batch_gradients(model: ModelUnderTest) -> float:
    """Summed gradients of parts of a batch, divided by the total count, against one pass."""
    x = model.random_inputs()
    targets = model.random_targets(x)
    full = _gradients(model, x, targets, [slice(None)])
    accumulated = _gradients(model, x, targets, [slice(0, 1), slice(1, 3)])
    return max_difference(relative_difference(a, b) for a, b in zip(accumulated, full, strict=True))


def _gradients(
    model: ModelUnderTest, x: Inputs, targets: Tensor, parts: list[slice]
) -> list[Tensor]:
    parameters = [p for p in model.net.parameters() if p.requires_grad]
    if not parameters:
        raise NotApplicableError("all parameters are frozen")
    sums = [torch.zeros_like(p) for p in parameters]
    num_targets = 0
    for part in parts:
        hidden = model.net(**{name: value[part] for name, value in x.items()})
        total, count = model.net.loss(hidden, targets[part])
        num_targets += int(count)
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        for total_gradient, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total_gradient += gradient
    return [total_gradient / num_targets for total_gradient in sums]


@torch.no_grad()
def saved_and_loaded_model_is_identical(model: ModelUnderTest) -> float:
    if is_quantized(model.net):
        raise NotApplicableError("int8 models are quantized when loaded and not saved")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save_model(path, Checkpoint(model.net, c.Config(model.config)))
        loaded = load_model(path, Placement(str(model.device), model.example_parameter.dtype)).net
    x = model.random_inputs()
    return relative_difference(loaded(**x), model.net(**x))


def _segment_name(name: str) -> str:
    return "segment_ids" if name == "tokens" else "source_segment_ids"


def _packed_segment_ids(rows: Tensor) -> Tensor:
    """1 1 1 2 2 2 for two rows of three."""
    index = torch.arange(1, len(rows) + 1, device=rows.device)
    return index.repeat_interleave(rows.shape[1])[None]


INVARIANTS: tuple[Invariant, ...] = (
    forward_is_deterministic,
    eager_attention_equals_fused_attention,
    attention_rows_sum_to_one,
    cached_equals_full,
    reordered_cache_equals_reordered_batch,
    batched_equals_single,
    packed_equals_separate,
    padding_changes_nothing,
    causal_mask_hides_the_future,
    position_shift_changes_nothing,
    permutation_equivariant_without_positions,
    fully_masked_rows_are_finite,
    loss_equals_negative_log_likelihood,
    accumulated_gradients_equal_full_batch_gradients,
    saved_and_loaded_model_is_identical,
)
EXACT_INVARIANTS = (  # no tolerance
    forward_is_deterministic,
    causal_mask_hides_the_future,
    saved_and_loaded_model_is_identical,
)


# --- checking them
@dataclass(frozen=True)
class InvariantResult:
    """The result of checking one invariant on one model."""

    name: str
    difference: float | None  # None if it does not apply
    tolerance: float
    note: str  # why it does not apply, or where it fails

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance; True if it does not apply."""
        return self.difference is None or self.difference <= self.tolerance  # False for NaN

    def __str__(self) -> str:
        if self.difference is None:
            return f"n/a   {self.name}: {self.note}"
        status = "pass" if self.passed else "FAIL"
        where = f"; {self.note}" if self.note else ""
        return f"{status}  {self.name}: largest difference {self.difference:.1e}{where}"


def verify(model: "Model") -> list[InvariantResult]:
    """Check all invariants on a model: `all(result.passed for result in verify(model))`."""
    check_model(model)
    return list(iter_invariants(model))


def iter_invariants(model: "Model", seed: int = 0) -> Iterator[InvariantResult]:
    """Check the invariants one at a time."""
    for invariant in INVARIANTS:
        yield check_invariant(invariant, ModelUnderTest(model.net, seed))


def check_invariant(invariant: Invariant, subject: ModelUnderTest) -> InvariantResult:
    """Check one invariant."""
    name = invariant.__name__.replace("_", " ")
    tolerance = 0.0 if invariant in EXACT_INVARIANTS else subject.tolerance
    try:
        with eval_mode(subject.net), force_eager():
            return InvariantResult(name, invariant(subject), tolerance, "")
    except NotApplicableError as reason:
        return InvariantResult(name, None, tolerance, str(reason))
