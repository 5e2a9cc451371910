"""Who may look at whom: a value, made once for a pass and rendered by each kernel.

Query i sees key j if both belong to the same segment, if j is not after i (causal, L3.5), and if they are
less than `window` apart. Segment 0 is padding; padding only ever meets padding.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """`allowed` where the answer depends on the data; else the kernel's own causal flag is enough.

    `blind` marks queries that may see nothing: kernels do not agree on what comes out of them, here it is zero.
    `seen` is for one query a row: it may see so many keys, the first ones; with an `owner`, each in that row's memory.
    """

    causal: bool = False
    allowed: Bool[Tensor, "batch 1 query key"] | None = None
    blind: Bool[Tensor, "batch 1 query 1"] | None = None
    seen: Int[Tensor, " batch"] | None = None
    owner: Int[Tensor, "batch key"] | None = None

    def render(self, queries: Tensor, keys: Tensor) -> Bool[Tensor, "batch 1 query key"] | None:
        """The grid of what is allowed, written out; None allows everything."""
        if self.seen is not None:
            return (torch.arange(keys.shape[-2], device=keys.device) < self.seen[:, None])[:, None, None]
        if self.allowed is not None or not self.causal:
            return self.allowed
        return torch.ones(queries.shape[-2], keys.shape[-2], dtype=torch.bool, device=queries.device).tril()[None, None]


EVERYTHING = Mask()


def between(
    queries: Int[Tensor, "#batch query"],
    keys: Int[Tensor, "#batch key"],
    *,
    causal: bool = False,
    window: int = 0,
) -> Bool[Tensor, "batch 1 query key"]:
    """From places in the row: not after (causal), and near enough (window)."""
    distance = queries[:, None, :, None] - keys[:, None, None, :]
    allowed = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if window:
        allowed = allowed & (distance.abs() < window)
    return allowed


def same(queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"]) -> Bool[Tensor, "batch 1 query key"]:
    """From segments: only tokens of one and the same document, sentence or pair."""
    return queries[:, None, :, None] == keys[:, None, None, :]


def across(queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"]) -> Mask:
    """The mask of cross-attention; a target whose source is not there sees nothing."""
    allowed = same(queries, keys)
    return Mask(allowed=allowed, blind=~allowed.any(dim=-1, keepdim=True))


def in_a_row(tokens: int, segments: Tensor | None, *, causal: bool, window: int, device: torch.device) -> Mask:
    """The mask of self-attention over whole rows."""
    if segments is None and not 0 < window < tokens:
        return Mask(causal)
    order = torch.arange(tokens, device=device)[None]
    allowed = between(order, order, causal=causal, window=window)
    return Mask(allowed=allowed if segments is None else allowed & same(segments, segments))


def positions_in(segments: Int[Tensor, "batch token"]) -> Int[Tensor, "batch token"]:
    """Each token's place within its own segment: packed documents all start at 0."""
    order = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return order - torch.where(starts, order, 0).cummax(dim=1).values
