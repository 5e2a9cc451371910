"""Attention: softmax(QKᵀ/√d_k + M) V, for many heads at once (L3), and its masks.

Self-attention is the call `attention(h, h, …)`, cross-attention `attention(h, encoder_output, …)`.
Grouped-query attention differs only in the width of k and v.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead import config as c
from clearhead.hooks import Hooks
from clearhead.kernels import TRITON_AVAILABLE, can_use_triton
from clearhead.model.kv_cache import CrossKVCache, KeysValues, KVCache, NoCache
from clearhead.model.layers import Linear, joint_linear, make_norm
from clearhead.model.positions import Position

if TRITON_AVAILABLE:
    from clearhead.kernels.decode import single_query_attention

Stream = Float[Tensor, "batch query d_model"]
KeyStream = Float[Tensor, "batch key d_model"]
Queries = Float[Tensor, "batch head query d"]
Keys = Float[Tensor, "batch kv_head key d"]
Bias = Float[Tensor, "#batch head query key"]


@dataclass(frozen=True)
class Mask:
    """Which keys each query may attend to; created once per pass and rendered by each kernel.

    A query attends to a key of the same segment, not after it (causal, L3.5), less than `window`
    positions away. Segment 0 is padding; padding attends only to padding.
    """

    is_causal: bool = False
    allowed: Bool[Tensor, "batch 1 query key"] | None = None  # set if the mask depends on the data
    # queries without any key; their output is zero
    fully_masked: Bool[Tensor, "batch 1 query 1"] | None = None
    # For one query per row: it attends to this many first keys, which lie in the rows that
    # `kv_owner` names.
    kv_lengths: Int[Tensor, " batch"] | None = None
    kv_owner: Int[Tensor, "batch key"] | None = None

    def render(self, queries: Tensor, keys: Tensor) -> Bool[Tensor, "batch 1 query key"] | None:
        """The mask as a boolean tensor, True = may attend; None allows everything."""
        if self.kv_lengths is not None:
            position = torch.arange(keys.shape[-2], device=keys.device)
            return (position < self.kv_lengths[:, None])[:, None, None]
        if self.allowed is not None or not self.is_causal:
            return self.allowed
        shape = (queries.shape[-2], keys.shape[-2])
        return torch.ones(shape, dtype=torch.bool, device=queries.device).tril()[None, None]

    def gather(self, x: Keys) -> Keys:
        """Keys or values of the rows that own them."""
        if self.kv_owner is None:
            return x
        length = x.shape[2]
        position = torch.arange(length, device=x.device)
        return x[self.kv_owner[: len(x), :length].long(), :, position].transpose(1, 2)


NO_MASK = Mask()


def distance_mask(
    queries: Int[Tensor, "#batch query"],
    keys: Int[Tensor, "#batch key"],
    *,
    is_causal: bool = False,
    window: int = 0,
) -> Bool[Tensor, "batch 1 query key"]:
    """Mask by position: keys not after the query (causal), less than `window` away (0 = any)."""
    distance = queries[:, None, :, None] - keys[:, None, None, :]
    allowed = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
    return allowed & (distance.abs() < window) if window else allowed


def segment_mask(
    queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"]
) -> Bool[Tensor, "batch 1 query key"]:
    """Mask by segment id: keys of the same document, sentence or pair."""
    return queries[:, None, :, None] == keys[:, None, None, :]


def self_attention_mask(
    tokens: int, segment_ids: Tensor | None, *, is_causal: bool, window: int, device: torch.device
) -> Mask:
    """The mask of self-attention over whole rows."""
    if segment_ids is None and not 0 < window < tokens:
        return Mask(is_causal)
    index = torch.arange(tokens, device=device)[None]
    allowed = distance_mask(index, index, is_causal=is_causal, window=window)
    if segment_ids is not None:
        allowed = allowed & segment_mask(segment_ids, segment_ids)
    return Mask(allowed=allowed)


def cross_attention_mask(
    queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"]
) -> Mask:
    """The mask of cross-attention, by segment id; a target without a source attends to nothing."""
    allowed = segment_mask(queries, keys)
    return Mask(allowed=allowed, fully_masked=~allowed.any(dim=-1, keepdim=True))


def positions_from_segments(segment_ids: Int[Tensor, "batch token"]) -> Int[Tensor, "batch token"]:
    """Position ids that restart at 0 in each segment of a packed row."""
    index = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    is_start = torch.ones_like(segment_ids, dtype=torch.bool)
    is_start[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return index - torch.where(is_start, index, 0).cummax(dim=1).values


class Attention(nn.Module):
    """One multi-head attention layer: W_Q, W_K, W_V, W_O."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__()
        a = m.attention
        self.d_head = m.d_head
        self.q = Linear(m.d_model, a.n_heads * m.d_head, bias="q" in a.bias)
        self.k = Linear(m.d_model, m.n_kv_heads * m.d_head, bias="k" in a.bias)
        self.v = Linear(m.d_model, m.n_kv_heads * m.d_head, bias="v" in a.bias)
        self.out = Linear(a.n_heads * m.d_head, m.d_model, bias="out" in a.bias)
        self.q_norm = make_norm(m.norm, m.d_head) if a.qk_norm else nn.Identity()
        self.k_norm = make_norm(m.norm, m.d_head) if a.qk_norm else nn.Identity()
        self.scale = m.d_head**-0.5 if a.scale else 1.0
        self.dropout = m.dropout.attention

    def forward(
        self,
        x: Stream,
        key_stream: KeyStream,
        position: Position,
        mask: Mask,
        cache: NoCache | KVCache | CrossKVCache,
        hooks: Hooks,
    ) -> Stream:
        attend = eager_attention if hooks.needs_scores else fused_attention
        qkv = joint_linear(x, self.q, self.k, self.v) if key_stream is x else [self.q(x)]
        q = hooks("rot_q", position.rotate(hooks("q", self.q_norm(self.split_heads(qkv[0])))))
        k, v = cache(self.project_kv, key_stream, position, hooks, qkv[1:])
        bias = position.bias(q, self.scale)
        dropout = self.dropout if self.training else 0.0
        z = hooks("z", attend(q, k, v, bias, mask, self.scale, dropout, hooks))
        return hooks("out", self.out(z.transpose(1, 2).flatten(2)))

    def project_kv(
        self,
        key_stream: KeyStream,
        position: Position,
        hooks: Hooks,
        projected: Sequence[Tensor] = (),
    ) -> KeysValues:
        """Keys and values; `projected` are the products with W_K and W_V if already computed."""
        k, v = projected or joint_linear(key_stream, self.k, self.v)
        k = hooks("rot_k", position.rotate(hooks("k", self.k_norm(self.split_heads(k)))))
        return k, hooks("v", self.split_heads(v))

    def split_heads(
        self, x: Float[Tensor, "batch token width"]
    ) -> Float[Tensor, "batch head token d"]:
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)


