"""Attention of one query a row over a long memory, on a GPU: what every step of writing is.

A row sees its first so many keys, and no others are read. Where there are few rows and heads, several programs share
the keys of one head, and what each found is put together by the last of them to end. Needs triton.
"""

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

# ---- one_query: Attention of one query a row over a long memory, on a GPU: what every step of writing is.

KEYS_PER_BLOCK = 64  # that a program looks at at once
TARGET_PROGRAMS = 264  # programs that keep a GPU busy
MIN_KEYS_PER_SPLIT = 32  # keys that are not worth sharing


@triton.jit
def _single_query_attention_kernel(
    q, k, v, seen, owner, owner_row, out, parts, arrived, scale,
    q_row, q_head, k_row, k_head, k_key, v_row, v_head, v_key,
    heads, SHARE: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr,
    OWNED: tl.constexpr,
):  # fmt: skip
    """A program: one head of one row, and one of SPLIT shares of its keys; numbers are in powers of two."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    group = head // SHARE
    many = tl.load(seen + row)
    each = tl.cdiv(tl.cdiv(many, SPLIT), KEYS) * KEYS
    first = tl.program_id(2) * each
    last = tl.minimum(first + each, many)
    wide = tl.arange(0, WIDTH)
    lane = tl.arange(0, KEYS)
    inside = wide < D
    query = (
        tl.load(q + row * q_row + head * q_head + wide, mask=inside, other=0.0).to(tl.float32)
        * scale
    )
    k += group * k_head
    v += group * v_head
    top = -1e30
    total = 0.0
    mixed = tl.zeros([WIDTH], tl.float32)
    for start in range(first, last, KEYS):
        at = start + lane
        here = (at < last)[:, None] & inside[None, :]
        whose = tl.full([KEYS], 0, tl.int64) + row
        if OWNED:
            whose = tl.load(owner + row * owner_row + at, mask=at < last, other=0).to(tl.int64)
        key = whose * k_row + at * k_key
        value = whose * v_row + at * v_key
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
            tl.store(
                out + place * D + wide, tl.sum(found * weights[:, None], 0) / whole, mask=inside
            )
            tl.store(arrived + place, 0)


@cache
def _split_counters(device: torch.device, stream: int) -> Tensor:
    """How many programs of each head have ended; the last sets it back. Streams run side by side: each has its own."""
    return torch.zeros(TARGET_PROGRAMS, dtype=torch.int32, device=device)


def single_query_attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, owner: Tensor | None = None
) -> Tensor:
    """softmax(q kᵀ · scale) v over each row's first `seen` keys; heads may share keys in groups.

    Keys and values may lie in other rows: `owner` tells for each token in which.
    """
    rows, heads, _, d = q.shape
    split = 1
    while (
        rows * heads * split < TARGET_PROGRAMS
        and k.shape[2] > MIN_KEYS_PER_SPLIT * split
        and split < 16
    ):
        split *= 2
    width = triton.next_power_of_2(d)
    out = torch.empty(rows, heads, 1, d, dtype=q.dtype, device=q.device)
    parts = torch.empty(rows * heads * split * (width + 2) if split > 1 else 1, device=q.device)
    whose = (seen, 0) if owner is None else (owner, owner.stride(0))
    stream = torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else 0
    keys, warps = (
        (KEYS_PER_BLOCK // 2, 1) if k.shape[2] <= KEYS_PER_BLOCK else (KEYS_PER_BLOCK, 2)
    )  # a short memory is looked at by many at once
    _single_query_attention_kernel[(rows, heads, split)](
        q, k, v, seen, *whose, out, parts, _split_counters(q.device, stream), scale * 1.4426950408889634,
        q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3],
        heads, SHARE=heads // k.shape[1], WIDTH=width, D=d, KEYS=keys, SPLIT=split, OWNED=owner is not None,
        num_warps=warps,
    )  # fmt: skip
    return out


# ---- across: Cross-attention of the beams of a sentence, on a GPU: few queries that look at the same source. Needs triton.


@triton.jit
def _beam_cross_attention_kernel(
    q, k, v, real, out, scale, q_row, k_row, k_head, k_key, v_row, v_head, v_key, heads, many,
    SHARE: tl.constexpr, BEAMS: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    KEYS: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """A program: one head of all beams of a sentence; numbers are in powers of two."""
    sentence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    beam = tl.arange(0, QUERIES)
    wide = tl.arange(0, WIDTH)
    lane = tl.arange(0, KEYS)
    row = sentence * BEAMS + beam
    inside = wide < D
    mine = (beam < BEAMS)[:, None] & inside[None, :]
    query = tl.load(q + row[:, None] * q_row + head * D + wide[None, :], mask=mine, other=0.0)
    k += sentence * k_row + head // SHARE * k_head
    v += sentence * v_row + head // SHARE * v_head
    top = tl.full([QUERIES], -1e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
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
        mixed = tl.dot(
            weights.to(values.dtype), values, mixed * shrink[:, None], input_precision="ieee"
        )
        total = total * shrink + tl.sum(weights, 1)
        top = new
    found = mixed / tl.where(total > 0, total, 1.0)[:, None]  # who sees nothing finds nothing
    place = (row * heads + head)[:, None] * D + wide[None, :]
    tl.store(out + place, found.to(out.dtype.element_ty), mask=mine)


def beam_cross_attention(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, scale: float
) -> Tensor:
    """softmax(q kᵀ · scale) v for rows × width of queries; those of one sentence lie side by side.

    Keys and values are sentence × head × key × d; `real` is 0 where a key is padding.
    """
    rows, (sentences, groups, many, d) = len(q), k.shape
    heads = q.shape[1] // d
    beams = rows // sentences
    out = torch.empty_like(q)
    _beam_cross_attention_kernel[(sentences, heads)](
        q, k, v, q if real is None else real.contiguous(), out, scale * 1.4426950408889634,
        q.stride(0), *k.stride()[:3], *v.stride()[:3], heads, many,
        SHARE=heads // groups, BEAMS=beams, QUERIES=max(16, triton.next_power_of_2(beams)),
        WIDTH=max(16, triton.next_power_of_2(d)), D=d, KEYS=min(64, max(16, triton.next_power_of_2(many))),
        SOME=real is not None, num_warps=4,
    )  # fmt: skip
    return out


# ---- products: The products of one token a row, with all that stands around them, each one kernel. Needs triton.

LinearWeights = tuple[Tensor, Tensor | None]  # weight, bias
MAX_FUSED_ROWS = 256  # rows from which torch's own products are faster
ACTIVATION_IDS = {"": 0, "relu": 1, "relu2": 2, "gelu": 3, "gelu-tanh": 4, "silu": 5}


@triton.jit
def _activate(x, ACT: tl.constexpr):
    if ACT == 1:
        x = tl.maximum(x, 0.0)
    if ACT == 2:
        x = tl.maximum(x, 0.0)
        x = x * x
    if ACT == 3:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if ACT == 4:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2.0 * inner)
    if ACT == 5:
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def _normalize(x, middle, scale, gain, shift, at, inside, NORM: tl.constexpr, SHIFT: tl.constexpr):
    if NORM > 0:
        x = (x - middle) * scale * tl.load(gain + at, mask=inside, other=0.0).to(tl.float32)
        if SHIFT:
            x += tl.load(shift + at, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _linear_one_row_kernel(
    x, gain, shift, eps, w, v, bias, bias_v, residual, out, n, K: tl.constexpr, ALL: tl.constexpr,
    NORM: tl.constexpr, SHIFT: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr,
    RESIDUAL: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Some columns of act(norm(x) Wᵀ + b) [⊙ (norm(x) Vᵀ + c)] [+ residual]."""
    middle = 0.0
    scale = 1.0
    if NORM > 0:
        at = tl.arange(0, ALL)
        whole = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        if NORM == 1:
            middle = tl.sum(whole, 0) / K
        whole = tl.where(at < K, whole - middle, 0.0)
        scale = tl.rsqrt(tl.sum(whole * whole, 0) / K + eps)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    here = column < n
    sums = tl.zeros([BN, BK], tl.float32)
    others = tl.zeros([BN, BK], tl.float32)
    for start in tl.static_range(0, K, BK):
        at = start + tl.arange(0, BK)
        inside = at < K
        part = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        part = _normalize(part, middle, scale, gain, shift, at, inside, NORM, SHIFT)
        part = part.to(w.dtype.element_ty).to(tl.float32)[None, :]
        grid = column[:, None].to(tl.int64) * K + at[None, :]
        both = here[:, None] & inside[None, :]
        sums += part * tl.load(w + grid, mask=both, other=0.0).to(tl.float32)
        if GATED:
            others += part * tl.load(v + grid, mask=both, other=0.0).to(tl.float32)
    y = tl.sum(sums, 1)
    if BIAS:
        y += tl.load(bias + column, mask=here, other=0.0).to(tl.float32)
    y = _activate(y, ACT)
    if GATED:
        gate = tl.sum(others, 1)
        if BIAS:
            gate += tl.load(bias_v + column, mask=here, other=0.0).to(tl.float32)
        y *= gate
    if RESIDUAL:
        y += tl.load(residual + column, mask=here, other=0.0).to(tl.float32)
    tl.store(out + column, y.to(out.dtype.element_ty), mask=here)


