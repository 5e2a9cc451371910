"""A network with inputs to try it on, whatever its shape."""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import IGNORE_INDEX
from clearhead.hooks import NO_HOOKS, Recorder, force_eager
from clearhead.lens.activations import check_model
from clearhead.model.attention import cross_attention_mask, eager_attention, fused_attention
from clearhead.model.int8 import is_quantized
from clearhead.model.transformer import Transformer
from clearhead.weights.checkpoint import Checkpoint, Placement
from clearhead.weights.load import load_model, save_model

if TYPE_CHECKING:
    from clearhead.api import Model

# ---- subject: A network with inputs to try it on, whatever its shape.

Inputs = dict[str, Tensor]


class NotApplicable(Exception):
    """Why a law says nothing about a model."""


class ModelUnderTest:
    def __init__(self, net: Transformer, seed: int = 0) -> None:
        self.net = net
        self.config = net.config
        self.example_parameter = next(net.parameters())
        self.generator = torch.Generator().manual_seed(seed)
        source = net.encoder.context_length if net.encoder is not None else net.context_length
        self.length = min(11, net.context_length, source)

    @property
    def tolerance(self) -> float:
        """Relative to the largest value; sums in another order differ by a few units of the last place."""
        return {torch.float64: 1e-6, torch.float32: 1e-4}.get(self.example_parameter.dtype, 5e-2)

    @property
    def reads_text(self) -> bool:
        return isinstance(self.config.input, c.Tokens)

    def require_text(self) -> None:
        if not self.reads_text:
            raise NotApplicable(f"the input is {self.config.input.kind}, always of one size")

    def require_causal(self) -> None:
        if not self.net.is_causal:
            raise NotApplicable("an encoder sees the whole sentence at once")

    def random_ids(self, rows: int, tokens: int, vocabulary: int | None = None) -> Tensor:
        size = (rows, tokens)
        return torch.randint(
            vocabulary or self.config.vocab_size, size, generator=self.generator
        ).to(self.example_parameter.device)

    def random_inputs(self, rows: int = 3, tokens: int = 0) -> Inputs:
        """Arguments for the network: `tokens`, and `source` where there is one."""
        made = {
            "tokens": self._input(
                self.config.input, rows, tokens or self.length, self.config.vocab_size
            )
        }
        if isinstance(s := self.config.architecture, c.EncoderDecoder):
            length = max(
                1, (tokens or self.length) - 1
            )  # not the target's, and never too long for two in a row
            made["source"] = self._input(
                s.source_input, rows, length, s.source_vocab_size or self.config.vocab_size
            )
        return made

    def _input(self, source: c.Input, rows: int, tokens: int, vocabulary: int) -> Tensor:
        match source:
            case c.Tokens():
                return self.random_ids(rows, tokens, vocabulary)
            case c.Images():
                size: tuple[int, ...] = (
                    rows,
                    source.num_channels,
                    source.image_size,
                    source.image_size,
                )
            case c.Audio() | c.Spectrogram():
                size = (rows, source.n_mels, source.n_frames)
        return torch.randn(size, generator=self.generator).to(self.example_parameter)

    def random_targets(self, inputs: Inputs) -> Tensor:
        """Something to learn, with one target that teaches nothing where there are several."""
        match self.config.head:
            case c.LMHead() | c.MLMHead():
                targets = self.random_ids(*inputs["tokens"].shape)
                targets[0, 0] = IGNORE_INDEX
                return targets
            case c.ClassificationHead(num_labels=classes):
                return torch.randint(
                    classes, (len(inputs["tokens"]),), generator=self.generator
                ).to(self.example_parameter.device)
            case c.RegressionHead():
                return torch.randn(len(inputs["tokens"]), generator=self.generator).to(
                    self.example_parameter.device
                )
            case c.NoHead():
                raise NotApplicable("without a head there is no loss")


