"""The question that a model is asked about: which answer's logit, or which of two answers, at which token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError, suggest
from clearhead.hooks import select_all
from clearhead.lens.activations import (
    activation_table,
    answer_position,
    check_arguments,
    check_token,
    output_labels,
    query_key_labels,
    watch_single_text,
)
from clearhead.lens.logit_lens import answer_preposition
from clearhead.lens.view import Axis, Row, View
from clearhead.model.attention import Attention
from clearhead.model.heads import LMHead, MLMHead, PooledHead
from clearhead.model.transformer import Block, CrossAttentionBlock, Transformer

if TYPE_CHECKING:
    from clearhead.api import Model

# ---- ask: The question that a model is asked about: which answer's logit, or which of two answers, at which token.

AnswerToken = str | int | None  # a token, its id, a class; None for the likeliest


@dataclass(frozen=True)
class LogitTarget:
    """The logit of `answer`, less that of `against` if there is one."""

    answer: int
    against: int | None
    position: int  # the token whose logits are meant; 0 where there is one row for a whole text
    description: str

    def select(self, logits: Tensor) -> Tensor:
        """… × outputs → …"""
        chosen = logits[..., self.answer]
        return chosen if self.against is None else chosen - logits[..., self.against]


def logit_target(
    model: "Model", logits: Tensor, answer: AnswerToken, against: AnswerToken, token: int
) -> LogitTarget:
    """The question in numbers; `logits` are the model's own, token × outputs or outputs."""
    pooled = logits.dim() == 1
    at = 0 if pooled else check_token(token, len(logits))
    row = logits if pooled else logits[at]
    first = int(row.argmax()) if answer is None else _output_index(model, answer, len(row))
    second = None if against is None else _output_index(model, against, len(row))
    names = output_labels(
        model.config, model.tokenizer, [i for i in (first, second) if i is not None]
    )
    return LogitTarget(first, second, at, f"logit of {' less that of '.join(map(repr, names))}")


def _output_index(model: "Model", answer: str | int, outputs: int) -> int:
    """Which of the outputs an answer is, by its name or as it is."""
    if not isinstance(answer, str) or not isinstance(
        model.config.model.head, c.ClassificationHead | c.RegressionHead
    ):
        return token_id(model, answer, outputs)
    names = output_labels(model.config, None, range(outputs))
    if answer not in names:
        raise ClearheadError(f"there is no class {answer!r}; {suggest(answer, names)}")
    return names.index(answer)


def token_id(model: "Model", token: str | int, count: int) -> int:
    """The id of a token, by its text or as it is; a word that is one token only after a space is meant so."""
    if not isinstance(token, str):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < count:
            raise ClearheadError(f"there is no answer {token!r}; they go from 0 to {count - 1}.")
        return token
    if model.tokenizer is None:
        raise ClearheadError(
            f"this model has no tokenizer, so {token!r} means nothing to it; give a token id."
        )
    ids = model.tokenizer.encode(token)
    if (
        len(ids) > 1
        and model.tokenizer.has_space_prefix
        and len(within := model.tokenizer.encode(f" {token}")) == 1
    ):
        ids = within
    if len(ids) != 1:
        pieces = ", ".join(map(repr, model.tokenizer.to_str_tokens(ids)))
        raise ClearheadError(
            f"{token!r} is {len(ids)} tokens here ({pieces}); ask for one token, or for its id."
        )
    return ids[0]


# ---- frozen: The way back from an answer to the stream as a straight line: every norm keeps the scale it had in this run.

ActivationFunction = Callable[[Tensor], Tensor]


def detach_float(value: Tensor) -> Tensor:
    """In at least 32 bits, and without a history."""
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))


@dataclass(frozen=True)
class LinearPath:
    direction: Tensor  # token width
    constant: Tensor

    def back_through_norm(self, norm: nn.Module, x: Tensor) -> "LinearPath":
        """Back through a norm that has read x."""
        if isinstance(norm, nn.LayerNorm):
            scaled = (
                self.direction
                * detach_float(norm.weight)
                * (x.var(dim=-1, correction=0, keepdim=True) + norm.eps).rsqrt()
            )
            centred = scaled - scaled.mean(
                dim=-1, keepdim=True
            )  # to centre is linear, and its own mirror image
            return LinearPath(centred, self.constant + self._along(norm.bias))
        if isinstance(norm, nn.RMSNorm):
            scale = (x.square().mean(dim=-1, keepdim=True) + (norm.eps or 0.0)).rsqrt()
            return LinearPath(self.direction * detach_float(norm.weight) * scale, self.constant)
        return self

    def back_through_linear(self, linear: nn.Linear) -> "LinearPath":
        return LinearPath(
            self.direction @ detach_float(linear.weight), self.constant + self._along(linear.bias)
        )

    def back_through_activation(self, activation: ActivationFunction, y: Tensor) -> "LinearPath":
        """Back through an activation that has read y: f(y) = y · f(y)/y."""
        away = torch.where(y == 0, torch.finfo(y.dtype).eps, y)
        return LinearPath(self.direction * activation(away) / away, self.constant)

    def _along(self, bias: Tensor | None) -> Tensor:
        return (
            torch.zeros_like(self.constant)
            if bias is None
            else (self.direction * detach_float(bias)).sum()
        )


