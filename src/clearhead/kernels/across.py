"""Cross-attention of the beams of a sentence, on a GPU: few queries that look at the same source. Needs triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _kernel(
    q, k, v, real, out, scale, q_row, k_row, k_head, k_key, v_row, v_head, v_key, heads, many,
    SHARE: tl.constexpr, BEAMS: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    KEYS: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """A program: one head of all beams of a sentence; numbers are in powers of two."""
    sentence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    beam, wide, lane = tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, KEYS)
    row, inside = sentence * BEAMS + beam, wide < D
    mine = (beam < BEAMS)[:, None] & inside[None, :]
    query = tl.load(q + row[:, None] * q_row + head * D + wide[None, :], mask=mine, other=0.0)
    k += sentence * k_row + head // SHARE * k_head
    v += sentence * v_row + head // SHARE * v_head
    top, total = tl.full([QUERIES], -1e30, tl.float32), tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, WIDTH], tl.float32)
    for start in range(0, many, KEYS):
        at = start + lane
        seen = at < many
        if SOME:
            seen = seen & (tl.load(real + sentence * many + at, mask=seen, other=0) != 0)
        here = (at < many)[:, None] & inside[None, :]
        keys = tl.load(k + at[:, None] * k_key + wide[None, :], mask=here, other=0.0)
        values = tl.load(v + at[:, None] * v_key + wide[None, :], mask=here, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, -1e30)
        new = tl.maximum(top, tl.max(scores, 1))
        weights = tl.where(seen[None, :], tl.exp2(scores - new[:, None]), 0.0)
        shrink = tl.exp2(top - new)
        mixed = tl.dot(weights.to(values.dtype), values, mixed * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        top = new
    found = mixed / tl.where(total > 0, total, 1.0)[:, None]  # who sees nothing finds nothing
    place = (row * heads + head)[:, None] * D + wide[None, :]
    tl.store(out + place, found.to(out.dtype.element_ty), mask=mine)


def across(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, scale: float) -> Tensor:
    """softmax(q kᵀ · scale) v for rows × width of queries; those of one sentence lie side by side.

    Keys and values are sentence × head × key × d; `real` is 0 where a key is padding.
    """
    rows, (sentences, groups, many, d) = len(q), k.shape
    heads, beams, out = q.shape[1] // d, rows // sentences, torch.empty_like(q)
    _kernel[(sentences, heads)](
        q, k, v, q if real is None else real.contiguous(), out, scale * 1.4426950408889634,
        q.stride(0), *k.stride()[:3], *v.stride()[:3], heads, many,
        SHARE=heads // groups, BEAMS=beams, QUERIES=max(16, triton.next_power_of_2(beams)),
        WIDTH=max(16, triton.next_power_of_2(d)), D=d, KEYS=min(64, max(16, triton.next_power_of_2(many))),
        SOME=real is not None, num_warps=4,
    )  # fmt: skip
    return out
