"""Decoding steps on a GPU: attention of one query per row, and linear layers for few rows.

With few rows, a linear layer costs as much as reading its matrix, and every kernel costs its
launch. So norms, biases, activations and residual connections are computed in the same kernel.
Needs triton.
"""

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

LOG2E = 1.4426950408889634  # the kernels compute powers of two

KEYS_PER_BLOCK = 64  # keys a program reads at once
TARGET_PROGRAMS = 264  # programs that keep a GPU busy
MIN_KEYS_PER_SPLIT = 32  # shorter caches are not split further
HEADS_PER_PROGRAM = 8
MAX_FUSED_ROWS = 256  # with more rows, torch's own matrix product is faster
ACTIVATION_IDS = {"": 0, "relu": 1, "relu2": 2, "gelu": 3, "gelu-tanh": 4, "silu": 5}

LinearWeights = tuple[Tensor, Tensor | None]  # weight, bias


# --- attention of one query per row
@triton.jit
def _single_query_attention_kernel(
    q, k, v, kv_lengths, kv_owner, owner_row, out, partial_out, counters, scale,
    q_row, q_head, k_row, k_head, k_key, v_row, v_head, v_key,
    heads, GROUP: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr,
    SPLIT: tl.constexpr, HAS_OWNER: tl.constexpr,
):  # fmt: skip
    """One program: one head of one row and one of SPLIT parts of its keys; in powers of two."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kv_head = head // GROUP
    n_keys = tl.load(kv_lengths + row)
    keys_per_split = tl.cdiv(tl.cdiv(n_keys, SPLIT), KEYS) * KEYS
    first = tl.program_id(2) * keys_per_split
    last = tl.minimum(first + keys_per_split, n_keys)
    dim = tl.arange(0, WIDTH)
    lane = tl.arange(0, KEYS)
    in_head = dim < D
    query = tl.load(q + row * q_row + head * q_head + dim, mask=in_head, other=0.0).to(tl.float32)
    query = query * scale
    k += kv_head * k_head
    v += kv_head * v_head
    top = -1e30
    total = 0.0
    z = tl.zeros([WIDTH], tl.float32)
    for start in range(first, last, KEYS):
        position = start + lane
        mask = (position < last)[:, None] & in_head[None, :]
        owner = tl.full([KEYS], 0, tl.int64) + row
        if HAS_OWNER:
            owner = tl.load(
                kv_owner + row * owner_row + position, mask=position < last, other=0
            ).to(tl.int64)
        key = owner * k_row + position * k_key
        value = owner * v_row + position * v_key
        keys = tl.load(k + key[:, None] + dim[None, :], mask=mask, other=0.0).to(tl.float32)
        values = tl.load(v + value[:, None] + dim[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(position < last, tl.sum(keys * query[None, :], 1), -1e30)
        new_top = tl.maximum(top, tl.max(scores, 0))
        weights = tl.where(position < last, tl.exp2(scores - new_top), 0.0)
        rescale = tl.exp2(top - new_top)
        z = z * rescale + tl.sum(weights[:, None] * values, 0)
        total = total * rescale + tl.sum(weights, 0)
        top = new_top
    slot = row * heads + head
    if SPLIT == 1:
        tl.store(out + slot * D + dim, z / total, mask=in_head)
    else:
        own = partial_out + (slot * SPLIT + tl.program_id(2)) * (WIDTH + 2)
        tl.store(own + dim, z)
        tl.store(own + WIDTH, top)
        tl.store(own + WIDTH + 1, total)
        tl.debug_barrier()
        # The last program combines.
        if tl.atomic_add(counters + slot, 1, sem="acq_rel") == SPLIT - 1:
            part = partial_out + (slot * SPLIT + tl.arange(0, SPLIT)) * (WIDTH + 2)
            tops = tl.load(part + WIDTH, cache_modifier=".cg")
            part_weights = tl.exp2(tops - tl.max(tops, 0))
            part_totals = tl.load(part + WIDTH + 1, cache_modifier=".cg")
            part_z = tl.load(part[:, None] + dim[None, :], cache_modifier=".cg")
            combined = tl.sum(part_z * part_weights[:, None], 0) / tl.sum(
                part_totals * part_weights, 0
            )
            tl.store(out + slot * D + dim, combined, mask=in_head)
            tl.store(counters + slot, 0)


@cache
def _split_counters(device: torch.device, stream: int) -> Tensor:
    """Finished programs per head, reset by the last one; streams run concurrently, so one each."""
    return torch.zeros(TARGET_PROGRAMS, dtype=torch.int32, device=device)


def single_query_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_lengths: Tensor,
    scale: float,
    kv_owner: Tensor | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale) v over the first `kv_lengths` keys of each row.

    q may have more heads than k and v. With `kv_owner`, key i of a row is read from the cache of
    row kv_owner[row, i]. If there are few rows and heads, several programs share the keys of one
    head, and the last one to finish combines their results.
    """
    rows, heads, _, d = q.shape
    capacity = k.shape[2]
    split = 1
    while (
        rows * heads * split < TARGET_PROGRAMS
        and capacity > MIN_KEYS_PER_SPLIT * split
        and split < 16
    ):
        split *= 2
    width = triton.next_power_of_2(d)
    out = torch.empty(rows, heads, 1, d, dtype=q.dtype, device=q.device)
    partial_out = torch.empty(
        rows * heads * split * (width + 2) if split > 1 else 1, device=q.device
    )
    owner = (kv_lengths, 0) if kv_owner is None else (kv_owner, kv_owner.stride(0))
    stream = torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else 0
    # A short cache is read by many small programs.
    keys_per_block, warps = (
        (KEYS_PER_BLOCK // 2, 1) if capacity <= KEYS_PER_BLOCK else (KEYS_PER_BLOCK, 2)
    )
    _single_query_attention_kernel[(rows, heads, split)](
        q, k, v, kv_lengths, *owner, out, partial_out, _split_counters(q.device, stream),
        scale * LOG2E, q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], heads,
        GROUP=heads // k.shape[1], WIDTH=width, D=d, KEYS=keys_per_block, SPLIT=split,
        HAS_OWNER=kv_owner is not None, num_warps=warps,
    )  # fmt: skip
    return out