def path_from_logit(net: Transformer, hidden: Tensor, question: LogitTarget) -> LinearPath:
    """From a logit back to the last hidden states, token × width."""
    head = net.head
    if isinstance(head, MLMHead):
        y = _linear(head.dense, hidden)
        ray = _path_from_lm_head(head, hidden, question).back_through_norm(
            head.norm, head.activation(y)
        )
        return ray.back_through_activation(head.activation, y).back_through_linear(head.dense)
    if isinstance(head, LMHead):
        return _path_from_lm_head(head, hidden, question)
    if isinstance(head, PooledHead):
        return _path_from_pooled_head(head, hidden, question)
    raise ClearheadError("this model has no head, so there is no logit to be made of anything.")


def _path_from_lm_head(head: LMHead, hidden: Tensor, question: LogitTarget) -> LinearPath:
    direction = torch.zeros_like(hidden)
    direction[question.position] = (
        question.select(detach_float(head.unembed.weight).mT) * head.scale
    )
    return LinearPath(
        direction,
        hidden.new_zeros(()) if head.bias is None else question.select(detach_float(head.bias)),
    )


def _path_from_pooled_head(head: PooledHead, hidden: Tensor, question: LogitTarget) -> LinearPath:
    pooled = hidden.mean(dim=0) if head.pools_mean else hidden[0]
    ray = LinearPath(
        question.select(detach_float(head.out.weight).mT),
        question.select(detach_float(head.out.bias)),
    )
    if head.pooler is not None:
        ray = ray.back_through_activation(
            torch.tanh, _linear(head.pooler, pooled)
        ).back_through_linear(head.pooler)
    direction = torch.zeros_like(hidden)
    direction[slice(None) if head.pools_mean else 0] = ray.direction / (
        len(hidden) if head.pools_mean else 1
    )
    return LinearPath(direction, ray.constant)


