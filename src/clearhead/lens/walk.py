"""Backwards through a stack: what each part, each head and each token looked at has given to an answer.

The stream is a sum of what its parts have written, so a straight line back from an answer (a `Ray`) splits it up. Where
norms stand on the stream itself (post wiring), each of them is crossed with its scale frozen.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from clearhead import config as c
from clearhead.lens.frozen import Ray, exact
from clearhead.lens.names import names
from clearhead.model.attention import Attention
from clearhead.model.block import Block, CrossBlock
from clearhead.model.transformer import Transformer

ENDS = ("pre", "mid", "crossed", "post", "attn.v", "attn.z", "attn.out", "cross.v", "cross.z", "cross.out", "ffn.out")
PATTERNS = ("attn.pattern", "cross.pattern")


@dataclass(frozen=True)
class Look:
    """What one attention has given: by head, by head and key, and its bias, which is no head's.

    A head's keys add up to what it gave, unless an edit of its z came between.
    """

    heads: Tensor
    keys: Tensor  # head key
    bias: Tensor


Parts = dict[str, Tensor]
Layers = list[dict[str, Look]]


def watched(m: c.ModelConfig) -> list[str]:
    """What must be seen of a run to split it up; patterns come last."""
    blocks = [f"blocks.{i}.{end}" for end in (*ENDS, *PATTERNS) for i in range(m.layers)]
    return [name for name in ("embed.tokens", "embed.positions", "norm", "logits", *blocks) if name in names(m)]


def split(net: Transformer, seen: Mapping[str, Tensor], ray: Ray, at: int | None = None) -> tuple[Parts, Layers]:
    """What each part has given along the ray, in order, and each layer's attentions in detail; of the first text.

    With `at`, only the patterns of that token were kept, and the ray touches no other.
    """
    return _Walk(net, seen, ray, at).back()


class _Walk:
    """Backwards through the stack with a ray, reading off what each part has added."""

    def __init__(self, net: Transformer, seen: Mapping[str, Tensor], ray: Ray, at: int | None) -> None:
        self.net, self.seen, self.ray, self.at = net, seen, ray, at
        self.post = net.config.wiring == "post"
        self.parts: dict[str, Tensor] = {}

    def back(self) -> tuple[Parts, Layers]:
        blocks: list[Block] = list(self.net.blocks)  # type: ignore[arg-type]
        self.ray = self.ray.through_norm(self.net.norm, self.value(f"blocks.{len(blocks) - 1}.post"))
        layers = [self._block(i, blocks[i]) for i in reversed(range(len(blocks)))]
        whole = self.value("embed.tokens")
        positions = self.value("embed.positions") if "embed.positions" in self.seen else None
        self.ray = self.ray.through_norm(self.net.embed.norm, whole if positions is None else whole + positions)
        if positions is not None:
            self.parts["positions"] = self._on(positions)
        self.parts["embedding"] = self._on(whole)
        parts = dict(reversed(self.parts.items()))
        return {**parts, "biases": self.ray.constant}, layers[::-1]

    def value(self, name: str) -> Tensor:
        return exact(self.seen[name][0])

    def _block(self, i: int, block: Block) -> dict[str, Look]:
        at, looks = f"blocks.{i}", {}
        before = f"{at}.crossed" if isinstance(block, CrossBlock) else f"{at}.mid"
        self._cross_norm(block.ffn_norm, before, f"{at}.ffn.out")
        self.parts[f"{i} feed-forward"] = self._on(self.value(f"{at}.ffn.out"))
        if isinstance(block, CrossBlock):
            self._cross_norm(block.cross_norm, f"{at}.mid", f"{at}.cross.out")
            looks["cross"] = self._look(f"{at}.cross", block.cross)
            self.parts[f"{i} cross"] = self._on(self.value(f"{at}.cross.out"))
        self._cross_norm(block.attn_norm, f"{at}.pre", f"{at}.attn.out")
        looks["attention"] = self._look(f"{at}.attn", block.attn)
        self.parts[f"{i} attention"] = self._on(self.value(f"{at}.attn.out"))
        return looks

    def _cross_norm(self, norm: nn.Module, stream: str, added: str) -> None:
        """Where norms stand on the stream itself, one has read its sum with what the part has added."""
        if self.post:
            self.ray = self.ray.through_norm(norm, self.value(stream) + self.value(added))

    def _on(self, added: Tensor) -> Tensor:
        return (added * self.ray.direction).sum()

    def _look(self, name: str, attention: Attention) -> Look:
        """z W_O · direction, and pattern · (v W_O) · direction, over all queries that the ray passes."""
        pattern, v, z = (self.value(f"{name}.{what}") for what in ("pattern", "v", "z"))
        rows = slice(None) if self.at is None else [self.at]
        wanted = self.ray.direction[rows] @ exact(attention.out.weight)  # what the ray asks of each head's z
        wanted = wanted.unflatten(1, (-1, attention.head_width)).transpose(0, 1)  # head query d
        v = v.repeat_interleave(len(pattern) // len(v), dim=0)
        heads, keys = (z[:, rows] * wanted).sum(dim=(1, 2)), (pattern * (wanted @ v.mT)).sum(dim=1)
        bias = attention.out.bias
        given = keys.new_zeros(()) if bias is None else self._on(exact(bias).expand_as(self.ray.direction))
        return Look(heads, keys, given)
