"""The arithmetic of every value in the table of names: each is made of others, and the same module's weights."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.model.attention import Attention
from clearhead.model.block import Block, CrossBlock
from clearhead.model.heads import LanguageHead, PooledHead, pool_mean
from clearhead.model.inputs import PatchInput, TokenInput
from clearhead.model.layers import ACTIVATIONS, Gated
from clearhead.model.positions import NOWHERE, Place, Rotary
from clearhead.serve.pages.attending import Attending
from clearhead.serve.pages.terms import Step, dimension, dot, linear, normalised, total
from clearhead.serve.pages.trace import ENCODER, Trace

Values = Callable[[Iterable[str]], dict[str, Tensor]]


class Reasons:
    """The steps to one number: `name` at `index`."""

    def __init__(self, trace: Trace, values: Values, name: str, index: list[int]) -> None:
        self.trace, self.values, self.index = trace, values, index
        self.side = ENCODER if name.startswith(ENCODER) else ""
        self.stack = trace.stack(name)
        path = name.removeprefix(self.side).split(".")
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
            case "embed.tokens":
                return self._tokens()
            case "embed.positions":
                return self._positions()
            case "embed":
                return self._embed()
            case "norm":
                return self._norm()
        return self._logits()

    # ---------------------------------------------------------------- around the blocks
    def _tokens(self) -> list[Step]:
        at, j = self.index
        embed, ids = self.stack.embed, self.trace.batch.source if self.side else self.trace.batch.ids
        assert ids is not None
        if isinstance(embed, TokenInput):
            token = int(ids[0, at])
            found = [Step(f"row {token} of the embedding matrix, dimension {j}", float(embed.tokens.weight[token, j]))]
            if embed.scale != 1.0:
                found.append(Step(f"times √width = {embed.scale:.6g}", found[-1].value * embed.scale))
            if embed.kinds is not None:
                kind = 0 if self.trace.batch.kinds is None else int(self.trace.batch.kinds[0, at])
                of_kind = float(embed.kinds.weight[kind, j])
                found.append(
                    total(
                        f"with the embedding of sentences of kind {kind}",
                        [("token", found[-1].value), ("kind", of_kind)],
                    )
                )
            return found
        if isinstance(embed, PatchInput):
            picture = ids if ids.dim() == 4 else ids[:, None]
            patches = nn.functional.unfold(picture, embed.patch, stride=embed.patch)[0].mT
            if embed.first is not None and at == 0:
                return [Step("a learned vector that stands before the patches", float(embed.first[j]))]
            patch = patches[at - (embed.first is not None)]
            step = linear(
                "the patch's pixels times a column of the matrix", embed.project, j, patch, lambda i: f"pixel {i}"
            )
            return [step] if step else []
        return [Step("two convolutions over the frames near this one", float(self._one("embed.tokens")[at, j]))]

    def _positions(self) -> list[Step]:
        at, j = self.index
        kind = "the learned table of positions" if isinstance(self.trace.config.position, c.Learned) else "the waves"
        return [Step(f"{kind} at position {at}, dimension {j}", float(self._one("embed.positions")[at, j]))]

    def _embed(self) -> list[Step]:
        at, j = self.index
        parts = [name for name in ("embed.tokens", "embed.positions") if self.side + name in self.trace.table]
        vectors = {name: self._one(name)[at] for name in parts}
        words = {"embed.tokens": "token", "embed.positions": "position"}
        summed = total("token and position, added", [(words[name], float(v[j])) for name, v in vectors.items()])
        whole = torch.stack([v.float() for v in vectors.values()]).sum(dim=0)
        norm = self.stack.embed.norm
        return [summed] if isinstance(norm, nn.Identity) else [summed, *normalised(norm, whole, j)]

    def _norm(self) -> list[Step]:
        at, j = self.index
        return normalised(self.stack.norm, self._one(f"blocks.{len(self.stack.blocks) - 1}.post")[at], j)

    def _logits(self) -> list[Step]:
        head, hidden = self.trace.model.net.head, self.trace.streams["norm"]
        if isinstance(head, LanguageHead):
            at, answer = self.index
            read, bias = head.read(hidden[:, at : at + 1])[0, 0], head.bias
            table = getattr(head.unembed, "weight", None)
            if table is None or not table.is_floating_point():
                return []
            return [
                dot(
                    "the last hidden state · the answer's row of the unembedding",
                    read,
                    table[answer],
                    dimension,
                    None if bias is None else bias[answer],
                )
            ]
        assert isinstance(head, PooledHead)
        pooled = pool_mean(hidden, None)[0] if head.mean else hidden[0, 0]
        first = "the mean of all tokens' hidden states" if head.mean else "the first token's hidden state"
        if head.pooler is not None:
            pooled, first = torch.tanh(head.pooler(pooled)), f"tanh of a layer over {first}"
        step = linear(f"{first} · the answer's row", head.out, self.index[-1], pooled, dimension)
        return [step] if step else []

    # ---------------------------------------------------------------- the stream
    @property
    def block(self) -> Block:
        found: Block = self.stack.blocks[self.layer]  # type: ignore[assignment]
        return found

    def _one(self, name: str) -> Tensor:
        return self.values([self.side + name])[self.side + name]

    def here(self, *names: str) -> list[Tensor]:
        """Values of this block, from one pass through it."""
        paths = [f"{self.side}blocks.{self.layer}.{name}" for name in names]
        found = self.values(paths)
        return [found[path] for path in paths]

    def _entering(self) -> Step:
        at, j = self.index
        before = f"blocks.{self.layer - 1}.post" if self.layer else "embed"
        return Step(f"what {before} gave", float(self._one(before)[at, j]))

    def _joined(self, what: str) -> list[Step]:
        """x + part, normalised where the wiring is post."""
        at, j = self.index
        cross = isinstance(self.block, CrossBlock)
        before, part, norm = {
            "mid": ("pre", "attn.out", "attn_norm"),
            "crossed": ("mid", "cross.out", "cross_norm"),
            "post": ("crossed" if cross else "mid", "ffn.out", "ffn_norm"),
        }[what]
        stream, added = (value[at].float() for value in self.here(before, part))
        summed = total("the stream and what the part adds", [(before, float(stream[j])), (part, float(added[j]))])
        if self.trace.config.wiring == "pre":
            return [summed]
        return [summed, *normalised(getattr(self.block, norm), stream + added, j)]

    def _read(self, part: str) -> list[Step]:
        """What a part reads: the stream, normalised first where the wiring is pre."""
        at, j = self.index
        cross = isinstance(self.block, CrossBlock)
        before, norm = {
            "attn": ("pre", self.block.attn_norm),
            "cross": ("mid", getattr(self.block, "cross_norm", None)),
            "ffn": ("crossed" if cross else "mid", self.block.ffn_norm),
        }[part]
        stream = self.here(before)[0][at]
        if self.trace.config.wiring == "post" or norm is None:
            return [Step(f"the stream itself ({before})", float(stream[j]))]
        return normalised(norm, stream, j)

    # ---------------------------------------------------------------- feed-forward
    def _feed_forward(self, what: str) -> list[Step]:
        at, j = self.index
        ffn = self.block.ffn
        if what == "in":
            return self._read("ffn")
        if what in ("pre", "gate"):
            layer: nn.Module = ffn.up if what == "pre" else ffn.gate  # type: ignore[assignment]
            step = linear(
                "what the layer reads · the neuron's weights", layer, j, self.here("ffn.in")[0][at], dimension
            )
        elif what == "post":
            before = self.here("ffn.pre")[0][at, j]
            plain = next(name for name, made in ACTIVATIONS.items() if made is ffn.activation)  # of swiglu, silu
            found = [Step(f"{plain} of {float(before):.6g}", float(ffn.activation(before)))]
            if isinstance(ffn, Gated):
                gate = float(self.here("ffn.gate")[0][at, j])
                found.append(Step(f"times its gate, {gate:.6g}", found[0].value * gate))
            return found
        else:
            post = self.here("ffn.post")[0][at]
            step = linear("the neurons · what each writes here", ffn.down, j, post, lambda i: f"neuron {i}")
        return [step] if step else []

    # ---------------------------------------------------------------- attention
    def _attention(self, part: str, what: str) -> list[Step]:
        if what == "in":
            return self._read(part)
        return Attending(self, part, self.attention(part)).steps(what)

    def attention(self, part: str) -> Attention:
        found: Attention = getattr(self.block, part)
        return found

    def place(self, part: str) -> Place:
        """Where queries and keys stand, as this layer knows it."""
        if part == "cross":
            return NOWHERE
        x = self.trace.streams[f"{self.side}embed"]
        at, keys, _ = self.stack.stand(x, None, None, None)
        return self.stack.position.places(at, keys, len(self.stack.blocks))[self.layer]

    @property
    def rotary(self) -> Rotary | None:
        return self.stack.position if isinstance(self.stack.position, Rotary) else None