def fused_attention(
    q: Queries,
    k: Keys,
    v: Keys,
    bias: Bias | None,
    mask: Mask,
    scale: float,
    dropout: float,
    hooks: Hooks,
) -> Queries:
    """Attention in one kernel, which never materializes scores or pattern."""
    can_use_kernel = bias is None and not torch.is_grad_enabled() and can_use_triton(q.device)
    if mask.kv_lengths is not None and can_use_kernel:
        return single_query_attention(q, k, v, mask.kv_lengths, scale, mask.kv_owner)
    k = mask.gather(k)
    v = mask.gather(v)
    allowed = mask.allowed if mask.kv_lengths is None else mask.render(q, k)
    if bias is not None:
        allowed = _apply_mask(bias, mask.render(q, k))
    z = nn.functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=mask.is_causal and allowed is None,
        scale=scale,
        enable_gqa=k.shape[1] != q.shape[1],
    )
    # Kernels disagree on the output of a fully masked query.
    return z if mask.fully_masked is None else z.masked_fill(mask.fully_masked, 0)


def eager_attention(
    q: Queries,
    k: Keys,
    v: Keys,
    bias: Bias | None,
    mask: Mask,
    scale: float,
    dropout: float,
    hooks: Hooks,
) -> Queries:
    """The same attention step by step, each value through the hooks."""
    n_groups = q.shape[1] // k.shape[1]
    k = mask.gather(k).repeat_interleave(n_groups, dim=1)
    v = mask.gather(v).repeat_interleave(n_groups, dim=1)
    scores = q @ k.mT * scale  # L3.3
    scores = hooks("scores", scores if bias is None else scores + bias)
    masked_scores = hooks("masked_scores", _apply_mask(scores, mask.render(q, k)))  # L3.5
    pattern = hooks("pattern", softmax(masked_scores))
    return nn.functional.dropout(pattern, dropout) @ v


def _apply_mask(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def softmax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Softmax over keys; a fully masked row is all zeros, and so is its gradient."""
    fully_masked = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(fully_masked, 0).softmax(dim=-1).masked_fill(fully_masked, 0)
