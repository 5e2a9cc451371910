"""Fused decoding: one token per row on a GPU, in few kernels per block.

It computes the same as `net(…, cache=…)` and `compute_logits` with fewer intermediate roundings.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead import config as c
from clearhead.hooks import NO_HOOKS
from clearhead.kernels.decode import (
    ACTIVATION_IDS,
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

# The activation that the kernels apply to the gate.
GATED_ACTIVATIONS: dict[str, str] = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh"}


def supports_fused_decode(net: Transformer) -> bool:
    """Decoders and encoder-decoders with learned, sinusoidal, rotary or no positions."""
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
        and _kernel_activation(m) in ACTIVATION_IDS
        and all(isinstance(layer, nn.Linear) for layer in layers)
        and len({layer.bias is None for layer in layers[:3]}) == 1
    )


def _kernel_activation(m: c.ModelConfig) -> str:
    return GATED_ACTIVATIONS.get(m.ffn.activation, m.ffn.activation)


def _blocks(net: Transformer) -> list[Block]:
    return [block for block in net.blocks if isinstance(block, Block)]


class FusedQKV:
    """A copy of the q, k and v weights of an attention layer, concatenated."""

    def __init__(self, attention: Attention) -> None:
        self.layers = [attention.q, attention.k, attention.v]
        self.weight = torch.cat([layer.weight.detach() for layer in self.layers])
        self.bias: Tensor | None = None
        if self.layers[0].bias is not None:
            self.bias = torch.cat([layer.bias.detach() for layer in self.layers])

    def refresh_weights(self) -> None:
        """Copy the weights again, as they may have changed."""
        torch.cat([layer.weight.detach() for layer in self.layers], out=self.weight)
        if self.bias is not None:
            torch.cat([layer.bias.detach() for layer in self.layers], out=self.bias)


class FusedDecoder:
    """Reads one more token in each row of a cache and predicts the next."""

    def __init__(self, net: Transformer) -> None:
        self.net = net
        self.fused_qkv = [FusedQKV(block.attn) for block in _blocks(net)]

    def refresh_weights(self) -> None:
        """Copy the weights again, as they may have changed."""
        for qkv in self.fused_qkv:
            qkv.refresh_weights()

    def __call__(
        self, tokens: Int[Tensor, "row 1"], cache: ModelCache
    ) -> Float[Tensor, "row vocabulary"]:
        """Logits in fp32."""
        head = self.net.head
        assert isinstance(head, LMHead)
        final_norm = self.net.final_norm
        return fused_linear(
            self.hidden_states(tokens, cache),
            (head.unembed.weight, head.bias),
            norm=None if isinstance(final_norm, nn.Identity) else final_norm,
            dtype=torch.float32,
        )

    def hidden_states(
        self, tokens: Int[Tensor, "row 1"], cache: ModelCache, source_mask: Tensor | None = None
    ) -> Float[Tensor, "row d"]:
        """The residual stream after the last block; `source_mask` is 0 where a source is padded."""
        net = self.net
        rows = cache.rows
        position_ids = rows.begin_step(len(tokens), 1, None)
        x = net.embed(tokens)
        x = net.embed.add_positions(x, net.position.embed(position_ids, x.dtype), NO_HOOKS)[:, 0]
        position = net.position.layer_positions(position_ids, position_ids, 1)[0]
        kv_lengths = position_ids[:, 0] + 1
        for block, qkv, (own, source) in zip(
            _blocks(net), self.fused_qkv, cache.layers, strict=True
        ):
            z = self._self_attention(x, block, qkv, own, position, kv_lengths)
            x = self._add_residual(x, block.attn_norm, z, block.attn.out)
            if isinstance(block, CrossAttentionBlock):
                z = self._cross_attention(x, block, source, source_mask)
                x = self._add_residual(x, block.cross_attn_norm, z, block.cross_attn.out)
            x = self._add_residual(x, block.ffn_norm, self._ffn_post(x, block), block.ffn.down)
        rows.end_step(1)
        return x

    def _pre_norm(self, norm: nn.Module) -> nn.Module | None:
        return norm if self.net.config.norm_position == "pre" else None

    def _add_residual(
        self, x: Tensor, norm: nn.Module, inner: Tensor, output_layer: nn.Linear
    ) -> Tensor:
        """Add a sublayer's output, with its norm where norms come after the sublayers."""
        if self.net.config.norm_position == "pre":
            return fused_linear(inner, _weights(output_layer), residual=x)
        return fused_norm(fused_linear(inner, _weights(output_layer)), norm, residual=x)

    def _self_attention(
        self,
        x: Tensor,
        block: Block,
        qkv: FusedQKV,
        cache: KVCache,
        position: positions.Position,
        kv_lengths: Tensor,
    ) -> Tensor:
        rotation = None
        if isinstance(position, positions.RotaryPosition):
            rotation = (position.cos[:, 0, 0], position.sin[:, 0, 0])
        norms = [
            norm for norm in (block.attn.q_norm, block.attn.k_norm) if isinstance(norm, nn.RMSNorm)
        ]
        rows = cache.rows
        keys = cache.keys[: rows.n_active]
        values = cache.values[: rows.n_active]
        projected = fused_linear(x, (qkv.weight, qkv.bias), norm=self._pre_norm(block.attn_norm))
        n_heads = self.net.config.attention.n_heads
        q = qkv_rope_cache(projected, n_heads, keys, values, rows.write_positions, rotation, norms)
        z = single_query_attention(q, keys, values, kv_lengths, block.attn.scale, rows.kv_owner)
        return z.flatten(1)

    def _cross_attention(
        self, x: Tensor, block: CrossAttentionBlock, cache: CrossKVCache, source_mask: Tensor | None
    ) -> Tensor:
        assert cache.keys_values is not None
        attention = block.cross_attn
        q = fused_linear(x, _weights(attention.q), norm=self._pre_norm(block.cross_attn_norm))
        if isinstance(attention.q_norm, nn.RMSNorm):
            q = fused_norm(q.view(-1, attention.d_head), attention.q_norm).view_as(q)
        return beam_cross_attention(q, *cache.keys_values, source_mask, attention.scale)

    def _ffn_post(self, x: Tensor, block: Block) -> Tensor:
        activation = _kernel_activation(self.net.config)
        norm = self._pre_norm(block.ffn_norm)
        if isinstance(block.ffn, GatedFeedForward):
            gate = _weights(block.ffn.gate)
            return fused_linear(x, gate, _weights(block.ffn.up), norm, activation)
        return fused_linear(x, _weights(block.ffn.up), norm=norm, act=activation)


def _weights(layer: nn.Linear) -> LinearWeights:
    return layer.weight, layer.bias
