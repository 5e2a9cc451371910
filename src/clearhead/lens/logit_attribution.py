"""Direct logit attribution: a logit as the sum of what every component, head and token contributed.

The final hidden state is the sum of what the components wrote to the residual stream, so a logit is
one too, with norm scales frozen at their values in this run. The contributions sum to the logit.
What the biases of norms and head add is a component of its own; so is the remainder that
edits of the residual stream, or rounding, leave.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import Selector, select_all
from clearhead.lens.activation_cache import query_key_labels, watch_single_text
from clearhead.lens.argument_checks import answer_position, check_model
from clearhead.lens.hook_points import activation_table, has_pooled_head
from clearhead.lens.logit_target import AnswerToken, LogitTarget, answer_preposition, logit_target
from clearhead.lens.view import Row, View, label_axes
from clearhead.model.attention import Attention
from clearhead.model.heads import LMHead, MLMHead, PooledHead
from clearhead.model.transformer import Block, CrossAttentionBlock, Transformer

if TYPE_CHECKING:
    from clearhead.api import MediaInput, Model, TextInput
    from clearhead.lens.edits import Edits

ActivationFunction = Callable[[Tensor], Tensor]
ComponentValues = dict[str, Tensor]
LayerContributions = list[dict[str, "AttentionContribution"]]  # by kind of attention

REMAINDER = "remainder"
ROUNDING_TOLERANCE = 1e-4  # relative error of a sum of float32 numbers
REQUIRED_ACTIVATIONS = re.compile(
    r"embed|pos_embed|final_norm|logits"
    r"|blocks\.\d+\.(resid_\w+|ffn\.out|(cross_)?attn\.(pattern|v|z|out))"
)


def detach_float(value: Tensor) -> Tensor:
    """Without gradient, in float32 or float64."""
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))


@dataclass(frozen=True)
class LinearPath:
    """A logit as a linear function of a stream: sum(stream · direction) + constant.

    It goes back through linear layers, through norms with their scale frozen, and through
    activation functions with their factor f(y)/y frozen. Nothing is approximated: what is read off
    on the way sums to the logit.
    """

    direction: Tensor  # token d_model
    constant: Tensor

    def back_through_norm(self, norm: nn.Module, x: Tensor) -> "LinearPath":
        """As a function of the norm's input x."""
        if isinstance(norm, nn.LayerNorm):
            inverse_std = (x.var(dim=-1, correction=0, keepdim=True) + norm.eps).rsqrt()
            scaled = self.direction * detach_float(norm.weight) * inverse_std
            centered = scaled - scaled.mean(dim=-1, keepdim=True)  # centering is its own transpose
            return LinearPath(centered, self.constant + self._apply(norm.bias))
        if isinstance(norm, nn.RMSNorm):
            inverse_rms = (x.square().mean(dim=-1, keepdim=True) + (norm.eps or 0.0)).rsqrt()
            return LinearPath(
                self.direction * detach_float(norm.weight) * inverse_rms, self.constant
            )
        return self

    def back_through_linear(self, linear: nn.Linear) -> "LinearPath":
        return LinearPath(
            self.direction @ detach_float(linear.weight), self.constant + self._apply(linear.bias)
        )

    def back_through_activation(self, function: ActivationFunction, y: Tensor) -> "LinearPath":
        """As a function of the input y: f(y) = y · f(y)/y."""
        nonzero = torch.where(y == 0, torch.finfo(y.dtype).eps, y)
        return LinearPath(self.direction * function(nonzero) / nonzero, self.constant)

    def _apply(self, bias: Tensor | None) -> Tensor:
        if bias is None:
            return torch.zeros_like(self.constant)
        return (self.direction * detach_float(bias)).sum()


