"""Queries, keys and values of one token a row, from one product: keys and values go to their place. Needs triton."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

HEADS = 8  # that a program takes


@triton.jit
def _take(
    made, made_row, cos, sin, turn_row, gain_q, gain_k, eps, queries, keys, values, k_row, k_head, k_key, writing,
    heads, groups, first, TURNED: tl.constexpr, NORMED: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Some heads of one row: queries are turned, keys are turned and kept, values are kept."""
    row, head = tl.program_id(0).to(tl.int64), (first + tl.program_id(1) * SOME + tl.arange(0, SOME))[:, None]
    at = tl.arange(0, WIDTH)[None, :]
    asks, answers = head < heads, (head >= heads) & (head < heads + groups)
    inside = (at < D) & (head < heads + 2 * groups)
    made += row * made_row + head * D
    x = tl.load(made + at, mask=inside, other=0.0).to(tl.float32)
    if NORMED or TURNED:
        beside = tl.where(at < HALF, at + HALF, tl.where(at < 2 * HALF, at - HALF, at))
        new, y = x, tl.load(made + beside, mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
            gain, other = tl.where(asks, gain_q + at, gain_k + at), tl.where(asks, gain_q + beside, gain_k + beside)
            new *= scale * tl.load(gain, mask=inside, other=0.0).to(tl.float32)
            y *= scale * tl.load(other, mask=inside, other=0.0).to(tl.float32)
        if TURNED:
            angle, turns = tl.where(at < HALF, at, at - HALF), at < 2 * HALF
            c = tl.load(cos + row * turn_row + angle, mask=turns, other=1.0)
            s = tl.load(sin + row * turn_row + angle, mask=turns, other=0.0)
            new = new * c + tl.where(at < HALF, -y, y) * s
        x = tl.where(asks | answers, new, x)
        tl.store(queries + (row * heads + head) * D + at, x.to(queries.dtype.element_ty), mask=inside & asks)
    place = row * k_row + tl.load(writing + row) * k_key + at
    kept = x.to(keys.dtype.element_ty)
    tl.store(keys + place + (head - heads) * k_head, kept, mask=inside & answers)
    tl.store(values + place + (head - heads - groups) * k_head, kept, mask=inside & (head >= heads + groups))


def take(
    made: Tensor,
    heads: int,
    keys: Tensor,
    values: Tensor,
    writing: Tensor,
    turned: tuple[Tensor, Tensor] | None,
    norms: Sequence[nn.RMSNorm],
) -> Tensor:
    """Queries from what was made of a row; its keys and values go where they are remembered."""
    rows, d, groups = len(made), keys.shape[-1], keys.shape[1]
    plain = turned is None and not norms
    queries = made if plain else torch.empty(rows, heads * d, dtype=made.dtype, device=made.device)
    cos, sin = turned or (made, made)
    gains: list[Tensor] = [norm.weight for norm in norms] or [made, made]
    first = heads if plain else 0
    _take[(rows, triton.cdiv(heads + 2 * groups - first, HEADS))](
        made, made.stride(0), cos, sin, cos.stride(0), *gains, norms[0].eps if norms else 0.0,
        queries, keys, values, *keys.stride()[:3], writing, heads, groups, first,
        TURNED=turned is not None, NORMED=bool(norms), HALF=cos.shape[-1] if turned else d // 2, D=d,
        WIDTH=triton.next_power_of_2(d), SOME=HEADS, num_warps=2,
    )  # fmt: skip
    return queries[:, : heads * d].unflatten(1, (heads, 1, d)) if plain else queries.view(rows, heads, 1, d)
