"""Explains activations: the arithmetic behind one number, with its operands, and Python code."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.tokens import output_labels
from clearhead.model.attention import Attention
from clearhead.model.embeddings import PatchEmbedding, TokenEmbedding
from clearhead.model.heads import LMHead, PooledHead, mean_pool
from clearhead.model.layers import ACTIVATIONS, GatedFeedForward
from clearhead.model.positions import NO_POSITION, Position, Rotary
from clearhead.model.transformer import Block, CrossAttentionBlock
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.forward_passes import (
    ENCODER_PREFIX,
    Run,
    RunStore,
    Trace,
    describe_trace_tokens,
)
from clearhead.serve.explorer.requests import RunRequest, edits_to_python
from clearhead.serve.explorer.serialize import finite_or_none, number_to_dict

MAX_TERMS = 8  # terms of a sum that are listed one by one

Term = tuple[str, float | None, float | None, float]  # label, a, b, a · b; or label, value
GetValues = Callable[[Iterable[str]], dict[str, Tensor]]


# Steps


@dataclass(frozen=True)
class Step:
    """One step of a computation: description, result, and the terms it is the sum of."""

    description: str
    value: float
    terms: list[Term] = field(default_factory=list)

    def to_dict(self) -> JSONDict:
        terms = [[label, *map(finite_or_none, numbers)] for label, *numbers in self.terms]
        return {"description": self.description, **number_to_dict(self.value), "terms": terms}


def dimension_label(i: int) -> str:
    return f"dimension {i}"


def split_terms(order: Tensor) -> tuple[Tensor, Tensor]:
    """The first terms, listed one by one, and the rest, which is empty or at least two terms."""
    count = MAX_TERMS if len(order) > MAX_TERMS + 1 else len(order)
    return order[:count], order[count:]


def dot_product_step(
    description: str,
    a: Tensor,
    b: Tensor,
    label: Callable[[int], str],
    bias: Tensor | float | None = None,
) -> Step:
    """a · b + bias: the largest products one by one, and the sum of the rest."""
    products = (a.float() * b.float()).cpu()
    order = products.abs().nan_to_num(0).argsort(descending=True)
    first, rest = split_terms(order)
    terms: list[Term] = [
        (label(i), float(a[i]), float(b[i]), float(products[i])) for i in first.tolist()
    ]
    if len(rest):
        terms.append((f"{len(rest)} others", None, None, float(products[rest].double().sum())))
    if bias is not None:
        terms.append(("bias", None, None, float(bias)))
    return Step(description, float(products.double().sum()) + float(bias or 0.0), terms)


def sum_step(description: str, parts: Sequence[tuple[str, float]]) -> Step:
    terms: list[Term] = [(label, None, None, value) for label, value in parts]
    return Step(description, sum(value for _, value in parts), terms)


def linear_steps(
    description: str, layer: nn.Module, row: int, x: Tensor, label: Callable[[int], str]
) -> list[Step]:
    """One output of a linear layer; nothing for a quantized layer."""
    if not isinstance(layer, nn.Linear):
        return []
    bias = None if layer.bias is None else layer.bias[row]
    return [dot_product_step(description, x, layer.weight[row], label, bias)]


def norm_steps(norm: nn.Module, x: Tensor, i: int) -> list[Step]:
    """Dimension i of a normalized vector (L4.3)."""
    x = x.float()
    x_i = float(x[i])
    if isinstance(norm, nn.LayerNorm):
        mean = float(x.mean())
        std = float((x.var(correction=0) + norm.eps).sqrt())
        gamma = float(norm.weight[i])
        beta = 0.0 if norm.bias is None else float(norm.bias[i])
        formula = f"γ (x − μ) / σ + β with γ = {gamma:.5g}, x = {x_i:.5g}, β = {beta:.5g}"
        return [
            Step("μ, the mean of the vector", mean),
            Step("σ, its standard deviation", std),
            Step(formula, gamma * (x_i - mean) / std + beta),
        ]
    if isinstance(norm, nn.RMSNorm):
        rms = float((x.square().mean() + (norm.eps or 0.0)).sqrt())
        gamma = float(norm.weight[i])
        return [
            Step("RMS, the root mean square of the vector", rms),
            Step(f"γ x / RMS with γ = {gamma:.5g}, x = {x_i:.5g}", gamma * x_i / rms),
        ]
    return [Step("unchanged: no norm here", x_i)]


# Explainers


class ValueExplainer:
    """The steps that compute the activation `name` at `index`."""

    def __init__(self, trace: Trace, get_values: GetValues, name: str, index: list[int]) -> None:
        self.trace = trace
        self.get_values = get_values
        self.index = index
        self.prefix = ENCODER_PREFIX if name.startswith(ENCODER_PREFIX) else ""
        self.stack = trace.stack(name)
        path = name.removeprefix(self.prefix).split(".")
        self.is_in_block = path[0] == "blocks"
        self.layer = int(path[1]) if self.is_in_block else -1
        self.path = ".".join(path[2:] if self.is_in_block else path)

    def steps(self) -> list[Step]:
        if not self.is_in_block:
            match self.path:
                case "embed":
                    return self._embedding()
                case "pos_embed":
                    return self._position_embedding()
                case "full_embed":
                    return self._full_embedding()
                case "final_norm":
                    return self._final_norm()
            return self._logits()
        part, _, value = self.path.rpartition(".")
        match part:
            case "attn" | "cross_attn":
                if value == "in":
                    return self._sublayer_input(part)
                return AttentionExplainer(self, part).steps(value)
            case "ffn":
                return self._feed_forward(value)
        return [self._resid_pre()] if value == "resid_pre" else self._residual_sum(value)

    # Outside of the blocks

    def _value(self, name: str) -> Tensor:
        full_name = self.prefix + name
        return self.get_values([full_name])[full_name]

    def _embedding(self) -> list[Step]:
        token, i = self.index
        inputs = self.trace.batch.source if self.prefix else self.trace.batch.inputs
        assert inputs is not None
        embed = self.stack.embed
        if isinstance(embed, TokenEmbedding):
            return self._token_embedding(embed, int(inputs[0, token]), token, i)
        if isinstance(embed, PatchEmbedding):
            return self._patch_embedding(embed, inputs, token, i)
        value = float(self._value("embed")[token, i])
        return [Step("two convolutions over nearby frames", value)]

    def _token_embedding(
        self, embed: TokenEmbedding, token_id: int, token: int, i: int
    ) -> list[Step]:
        value = float(embed.tokens.weight[token_id, i])
        steps = [Step(f"row {token_id} of the embedding matrix, dimension {i}", value)]
        if embed.scale != 1.0:
            steps.append(Step(f"times √d_model = {embed.scale:.6g}", value * embed.scale))
        if embed.token_types is not None:
            token_type_ids = self.trace.batch.token_type_ids
            token_type = 0 if token_type_ids is None else int(token_type_ids[0, token])
            type_value = float(embed.token_types.weight[token_type, i])
            parts = [("token", steps[-1].value), ("token type", type_value)]
            steps.append(sum_step(f"plus the embedding of token type {token_type}", parts))
        return steps

    def _patch_embedding(
        self, embed: PatchEmbedding, inputs: Tensor, token: int, i: int
    ) -> list[Step]:
        if embed.cls_token is not None:
            if token == 0:
                return [Step("learned class token", float(embed.cls_token[i]))]
            token -= 1
        images = inputs if inputs.dim() == 4 else inputs[:, None]
        patches = nn.functional.unfold(images, embed.patch_size, stride=embed.patch_size)[0].mT
        description = "pixels of the patch · a column of the projection"
        return linear_steps(
            description, embed.projection, i, patches[token], lambda pixel: f"pixel {pixel}"
        )

    def _position_embedding(self) -> list[Step]:
        token, i = self.index
        is_learned = isinstance(self.trace.config.position, c.Learned)
        kind = "learned position embedding" if is_learned else "sinusoidal position embedding"
        value = float(self._value("pos_embed")[token, i])
        return [Step(f"{kind} at position {token}, dimension {i}", value)]

    def _full_embedding(self) -> list[Step]:
        token, i = self.index
        labels = {"embed": "token embedding", "pos_embed": "position embedding"}
        vectors = {
            label: self._value(name)[token].float()
            for name, label in labels.items()
            if self.prefix + name in self.trace.activations
        }
        parts = [(label, float(vector[i])) for label, vector in vectors.items()]
        steps = [sum_step("sum of the embeddings", parts)]
        norm = self.stack.embed.norm
        if not isinstance(norm, nn.Identity):
            steps += norm_steps(norm, torch.stack([*vectors.values()]).sum(dim=0), i)
        return steps

    def _final_norm(self) -> list[Step]:
        token, i = self.index
        last_layer = len(self.stack.blocks) - 1
        return norm_steps(
            self.stack.final_norm, self._value(f"blocks.{last_layer}.resid_post")[token], i
        )

    def _logits(self) -> list[Step]:
        head = self.trace.model.net.head
        hidden = self.trace.residuals["final_norm"]
        if isinstance(head, LMHead):
            token, output = self.index
            weight = getattr(head.unembed, "weight", None)
            if weight is None or not weight.is_floating_point():  # quantized
                return []
            return [
                dot_product_step(
                    "last hidden state · row of the unembedding",
                    head.transform(hidden[:, token : token + 1])[0, 0],
                    weight[output],
                    dimension_label,
                    None if head.bias is None else head.bias[output],
                )
            ]
        assert isinstance(head, PooledHead)
        pooled = mean_pool(hidden, None)[0] if head.pools_mean else hidden[0, 0]
        description = "mean hidden state" if head.pools_mean else "hidden state of the first token"
        if head.pooler is not None:
            pooled = torch.tanh(head.pooler(pooled))
            description = f"tanh of the pooler of the {description}"
        return linear_steps(
            f"{description} · row of the output matrix",
            head.out,
            self.index[-1],
            pooled,
            dimension_label,
        )

    # Residual stream

    @property
    def block(self) -> Block:
        block: Block = self.stack.blocks[self.layer]  # type: ignore[assignment]
        return block

    def block_values(self, *names: str) -> list[Tensor]:
        """Activations of this block, from one pass through it."""
        full_names = [f"{self.prefix}blocks.{self.layer}.{name}" for name in names]
        values = self.get_values(full_names)
        return [values[name] for name in full_names]

    def _resid_pre(self) -> Step:
        token, i = self.index
        name = f"blocks.{self.layer - 1}.resid_post" if self.layer else "full_embed"
        return Step(f"output of {name}", float(self._value(name)[token, i]))

    @property
    def _ffn_input(self) -> str:
        return "resid_cross" if isinstance(self.block, CrossAttentionBlock) else "resid_mid"

    def _residual_sum(self, name: str) -> list[Step]:
        """x + sublayer(x), normalized in a post-norm block."""
        token, i = self.index
        input_name, sublayer = {
            "resid_mid": ("resid_pre", "attn"),
            "resid_cross": ("resid_mid", "cross_attn"),
            "resid_post": (self._ffn_input, "ffn"),
        }[name]
        output_name = f"{sublayer}.out"
        values = self.block_values(input_name, output_name)
        x, output = (value[token].float() for value in values)
        parts = [(input_name, float(x[i])), (output_name, float(output[i]))]
        steps = [sum_step("residual stream plus the output of the sublayer", parts)]
        if self.trace.config.norm_position == "post":
            steps += norm_steps(self._norm(sublayer), x + output, i)
        return steps

    def _sublayer_input(self, sublayer: str) -> list[Step]:
        """The residual stream, normalized in a pre-norm block."""
        token, i = self.index
        inputs = {"attn": "resid_pre", "cross_attn": "resid_mid", "ffn": self._ffn_input}
        input_name = inputs[sublayer]
        x = self.block_values(input_name)[0][token]
        if self.trace.config.norm_position == "post":
            return [Step(f"residual stream ({input_name})", float(x[i]))]
        return norm_steps(self._norm(sublayer), x, i)

    def _norm(self, sublayer: str) -> nn.Module:
        return self.block.get_submodule(f"{sublayer}_norm")

    # Feed-forward

    def _feed_forward(self, name: str) -> list[Step]:
        token, i = self.index
        ffn = self.block.ffn
        if name == "in":
            return self._sublayer_input("ffn")
        if name in ("up", "gate"):
            x = self.block_values("ffn.in")[0][token]
            layer = ffn.get_submodule(name)
            return linear_steps("input · weights of the neuron", layer, i, x, dimension_label)
        if name == "post":
            return self._neuron(ffn.activation, isinstance(ffn, GatedFeedForward))
        post = self.block_values("ffn.post")[0][token]
        return linear_steps(
            "neurons · their output weights", ffn.down, i, post, lambda j: f"neuron {j}"
        )

    def _neuron(self, activation: Callable[[Tensor], Tensor], is_gated: bool) -> list[Step]:
        token, i = self.index
        x = self.block_values("ffn.gate" if is_gated else "ffn.up")[0][token, i]
        activation_name = next(  # of swiglu, silu
            name for name, function in ACTIVATIONS.items() if function is activation
        )
        steps = [Step(f"{activation_name}({float(x):.6g})", float(activation(x)))]
        if is_gated:
            up = float(self.block_values("ffn.up")[0][token, i])
            steps.append(Step(f"times up, {up:.6g}", steps[0].value * up))
        return steps

    # Attention

    def position(self, part: str) -> Position:
        """Positions of queries and keys in this layer."""
        if part == "cross_attn":
            return NO_POSITION
        x = self.trace.residuals[f"{self.prefix}full_embed"]
        positions, key_positions, _ = self.stack.positions_and_mask(x, None, None, None)
        encoding = self.stack.position
        return encoding.layer_positions(positions, key_positions, len(self.stack.blocks))[
            self.layer
        ]

    @property
    def rotary(self) -> Rotary | None:
        return self.stack.position if isinstance(self.stack.position, Rotary) else None


class AttentionExplainer:
    """The steps that compute an activation of self- or cross-attention (L3.3 – L3.8)."""

    def __init__(self, parent: ValueExplainer, part: str) -> None:
        self.parent = parent
        self.part = part
        self.is_cross = part == "cross_attn"
        self.index = parent.index
        attention = parent.block.get_submodule(part)
        assert isinstance(attention, Attention)
        self.attention = attention

    def steps(self, name: str) -> list[Step]:
        match name:
            case "q" | "k" | "v":
                return self._projection(name)
            case "rot_q" | "rot_k":
                return self._rotation(name.removeprefix("rot_"))
            case "scores":
                return self._scores()
            case "masked_scores":
                return self._masked_scores()
            case "pattern":
                return self._pattern()
            case "z":
                return self._z()
        return self._out()

    def _values(self, *names: str) -> list[Tensor]:
        return self.parent.block_values(*(f"{self.part}.{name}" for name in names))

    def _kv_head(self, head: int, n_kv_heads: int) -> int:
        return head // (self.parent.trace.config.attention.n_heads // n_kv_heads)

    def _projection(self, name: str) -> list[Step]:
        head, token, i = self.index
        if self.is_cross and name != "q":
            x = self.parent.trace.residuals["encoder.final_norm"][0, token]
        else:
            x = self._values("in")[0][token]
        attention = self.attention
        layer = attention.get_submodule(name)
        d_head = attention.d_head
        weight_name = f"W_{name.upper()}"
        norm = {"q": attention.q_norm, "k": attention.k_norm}.get(name)
        if norm is None or isinstance(norm, nn.Identity):
            row = head * d_head + i
            return linear_steps(f"h · a column of {weight_name}", layer, row, x, dimension_label)
        projected = layer(x)[head * d_head : (head + 1) * d_head]
        before = Step(f"h · {weight_name} before the norm", float(projected[i]))
        return [before, *norm_steps(norm, projected, i)]

    def _rotation(self, name: str) -> list[Step]:
        head, token, i = self.index
        x = self._values(name)[0][head, token]
        rotary = None if self.is_cross else self.parent.rotary
        if rotary is None:
            return [Step(f"{name}, as positions are not rotary", float(x[i]))]
        frequencies = rotary.frequencies(x.device)
        half = len(frequencies)
        if i >= 2 * half:
            return [Step(f"{name}, as this dimension is not rotated", float(x[i]))]
        pair = i % half
        frequency = float(frequencies[pair])
        angle = token * frequency
        cos = math.cos(angle)
        sin = math.sin(angle)
        first = float(x[pair])
        second = float(x[pair + half])
        terms: list[Term]
        if i < half:
            terms = [
                (f"dimension {pair} × cos", first, cos, first * cos),
                (f"dimension {pair + half} × −sin", second, -sin, -second * sin),
            ]
        else:
            terms = [
                (f"dimension {pair + half} × cos", second, cos, second * cos),
                (f"dimension {pair} × sin", first, sin, first * sin),
            ]
        angle_step = Step(f"angle: position {token} × {frequency:.5g} radians", angle)
        return [angle_step, Step("rotated pair", sum(term[3] for term in terms), terms)]

    def _scores(self) -> list[Step]:
        head, query, key = self.index
        q, k = self._values("rot_q", "rot_k")
        k_head = k[self._kv_head(head, len(k)), key]
        product = dot_product_step(
            "q · k, the bilinear kernel xᵀ W_Q W_Kᵀ x", q[head, query], k_head, dimension_label
        )
        scale = self.attention.scale
        is_scaled = scale != 1.0
        description = f"divided by √{self.attention.d_head}" if is_scaled else "not scaled"
        scaled = Step(description, product.value * scale)
        bias = self.parent.position(self.part).bias(q[None], scale)
        if bias is None:
            return [product, scaled]
        value = float(bias[0, head, query, key])
        biased = Step(f"plus the position bias, {value:.5g}", scaled.value + value)
        return [product, scaled, biased]

    def _masked_scores(self) -> list[Step]:
        head, query, key = self.index
        scores, masked_scores = self._values("scores", "masked_scores")
        if masked_scores[head, query, key] != -torch.inf:
            return [Step("the score: this position is not masked", float(scores[head, query, key]))]
        is_causal = key > query and self.parent.stack.is_causal
        reason = "causal mask" if is_causal else "outside of the sliding window"
        return [Step(f"−∞: {reason}", -math.inf)]

    def _pattern(self) -> list[Step]:
        head, query, key = self.index
        row = self._values("masked_scores")[0][head, query].double()
        maximum = float(row.max())
        if maximum == -math.inf:
            return [Step("all positions are masked", 0.0)]
        weights = (row - maximum).exp()
        labels = self._key_labels()
        order = weights.argsort(descending=True)
        first, rest = split_terms(order[weights[order] > 0])
        terms: list[Term] = [(labels[i], None, None, float(weights[i])) for i in first.tolist()]
        if len(rest):
            terms.append((f"{len(rest)} others", None, None, float(weights[rest].sum())))
        exp = f"exp(score − maximum) = exp({float(row[key]):.5g} − {maximum:.5g})"
        return [
            Step(exp, float(weights[key])),
            Step("sum over all keys", float(weights.sum()), terms),
            Step("divided by the sum", float(weights[key] / weights.sum())),
        ]

    def _z(self) -> list[Step]:
        head, query, i = self.index
        pattern, v = self._values("pattern", "v")
        values = v[self._kv_head(head, len(v)), :, i]
        labels = self._key_labels()
        return [
            dot_product_step("weights · values", pattern[head, query], values, labels.__getitem__)
        ]

    def _out(self) -> list[Step]:
        token, i = self.index
        out = self.attention.out
        if not isinstance(out, nn.Linear):  # quantized
            return []
        z = self._values("z")[0][:, token]
        contributions = (z * out.weight[i].view_as(z)).sum(dim=-1)
        parts = [(f"head {head}", float(value)) for head, value in enumerate(contributions)]
        if out.bias is not None:
            parts.append(("bias", float(out.bias[i])))
        return [sum_step("sum over heads: z · W_O", parts)]

    def _key_labels(self) -> list[str]:
        trace = self.parent.trace
        is_source = bool(self.parent.prefix) or self.is_cross
        ids = trace.batch.source if is_source else trace.batch.inputs
        tokens = describe_trace_tokens(trace.model, ids, trace, is_source)
        return [f"{token['text']} ({i})" for i, token in enumerate(tokens)]


# Explanations


def explain_value(runs: RunStore, run: Run, name: str, index: list[int]) -> JSONDict:
    """Explain one number of a run: labels, rank, the arithmetic behind it, and Python code."""
    trace = run.trace
    shape = trace.shape(name)
    is_valid = len(index) == len(shape)
    if not is_valid or not all(0 <= i < size for i, size in zip(index, shape, strict=True)):
        raise ClearheadError(
            f"index {index} is out of range for {name} of shape {' × '.join(map(str, shape))}."
        )

    def get_values(names: Iterable[str]) -> dict[str, Tensor]:
        return runs.values(run, names)

    with torch.no_grad():
        if name == "logits":
            values = trace.logits(-1 if trace.is_pooled else index[0])
            value = values[index[-1]]
        else:
            values = get_values([name])[name]
            value = values[tuple(index)]
        steps = ValueExplainer(trace, get_values, name, index).steps()
    if name in trace.edits:
        steps.append(Step("after the edits of this activation", float(value)))
    finite_values = values[values.isfinite()]
    percentile = None
    if finite_values.numel() and value.isfinite():
        percentile = 100 * float((finite_values < value).float().mean())
    return {
        "name": name,
        "shape": shape,
        "index": index,
        "labels": index_labels(run, name, index),
        **number_to_dict(float(value)),
        "percentile": percentile,
        "is_largest": percentile is not None and bool(value >= finite_values.max()),
        "formula": trace.activations[name].formula,
        "steps": [step.to_dict() for step in steps],
        "python": python_snippet(run, name, index),
    }


def index_labels(run: Run, name: str, index: list[int]) -> list[str]:
    """A readable label for each index."""
    trace = run.trace
    model = trace.model
    if isinstance(trace.config.head, c.RegressionHead) and name == "logits":
        return ["predicted value"]
    is_encoder = name.startswith(ENCODER_PREFIX)

    def token_label(i: int, is_source: bool) -> str:
        ids = trace.batch.source if is_source else trace.batch.inputs
        text = describe_trace_tokens(model, ids, trace, is_source)[i]["text"]
        return f"{text} (token {i})"

    def label(dimension: str, i: int) -> str:
        match dimension:
            case "seq" | "query":
                return token_label(i, is_encoder)
            case "key":
                return "from " + token_label(i, is_encoder or ".cross_attn." in name)
            case "vocab_size" | "num_labels":
                return output_labels(model.config, model.tokenizer, [i])[0]
            case "head":
                return f"head {i}"
            case "kv_head":
                is_shared = trace.config.n_kv_heads != trace.config.attention.n_heads
                return f"shared head {i}" if is_shared else f"head {i}"
            case "d_ff":
                return f"neuron {i}"
        return dimension_label(i)

    dimensions = trace.activations[name].shape.split()[1:]
    return [label(dimension, i) for dimension, i in zip(dimensions, index, strict=True)]


def python_snippet(run: Run, name: str, index: list[int]) -> str:
    """Python code that prints one number of a run; `model.watch` adds a batch dimension."""
    request = run.request
    arguments = [*_input_arguments(run), f"names={name!r}"]
    if request.edits:
        arguments.append(f"edits={edits_to_python(request.edits)}")
    lines = ["import clearhead as ch", "", f"model = ch.load({run.model_path!r})"]
    lines += _patch_source_lines(request)
    lines.append(f"cache = model.watch({', '.join(arguments)})")
    lines.append(f"print(cache[{name!r}][{', '.join(map(str, [0, *index]))}].item())")
    return "\n".join(lines)


def _patch_source_lines(request: RunRequest) -> list[str]:
    """Code that computes the activations of the other text."""
    encoder_names = sorted(n for n in request.patched_names if n.startswith(ENCODER_PREFIX))
    names = sorted(request.patched_names.difference(encoder_names))
    calls = []
    if names:
        source = f", source={request.source!r}" if request.source else ""
        calls.append(f"model.watch({request.patch_from!r}, {names!r}{source})")
    if encoder_names:
        calls.append(f"model.watch(None, {encoder_names!r}, source={request.patch_from!r})")
    if not calls:
        return []
    if len(calls) == 1:
        return [f"other = {calls[0]}"]
    return [f"other = {' | '.join(f'dict({call})' for call in calls)}"]


def _input_arguments(run: Run) -> list[str]:
    request = run.request
    if request.image is not None:
        return ['images="image.png"']
    arguments = []
    is_encoder_decoder = isinstance(run.trace.config.architecture, c.EncoderDecoder)
    uses_ids = request.messages is not None or request.ids is not None
    if uses_ids or (is_encoder_decoder and request.text is None):
        arguments.append(repr(run.trace.batch.inputs[0].tolist()))
    elif request.text or not is_encoder_decoder:
        arguments.append(repr(request.text))
    if request.audio is not None:
        arguments.append('audio="audio.wav"')
    if request.source:
        arguments.append(f"source={request.source!r}")
    return arguments