@triton.jit
def _norm_rows_kernel(
    x, x_row, more, gain, shift, eps, out, K: tl.constexpr, ALL: tl.constexpr, NORM: tl.constexpr,
    SHIFT: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    """One row, normed; what is added to it comes first."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, ALL)
    inside = at < K
    whole = tl.load(x + row * x_row + at, mask=inside, other=0.0).to(tl.float32)
    if MORE:
        whole += tl.load(more + row * K + at, mask=inside, other=0.0).to(tl.float32)
    middle = 0.0
    if NORM == 1:
        middle = tl.sum(whole, 0) / K
    apart = tl.where(inside, whole - middle, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 0) / K + eps)
    whole = _normalize(whole, middle, scale, gain, shift, at, inside, NORM, SHIFT)
    tl.store(out + row * K + at, whole.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _linear_rows_kernel(
    x, x_row, w, v, bias, bias_v, residual, out, out_row, rows, n, K: tl.constexpr,
    BIAS: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr,
    RESIDUAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some columns of act(x Wᵀ + b) [⊙ (x Vᵀ + c)] [+ residual] for several rows, on tensor cores."""
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    real = row < rows
    x += row[:, None].to(tl.int64) * x_row
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    here = column < n
    sums = tl.zeros([BM, BN], tl.float32)
    others = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(0, K, BK, num_stages=STAGES):
        at = start + tl.arange(0, BK)
        part = tl.load(x + at[None, :], mask=real[:, None] & (at < K)[None, :], other=0.0)
        grid = column[None, :].to(tl.int64) * K + at[:, None]
        both = here[None, :] & (at < K)[:, None]
        sums = tl.dot(part, tl.load(w + grid, mask=both, other=0.0), sums, input_precision="ieee")
        if GATED:
            others = tl.dot(
                part, tl.load(v + grid, mask=both, other=0.0), others, input_precision="ieee"
            )
    if BIAS:
        sums += tl.load(bias + column, mask=here, other=0.0).to(tl.float32)[None, :]
    sums = _activate(sums, ACT)
    if GATED:
        if BIAS:
            others += tl.load(bias_v + column, mask=here, other=0.0).to(tl.float32)[None, :]
        sums *= others
    both = real[:, None] & here[None, :]
    place = row[:, None].to(tl.int64) * out_row + column[None, :]
    if RESIDUAL:
        sums += tl.load(residual + place, mask=both, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=both)


def fused_linear(
    x: Tensor,
    layer: LinearWeights,
    multiplier: LinearWeights | None = None,
    norm: nn.Module | None = None,
    act: str = "",
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """act(norm(x) Wᵀ + b) [⊙ the same of the gate, without act] [+ residual], for rows × width."""
    (weight, bias), (other, other_bias) = layer, multiplier or layer
    (rows, k), n = x.shape, len(weight)
    if rows > MAX_FUSED_ROWS:
        return _linear_many_rows(
            x if norm is None else fused_norm(x, norm), layer, multiplier, act, residual
        ).to(dtype or x.dtype)
    out = torch.empty(rows, n, dtype=dtype or x.dtype, device=x.device)
    gain, shift, eps, around = _norm_arguments(norm, weight)
    forms = {
        "BIAS": bias is not None,
        "GATED": multiplier is not None,
        "ACT": ACTIVATION_IDS[act],
        "RESIDUAL": residual is not None,
    }
    inner = (
        weight,
        other,
        weight if bias is None else bias,
        weight if other_bias is None else other_bias,
    )
    if rows == 1:
        bn, bk, warps = (2, 1024, 4) if n <= 1024 else (8, 1024, 4) if n <= 4096 else (16, 256, 2)
        _linear_one_row_kernel[(triton.cdiv(n, bn),)](
            x, gain, shift, eps, *inner, x if residual is None else residual, out, n,
            K=k, ALL=triton.next_power_of_2(k), **around, **forms, BN=bn, BK=bk, num_warps=warps,
        )  # fmt: skip
        return out
    if norm is not None:
        x = fused_norm(x, norm)
    bm = min(64, max(16, triton.next_power_of_2(rows)))
    bn, bk, stages = (16, 128, 5) if n <= 1024 else (32, 128, 5) if n <= 4096 else (128, 64, 3)
    if x.dtype == torch.float32:
        # twice as wide, they would not fit
        bn = 16
        bk = 32
        stages = 3
    _linear_rows_kernel[(triton.cdiv(n, bn), triton.cdiv(rows, bm))](
        x, x.stride(0), *inner, x if residual is None else residual, out, out.stride(0), rows, n,
        K=k, **forms, BM=bm, BN=bn, BK=bk, STAGES=stages, num_warps=4,
    )  # fmt: skip
    return out


def _norm_arguments(
    norm: nn.Module | None, idle: Tensor
) -> tuple[Tensor, Tensor, float, dict[str, int]]:
    """Gain, shift and ε of a norm, and what kind it is."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return idle, idle, 0.0, {"NORM": 0, "SHIFT": False}
    shift = getattr(norm, "bias", None)
    kind = {"NORM": 2 if isinstance(norm, nn.RMSNorm) else 1, "SHIFT": shift is not None}
    return norm.weight, norm.weight if shift is None else shift, norm.eps or 0.0, kind


def fused_norm(x: Tensor, norm: nn.Module, residual: Tensor | None = None) -> Tensor:
    """norm(x [+ more]), for rows × width."""
    (rows, k), (gain, shift, eps, around) = x.shape, _norm_arguments(norm, x)
    made = torch.empty(rows, k, dtype=x.dtype, device=x.device)
    _norm_rows_kernel[(rows,)](
        x, x.stride(0), x if residual is None else residual, gain, shift, eps, made, K=k, ALL=triton.next_power_of_2(k),
        **around, MORE=residual is not None, num_warps=4,
    )  # fmt: skip
    return made


@triton.jit
def _epilogue_kernel(
    y,
    gate,
    residual,
    count,
    GATED: tl.constexpr,
    ACT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SOME: tl.constexpr,
):
    """What follows a product, in its place: act(y) [⊙ gate] [+ residual]."""
    at = tl.program_id(0).to(tl.int64) * SOME + tl.arange(0, SOME)
    here = at < count
    x = _activate(tl.load(y + at, mask=here, other=0.0).to(tl.float32), ACT)
    if GATED:
        x *= tl.load(gate + at, mask=here, other=0.0).to(tl.float32)
    if RESIDUAL:
        x += tl.load(residual + at, mask=here, other=0.0).to(tl.float32)
    tl.store(y + at, x.to(y.dtype.element_ty), mask=here)


def _linear_many_rows(
    x: Tensor, layer: LinearWeights, gate: LinearWeights | None, act: str, residual: Tensor | None
) -> Tensor:
    """The same by torch's products, which are the fastest from some hundred rows on."""
    y = nn.functional.linear(x, *layer)
    other = y if gate is None else nn.functional.linear(x, *gate)
    forms = {
        "GATED": gate is not None,
        "ACT": ACTIVATION_IDS[act],
        "RESIDUAL": residual is not None,
    }
    if any(forms.values()):
        _epilogue_kernel[(triton.cdiv(y.numel(), 1024),)](
            y,
            other,
            y if residual is None else residual,
            y.numel(),
            **forms,
            SOME=1024,
            num_warps=4,
        )
    return y


# ---- take: Queries, keys and values of one token a row, from one product: keys and values go to their place. Needs triton.

HEADS_PER_PROGRAM = 8  # that a program takes


@triton.jit
def _qkv_rope_cache_kernel(
    made, made_row, cos, sin, turn_row, gain_q, gain_k, eps, queries, keys, values, k_row, k_head, k_key, writing,
    heads, groups, first, TURNED: tl.constexpr, NORMED: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Some heads of one row: queries are turned, keys are turned and kept, values are kept."""
    row = tl.program_id(0).to(tl.int64)
    head = (first + tl.program_id(1) * SOME + tl.arange(0, SOME))[:, None]
    at = tl.arange(0, WIDTH)[None, :]
    asks = head < heads
    answers = (head >= heads) & (head < heads + groups)
    inside = (at < D) & (head < heads + 2 * groups)
    made += row * made_row + head * D
    x = tl.load(made + at, mask=inside, other=0.0).to(tl.float32)
    if NORMED or TURNED:
        beside = tl.where(at < HALF, at + HALF, tl.where(at < 2 * HALF, at - HALF, at))
        new = x
        y = tl.load(made + beside, mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
            gain = tl.where(asks, gain_q + at, gain_k + at)
            other = tl.where(asks, gain_q + beside, gain_k + beside)
            new *= scale * tl.load(gain, mask=inside, other=0.0).to(tl.float32)
            y *= scale * tl.load(other, mask=inside, other=0.0).to(tl.float32)
        if TURNED:
            angle = tl.where(at < HALF, at, at - HALF)
            turns = at < 2 * HALF
            c = tl.load(cos + row * turn_row + angle, mask=turns, other=1.0)
            s = tl.load(sin + row * turn_row + angle, mask=turns, other=0.0)
            new = new * c + tl.where(at < HALF, -y, y) * s
        x = tl.where(asks | answers, new, x)
        tl.store(
            queries + (row * heads + head) * D + at,
            x.to(queries.dtype.element_ty),
            mask=inside & asks,
        )
    place = row * k_row + tl.load(writing + row) * k_key + at
    kept = x.to(keys.dtype.element_ty)
    tl.store(keys + place + (head - heads) * k_head, kept, mask=inside & answers)
    tl.store(
        values + place + (head - heads - groups) * k_head,
        kept,
        mask=inside & (head >= heads + groups),
    )


def qkv_rope_cache(
    made: Tensor,
    heads: int,
    keys: Tensor,
    values: Tensor,
    writing: Tensor,
    turned: tuple[Tensor, Tensor] | None,
    norms: Sequence[nn.RMSNorm],
) -> Tensor:
    """Queries from what was made of a row; its keys and values go where they are remembered."""
    rows = len(made)
    d = keys.shape[-1]
    groups = keys.shape[1]
    plain = turned is None and not norms
    queries = made if plain else torch.empty(rows, heads * d, dtype=made.dtype, device=made.device)
    cos, sin = turned or (made, made)
    gains: list[Tensor] = [norm.weight for norm in norms] or [made, made]
    first = heads if plain else 0
    _qkv_rope_cache_kernel[(rows, triton.cdiv(heads + 2 * groups - first, HEADS_PER_PROGRAM))](
        made, made.stride(0), cos, sin, cos.stride(0), *gains, norms[0].eps if norms else 0.0,
        queries, keys, values, *keys.stride()[:3], writing, heads, groups, first,
        TURNED=turned is not None, NORMED=bool(norms), HALF=cos.shape[-1] if turned else d // 2, D=d,
        WIDTH=triton.next_power_of_2(d), SOME=HEADS_PER_PROGRAM, num_warps=2,
    )  # fmt: skip
    return (
        queries[:, : heads * d].unflatten(1, (heads, 1, d))
        if plain
        else queries.view(rows, heads, 1, d)
    )