def path_from_logit(net: Transformer, hidden: Tensor, target: LogitTarget) -> LinearPath:
    """The path from a logit to the final hidden states, token × d_model."""
    head = net.head
    if isinstance(head, MLMHead):
        y = _linear(head.dense, hidden)
        path = _path_from_lm_head(head, hidden, target)
        path = path.back_through_norm(head.norm, head.activation(y))
        return path.back_through_activation(head.activation, y).back_through_linear(head.dense)
    if isinstance(head, LMHead):
        return _path_from_lm_head(head, hidden, target)
    if isinstance(head, PooledHead):
        return _path_from_pooled_head(head, hidden, target)
    raise ClearheadError("this model has no head, so it has no logits to attribute.")


def _path_from_lm_head(head: LMHead, hidden: Tensor, target: LogitTarget) -> LinearPath:
    direction = torch.zeros_like(hidden)
    direction[target.position] = target.select(detach_float(head.unembed.weight).mT)
    constant = hidden.new_zeros(())
    if head.bias is not None:
        constant = target.select(detach_float(head.bias))
    return LinearPath(direction * head.scale, constant)


def _path_from_pooled_head(head: PooledHead, hidden: Tensor, target: LogitTarget) -> LinearPath:
    pooled = hidden.mean(dim=0) if head.pools_mean else hidden[0]
    direction = target.select(detach_float(head.out.weight).mT)
    path = LinearPath(direction, target.select(detach_float(head.out.bias)))
    if head.pooler is not None:
        path = path.back_through_activation(torch.tanh, _linear(head.pooler, pooled))
        path = path.back_through_linear(head.pooler)
    directions = torch.zeros_like(hidden)
    if head.pools_mean:
        directions[:] = path.direction / len(hidden)
    else:
        directions[0] = path.direction
    return LinearPath(directions, path.constant)


def _linear(linear: nn.Linear, x: Tensor) -> Tensor:
    bias = None if linear.bias is None else detach_float(linear.bias)
    return F.linear(x, detach_float(linear.weight), bias)


@dataclass(frozen=True)
class AttentionContribution:
    """What an attention layer contributed: by head, by head and key, and its bias.

    The keys of a head sum to the head's contribution, unless its z was edited.
    """

    heads: Tensor
    keys: Tensor  # head key
    bias: Tensor


def required_activations(m: c.ModelConfig) -> list[str]:
    """The activations that a decomposition needs."""
    return [name for name in activation_table(m) if REQUIRED_ACTIVATIONS.fullmatch(name)]


def decompose_logit(
    net: Transformer, cache: Mapping[str, Tensor], path: LinearPath, position: int | None = None
) -> tuple[ComponentValues, LayerContributions]:
    """What each component contributes along a path, in order, and each attention layer in detail.

    Takes the first text of the cache. With `position`, the cache holds the patterns of that query
    only, and the path is zero at all others.
    """
    return _Decomposition(net, cache, path, position).run()


