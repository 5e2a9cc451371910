"""One token a row through a net on a GPU, in few kernels a block: what `net(…, memory)` and `predict` give, sooner.

It reads the net's own weights and computes the same, only with fewer roundings between; tests hold them together.
"""

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.kernels.across import across
from clearhead.kernels.one_query import one_query
from clearhead.kernels.products import Layer, normed, product
from clearhead.kernels.take import take
from clearhead.model import positions
from clearhead.model.attention import Attention
from clearhead.model.block import Block, CrossBlock
from clearhead.model.caches import Frozen, Growing, Memory
from clearhead.model.heads import LanguageHead
from clearhead.model.layers import Gated
from clearhead.model.transformer import Transformer
from clearhead.tap import SILENT


def suits(net: Transformer) -> bool:
    """Decoders, with a source or without, with learned, sinusoidal or rotary positions, or none."""
    m, first = net.config, _blocks(net)[0]
    layers = [first.attn.q, first.attn.k, first.attn.v, first.ffn.up]
    return (
        isinstance(m.shape, c.Decoder | c.EncoderDecoder)
        and isinstance(m.head, c.Language)
        and isinstance(m.position, c.NoPositions | c.Learned | c.Sinusoidal | c.Rotary)
        and (not m.attention.qk_norm or isinstance(m.norm, c.RMSNorm))
        and not m.attention.window
        and not m.head.scaled
        and all(isinstance(layer, nn.Linear) for layer in layers)
        and len({layer.bias is None for layer in layers[:3]}) == 1
    )


def _blocks(net: Transformer) -> list[Block]:
    return [block for block in net.blocks if isinstance(block, Block)]


class Joined:
    """The three products of an attention as one; their weights are copied."""

    def __init__(self, attention: Attention) -> None:
        self.layers = [attention.q, attention.k, attention.v]
        self.weight, self.bias = self._now()

    @torch.no_grad()
    def _now(self) -> Layer:
        bias = None if self.layers[0].bias is None else torch.cat([layer.bias for layer in self.layers])
        return torch.cat([layer.weight for layer in self.layers]), bias

    def refresh(self) -> None:
        """The weights may have changed."""
        for kept, now in zip((self.weight, self.bias), self._now(), strict=True):
            if kept is not None and now is not None:
                kept.copy_(now)


class Swift:
    """A net that reads one more token in each row of a memory and predicts the next."""

    def __init__(self, net: Transformer) -> None:
        self.net, self.joined = net, [Joined(block.attn) for block in _blocks(net)]

    def refresh(self) -> None:
        for joined in self.joined:
            joined.refresh()

    def __call__(self, tokens: Tensor, memory: Memory) -> Tensor:
        """Logits in fp32, rows × vocabulary."""
        head, last = self.net.head, self.net.norm
        assert isinstance(head, LanguageHead)
        norm = None if isinstance(last, nn.Identity) else last
        return product(self.hidden(tokens, memory), (head.unembed.weight, head.bias), norm=norm, dtype=torch.float32)

    def hidden(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """The stream after the last block, rows × width; `real` is 0 where a token of the source is padding."""
        net, rows = self.net, memory.rows
        at = rows.begin(len(tokens), 1, None)
        x = net.embed(tokens)
        x = net.embed.join(x, net.position.embed(at, x.dtype), SILENT)[:, 0]
        place, seen = net.position.places(at, at, 1)[0], at[:, 0] + 1
        for block, joined, (own, source) in zip(_blocks(net), self.joined, memory.layers, strict=True):
            x = self._added(x, block.attn_norm, self._attend(x, block, joined, own, place, seen), block.attn.out)
            if isinstance(block, CrossBlock):
                x = self._added(x, block.cross_norm, self._look(x, block, source, real), block.cross.out)
            x = self._added(x, block.ffn_norm, self._feed(x, block), block.ffn.down)
        rows.end(1)
        return x

    def _before(self, norm: nn.Module) -> nn.Module | None:
        """What a part reads the stream through."""
        return norm if self.net.config.wiring == "pre" else None

    def _added(self, x: Tensor, norm: nn.Module, made: Tensor, layer: nn.Linear) -> Tensor:
        """The stream with what a part's last layer makes of what it has gathered."""
        if self.net.config.wiring == "pre":
            return product(made, _pair(layer), residual=x)
        return normed(product(made, _pair(layer)), norm, more=x)

    def _attend(
        self, x: Tensor, block: Block, joined: Joined, own: Growing, place: positions.Place, seen: Tensor
    ) -> Tensor:
        turned = (place.cos[:, 0, 0], place.sin[:, 0, 0]) if isinstance(place, positions.Turned) else None
        norms = [norm for norm in (block.attn.q_norm, block.attn.k_norm) if isinstance(norm, nn.RMSNorm)]
        keys, values = own.keys[: own.rows.used], own.values[: own.rows.used]
        made = product(x, (joined.weight, joined.bias), norm=self._before(block.attn_norm))
        q = take(made, self.net.config.attention.heads, keys, values, own.rows.writing, turned, norms)
        return one_query(q, keys, values, seen, block.attn.scale, own.rows.owner).flatten(1)

    def _look(self, x: Tensor, block: CrossBlock, source: Frozen, real: Tensor | None) -> Tensor:
        assert source.kept is not None
        q = product(x, _pair(block.cross.q), norm=self._before(block.cross_norm))
        if isinstance(norm := block.cross.q_norm, nn.RMSNorm):
            q = normed(q.view(-1, block.cross.head_width), norm).view_as(q)
        return across(q, *source.kept, real, block.cross.scale)

    def _feed(self, x: Tensor, block: Block) -> Tensor:
        wanted = self.net.config.ffn.activation
        act = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh"}.get(wanted, wanted)
        gate = _pair(block.ffn.gate) if isinstance(block.ffn, Gated) else None
        return product(x, _pair(block.ffn.up), gate, self._before(block.ffn_norm), act)


def _pair(layer: nn.Linear) -> Layer:
    return layer.weight, layer.bias