def _linear(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(
        x, detach_float(linear.weight), None if linear.bias is None else detach_float(linear.bias)
    )


# ---- walk: Backwards through a stack: what each part, each head and each token looked at has given to an answer.

STREAM_SUFFIXES = (
    "pre",
    "mid",
    "crossed",
    "post",
    "attn.v",
    "attn.z",
    "attn.out",
    "cross.v",
    "cross.z",
    "cross.out",
    "ffn.out",
)
PATTERN_SUFFIXES = ("attn.pattern", "cross.pattern")


@dataclass(frozen=True)
class AttentionContribution:
    """What one attention has given: by head, by head and key, and its bias, which is no head's.

    A head's keys add up to what it gave, unless an edit of its z came between.
    """

    heads: Tensor
    keys: Tensor  # head key
    bias: Tensor


ComponentValues = dict[str, Tensor]
LayerContributions = list[dict[str, AttentionContribution]]


def required_activations(m: c.ModelConfig) -> list[str]:
    """What must be seen of a run to split it up; patterns come last."""
    blocks = [
        f"blocks.{i}.{end}"
        for end in (*STREAM_SUFFIXES, *PATTERN_SUFFIXES)
        for i in range(m.n_layers)
    ]
    return [
        name
        for name in ("embed", "pos_embed", "final_norm", "logits", *blocks)
        if name in activation_table(m)
    ]


def decompose_logit(
    net: Transformer, cache: Mapping[str, Tensor], path: LinearPath, position: int | None = None
) -> tuple[ComponentValues, LayerContributions]:
    """What each part has given along the ray, in order, and each layer's attentions in detail; of the first text.

    With `at`, only the patterns of that token were kept, and the ray touches no other.
    """
    return _Decomposition(net, cache, path, position).back()


class _Decomposition:
    """Backwards through the stack with a ray, reading off what each part has added."""

    def __init__(
        self, net: Transformer, seen: Mapping[str, Tensor], ray: LinearPath, at: int | None
    ) -> None:
        self.net = net
        self.seen = seen
        self.ray = ray
        self.at = at
        self.post = net.config.norm_position == "post"
        self.parts: dict[str, Tensor] = {}

    def back(self) -> tuple[ComponentValues, LayerContributions]:
        blocks: list[Block] = list(self.net.blocks)  # type: ignore[arg-type]
        self.ray = self.ray.back_through_norm(
            self.net.final_norm, self.value(f"blocks.{len(blocks) - 1}.resid_post")
        )
        layers = [self._block(i, blocks[i]) for i in reversed(range(len(blocks)))]
        whole = self.value("embed")
        positions = self.value("pos_embed") if "pos_embed" in self.seen else None
        self.ray = self.ray.back_through_norm(
            self.net.embed.norm, whole if positions is None else whole + positions
        )
        if positions is not None:
            self.parts["positions"] = self._on(positions)
        self.parts["embedding"] = self._on(whole)
        parts = dict(reversed(self.parts.items()))
        return {**parts, "biases": self.ray.constant}, layers[::-1]

    def value(self, name: str) -> Tensor:
        return detach_float(self.seen[name][0])

    def _block(self, i: int, block: Block) -> dict[str, AttentionContribution]:
        at = f"blocks.{i}"
        looks = {}
        before = (
            f"{at}.resid_cross" if isinstance(block, CrossAttentionBlock) else f"{at}.resid_mid"
        )
        self._cross_norm(block.ffn_norm, before, f"{at}.ffn.out")
        self.parts[f"{i} feed-forward"] = self._on(self.value(f"{at}.ffn.out"))
        if isinstance(block, CrossAttentionBlock):
            self._cross_norm(block.cross_attn_norm, f"{at}.resid_mid", f"{at}.cross_attn.out")
            looks["cross"] = self._look(f"{at}.cross_attn", block.cross_attn)
            self.parts[f"{i} cross"] = self._on(self.value(f"{at}.cross_attn.out"))
        self._cross_norm(block.attn_norm, f"{at}.resid_pre", f"{at}.attn.out")
        looks["attention"] = self._look(f"{at}.attn", block.attn)
        self.parts[f"{i} attention"] = self._on(self.value(f"{at}.attn.out"))
        return looks

    def _cross_norm(self, norm: nn.Module, stream: str, added: str) -> None:
        """Where norms stand on the stream itself, one has read its sum with what the part has added."""
        if self.post:
            self.ray = self.ray.back_through_norm(norm, self.value(stream) + self.value(added))

    def _on(self, added: Tensor) -> Tensor:
        return (added * self.ray.direction).sum()

    def _look(self, name: str, attention: Attention) -> AttentionContribution:
        """z W_O · direction, and pattern · (v W_O) · direction, over all queries that the ray passes."""
        pattern, v, z = (self.value(f"{name}.{what}") for what in ("pattern", "v", "z"))
        rows = slice(None) if self.at is None else [self.at]
        wanted = self.ray.direction[rows] @ detach_float(
            attention.out.weight
        )  # what the ray asks of each head's z
        wanted = wanted.unflatten(1, (-1, attention.d_head)).transpose(0, 1)  # head query d
        v = v.repeat_interleave(len(pattern) // len(v), dim=0)
        heads = (z[:, rows] * wanted).sum(dim=(1, 2))
        keys = (pattern * (wanted @ v.mT)).sum(dim=1)
        bias = attention.out.bias
        given = (
            keys.new_zeros(())
            if bias is None
            else self._on(detach_float(bias).expand_as(self.ray.direction))
        )
        return AttentionContribution(heads, keys, given)


# ---- attribution: Direct attribution: what a logit is made of, down to each head and each token it looked at.

NOTE = "direct contributions to the logit, the scale of the norms held; they add up to {total:.4f}"
REMAINDER = "rest"
ROUNDING_TOLERANCE = 1e-4  # of a value: so much any sum of 32-bit numbers may be off


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(View):
    """A value for each part. `heads` and `sources` split attention up."""

    layer_contributions: tuple[dict[str, AttentionContribution], ...] = ()
    key_labels: dict[str, list[str]] | None = None  # of the keys, by kind of attention
    target: LogitTarget | None = None

    @property
    def total(self) -> float:
        """The logit, or the difference of two, as the sum of the parts."""
        return float(self.values.sum())

    def by_head(self, kind: str = "attention") -> View:
        """layer × head."""
        values = torch.stack([look.heads for look in self._looks(kind)])
        axes = Axis.from_labels("layer", len(values)), Axis.from_labels("head", values.shape[1])
        return View(
            values, axes, f"{self.title}, by head", self.value_name, signed=True, note=self.note
        )

    def by_source_token(self, kind: str = "attention") -> View:
        """layer × head × key: what came from each token, by pattern · v W_O; of edited heads, as before the edit."""
        values = torch.stack([look.keys for look in self._looks(kind)])
        names = (self.key_labels or {})[kind]
        axes = (
            Axis.from_labels("layer", len(values)),
            Axis.from_labels("head", values.shape[1]),
            Axis.from_labels("key", names),
        )
        return View(
            values,
            axes,
            f"{self.title}, by source token",
            self.value_name,
            signed=True,
            note=self.note,
        )

    def table(self) -> list[Row]:
        """A row for each part, attention by head; the column of values adds up to the logit."""
        rows: list[Row] = []
        for label, value in zip(self.axes[0].labels, self.values.tolist(), strict=True):
            layer, _, part = label.partition(" ")
            look = self.layer_contributions[int(layer)].get(part) if layer.isdigit() else None
            if look is None:
                rows.append({"part": label, "head": "", self.value_name: value})
                continue
            given: list[tuple[int | str, float]] = [
                *enumerate(look.heads.tolist()),
                ("bias", float(look.bias)),
            ]
            if _counts(rest := value - sum(some for _, some in given), value):
                given.append((REMAINDER, rest))
            rows += [{"part": label, "head": head, self.value_name: some} for head, some in given]
        return rows

    def _looks(self, part: str) -> list[AttentionContribution]:
        if part not in self.layer_contributions[0]:
            raise ClearheadError(
                f"this model has no {part!r} to split up; it has {' and '.join(self.layer_contributions[0])}."
            )
        return [layer[part] for layer in self.layer_contributions]


@check_arguments
def attribution(
    model: "Model",
    x: Any = None,
    *,
    token: AnswerToken = None,
    against: AnswerToken = None,
    position: int | None = None,
    **given: Any,
) -> Attribution:
    """What the logit of `token` after the token `at` is made of; with `against`, how it differs from that one's.

    Without `token`, the likeliest; without `at`, the last token, or the first that is hidden where words are. Tokens
    are texts of one token, or ids; of a classifier, classes. More arguments are those of `model.watch`. An
    encoder-decoder is followed through its decoder; what it read there comes by "cross".
    """
    m = model.config.model
    if isinstance(m.head, c.NoHead):
        raise ClearheadError("this model has no head, so there is no logit to be made of anything.")
    pooled = isinstance(m.head, c.ClassificationHead | c.RegressionHead)
    position = answer_position(model, position, x, given)
    rows = (
        slice(None) if pooled else slice(position, position + 1 or None)
    )  # of patterns, those that the answer came by
    names = {
        name: (lambda p: p[:, :, rows]) if name.endswith("pattern") else select_all
        for name in required_activations(m)
    }
    seen = watch_single_text(model, x, names, given)
    logits = seen["logits"][0].float()
    question = logit_target(model, logits, token, against, position)
    ray = path_from_logit(model.net, detach_float(seen["final_norm"][0]), question)
    parts, layers = decompose_logit(model.net, seen, ray, None if pooled else question.position)
    logit = question.select(logits if pooled else logits[question.position])
    note = NOTE
    if _counts(rest := float(logit - sum(parts.values())), float(logit)):
        parts[REMAINDER], note = (
            logit.new_tensor(rest),
            f"{NOTE}; {REMAINDER}: what edits of the stream, and rounding, have added",
        )
    values = torch.stack(list(parts.values()))
    keys = {
        part: query_key_labels(seen, part, (look.keys.shape[0], look.keys.shape[1]))[1]
        for part, look in layers[0].items()
    }
    where = (
        f" {answer_preposition(m.head)} {seen.tokens[question.position]!r}"
        if seen.tokens and not pooled
        else ""
    )
    return Attribution(
        values,
        (Axis.from_labels("part", list(parts)),),
        question.description + where,
        "logit",
        signed=True,
        note=note.format(total=float(values.sum())),
        layer_contributions=tuple(layers),
        key_labels=keys,
        target=question,
    )


def _counts(rest: float, of: float) -> bool:
    """Whether what is missing from a sum is more than its rounding."""
    return abs(rest) > ROUNDING_TOLERANCE * max(1.0, abs(of))
