"""Who may look at whom: a value, made once for a pass and rendered by each kernel.

Query i sees key j if both belong to the same segment, if j is not after i (causal, L3.5), and if they are
less than `window` apart. Segment 0 is padding; padding only ever meets padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead import config as c
from clearhead.hooks import Hooks
from clearhead.kernels import TRITON_AVAILABLE
from clearhead.model.kv_cache import CrossKVCache, KeysValues, KVCache, NoCache
from clearhead.model.layers import Linear, joint_linear, make_norm
from clearhead.model.positions import Position

# ---- masks: Who may look at whom: a value, made once for a pass and rendered by each kernel.


@dataclass(frozen=True)
class Mask:
    """`allowed` where the answer depends on the data; else the kernel's own causal flag is enough.

    `blind` marks queries that may see nothing: kernels do not agree on what comes out of them, here it is zero.
    `seen` is for one query a row: it may see so many keys, the first ones; with an `owner`, each in that row's memory.
    """

    is_causal: bool = False
    allowed: Bool[Tensor, "batch 1 query key"] | None = None
    fully_masked: Bool[Tensor, "batch 1 query 1"] | None = None
    kv_lengths: Int[Tensor, " batch"] | None = None
    kv_owner: Int[Tensor, "batch key"] | None = None

    def render(self, queries: Tensor, keys: Tensor) -> Bool[Tensor, "batch 1 query key"] | None:
        """The grid of what is allowed, written out; None allows everything."""
        if self.kv_lengths is not None:
            return (torch.arange(keys.shape[-2], device=keys.device) < self.kv_lengths[:, None])[
                :, None, None
            ]
        if self.allowed is not None or not self.is_causal:
            return self.allowed
        return torch.ones(
            queries.shape[-2], keys.shape[-2], dtype=torch.bool, device=queries.device
        ).tril()[None, None]


NO_MASK = Mask()


def distance_mask(
    queries: Int[Tensor, "#batch query"],
    keys: Int[Tensor, "#batch key"],
    *,
    is_causal: bool = False,
    window: int = 0,
) -> Bool[Tensor, "batch 1 query key"]:
    """From places in the row: not after (causal), and near enough (window)."""
    distance = queries[:, None, :, None] - keys[:, None, None, :]
    allowed = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
    if window:
        allowed = allowed & (distance.abs() < window)
    return allowed


def segment_mask(
    queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"]
) -> Bool[Tensor, "batch 1 query key"]:
    """From segments: only tokens of one and the same document, sentence or pair."""
    return queries[:, None, :, None] == keys[:, None, None, :]


def cross_attention_mask(
    queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"]
) -> Mask:
    """The mask of cross-attention; a target whose source is not there sees nothing."""
    allowed = segment_mask(queries, keys)
    return Mask(allowed=allowed, fully_masked=~allowed.any(dim=-1, keepdim=True))


def self_attention_mask(
    tokens: int, segment_ids: Tensor | None, *, is_causal: bool, window: int, device: torch.device
) -> Mask:
    """The mask of self-attention over whole rows."""
    if segment_ids is None and not 0 < window < tokens:
        return Mask(is_causal)
    order = torch.arange(tokens, device=device)[None]
    allowed = distance_mask(order, order, is_causal=is_causal, window=window)
    return Mask(
        allowed=allowed if segment_ids is None else allowed & segment_mask(segment_ids, segment_ids)
    )


def positions_from_segments(segment_ids: Int[Tensor, "batch token"]) -> Int[Tensor, "batch token"]:
    """Each token's place within its own segment: packed documents all start at 0."""
    order = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    starts = torch.ones_like(segment_ids, dtype=torch.bool)
    starts[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return order - torch.where(starts, order, 0).cummax(dim=1).values


# ---- attention: Attention: softmax(QKᵀ/√d_k + M) V, for many heads at once (L3).

if TRITON_AVAILABLE:
    from clearhead.kernels.decode import single_query_attention

Stream = Float[Tensor, "batch query width"]
KeyStream = Float[Tensor, "batch key width"]
Queries = Float[Tensor, "batch head query d"]
Keys = Float[Tensor, "batch group key d"]
Bias = Float[Tensor, "#batch head query key"]


class Attention(nn.Module):
    """One attention layer: W_Q, W_K, W_V, W_O."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__()
        a = m.attention
        d = m.d_head
        self.q = Linear(m.d_model, a.n_heads * d, bias="q" in a.bias)
        self.k = Linear(m.d_model, m.n_kv_heads * d, bias="k" in a.bias)
        self.v = Linear(m.d_model, m.n_kv_heads * d, bias="v" in a.bias)
        self.out = Linear(a.n_heads * d, m.d_model, bias="out" in a.bias)
        self.q_norm = make_norm(m.norm, d) if a.qk_norm else nn.Identity()
        self.k_norm = make_norm(m.norm, d) if a.qk_norm else nn.Identity()
        self.d_head = d
        self.scale = d**-0.5 if a.scale else 1.0
        self.dropout = m.dropout.attention

    def forward(
        self,
        x: Stream,
        source: KeyStream,
        place: Position,
        mask: Mask,
        cache: NoCache | KVCache | CrossKVCache,
        hooks: Hooks,
    ) -> Stream:
        attend = eager_attention if hooks.needs_scores else fused_attention
        made = joint_linear(x, self.q, self.k, self.v) if source is x else [self.q(x)]
        q = hooks("rot_q", place.rotate(hooks("q", self.q_norm(self.split_heads(made[0])))))
        k, v = cache(self.project_kv, source, place, hooks, made[1:])
        dropout = self.dropout if self.training else 0.0
        z = hooks("z", attend(q, k, v, place.bias(q, self.scale), mask, self.scale, dropout, hooks))
        return hooks("out", self.out(z.transpose(1, 2).flatten(2)))

    def project_kv(
        self, source: KeyStream, place: Position, hooks: Hooks, made: Sequence[Tensor] = ()
    ) -> KeysValues:
        """Of a source; what queries were `made` together with is split only."""
        k, v = made or joint_linear(source, self.k, self.v)
        k = hooks("rot_k", place.rotate(hooks("k", self.k_norm(self.split_heads(k)))))
        return k, hooks("v", self.split_heads(v))

    def split_heads(
        self, x: Float[Tensor, "batch token width"]
    ) -> Float[Tensor, "batch head token d"]:
        """A head is a slice of the width."""
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
    """One kernel; scores and pattern never exist as a whole."""
    if (
        mask.kv_lengths is not None
        and bias is None
        and TRITON_AVAILABLE
        and q.is_cuda
        and not torch.is_grad_enabled()
    ):
        return single_query_attention(q, k, v, mask.kv_lengths, scale, mask.kv_owner)
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
    """The same, written out, each step through the tap."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * scale  # L3.3
    scores = hooks("scores", scores if bias is None else scores + bias)
    masked = hooks("masked_scores", _apply_mask(scores, mask.render(q, k)))  # L3.5
    pattern = hooks("pattern", softmax(masked))
    return nn.functional.dropout(pattern, dropout) @ v


def _apply_mask(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def softmax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Rows that add up to 1; a row that may look at nothing is all zeros, and so is its gradient."""
    blind = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(blind, 0).softmax(dim=-1).masked_fill(blind, 0)