# --- cross-attention of beams
@triton.jit
def _beam_cross_attention_kernel(
    q, k, v, source_mask, out, scale, q_row, k_row, k_head, k_key, v_row, v_head, v_key, heads,
    n_keys, GROUP: tl.constexpr, BEAMS: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr,
    D: tl.constexpr, KEYS: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """One program: one head of all beams of a source; numbers are in powers of two."""
    source = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    beam = tl.arange(0, QUERIES)
    dim = tl.arange(0, WIDTH)
    lane = tl.arange(0, KEYS)
    row = source * BEAMS + beam
    in_head = dim < D
    query_mask = (beam < BEAMS)[:, None] & in_head[None, :]
    query = tl.load(q + row[:, None] * q_row + head * D + dim[None, :], mask=query_mask, other=0.0)
    k += source * k_row + head // GROUP * k_head
    v += source * v_row + head // GROUP * v_head
    top = tl.full([QUERIES], -1e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    z = tl.zeros([QUERIES, WIDTH], tl.float32)
    for start in range(0, n_keys, KEYS):
        position = start + lane
        allowed = position < n_keys
        if HAS_MASK:
            is_token = tl.load(source_mask + source * n_keys + position, mask=allowed, other=0) != 0
            allowed = allowed & is_token
        key_mask = (position < n_keys)[:, None] & in_head[None, :]
        keys = tl.load(k + position[:, None] * k_key + dim[None, :], mask=key_mask, other=0.0)
        values = tl.load(v + position[:, None] * v_key + dim[None, :], mask=key_mask, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(allowed[None, :], scores, -1e30)
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.where(allowed[None, :], tl.exp2(scores - new_top[:, None]), 0.0)
        rescale = tl.exp2(top - new_top)
        z = tl.dot(weights.to(values.dtype), values, z * rescale[:, None], input_precision="ieee")
        total = total * rescale + tl.sum(weights, 1)
        top = new_top
    z = z / tl.where(total > 0, total, 1.0)[:, None]  # a fully masked query gives zeros
    slot = (row * heads + head)[:, None] * D + dim[None, :]
    tl.store(out + slot, z.to(out.dtype.element_ty), mask=query_mask)


def beam_cross_attention(
    q: Tensor, k: Tensor, v: Tensor, source_mask: Tensor | None, scale: float
) -> Tensor:
    """softmax(q kᵀ · scale) v, for queries of rows × width.

    The beams of a source are consecutive rows. Keys and values are source × head × key × d;
    `source_mask` is 0 where a key is padding.
    """
    rows = len(q)
    sources, kv_heads, n_keys, d = k.shape
    heads = q.shape[1] // d
    beams = rows // sources
    out = torch.empty_like(q)
    _beam_cross_attention_kernel[(sources, heads)](
        q, k, v, q if source_mask is None else source_mask.contiguous(), out, scale * LOG2E,
        q.stride(0), *k.stride()[:3], *v.stride()[:3], heads, n_keys,
        GROUP=heads // kv_heads, BEAMS=beams, QUERIES=max(16, triton.next_power_of_2(beams)),
        WIDTH=max(16, triton.next_power_of_2(d)), D=d,
        KEYS=min(64, max(16, triton.next_power_of_2(n_keys))), HAS_MASK=source_mask is not None,
        num_warps=4,
    )  # fmt: skip
    return out


# --- queries, keys and values of one token per row
@triton.jit
def _qkv_rope_cache_kernel(
    qkv, qkv_row, cos, sin, rotation_row, q_gain, k_gain, eps, queries, keys, values, k_row,
    k_head, k_key, write_positions, heads, kv_heads, first, ROTATE: tl.constexpr,
    NORM: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """HEADS heads of a row: norm and rotate queries and keys, cache keys and values."""
    row = tl.program_id(0).to(tl.int64)
    head = (first + tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dim = tl.arange(0, WIDTH)[None, :]
    is_query = head < heads
    is_key = (head >= heads) & (head < heads + kv_heads)
    mask = (dim < D) & (head < heads + 2 * kv_heads)
    qkv += row * qkv_row + head * D
    x = tl.load(qkv + dim, mask=mask, other=0.0).to(tl.float32)
    if NORM or ROTATE:
        paired_dim = tl.where(dim < HALF, dim + HALF, tl.where(dim < 2 * HALF, dim - HALF, dim))
        new = x
        paired = tl.load(qkv + paired_dim, mask=mask, other=0.0).to(tl.float32)
        if NORM:
            scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
            gain = tl.where(is_query, q_gain + dim, k_gain + dim)
            paired_gain = tl.where(is_query, q_gain + paired_dim, k_gain + paired_dim)
            new *= scale * tl.load(gain, mask=mask, other=0.0).to(tl.float32)
            paired *= scale * tl.load(paired_gain, mask=mask, other=0.0).to(tl.float32)
        if ROTATE:
            angle = tl.where(dim < HALF, dim, dim - HALF)
            is_rotated = dim < 2 * HALF
            c = tl.load(cos + row * rotation_row + angle, mask=is_rotated, other=1.0)
            s = tl.load(sin + row * rotation_row + angle, mask=is_rotated, other=0.0)
            new = new * c + tl.where(dim < HALF, -paired, paired) * s
        x = tl.where(is_query | is_key, new, x)
        out = queries + (row * heads + head) * D + dim
        tl.store(out, x.to(queries.dtype.element_ty), mask=mask & is_query)
    slot = row * k_row + tl.load(write_positions + row) * k_key + dim
    cached = x.to(keys.dtype.element_ty)
    is_value = head >= heads + kv_heads
    tl.store(keys + slot + (head - heads) * k_head, cached, mask=mask & is_key)
    tl.store(values + slot + (head - heads - kv_heads) * k_head, cached, mask=mask & is_value)


def qkv_rope_cache(
    qkv: Tensor,
    heads: int,
    keys: Tensor,
    values: Tensor,
    write_positions: Tensor,
    rotation: tuple[Tensor, Tensor] | None,
    norms: Sequence[nn.RMSNorm],
) -> Tensor:
    """Norm and rotate the queries of one token per row; write its keys and values to the cache.

    `rotation` is the cosine and sine of rotary positions, `norms` those of queries and keys, if
    there are any.
    """
    rows = len(qkv)
    kv_heads = keys.shape[1]
    d = keys.shape[-1]
    is_plain = rotation is None and not norms
    queries = qkv if is_plain else torch.empty(rows, heads * d, dtype=qkv.dtype, device=qkv.device)
    cos, sin = rotation or (qkv, qkv)
    gains: list[Tensor] = [norm.weight for norm in norms] or [qkv, qkv]
    first = heads if is_plain else 0
    _qkv_rope_cache_kernel[(rows, triton.cdiv(heads + 2 * kv_heads - first, HEADS_PER_PROGRAM))](
        qkv, qkv.stride(0), cos, sin, cos.stride(0), *gains, norms[0].eps if norms else 0.0,
        queries, keys, values, *keys.stride()[:3], write_positions, heads, kv_heads, first,
        ROTATE=rotation is not None, NORM=bool(norms), HALF=cos.shape[-1] if rotation else d // 2,
        D=d, WIDTH=triton.next_power_of_2(d), HEADS=HEADS_PER_PROGRAM, num_warps=2,
    )  # fmt: skip
    if is_plain:
        return queries[:, : heads * d].unflatten(1, (heads, 1, d))
    return queries.view(rows, heads, 1, d)


# --- linear layers of few rows
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
def _normalize(
    x, mean, scale, gain, bias, column, mask, NORM: tl.constexpr, NORM_BIAS: tl.constexpr
):
    if NORM > 0:
        x = (x - mean) * scale * tl.load(gain + column, mask=mask, other=0.0).to(tl.float32)
        if NORM_BIAS:
            x += tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    return x


@triton.jit
def _linear_one_row_kernel(
    x, gain, norm_bias, eps, w, v, bias, v_bias, residual, out, n, K: tl.constexpr,
    K_POWER: tl.constexpr, NORM: tl.constexpr, NORM_BIAS: tl.constexpr, BIAS: tl.constexpr,
    GATED: tl.constexpr, ACT: tl.constexpr, RESIDUAL: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """BN columns of act(norm(x) Wᵀ + b) [⊙ (norm(x) Vᵀ + c)] [+ residual]."""
    mean = 0.0
    scale = 1.0
    if NORM > 0:
        k = tl.arange(0, K_POWER)
        row = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        if NORM == 1:
            mean = tl.sum(row, 0) / K
        row = tl.where(k < K, row - mean, 0.0)
        scale = tl.rsqrt(tl.sum(row * row, 0) / K + eps)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    column_mask = column < n
    w_sums = tl.zeros([BN, BK], tl.float32)
    v_sums = tl.zeros([BN, BK], tl.float32)
    for start in tl.static_range(0, K, BK):
        k = start + tl.arange(0, BK)
        k_mask = k < K
        block = tl.load(x + k, mask=k_mask, other=0.0).to(tl.float32)
        block = _normalize(block, mean, scale, gain, norm_bias, k, k_mask, NORM, NORM_BIAS)
        block = block.to(w.dtype.element_ty).to(tl.float32)[None, :]
        index = column[:, None].to(tl.int64) * K + k[None, :]
        mask = column_mask[:, None] & k_mask[None, :]
        w_sums += block * tl.load(w + index, mask=mask, other=0.0).to(tl.float32)
        if GATED:
            v_sums += block * tl.load(v + index, mask=mask, other=0.0).to(tl.float32)
    y = tl.sum(w_sums, 1)
    if BIAS:
        y += tl.load(bias + column, mask=column_mask, other=0.0).to(tl.float32)
    y = _activate(y, ACT)
    if GATED:
        multiplier = tl.sum(v_sums, 1)
        if BIAS:
            multiplier += tl.load(v_bias + column, mask=column_mask, other=0.0).to(tl.float32)
        y *= multiplier
    if RESIDUAL:
        y += tl.load(residual + column, mask=column_mask, other=0.0).to(tl.float32)
    tl.store(out + column, y.to(out.dtype.element_ty), mask=column_mask)


@triton.jit
def _linear_rows_kernel(
    x, x_row, w, v, bias, v_bias, residual, out, out_row, rows, n, K: tl.constexpr,
    BIAS: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr,
    RESIDUAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """BN columns of act(x Wᵀ + b) [⊙ (x Vᵀ + c)] [+ residual] for BM rows, on tensor cores."""
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    row_mask = row < rows
    x += row[:, None].to(tl.int64) * x_row
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    column_mask = column < n
    w_sums = tl.zeros([BM, BN], tl.float32)
    v_sums = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(0, K, BK, num_stages=STAGES):
        k = start + tl.arange(0, BK)
        block = tl.load(x + k[None, :], mask=row_mask[:, None] & (k < K)[None, :], other=0.0)
        index = column[None, :].to(tl.int64) * K + k[:, None]
        mask = column_mask[None, :] & (k < K)[:, None]
        weight = tl.load(w + index, mask=mask, other=0.0)
        w_sums = tl.dot(block, weight, w_sums, input_precision="ieee")
        if GATED:
            weight = tl.load(v + index, mask=mask, other=0.0)
            v_sums = tl.dot(block, weight, v_sums, input_precision="ieee")
    if BIAS:
        w_sums += tl.load(bias + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    y = _activate(w_sums, ACT)
    if GATED:
        if BIAS:
            v_sums += tl.load(v_bias + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
        y *= v_sums
    out_mask = row_mask[:, None] & column_mask[None, :]
    index = row[:, None].to(tl.int64) * out_row + column[None, :]
    if RESIDUAL:
        y += tl.load(residual + index, mask=out_mask, other=0.0).to(tl.float32)
    tl.store(out + index, y.to(out.dtype.element_ty), mask=out_mask)


@triton.jit
def _epilogue_kernel(
    y, multiplier, residual, count,
    GATED: tl.constexpr, ACT: tl.constexpr, RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """In place: act(y) [⊙ multiplier] [+ residual]."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    x = _activate(tl.load(y + index, mask=mask, other=0.0).to(tl.float32), ACT)
    if GATED:
        x *= tl.load(multiplier + index, mask=mask, other=0.0).to(tl.float32)
    if RESIDUAL:
        x += tl.load(residual + index, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + index, x.to(y.dtype.element_ty), mask=mask)


def fused_linear(
    x: Tensor,
    layer: LinearWeights,
    multiplier: LinearWeights | None = None,
    norm: nn.Module | None = None,
    act: str = "",
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """act(norm(x) Wᵀ + b) [⊙ (norm(x) Vᵀ + c)] [+ residual], for x of rows × width.

    `layer` is W and b (the gate of a gated feed-forward layer), `multiplier` V and c (its `up`).
    """
    rows, k = x.shape
    weight, bias = layer
    other_weight, other_bias = multiplier or layer
    n = len(weight)
    # The kernels ignore the pointers whose flag is off.
    flags = {
        "GATED": multiplier is not None,
        "ACT": ACTIVATION_IDS[act],
        "RESIDUAL": residual is not None,
    }
    if norm is not None and rows > 1:
        x = fused_norm(x, norm)
    if rows > MAX_FUSED_ROWS:
        y = nn.functional.linear(x, *layer)
        if any(flags.values()):
            other = y if multiplier is None else nn.functional.linear(x, *multiplier)
            _epilogue_kernel[(triton.cdiv(y.numel(), 1024),)](
                y, other, y if residual is None else residual, y.numel(), **flags, BLOCK=1024,
                num_warps=4,
            )  # fmt: skip
        return y.to(dtype or x.dtype)
    out = torch.empty(rows, n, dtype=dtype or x.dtype, device=x.device)
    flags["BIAS"] = bias is not None
    weights = (
        weight,
        other_weight,
        weight if bias is None else bias,
        weight if other_bias is None else other_bias,
    )
    if rows == 1:
        gain, norm_bias, eps, norm_flags = _norm_arguments(norm, weight)
        bn, bk, warps = (2, 1024, 4) if n <= 1024 else (8, 1024, 4) if n <= 4096 else (16, 256, 2)
        _linear_one_row_kernel[(triton.cdiv(n, bn),)](
            x, gain, norm_bias, eps, *weights, x if residual is None else residual, out, n,
            K=k, K_POWER=triton.next_power_of_2(k), **norm_flags, **flags, BN=bn, BK=bk,
            num_warps=warps,
        )  # fmt: skip
        return out
    bm = min(64, max(16, triton.next_power_of_2(rows)))
    bn, bk, stages = (16, 128, 5) if n <= 1024 else (32, 128, 5) if n <= 4096 else (128, 64, 3)
    if x.dtype == torch.float32:  # larger blocks would not fit in shared memory
        bn, bk, stages = 16, 32, 3
    _linear_rows_kernel[(triton.cdiv(n, bn), triton.cdiv(rows, bm))](
        x, x.stride(0), *weights, x if residual is None else residual, out, out.stride(0), rows, n,
        K=k, **flags, BM=bm, BN=bn, BK=bk, STAGES=stages, num_warps=4,
    )  # fmt: skip
    return out


# --- norms
@triton.jit
def _norm_rows_kernel(
    x, x_row, residual, gain, bias, eps, out, K: tl.constexpr, K_POWER: tl.constexpr,
    NORM: tl.constexpr, NORM_BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """norm(x [+ residual]) of one row."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, K_POWER)
    mask = k < K
    values = tl.load(x + row * x_row + k, mask=mask, other=0.0).to(tl.float32)
    if RESIDUAL:
        values += tl.load(residual + row * K + k, mask=mask, other=0.0).to(tl.float32)
    mean = 0.0
    if NORM == 1:
        mean = tl.sum(values, 0) / K
    centered = tl.where(mask, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, 0) / K + eps)
    values = _normalize(values, mean, scale, gain, bias, k, mask, NORM, NORM_BIAS)
    tl.store(out + row * K + k, values.to(out.dtype.element_ty), mask=mask)


def fused_norm(x: Tensor, norm: nn.Module, residual: Tensor | None = None) -> Tensor:
    """norm(x [+ residual]), for x of rows × width."""
    rows, k = x.shape
    gain, bias, eps, norm_flags = _norm_arguments(norm, x)
    out = torch.empty(rows, k, dtype=x.dtype, device=x.device)
    _norm_rows_kernel[(rows,)](
        x, x.stride(0), x if residual is None else residual, gain, bias, eps, out,
        K=k, K_POWER=triton.next_power_of_2(k), **norm_flags, RESIDUAL=residual is not None,
        num_warps=4,
    )  # fmt: skip
    return out


def _norm_arguments(
    norm: nn.Module | None, unused: Tensor
) -> tuple[Tensor, Tensor, float, dict[str, int]]:
    """Gain, bias, ε and kernel flags of a norm; `unused` is passed where no tensor is read."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return unused, unused, 0.0, {"NORM": 0, "NORM_BIAS": False}
    bias = getattr(norm, "bias", None)
    flags = {"NORM": 2 if isinstance(norm, nn.RMSNorm) else 1, "NORM_BIAS": bias is not None}
    return norm.weight, norm.weight if bias is None else bias, norm.eps or 0.0, flags