def relative_difference(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest value where that is above 1."""
    a = a.detach().double()
    b = b.detach().double()
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


def max_difference(differences: Iterable[float]) -> float:
    """The largest; unlike `max`, never deaf to a NaN."""
    return torch.tensor(list(differences)).max().item()


# ---- laws: Each law is a function: a subject in, the largest difference from what must be equal out.


@torch.no_grad()
def forward_is_deterministic(s: ModelUnderTest) -> float:
    x = s.random_inputs()
    return relative_difference(s.net(**x), s.net(**x))


@torch.no_grad()
def eager_attention_equals_fused_attention(s: ModelUnderTest) -> float:
    """Attention written out, every value seen, against the one kernel."""
    x = s.random_inputs()
    return relative_difference(s.net(**x, hooks=Recorder(["**"])), s.net(**x))


@torch.no_grad()
def attention_rows_sum_to_one(s: ModelUnderTest) -> float:
    watch = Recorder(["**.pattern"])
    s.net(**s.random_inputs(), hooks=watch)
    return max_difference(
        relative_difference(p.sum(-1), torch.ones_like(p.sum(-1))) for p in watch.values.values()
    )


@torch.no_grad()
def cached_equals_full(s: ModelUnderTest) -> float:
    """A prompt at once, then token by token, against everything at once."""
    s.require_causal()
    x = s.random_inputs()
    tokens = x.pop("tokens")
    rest = x
    memory = s.net.init_cache(len(tokens), s.length)
    prompt = max(1, s.length // 2)
    pieces = [tokens[:, :prompt], *tokens[:, prompt:].split(1, dim=1)]
    steps = [s.net(piece, cache=memory, **rest) for piece in pieces]
    return relative_difference(torch.cat(steps, dim=1), s.net(tokens, **rest))


@torch.no_grad()
def reordered_cache_equals_reordered_batch(s: ModelUnderTest) -> float:
    """Beams that split and die."""
    s.require_causal()
    x = s.random_inputs()
    index = torch.tensor([2, 0, 0], device=s.example_parameter.device)
    memory = s.net.init_cache(3, s.length)
    s.net(**{**x, "tokens": x["tokens"][:, :-1]}, cache=memory)
    memory.reorder(index)
    x = {name: value[index] for name, value in x.items()}
    return relative_difference(
        s.net(**{**x, "tokens": x["tokens"][:, -1:]}, cache=memory), s.net(**x)[:, -1:]
    )


@torch.no_grad()
def batched_equals_single(s: ModelUnderTest) -> float:
    x = s.random_inputs()
    together = s.net.compute_logits(s.net(**x))
    alone = [
        s.net.compute_logits(s.net(**{name: value[i : i + 1] for name, value in x.items()}))
        for i in range(3)
    ]
    return relative_difference(torch.cat(alone), together)


@torch.no_grad()
def packed_equals_separate(s: ModelUnderTest) -> float:
    """Two documents in one row, each blind to the other, against two rows."""
    s.require_text()
    x = s.random_inputs(2, max(1, s.length // 2))
    if any(value.dim() != 2 for value in x.values()) or s.length < 2:
        raise NotApplicable("what it reads is always of one size, so rows hold one document")
    row = {name: torch.cat(list(value))[None] for name, value in x.items()}
    segment_ids = {_segments(name): _numbered(value) for name, value in x.items()}
    return relative_difference(s.net(**row, **segment_ids)[0], torch.cat(list(s.net(**x))))


@torch.no_grad()
def padding_changes_nothing(s: ModelUnderTest) -> float:
    s.require_text()
    short = max(1, s.length - 3)
    x = s.random_inputs(2, short)
    padded = dict(x)
    segment_ids = {}
    for name, value in x.items():
        if value.dim() == 2:
            room = s.length - short
            padded[name] = torch.cat((value, s.random_ids(2, room, 1)), dim=1)
            segment_ids[_segments(name)] = (
                (torch.arange(value.shape[1] + room) < value.shape[1])
                .long()
                .expand(2, -1)
                .to(value.device)
            )
    return relative_difference(s.net(**padded, **segment_ids)[:, :short], s.net(**x))


@torch.no_grad()
def causal_mask_hides_the_future(s: ModelUnderTest) -> float:
    """Another last token leaves every earlier output as it was, to the bit."""
    s.require_causal()
    x = s.random_inputs()
    before = s.net(**x)
    x["tokens"] = x["tokens"].clone()
    x["tokens"][:, -1] = (x["tokens"][:, -1] + 1) % s.config.vocab_size
    return relative_difference(s.net(**x)[:, :-1], before[:, :-1]) if s.length > 1 else 0.0


@torch.no_grad()
def position_shift_changes_nothing(s: ModelUnderTest) -> float:
    """The same sentence further on in the text gives the same result."""
    if isinstance(s.config.position, c.Learned | c.Sinusoidal):
        raise NotApplicable(f"{s.config.position.kind} positions are absolute")
    x = s.random_inputs()
    at = torch.arange(s.net(**x).shape[1], device=s.example_parameter.device)[None]
    return relative_difference(s.net(**x, position_ids=at + 7), s.net(**x, position_ids=at))


@torch.no_grad()
def permutation_equivariant_without_positions(s: ModelUnderTest) -> float:
    """Shuffled words give the same results, shuffled."""
    if s.net.is_causal or not isinstance(s.config.position, c.NoPosition):
        raise NotApplicable(
            "it has positions" if not s.net.is_causal else "the causal mask gives order away"
        )
    s.require_text()
    if s.config.attention.sliding_window:
        raise NotApplicable("a sliding window gives order away")
    x = s.random_inputs()
    order = torch.randperm(s.length, generator=s.generator)
    return relative_difference(s.net(x["tokens"][:, order]), s.net(**x)[:, order])


def fully_masked_rows_are_finite(s: ModelUnderTest) -> float:
    """Its result is zero and so is its gradient, fused and spelled."""
    m = s.config
    q, k, v = (
        torch.randn(1, heads, 4, m.d_head, generator=s.generator)
        .to(s.example_parameter)
        .requires_grad_()
        for heads in (m.attention.n_heads, m.n_kv_heads, m.n_kv_heads)
    )
    lost = cross_attention_mask(
        torch.tensor([[1, 1, 2, 1]], device=s.example_parameter.device),
        torch.ones(1, 4, dtype=torch.long, device=s.example_parameter.device),
    )
    largest = 0.0
    for attend in (fused_attention, eager_attention):
        z = attend(q, k, v, None, lost, 1.0, 0.0, NO_HOOKS)
        grads = torch.autograd.grad(z.square().sum(), (q, k, v))
        largest = max(
            largest, z[..., 2, :].abs().max().item(), grads[0][..., 2, :].abs().max().item()
        )
        if not all(x.isfinite().all() for x in (z, *grads)):
            return math.inf
    return largest


@torch.no_grad()
def loss_equals_negative_log_likelihood(s: ModelUnderTest) -> float:
    if not isinstance(s.config.head, c.LMHead | c.MLMHead | c.ClassificationHead):
        raise NotApplicable("it does not predict words or classes")
    x = s.random_inputs()
    targets = s.random_targets(x)
    hidden = s.net(**x)
    total, count = s.net.loss(hidden, targets)
    logits = s.net.compute_logits(hidden).float()
    chosen = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    real = targets != IGNORE_INDEX
    return relative_difference(total / count, -(chosen * real).sum() / real.sum())


def accumulated_gradients_equal_full_batch_gradients(s: ModelUnderTest) -> float:
    """Row by row, summed and divided by the whole count, against the batch at once."""
    x = s.random_inputs()
    targets = s.random_targets(x)
    whole = _gradients(s, x, targets, [slice(None)])
    return max_difference(
        relative_difference(a, b)
        for a, b in zip(_gradients(s, x, targets, [slice(0, 1), slice(1, 3)]), whole, strict=True)
    )


def _gradients(s: ModelUnderTest, x: Inputs, targets: Tensor, parts: list[slice]) -> list[Tensor]:
    parameters = [p for p in s.net.parameters() if p.requires_grad]
    if not parameters:
        raise NotApplicable("every parameter is frozen")
    sums = [torch.zeros_like(p) for p in parameters]
    counts = 0
    for part in parts:
        total, count = s.net.loss(
            s.net(**{name: value[part] for name, value in x.items()}), targets[part]
        )
        counts += int(count)
        found = torch.autograd.grad(total, parameters, allow_unused=True)
        sums = [a if g is None else a + g for a, g in zip(sums, found, strict=True)]
    return [a / counts for a in sums]


@torch.no_grad()
def saved_and_loaded_model_is_identical(s: ModelUnderTest) -> float:
    if is_quantized(s.net):
        raise NotApplicable("a model in int8 is not saved; it is made when one in float32 is read")
    with tempfile.TemporaryDirectory() as there:
        save_model(Path(there) / "model", Checkpoint(s.net, c.Config(s.config)))
        loaded = load_model(
            Path(there) / "model",
            Placement(str(s.example_parameter.device), s.example_parameter.dtype),
        ).net
    x = s.random_inputs()
    return relative_difference(loaded(**x), s.net(**x))


EXACT_INVARIANTS = (
    forward_is_deterministic,
    causal_mask_hides_the_future,
    saved_and_loaded_model_is_identical,
)


def _segments(name: str) -> str:
    return "segment_ids" if name == "tokens" else "source_segment_ids"


def _numbered(rows: Tensor) -> Tensor:
    """1 1 1 2 2 2 for two rows of three, as one row."""
    return torch.arange(1, len(rows) + 1, device=rows.device).repeat_interleave(rows.shape[1])[None]


# ---- verify: The laws, run on any model: what must hold whatever its weights are, each with its largest difference.

Invariant = Callable[[ModelUnderTest], float]

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


@dataclass(frozen=True)
class InvariantResult:
    """One law on one model."""

    name: str
    difference: float | None  # None where the law does not apply
    tolerance: float
    note: str  # why it does not apply

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance; a law that does not apply is not broken."""
        return self.difference is None or self.difference <= self.tolerance  # a NaN does not hold

    def __str__(self) -> str:
        if self.difference is None:
            return f"  –   {self.name}: {self.note}"
        return f"{'holds' if self.passed else 'BROKEN'} {self.name}: largest difference {self.difference:.1e}"


def verify(model: "Model") -> list[InvariantResult]:
    """Every law on this model. All hold if `all(result.holds for result in verify(model))`."""
    check_model(model)
    return list(iter_invariants(model))


def iter_invariants(model: "Model", seed: int = 0) -> Iterator[InvariantResult]:
    """The same, one at a time."""
    for law in INVARIANTS:
        yield check_invariant(law, ModelUnderTest(model.net, seed))


def check_invariant(law: Invariant, subject: ModelUnderTest) -> InvariantResult:
    name = law.__name__.replace("_", " ")
    exact = law in EXACT_INVARIANTS
    tolerance = 0.0 if exact else subject.tolerance
    training = subject.net.training
    subject.net.eval()
    try:
        with force_eager():
            return InvariantResult(name, law(subject), tolerance, "")
    except NotApplicable as reason:
        return InvariantResult(name, None, tolerance, str(reason))
    finally:
        subject.net.train(training)