class _Decomposition:
    """Goes back through the stack along a path, and reads off what each component has added."""

    def __init__(
        self,
        net: Transformer,
        cache: Mapping[str, Tensor],
        path: LinearPath,
        position: int | None,
    ) -> None:
        self.net = net
        self.cache = cache
        self.path = path
        self.queries = slice(None) if position is None else slice(position, position + 1)
        self.components: dict[str, Tensor] = {}  # the last one first

    def run(self) -> tuple[ComponentValues, LayerContributions]:
        n_layers = len(self.net.blocks)
        last = self._value(f"blocks.{n_layers - 1}.resid_post")
        self.path = self.path.back_through_norm(self.net.final_norm, last)
        layers = []
        for i in reversed(range(n_layers)):
            block = self.net.blocks[i]
            assert isinstance(block, Block)
            layers.append(self._block(f"blocks.{i}", i, block))
        embed = self._value("embed")
        full_embed = embed
        if "pos_embed" in self.cache:
            full_embed = embed + self._value("pos_embed")
        self.path = self.path.back_through_norm(self.net.embed.norm, full_embed)
        if "pos_embed" in self.cache:
            self.components["positions"] = self._contribution(self._value("pos_embed"))
        self.components["embedding"] = self._contribution(embed)
        components = dict(reversed(self.components.items()))
        return {**components, "biases": self.path.constant}, layers[::-1]

    def _block(self, name: str, layer: int, block: Block) -> dict[str, AttentionContribution]:
        contributions = {}
        is_cross = isinstance(block, CrossAttentionBlock)
        before_ffn = f"{name}.resid_cross" if is_cross else f"{name}.resid_mid"
        self._back_through_post_norm(block.ffn_norm, before_ffn, f"{name}.ffn.out")
        ffn_output = self._value(f"{name}.ffn.out")
        self.components[f"{layer} feed-forward"] = self._contribution(ffn_output)
        if isinstance(block, CrossAttentionBlock):
            self._back_through_post_norm(
                block.cross_attn_norm, f"{name}.resid_mid", f"{name}.cross_attn.out"
            )
            contributions["cross"] = self._attention(f"{name}.cross_attn", block.cross_attn)
            cross_output = self._value(f"{name}.cross_attn.out")
            self.components[f"{layer} cross"] = self._contribution(cross_output)
        self._back_through_post_norm(block.attn_norm, f"{name}.resid_pre", f"{name}.attn.out")
        contributions["attention"] = self._attention(f"{name}.attn", block.attn)
        attention_output = self._value(f"{name}.attn.out")
        self.components[f"{layer} attention"] = self._contribution(attention_output)
        return contributions

    def _value(self, name: str) -> Tensor:
        return detach_float(self.cache[name][0])

    def _contribution(self, added: Tensor) -> Tensor:
        return (added * self.path.direction).sum()

    def _back_through_post_norm(self, norm: nn.Module, stream: str, added: str) -> None:
        """A post-norm reads the sum of the stream and what the component has added."""
        if self.net.config.norm_position == "post":
            self.path = self.path.back_through_norm(norm, self._value(stream) + self._value(added))

    def _attention(self, name: str, attention: Attention) -> AttentionContribution:
        """z W_O · direction by head and pattern · (v W_O · direction) by key, over all queries."""
        pattern = self._value(f"{name}.pattern")  # head query key
        v = self._value(f"{name}.v")  # kv_head key d_head
        v = v.repeat_interleave(len(pattern) // len(v), dim=0)
        z = self._value(f"{name}.z")
        z_direction = self.path.direction[self.queries] @ detach_float(attention.out.weight)
        z_direction = z_direction.unflatten(1, (-1, attention.d_head)).transpose(0, 1)
        bias = pattern.new_zeros(())
        if attention.out.bias is not None:
            all_tokens = detach_float(attention.out.bias).expand_as(self.path.direction)
            bias = self._contribution(all_tokens)
        return AttentionContribution(
            heads=(z[:, self.queries] * z_direction).sum(dim=(1, 2)),
            keys=(pattern * (z_direction @ v.mT)).sum(dim=1),
            bias=bias,
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Attribution(View):
    """The contribution of each component; `by_head` and `by_source_token` split up attention."""

    layer_contributions: tuple[dict[str, AttentionContribution], ...]
    key_labels: dict[str, list[str]]  # by kind of attention
    target: LogitTarget

    @property
    def total(self) -> float:
        """The logit, or the logit difference."""
        return float(self.values.sum())

    def by_head(self, kind: str = "attention") -> View:
        """layer × head."""
        values = torch.stack([layer.heads for layer in self._attention(kind)])
        axes = label_axes({"layer": len(values), "head": values.shape[1]})
        return View(
            values, axes, f"{self.title}, by head", self.value_name, signed=True, note=self.note
        )

    def by_source_token(self, kind: str = "attention") -> View:
        """layer × head × key: what came from each token, pattern · v W_O, before edits of z."""
        values = torch.stack([layer.keys for layer in self._attention(kind)])
        axes = label_axes(
            {"layer": len(values), "head": values.shape[1], "key": self.key_labels[kind]}
        )
        title = f"{self.title}, by source token"
        return View(values, axes, title, self.value_name, signed=True, note=self.note)

    def table(self) -> list[Row]:
        """A row for each component, attention by head; the values sum to the logit."""
        rows: list[Row] = []
        for component, value in zip(self.axes[0].labels, self.values.tolist(), strict=True):
            layer, _, kind = component.partition(" ")
            parts: dict[int | str, float] = {"": value}
            if layer.isdigit() and kind in self.layer_contributions[int(layer)]:
                contribution = self.layer_contributions[int(layer)][kind]
                parts = dict(enumerate(contribution.heads.tolist()))
                parts["bias"] = float(contribution.bias)
                remainder = value - sum(parts.values())
                if _is_significant(remainder, value):
                    parts[REMAINDER] = remainder
            rows += [
                {"component": component, "head": head, self.value_name: part}
                for head, part in parts.items()
            ]
        return rows

    def _attention(self, kind: str) -> list[AttentionContribution]:
        if kind not in self.layer_contributions[0]:
            known = ", ".join(self.layer_contributions[0])
            raise ClearheadError(f"this model has no attention of kind {kind!r}; known: {known}.")
        return [layer[kind] for layer in self.layer_contributions]


def attribution(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    token: AnswerToken = None,
    against: AnswerToken = None,
    position: int | None = None,
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> Attribution:
    """Decompose the logit of `token` (or a logit difference) into contributions.

    By default the top prediction at the last position, or at the first mask token. Tokens are texts
    or ids; for a classifier, classes. Words have a leading space if `token` and `against` both are
    tokens with one; the title shows the ids. An encoder-decoder is followed through its decoder;
    what that reads from the source is the contribution of "cross".
    """
    check_model(model)
    m = model.config.model
    if isinstance(m.head, c.NoHead):
        raise ClearheadError("this model has no head, so it has no logits to attribute.")
    is_pooled = has_pooled_head(m)
    batch = model.make_batch(x, source, images, audio)
    position = answer_position(model.config, batch, position)
    # of patterns, only the query that the logit depends on
    queries = slice(None) if is_pooled else slice(position, position + 1 or None)
    select: dict[str, Selector] = {
        name: (lambda p: p[:, :, queries]) if name.endswith("pattern") else select_all
        for name in required_activations(m)
    }
    cache = watch_single_text(model, select, x, source, images, audio, edits)
    logits = cache["logits"][0].float()
    target = logit_target(model, logits, token, against, position)
    path = path_from_logit(model.net, detach_float(cache["final_norm"][0]), target)
    components, layers = decompose_logit(
        model.net, cache, path, None if is_pooled else target.position
    )
    logit = target.select(logits if is_pooled else logits[target.position])
    note = "direct contributions to the logit with the scale of norms frozen"
    remainder = float(logit - sum(components.values()))
    if _is_significant(remainder, float(logit)):
        components[REMAINDER] = logit.new_tensor(remainder)
        note += f"; {REMAINDER}: edits of the residual stream, and rounding"
    values = torch.stack(list(components.values()))
    title = target.description
    if cache.tokens and not is_pooled:
        title += f" {answer_preposition(m.head)} {cache.tokens[target.position]!r}"
    key_labels = {}
    for kind, contribution in layers[0].items():
        n_heads, num_keys = contribution.keys.shape
        _, key_labels[kind] = query_key_labels(cache, kind, (n_heads, num_keys))
    return Attribution(
        values=values,
        axes=label_axes({"component": list(components)}),
        title=title,
        value_name="logit",
        signed=True,
        note=f"{note}; they sum to {float(values.sum()):.4f}",
        layer_contributions=tuple(layers),
        key_labels=key_labels,
        target=target,
    )


def _is_significant(remainder: float, total: float) -> bool:
    """Whether a remainder is more than rounding."""
    return abs(remainder) > ROUNDING_TOLERANCE * max(1.0, abs(total))
