"""One token a row through a net on a GPU, in six kernels a block: what `net(…, memory)` and `predict` give, sooner.

It reads the net's own weights and computes the same, only with fewer roundings between; tests hold them together.
"""

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.kernels.one_query import one_query
from clearhead.kernels.products import Layer, product, take
from clearhead.model import positions
from clearhead.model.block import Block
from clearhead.model.caches import Growing, Memory
from clearhead.model.heads import LanguageHead
from clearhead.model.layers import Gated
from clearhead.model.transformer import Transformer
from clearhead.tap import SILENT


def suits(net: Transformer) -> bool:
    """Pre-norm decoders with learned, sinusoidal or rotary positions, or none."""
    m, first = net.config, _blocks(net)[0]
    layers = [first.attn.q, first.attn.k, first.attn.v, first.ffn.up]
    return (
        m.wiring == "pre"
        and isinstance(m.shape, c.Decoder)
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


class Swift:
    """A net that reads one more token in each row of a memory and predicts the next."""

    def __init__(self, net: Transformer) -> None:
        self.net = net
        with torch.no_grad():
            self.joined = [_joined(block) for block in _blocks(net)]

    @torch.no_grad()
    def refresh(self) -> None:
        """The weights may have changed."""
        for block, held in zip(_blocks(self.net), self.joined, strict=True):
            for kept, now in zip(held, _joined(block), strict=True):
                if kept is not None and now is not None:
                    kept.copy_(now)

    def __call__(self, tokens: Tensor, memory: Memory) -> Tensor:
        """Logits in fp32, rows × vocabulary."""
        net, rows = self.net, memory.rows
        at = rows.begin(len(tokens), 1, None)
        x = net.embed(tokens)
        x = net.embed.join(x, net.position.embed(at, x.dtype), SILENT)[:, 0]
        place, seen = net.position.places(at, at, 1)[0], at[:, 0] + 1
        for block, joined, (own, _) in zip(_blocks(net), self.joined, memory.layers, strict=True):
            x = self._through(x, block, joined, own, place, seen)
        rows.end(1)
        assert isinstance(net.head, LanguageHead)
        return product(x, (net.head.unembed.weight, net.head.bias), norm=net.norm, dtype=torch.float32)

    def _through(
        self, x: Tensor, block: Block, joined: Layer, own: Growing, place: positions.Place, seen: Tensor
    ) -> Tensor:
        attn, ffn, m = block.attn, block.ffn, self.net.config
        turned = (place.cos[:, 0, 0], place.sin[:, 0, 0]) if isinstance(place, positions.Turned) else None
        norms = [norm for norm in (attn.q_norm, attn.k_norm) if isinstance(norm, nn.RMSNorm)]
        keys, values = own.keys[: len(x)], own.values[: len(x)]
        made = product(x, joined, norm=block.attn_norm)
        q = take(made, m.attention.heads, keys, values, own.rows.writing, turned, norms)
        z = one_query(q, keys, values, seen, attn.scale)
        x = product(z.flatten(1), _pair(attn.out), residual=x)
        gate = _pair(ffn.gate) if isinstance(ffn, Gated) else None
        act = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh"}.get(m.ffn.activation, m.ffn.activation)
        h = product(x, _pair(ffn.up), gate, block.ffn_norm, act)
        return product(h, _pair(ffn.down), residual=x)


def _pair(layer: nn.Linear) -> Layer:
    return layer.weight, layer.bias


def _joined(block: Block) -> Layer:
    """The three products of attention as one; their weights are copied."""
    layers = [block.attn.q, block.attn.k, block.attn.v]
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return torch.cat([layer.weight for layer in layers]), bias
