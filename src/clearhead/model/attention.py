"""Attention: softmax(QKᵀ/√d_k + M) V, for many heads at once (L3).

Self or cross is a call: `attention(h, h, …)` or `attention(h, memory, …)`. Grouped heads differ only in the
width of k and v.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead import config as c
from clearhead.kernels import TRITON
from clearhead.model.caches import Fresh, Frozen, Growing, KeysValues
from clearhead.model.layers import make_norm, products
from clearhead.model.linear import Linear
from clearhead.model.masks import Mask
from clearhead.model.positions import Place
from clearhead.tap import Tap

if TRITON:
    from clearhead.kernels.one_query import one_query

Stream = Float[Tensor, "batch query width"]
Source = Float[Tensor, "batch key width"]
Queries = Float[Tensor, "batch head query d"]
Keys = Float[Tensor, "batch group key d"]
Bias = Float[Tensor, "#batch head query key"]


class Attention(nn.Module):
    """One attention layer: W_Q, W_K, W_V, W_O."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__()
        a, d = m.attention, m.head_width
        self.q = Linear(m.width, a.heads * d, bias="q" in a.bias)
        self.k = Linear(m.width, m.kv_heads * d, bias="k" in a.bias)
        self.v = Linear(m.width, m.kv_heads * d, bias="v" in a.bias)
        self.out = Linear(a.heads * d, m.width, bias="out" in a.bias)
        self.q_norm = make_norm(m.norm, d) if a.qk_norm else nn.Identity()
        self.k_norm = make_norm(m.norm, d) if a.qk_norm else nn.Identity()
        self.head_width = d
        self.scale = d**-0.5 if a.scaled else 1.0
        self.dropout = m.dropout.attention

    def forward(
        self, x: Stream, source: Source, place: Place, mask: Mask, cache: Fresh | Growing | Frozen, tap: Tap
    ) -> Stream:
        attend = spelled if tap.deep else fused
        made = products(x, self.q, self.k, self.v) if source is x else [self.q(x)]
        q = tap("q_turned", place.turn(tap("q", self.q_norm(self.split(made[0])))))
        k, v = cache(self.keys_values, source, place, tap, made[1:])
        dropout = self.dropout if self.training else 0.0
        z = tap("z", attend(q, k, v, place.bias(q, self.scale), mask, self.scale, dropout, tap))
        return tap("out", self.out(z.transpose(1, 2).flatten(2)))

    def keys_values(self, source: Source, place: Place, tap: Tap, made: Sequence[Tensor] = ()) -> KeysValues:
        """Of a source; what queries were `made` together with is split only."""
        k, v = made or products(source, self.k, self.v)
        k = tap("k_turned", place.turn(tap("k", self.k_norm(self.split(k)))))
        return k, tap("v", self.split(v))

    def split(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch head token d"]:
        """A head is a slice of the width."""
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


def fused(
    q: Queries, k: Keys, v: Keys, bias: Bias | None, mask: Mask, scale: float, dropout: float, tap: Tap
) -> Queries:
    """One kernel; scores and pattern never exist as a whole."""
    if mask.seen is not None and bias is None and TRITON and q.is_cuda and not torch.is_grad_enabled():
        return one_query(q, k, v, mask.seen, scale, mask.owner)
    allowed = mask.allowed if mask.seen is None else mask.render(q, k)
    if bias is not None:
        allowed = _masked(bias, mask.render(q, k))
    z = nn.functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=mask.causal and allowed is None,
        scale=scale,
        enable_gqa=k.shape[1] != q.shape[1],
    )
    return z if mask.blind is None else z.masked_fill(mask.blind, 0)


def spelled(
    q: Queries, k: Keys, v: Keys, bias: Bias | None, mask: Mask, scale: float, dropout: float, tap: Tap
) -> Queries:
    """The same, written out, each step through the tap."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * scale  # L3.3
    scores = tap("scores", scores if bias is None else scores + bias)
    masked = tap("masked", _masked(scores, mask.render(q, k)))  # L3.5
    pattern = tap("pattern", softmax(masked))
    return nn.functional.dropout(pattern, dropout) @ v


def _masked(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def softmax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Rows that add up to 1; a row that may look at nothing is all zeros, and so is its gradient."""
    blind = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(blind, 0).softmax(dim=-1).masked_fill(blind, 0)
