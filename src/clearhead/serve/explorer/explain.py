"""Arithmetic written out: sums of products with their largest terms, norms step by step."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.activations import output_labels
from clearhead.model.attention import Attention
from clearhead.model.heads import LMHead, PooledHead, mean_pool
from clearhead.model.inputs import PatchEmbedding, TokenEmbedding
from clearhead.model.layers import ACTIVATIONS, GatedFeedForward
from clearhead.model.positions import NO_POSITION, Position, Rotary
from clearhead.model.transformer import Block, CrossAttentionBlock
from clearhead.serve.explorer.runs import (
    ENCODER_PREFIX,
    Run,
    RunRequest,
    RunStore,
    Trace,
    describe_trace_tokens,
)
from clearhead.serve.explorer.runs import edits_to_python as written
from clearhead.serve.explorer.serialize import finite_or_none, number_to_dict

if TYPE_CHECKING:
    pass

# ---- terms: Arithmetic written out: sums of products with their largest terms, norms step by step.

MAX_TERMS = 8  # terms of a sum that are told one by one

Term = tuple[
    str, float | None, float | None, float
]  # what it is, a, b, and a · b; or what it is and how much


@dataclass(frozen=True)
class Step:
    """A sentence, the number it leads to, and what that is the sum of."""

    description: str
    value: float
    terms: list[Term] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        terms = [[label, *map(finite_or_none, numbers)] for label, *numbers in self.terms]
        return {"words": self.description, **number_to_dict(self.value), "terms": terms}


def dimension_label(i: int) -> str:
    """What most terms are called."""
    return f"dimension {i}"


def dot_product_step(
    words: str,
    a: Tensor,
    b: Tensor,
    label: Callable[[int], str],
    bias: Tensor | float | None = None,
) -> Step:
    """a · b, and a bias: the largest products one by one, the rest as their sum."""
    products = (a.float() * b.float()).cpu()
    first, rest = split_terms(products.abs().nan_to_num(0).argsort(descending=True))
    terms: list[Term] = [
        (label(i), float(a[i]), float(b[i]), float(products[i])) for i in first.tolist()
    ]
    if len(rest):
        terms.append((f"{len(rest)} others", None, None, float(products[rest].double().sum())))
    if bias is not None:
        terms.append(("bias", None, None, float(bias)))
    return Step(words, float(products.double().sum()) + float(bias or 0.0), terms)


def split_terms(order: Tensor) -> tuple[Tensor, Tensor]:
    """Those that are told one by one, and the others, of which there are several or none."""
    shown = MAX_TERMS if len(order) > MAX_TERMS + 1 else len(order)
    return order[:shown], order[shown:]


def sum_step(words: str, parts: Sequence[tuple[str, float]]) -> Step:
    """A plain sum."""
    return Step(
        words,
        sum(value for _, value in parts),
        [(label, None, None, value) for label, value in parts],
    )


def linear_step(
    words: str, layer: nn.Module, row: int, x: Tensor, label: Callable[[int], str]
) -> Step | None:
    """One output of a linear layer; None where its matrix is of whole numbers with scales of their own."""
    if not isinstance(layer, nn.Linear):
        return None
    return dot_product_step(
        words, x, layer.weight[row], label, None if layer.bias is None else layer.bias[row]
    )


def norm_steps(norm: nn.Module, x: Tensor, at: int) -> list[Step]:
    """One place of a vector after a norm: its mean and deviation, then scale and shift (L4.3)."""
    x = x.float()
    if isinstance(norm, nn.LayerNorm):
        mean = float(x.mean())
        deviation = float((x.var(correction=0) + norm.eps).sqrt())
        gamma = float(norm.weight[at])
        beta = 0.0 if norm.bias is None else float(norm.bias[at])
        value = gamma * (float(x[at]) - mean) / deviation + beta
        return [
            Step("μ, the mean of the token's vector", mean),
            Step("σ, its deviation", deviation),
            Step(
                f"γ (x − μ) / σ + β, with γ = {gamma:.5g}, x = {float(x[at]):.5g}, β = {beta:.5g}",
                value,
            ),
        ]
    if isinstance(norm, nn.RMSNorm):
        root = float((x.square().mean() + (norm.eps or 0.0)).sqrt())
        gamma = float(norm.weight[at])
        return [
            Step("root of the mean square of the token's vector", root),
            Step(
                f"γ x / root, with γ = {gamma:.5g}, x = {float(x[at]):.5g}",
                gamma * float(x[at]) / root,
            ),
        ]
    return [Step("the same: there is no norm here", float(x[at]))]


# ---- attending: The arithmetic of attention: from what is read to what each head gathers (L3.3 – L3.8).


class AttentionExplainer:
    """The steps to one number of an attention: self or cross."""

    def __init__(self, reasons: "ValueExplainer", part: str, attention: Attention) -> None:
        self.of = reasons
        self.part = part
        self.attention = attention
        self.index = reasons.index

    def steps(self, what: str) -> list[Step]:
        match what:
            case "q" | "k" | "v":
                return self._projected(what)
            case "rot_q" | "rot_k":
                return self._turned(what[0])
            case "scores":
                return self._scores()
            case "masked":
                return self._masked()
            case "pattern":
                return self._pattern()
            case "z":
                return self._gathered()
        return self._out()

    def _here(self, *names: str) -> list[Tensor]:
        return self.of.block_values(*(f"{self.part}.{name}" for name in names))

    def _group(self, head: int, shared: Tensor) -> int:
        """Which of the shared heads of keys and values a head of queries looks at."""
        return head // (self.of.trace.config.attention.n_heads // len(shared))

    def _projected(self, what: str) -> list[Step]:
        head, at, j = self.index
        source = (
            self.of.trace.residuals["encoder.norm"][0]
            if self.part == "cross" and what != "q"
            else self._here("in")[0]
        )
        layer: nn.Module = getattr(self.attention, what)
        width = self.attention.d_head
        norm = {"q": self.attention.q_norm, "k": self.attention.k_norm}.get(what)
        if norm is not None and not isinstance(norm, nn.Identity):
            raw = layer(source[at])[head * width : (head + 1) * width]
            return [
                Step(f"h · W_{what.upper()}, before the norm", float(raw[j])),
                *norm_steps(norm, raw, j),
            ]
        step = linear_step(
            f"h · a column of W_{what.upper()}",
            layer,
            head * width + j,
            source[at],
            dimension_label,
        )
        return [step] if step else []

    def _turned(self, what: str) -> list[Step]:
        head, at, j = self.index
        x = self._here(what)[0][head, at]
        rotary = None if self.part == "cross" else self.of.rotary
        if rotary is None:
            return [Step(f"{what} itself: positions are not rotary here", float(x[j]))]
        rates = rotary.frequencies(x.device)
        half = len(rates)
        if j >= 2 * half:
            return [Step(f"{what} itself: this dimension does not turn", float(x[j]))]
        i = j % half
        angle = at * float(rates[i])
        a = float(x[i])
        b = float(x[i + half])
        cos = math.cos(angle)
        sin = math.sin(angle)
        turn = Step(f"angle: position {at} × {float(rates[i]):.5g} radians", angle)
        if j < half:
            terms: list[Term] = [
                (f"dimension {i} × cos", a, cos, a * cos),
                (f"dimension {i + half} × −sin", b, -sin, -b * sin),
            ]
        else:
            terms = [
                (f"dimension {i + half} × cos", b, cos, b * cos),
                (f"dimension {i} × sin", a, sin, a * sin),
            ]
        return [turn, Step("the pair, turned", sum(term[3] for term in terms), terms)]

    def _scores(self) -> list[Step]:
        head, at, key = self.index
        q, k = self._here("rot_q", "rot_k")
        product = dot_product_step(
            "q · k", q[head, at], k[self._group(head, k), key], dimension_label
        )
        scale = self.attention.scale
        words = (
            f"divided by √{self.attention.d_head}" if scale != 1.0 else "not scaled in this model"
        )
        scaled = Step(words, product.value * scale)
        bias = self.of.position(self.part).bias(q[None], scale)
        if bias is None:
            return [product, scaled]
        added = float(bias[0, head, at, key])
        return [
            product,
            scaled,
            Step(f"with the bias of positions, {added:.5g}", scaled.value + added),
        ]

    def _masked(self) -> list[Step]:
        head, at, key = self.index
        scores, masked = self._here("scores", "masked")
        if masked[head, at, key] != -torch.inf:
            return [Step("the score: this key may be looked at", float(scores[head, at, key]))]
        reason = (
            "the key comes after the query"
            if key > at and self.of.stack.is_causal
            else "the key is too far away"
        )
        return [Step(f"−∞: {reason}", -math.inf)]

    def _pattern(self) -> list[Step]:
        head, at, key = self.index
        row = self._here("masked")[0][head, at].double()
        most = float(row.max())
        if most == -math.inf:
            return [Step("this query may look at nothing", 0.0)]
        raised = (row - most).exp()
        labels = self._keys()
        order = raised.argsort(descending=True)
        first, rest = split_terms(order[raised[order] > 0])
        terms: list[Term] = [(labels[i], None, None, float(raised[i])) for i in first.tolist()]
        if len(rest):
            terms.append((f"{len(rest)} others", None, None, float(raised[rest].sum())))
        return [
            Step(
                f"exp(score − largest) = exp({float(row[key]):.5g} − {most:.5g})",
                float(raised[key]),
            ),
            Step("the sum of the row", float(raised.sum()), terms),
            Step("divided by it", float(raised[key] / raised.sum())),
        ]

    def _gathered(self) -> list[Step]:
        head, at, j = self.index
        pattern, v = self._here("pattern", "v")
        labels = self._keys()
        return [
            dot_product_step(
                "weights · values",
                pattern[head, at],
                v[self._group(head, v), :, j],
                lambda i: labels[i],
            )
        ]

    def _out(self) -> list[Step]:
        at, j = self.index
        z = self._here("z")[0][:, at]
        out = self.attention.out
        if not isinstance(out, nn.Linear):
            return []
        given = (z * out.weight[j].view_as(z)).sum(dim=-1)
        terms: list[Term] = [
            (f"head {h}", None, None, float(value)) for h, value in enumerate(given)
        ]
        if out.bias is not None:
            terms.append(("bias", None, None, float(out.bias[j])))
        return [Step("what each head writes: z · W_O", sum(term[3] for term in terms), terms)]

    def _keys(self) -> list[str]:
        trace = self.of.trace
        source = bool(self.of.prefix) or self.part == "cross"
        ids = trace.batch.source if source else trace.batch.inputs
        assert ids is not None
        return [
            f"{token['text']} ({i})"
            for i, token in enumerate(describe_trace_tokens(trace.model, ids, trace, source))
        ]


# ---- reasons: The arithmetic of every value in the table of names: each is made of others, and the same module's weights.

GetValues = Callable[[Iterable[str]], dict[str, Tensor]]


class ValueExplainer:
    """The steps to one number: `name` at `index`."""

    def __init__(self, trace: Trace, values: GetValues, name: str, index: list[int]) -> None:
        self.trace = trace
        self.values = values
        self.index = index
        self.prefix = ENCODER_PREFIX if name.startswith(ENCODER_PREFIX) else ""
        self.stack = trace.stack(name)
        path = name.removeprefix(self.prefix).split(".")
        self.inner = path[0] == "blocks"
        self.layer = int(path[1]) if self.inner else -1
        self.path = ".".join(path[2:] if self.inner else path)

    def steps(self) -> list[Step]:
        part, _, what = self.path.rpartition(".")
        match part if self.inner else self.path:
            case "attn" | "cross":
                return self._attention(part, what)
            case "ffn":
                return self._feed_forward(what)
            case "":
                return [self._entering()] if what == "pre" else self._joined(what)
            case "embed":
                return self._tokens()
            case "pos_embed":
                return self._positions()
            case "full_embed":
                return self._embed()
            case "final_norm":
                return self._norm()
        return self._logits()

    # ---------------------------------------------------------------- around the blocks
    def _tokens(self) -> list[Step]:
        at, j = self.index
        embed = self.stack.embed
        ids = self.trace.batch.source if self.prefix else self.trace.batch.inputs
        assert ids is not None
        if isinstance(embed, TokenEmbedding):
            token = int(ids[0, at])
            found = [
                Step(
                    f"row {token} of the embedding matrix, dimension {j}",
                    float(embed.tokens.weight[token, j]),
                )
            ]
            if embed.scale != 1.0:
                found.append(
                    Step(f"times √width = {embed.scale:.6g}", found[-1].value * embed.scale)
                )
            if embed.token_types is not None:
                kind = (
                    0
                    if self.trace.batch.token_type_ids is None
                    else int(self.trace.batch.token_type_ids[0, at])
                )
                of_kind = float(embed.token_types.weight[kind, j])
                found.append(
                    sum_step(
                        f"with the embedding of sentences of kind {kind}",
                        [("token", found[-1].value), ("kind", of_kind)],
                    )
                )
            return found
        if isinstance(embed, PatchEmbedding):
            picture = ids if ids.dim() == 4 else ids[:, None]
            patches = nn.functional.unfold(picture, embed.patch_size, stride=embed.patch_size)[0].mT
            if embed.cls_token is not None and at == 0:
                return [
                    Step(
                        "a learned vector that stands before the patches", float(embed.cls_token[j])
                    )
                ]
            patch = patches[at - (embed.cls_token is not None)]
            step = linear_step(
                "the patch's pixels times a column of the matrix",
                embed.projection,
                j,
                patch,
                lambda i: f"pixel {i}",
            )
            return [step] if step else []
        return [
            Step("two convolutions over the frames near this one", float(self._one("embed")[at, j]))
        ]

    def _positions(self) -> list[Step]:
        at, j = self.index
        kind = (
            "the learned table of positions"
            if isinstance(self.trace.config.position, c.Learned)
            else "the waves"
        )
        return [
            Step(f"{kind} at position {at}, dimension {j}", float(self._one("pos_embed")[at, j]))
        ]

    def _embed(self) -> list[Step]:
        at, j = self.index
        parts = [
            name for name in ("embed", "pos_embed") if self.prefix + name in self.trace.activations
        ]
        vectors = {name: self._one(name)[at] for name in parts}
        words = {"embed": "token", "pos_embed": "position"}
        summed = sum_step(
            "token and position, added", [(words[name], float(v[j])) for name, v in vectors.items()]
        )
        whole = torch.stack([v.float() for v in vectors.values()]).sum(dim=0)
        norm = self.stack.embed.norm
        return [summed] if isinstance(norm, nn.Identity) else [summed, *norm_steps(norm, whole, j)]

    def _norm(self) -> list[Step]:
        at, j = self.index
        return norm_steps(
            self.stack.final_norm,
            self._one(f"blocks.{len(self.stack.blocks) - 1}.resid_post")[at],
            j,
        )

    def _logits(self) -> list[Step]:
        head = self.trace.model.net.head
        hidden = self.trace.residuals["final_norm"]
        if isinstance(head, LMHead):
            at, answer = self.index
            read = head.transform(hidden[:, at : at + 1])[0, 0]
            bias = head.bias
            table = getattr(head.unembed, "weight", None)
            if table is None or not table.is_floating_point():
                return []
            return [
                dot_product_step(
                    "the last hidden state · the answer's row of the unembedding",
                    read,
                    table[answer],
                    dimension_label,
                    None if bias is None else bias[answer],
                )
            ]
        assert isinstance(head, PooledHead)
        pooled = mean_pool(hidden, None)[0] if head.pools_mean else hidden[0, 0]
        first = (
            "the mean of all tokens' hidden states"
            if head.pools_mean
            else "the first token's hidden state"
        )
        if head.pooler is not None:
            pooled = torch.tanh(head.pooler(pooled))
            first = f"tanh of a layer over {first}"
        step = linear_step(
            f"{first} · the answer's row", head.out, self.index[-1], pooled, dimension_label
        )
        return [step] if step else []

    # ---------------------------------------------------------------- the stream
    @property
    def block(self) -> Block:
        found: Block = self.stack.blocks[self.layer]  # type: ignore[assignment]
        return found

    def _one(self, name: str) -> Tensor:
        return self.values([self.prefix + name])[self.prefix + name]

    def block_values(self, *names: str) -> list[Tensor]:
        """Values of this block, from one pass through it."""
        paths = [f"{self.prefix}blocks.{self.layer}.{name}" for name in names]
        found = self.values(paths)
        return [found[path] for path in paths]

    def _entering(self) -> Step:
        at, j = self.index
        before = f"blocks.{self.layer - 1}.resid_post" if self.layer else "full_embed"
        return Step(f"what {before} gave", float(self._one(before)[at, j]))

    def _joined(self, what: str) -> list[Step]:
        """x + part, normalised where the wiring is post."""
        at, j = self.index
        cross = isinstance(self.block, CrossAttentionBlock)
        before, part, norm = {
            "mid": ("pre", "attn.out", "attn_norm"),
            "crossed": ("mid", "cross.out", "cross_norm"),
            "post": ("crossed" if cross else "mid", "ffn.out", "ffn_norm"),
        }[what]
        stream, added = (value[at].float() for value in self.block_values(before, part))
        summed = sum_step(
            "the stream and what the part adds",
            [(before, float(stream[j])), (part, float(added[j]))],
        )
        if self.trace.config.norm_position == "pre":
            return [summed]
        return [summed, *norm_steps(getattr(self.block, norm), stream + added, j)]

    def _read(self, part: str) -> list[Step]:
        """What a part reads: the stream, normalised first where the wiring is pre."""
        at, j = self.index
        cross = isinstance(self.block, CrossAttentionBlock)
        before, norm = {
            "attn": ("pre", self.block.attn_norm),
            "cross": ("mid", getattr(self.block, "cross_norm", None)),
            "ffn": ("crossed" if cross else "mid", self.block.ffn_norm),
        }[part]
        stream = self.block_values(before)[0][at]
        if self.trace.config.norm_position == "post" or norm is None:
            return [Step(f"the stream itself ({before})", float(stream[j]))]
        return norm_steps(norm, stream, j)

    # ---------------------------------------------------------------- feed-forward
    def _feed_forward(self, what: str) -> list[Step]:
        at, j = self.index
        ffn = self.block.ffn
        if what == "in":
            return self._read("ffn")
        if what in ("pre", "gate"):
            layer: nn.Module = ffn.up if what == "pre" else ffn.gate  # type: ignore[assignment]
            step = linear_step(
                "what the layer reads · the neuron's weights",
                layer,
                j,
                self.block_values("ffn.in")[0][at],
                dimension_label,
            )
        elif what == "post":
            before = self.block_values("ffn.pre")[0][at, j]
            plain = next(
                name for name, made in ACTIVATIONS.items() if made is ffn.activation
            )  # of swiglu, silu
            found = [Step(f"{plain} of {float(before):.6g}", float(ffn.activation(before)))]
            if isinstance(ffn, GatedFeedForward):
                gate = float(self.block_values("ffn.gate")[0][at, j])
                found.append(Step(f"times its gate, {gate:.6g}", found[0].value * gate))
            return found
        else:
            post = self.block_values("ffn.post")[0][at]
            step = linear_step(
                "the neurons · what each writes here", ffn.down, j, post, lambda i: f"neuron {i}"
            )
        return [step] if step else []

    # ---------------------------------------------------------------- attention
    def _attention(self, part: str, what: str) -> list[Step]:
        if what == "in":
            return self._read(part)
        return AttentionExplainer(self, part, self.attention_module(part)).steps(what)

    def attention_module(self, part: str) -> Attention:
        found: Attention = getattr(self.block, part)
        return found

    def position(self, part: str) -> Position:
        """Where queries and keys stand, as this layer knows it."""
        if part == "cross":
            return NO_POSITION
        x = self.trace.residuals[f"{self.prefix}embed"]
        at, keys, _ = self.stack.positions_and_mask(x, None, None, None)
        return self.stack.position.layer_positions(at, keys, len(self.stack.blocks))[self.layer]

    @property
    def rotary(self) -> Rotary | None:
        return self.stack.position if isinstance(self.stack.position, Rotary) else None


# ---- copied: Copy as Python: code that prints the number that someone points at, edits included.


def python_snippet(run: Run, name: str, index: list[int]) -> str:
    """The same run and the same place, as `model.watch` has it: with the batch as first dimension."""
    request = run.request
    lines = ["import clearhead as ch", "", f"model = ch.load({run.model_path!r})"]
    lines += _patch_source_lines(request)
    words = [*_input_arguments(run), f"names={name!r}"]
    if request.edits:
        words.append(f"edits={written(request.edits)}")
    lines.append(f"seen = model.watch({', '.join(words)})")
    lines.append(f"print(seen[{name!r}][{', '.join(map(str, [0, *index]))}].item())")
    return "\n".join(lines)


def _patch_source_lines(request: RunRequest) -> list[str]:
    """The run that swapped values are of: those of an encoder are of its source."""
    encoder = sorted(name for name in request.patched_names if name.startswith(ENCODER_PREFIX))
    names = sorted(request.patched_names.difference(encoder))
    source = f", source={request.source!r}" if request.source else ""
    runs = [f"model.watch({request.patch_from!r}, {names!r}{source})"] if names else []
    runs += [f"model.watch(None, {encoder!r}, source={request.patch_from!r})"] if encoder else []
    return (
        [f"other = {' | '.join(f'dict({run})' for run in runs) if len(runs) > 1 else runs[0]}"]
        if runs
        else []
    )


def _input_arguments(run: Run) -> list[str]:
    request = run.request
    batch = run.trace.batch
    if request.image is not None:
        return ['pictures="picture.png"']
    words = []
    if request.audio is not None:
        words.append('sound="sound.wav"')
    both = isinstance(run.trace.config.architecture, c.EncoderDecoder)
    as_ids = (
        request.messages is not None or request.ids is not None or (both and request.text is None)
    )
    if as_ids:
        words.insert(0, repr(batch.inputs[0].tolist()))
    elif request.text or not both:
        words.insert(0, repr(request.text))
    if request.source:
        words.append(f"source={request.source!r}")
    return words


# ---- why: Why a number is what it is: the arithmetic that made it, with the operands that this run had.


def explain_value(runs: RunStore, run: Run, name: str, index: list[int]) -> dict[str, Any]:
    """One value: where it stands, what it is larger than, how it came to be, and the Python that prints it."""
    trace = run.trace
    shape = trace.shape(name)
    if len(index) != len(shape) or not all(
        0 <= i < size for i, size in zip(index, shape, strict=True)
    ):
        raise ClearheadError(f"{name} is {' × '.join(map(str, shape))}; there is no {index}.")

    def values(wanted: Iterable[str]) -> dict[str, Tensor]:
        return runs.values(run, wanted)

    with torch.no_grad():
        whole = (
            trace.logits(-1 if trace.is_pooled else index[0])
            if name == "logits"
            else values([name])[name]
        )
        value = whole[index[-1]] if name == "logits" else whole[tuple(index)]
        steps = ValueExplainer(trace, values, name, index).steps()
    if name in trace.edits:
        steps.append(Step("after the edits of this value", float(value)))
    finite = whole[whole.isfinite()]
    percentile = (
        float((finite < value).float().mean() * 100)
        if finite.numel() and value.isfinite()
        else None
    )
    return {
        "name": name,
        "shape": shape,
        "index": index,
        "labels": index_labels(run, name, index),
        **number_to_dict(float(value)),
        "percentile": percentile,
        "largest": percentile is not None and bool(value >= finite.max()),
        "formula": trace.activations[name].formula,
        "steps": [step.to_dict() for step in steps],
        "python": python_snippet(run, name, index),
    }


def index_labels(run: Run, name: str, index: list[int]) -> list[str]:
    """What each index means, in words."""
    trace = run.trace
    model = run.trace.model
    encoder = name.startswith("encoder.")

    def token(i: int, source: bool) -> str:
        ids = trace.batch.source if source else trace.batch.inputs
        assert ids is not None
        return f"{describe_trace_tokens(model, ids, trace, source)[i]['text']} (token {i})"

    def label(word: str, i: int) -> str:
        match word:
            case "token":
                return token(i, encoder)
            case "key":
                return "from " + token(i, encoder or ".cross_attn." in name)
            case "vocabulary" | "outputs":
                return output_labels(model.config, model.tokenizer, [i])[0]
            case "head" | "kv_head":
                shared = (
                    word == "kv_head" and trace.config.n_kv_heads != trace.config.attention.n_heads
                )
                return f"{'shared ' if shared else ''}head {i}"
            case "ffn_width":
                return f"neuron {i}"
        return f"dimension {i}"

    words = trace.activations[name].shape.split()[1:]
    if isinstance(trace.config.head, c.RegressionHead) and name == "logits":
        return ["the number"]
    return [label(word, i) for word, i in zip(words, index, strict=True)]
