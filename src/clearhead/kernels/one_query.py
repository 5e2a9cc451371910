"""Attention of one query a row over a long memory, on a GPU: what every step of writing is.

A row sees its first so many keys, and no others are read. Where there are few rows and heads, several programs share
the keys of one head, and what each found is put together by the last of them to end. Needs triton.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

KEYS = 64  # that a program looks at at once
BUSY = 264  # programs that keep a GPU busy
NEAR = 32  # keys that are not worth sharing


@triton.jit
def _kernel(
    q, k, v, seen, owner, owner_row, out, parts, arrived, scale,
    q_row, q_head, k_row, k_head, k_key, v_row, v_head, v_key,
    heads, SHARE: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr,
    OWNED: tl.constexpr,
):  # fmt: skip
    """A program: one head of one row, and one of SPLIT shares of its keys; numbers are in powers of two."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = head // SHARE
    many = tl.load(seen + row)
    each = tl.cdiv(tl.cdiv(many, SPLIT), KEYS) * KEYS
    first = tl.program_id(2) * each
    last = tl.minimum(first + each, many)
    wide, lane = tl.arange(0, WIDTH), tl.arange(0, KEYS)
    inside = wide < D
    query = tl.load(q + row * q_row + head * q_head + wide, mask=inside, other=0.0).to(tl.float32) * scale
    k += group * k_head
    v += group * v_head
    top, total = -1e30, 0.0
    mixed = tl.zeros([WIDTH], tl.float32)
    for start in range(first, last, KEYS):
        at = start + lane
        here = (at < last)[:, None] & inside[None, :]
        whose = tl.full([KEYS], 0, tl.int64) + row
        if OWNED:
            whose = tl.load(owner + row * owner_row + at, mask=at < last, other=0).to(tl.int64)
        key, value = whose * k_row + at * k_key, whose * v_row + at * v_key
        keys = tl.load(k + key[:, None] + wide[None, :], mask=here, other=0.0).to(tl.float32)
        values = tl.load(v + value[:, None] + wide[None, :], mask=here, other=0.0).to(tl.float32)
        scores = tl.where(at < last, tl.sum(keys * query[None, :], 1), -1e30)
        new = tl.maximum(top, tl.max(scores, 0))
        weights = tl.where(at < last, tl.exp2(scores - new), 0.0)
        shrink = tl.exp2(top - new)
        mixed = mixed * shrink + tl.sum(weights[:, None] * values, 0)
        total = total * shrink + tl.sum(weights, 0)
        top = new
    place = row * heads + head
    if SPLIT == 1:
        tl.store(out + place * D + wide, mixed / total, mask=inside)
    else:
        mine = parts + (place * SPLIT + tl.program_id(2)) * (WIDTH + 2)
        tl.store(mine + wide, mixed)
        tl.store(mine + WIDTH, top)
        tl.store(mine + WIDTH + 1, total)
        tl.debug_barrier()
        if tl.atomic_add(arrived + place, 1, sem="acq_rel") == SPLIT - 1:
            share = tl.arange(0, SPLIT)
            theirs = parts + (place * SPLIT + share) * (WIDTH + 2)
            tops = tl.load(theirs + WIDTH, cache_modifier=".cg")
            weights = tl.exp2(tops - tl.max(tops, 0))
            whole = tl.sum(tl.load(theirs + WIDTH + 1, cache_modifier=".cg") * weights, 0)
            found = tl.load(theirs[:, None] + wide[None, :], cache_modifier=".cg")
            tl.store(out + place * D + wide, tl.sum(found * weights[:, None], 0) / whole, mask=inside)
            tl.store(arrived + place, 0)


@cache
def _arrived(device: torch.device, stream: int) -> Tensor:
    """How many programs of each head have ended; the last sets it back. Streams run side by side: each has its own."""
    return torch.zeros(BUSY, dtype=torch.int32, device=device)


def one_query(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, owner: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ · scale) v over each row's first `seen` keys; heads may share keys in groups.

    Keys and values may lie in other rows: `owner` tells for each token in which.
    """
    rows, heads, _, d = q.shape
    split = 1
    while rows * heads * split < BUSY and k.shape[2] > NEAR * split and split < 16:
        split *= 2
    width = triton.next_power_of_2(d)
    out = torch.empty(rows, heads, 1, d, dtype=q.dtype, device=q.device)
    parts = torch.empty(rows * heads * split * (width + 2) if split > 1 else 1, device=q.device)
    whose = (seen, 0) if owner is None else (owner, owner.stride(0))
    stream = torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else 0
    keys, warps = (KEYS // 2, 1) if k.shape[2] <= KEYS else (KEYS, 2)  # a short memory is looked at by many at once
    _kernel[(rows, heads, split)](
        q, k, v, seen, *whose, out, parts, _arrived(q.device, stream), scale * 1.4426950408889634,
        q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3],
        heads, SHARE=heads // k.shape[1], WIDTH=width, D=d, KEYS=keys, SPLIT=split, OWNED=owner is not None,
        num_warps=warps,
    )  # fmt: skip
    return out
