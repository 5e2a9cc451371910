"""One token a row through a net on a GPU, in few kernels a block: what `net(…, memory)` and `predict` give, sooner.

It reads the net's own weights and computes the same, only with fewer roundings between; tests hold them together.
"""

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.hooks import NO_HOOKS
from clearhead.kernels.decode import (
    LinearWeights,
    beam_cross_attention,
    fused_linear,
    fused_norm,
    qkv_rope_cache,
    single_query_attention,
)
from clearhead.model import positions
from clearhead.model.attention import Attention
from clearhead.model.heads import LMHead
from clearhead.model.kv_cache import CrossKVCache, KVCache, ModelCache
from clearhead.model.layers import GatedFeedForward
from clearhead.model.transformer import Block, CrossAttentionBlock, Transformer


def supports_fused_decode(net: Transformer) -> bool:
    """Decoders, with a source or without, with learned, sinusoidal or rotary positions, or none."""
    m = net.config
    first = _blocks(net)[0]
    layers = [first.attn.q, first.attn.k, first.attn.v, first.ffn.up]
    return (
        isinstance(m.architecture, c.Decoder | c.EncoderDecoder)
        and isinstance(m.head, c.LMHead)
        and isinstance(m.position, c.NoPosition | c.Learned | c.Sinusoidal | c.Rotary)
        and (not m.attention.qk_norm or isinstance(m.norm, c.RMSNorm))
        and not m.attention.sliding_window
        and not m.head.scale_logits
        and all(isinstance(layer, nn.Linear) for layer in layers)
        and len({layer.bias is None for layer in layers[:3]}) == 1
    )


def _blocks(net: Transformer) -> list[Block]:
    return [block for block in net.blocks if isinstance(block, Block)]


class FusedQKV:
    """The three products of an attention as one; their weights are copied."""

    def __init__(self, attention: Attention) -> None:
        self.layers = [attention.q, attention.k, attention.v]
        self.weight, self.bias = self._now()

    @torch.no_grad()
    def _now(self) -> LinearWeights:
        bias = (
            None
            if self.layers[0].bias is None
            else torch.cat([layer.bias for layer in self.layers])
        )
        return torch.cat([layer.weight for layer in self.layers]), bias

    def refresh_weights(self) -> None:
        """The weights may have changed."""
        for kept, now in zip((self.weight, self.bias), self._now(), strict=True):
            if kept is not None and now is not None:
                kept.copy_(now)


class FusedDecoder:
    """A net that reads one more token in each row of a memory and predicts the next."""

    def __init__(self, net: Transformer) -> None:
        self.net = net
        self.fused_qkv = [FusedQKV(block.attn) for block in _blocks(net)]

    def refresh_weights(self) -> None:
        for joined in self.fused_qkv:
            joined.refresh_weights()

    def __call__(self, tokens: Tensor, memory: ModelCache) -> Tensor:
        """Logits in fp32, rows × vocabulary."""
        head = self.net.head
        last = self.net.final_norm
        assert isinstance(head, LMHead)
        norm = None if isinstance(last, nn.Identity) else last
        return fused_linear(
            self.hidden_states(tokens, memory),
            (head.unembed.weight, head.bias),
            norm=norm,
            dtype=torch.float32,
        )

    def hidden_states(
        self, tokens: Tensor, memory: ModelCache, source_mask: Tensor | None = None
    ) -> Tensor:
        """The stream after the last block, rows × width; `real` is 0 where a token of the source is padding."""
        net = self.net
        rows = memory.rows
        at = rows.begin_step(len(tokens), 1, None)
        x = net.embed(tokens)
        x = net.embed.add_positions(x, net.position.embed(at, x.dtype), NO_HOOKS)[:, 0]
        place = net.position.layer_positions(at, at, 1)[0]
        seen = at[:, 0] + 1
        for block, joined, (own, source) in zip(
            _blocks(net), self.fused_qkv, memory.layers, strict=True
        ):
            x = self._added(
                x, block.attn_norm, self._attend(x, block, joined, own, place, seen), block.attn.out
            )
            if isinstance(block, CrossAttentionBlock):
                x = self._added(
                    x,
                    block.cross_attn_norm,
                    self._look(x, block, source, source_mask),
                    block.cross_attn.out,
                )
            x = self._added(x, block.ffn_norm, self._feed(x, block), block.ffn.down)
        rows.end_step(1)
        return x

    def _before(self, norm: nn.Module) -> nn.Module | None:
        """What a part reads the stream through."""
        return norm if self.net.config.norm_position == "pre" else None

    def _added(self, x: Tensor, norm: nn.Module, made: Tensor, layer: nn.Linear) -> Tensor:
        """The stream with what a part's last layer makes of what it has gathered."""
        if self.net.config.norm_position == "pre":
            return fused_linear(made, _pair(layer), residual=x)
        return fused_norm(fused_linear(made, _pair(layer)), norm, residual=x)

    def _attend(
        self,
        x: Tensor,
        block: Block,
        joined: FusedQKV,
        own: KVCache,
        place: positions.Position,
        seen: Tensor,
    ) -> Tensor:
        turned = (
            (place.cos[:, 0, 0], place.sin[:, 0, 0])
            if isinstance(place, positions.RotaryPosition)
            else None
        )
        norms = [
            norm for norm in (block.attn.q_norm, block.attn.k_norm) if isinstance(norm, nn.RMSNorm)
        ]
        keys = own.keys[: own.rows.n_active]
        values = own.values[: own.rows.n_active]
        made = fused_linear(x, (joined.weight, joined.bias), norm=self._before(block.attn_norm))
        q = qkv_rope_cache(
            made,
            self.net.config.attention.n_heads,
            keys,
            values,
            own.rows.write_positions,
            turned,
            norms,
        )
        return single_query_attention(
            q, keys, values, seen, block.attn.scale, own.rows.kv_owner
        ).flatten(1)

    def _look(
        self, x: Tensor, block: CrossAttentionBlock, source: CrossKVCache, real: Tensor | None
    ) -> Tensor:
        assert source.keys_values is not None
        q = fused_linear(x, _pair(block.cross_attn.q), norm=self._before(block.cross_attn_norm))
        if isinstance(norm := block.cross_attn.q_norm, nn.RMSNorm):
            q = fused_norm(q.view(-1, block.cross_attn.d_head), norm).view_as(q)
        return beam_cross_attention(q, *source.keys_values, real, block.cross_attn.scale)

    def _feed(self, x: Tensor, block: Block) -> Tensor:
        wanted = self.net.config.ffn.activation
        act = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh"}.get(wanted, wanted)
        gate = _pair(block.ffn.gate) if isinstance(block.ffn, GatedFeedForward) else None
        return fused_linear(x, _pair(block.ffn.up), gate, self._before(block.ffn_norm), act)


def _pair(layer: nn.Linear) -> LinearWeights:
    return layer.weight, layer.bias
