"""The products of one token a row, with all that stands around them, each one kernel. Needs triton.

With few rows a product costs the reading of its matrix, and every kernel its beginning; so norms, biases, activations
and the residual stream are done on the way.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

Layer = tuple[Tensor, Tensor | None]  # weight, bias
MANY = 256  # rows from which torch's own products are faster
ACTS = {"": 0, "relu": 1, "relu2": 2, "gelu": 3, "gelu-tanh": 4, "silu": 5}


@triton.jit
def _activated(x, ACT: tl.constexpr):
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
def _normed(x, middle, scale, gain, shift, at, inside, NORM: tl.constexpr, SHIFT: tl.constexpr):
    if NORM > 0:
        x = (x - middle) * scale * tl.load(gain + at, mask=inside, other=0.0).to(tl.float32)
        if SHIFT:
            x += tl.load(shift + at, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _one_row(
    x, gain, shift, eps, w, v, bias, bias_v, residual, out, n, K: tl.constexpr, ALL: tl.constexpr,
    NORM: tl.constexpr, SHIFT: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr,
    RESIDUAL: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Some columns of act(norm(x) Wᵀ + b) [⊙ (norm(x) Vᵀ + c)] [+ residual]."""
    middle, scale = 0.0, 1.0
    if NORM > 0:
        at = tl.arange(0, ALL)
        whole = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        if NORM == 1:
            middle = tl.sum(whole, 0) / K
        whole = tl.where(at < K, whole - middle, 0.0)
        scale = tl.rsqrt(tl.sum(whole * whole, 0) / K + eps)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    here = column < n
    sums, others = tl.zeros([BN, BK], tl.float32), tl.zeros([BN, BK], tl.float32)
    for start in tl.static_range(0, K, BK):
        at = start + tl.arange(0, BK)
        inside = at < K
        part = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        part = _normed(part, middle, scale, gain, shift, at, inside, NORM, SHIFT)
        part = part.to(w.dtype.element_ty).to(tl.float32)[None, :]
        grid = column[:, None].to(tl.int64) * K + at[None, :]
        both = here[:, None] & inside[None, :]
        sums += part * tl.load(w + grid, mask=both, other=0.0).to(tl.float32)
        if GATED:
            others += part * tl.load(v + grid, mask=both, other=0.0).to(tl.float32)
    y = tl.sum(sums, 1)
    if BIAS:
        y += tl.load(bias + column, mask=here, other=0.0).to(tl.float32)
    y = _activated(y, ACT)
    if GATED:
        gate = tl.sum(others, 1)
        if BIAS:
            gate += tl.load(bias_v + column, mask=here, other=0.0).to(tl.float32)
        y *= gate
    if RESIDUAL:
        y += tl.load(residual + column, mask=here, other=0.0).to(tl.float32)
    tl.store(out + column, y.to(out.dtype.element_ty), mask=here)


@triton.jit
def _norm_rows(
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
    whole = _normed(whole, middle, scale, gain, shift, at, inside, NORM, SHIFT)
    tl.store(out + row * K + at, whole.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _some_rows(
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
    sums, others = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    for start in tl.range(0, K, BK, num_stages=STAGES):
        at = start + tl.arange(0, BK)
        part = tl.load(x + at[None, :], mask=real[:, None] & (at < K)[None, :], other=0.0)
        grid = column[None, :].to(tl.int64) * K + at[:, None]
        both = here[None, :] & (at < K)[:, None]
        sums = tl.dot(part, tl.load(w + grid, mask=both, other=0.0), sums, input_precision="ieee")
        if GATED:
            others = tl.dot(part, tl.load(v + grid, mask=both, other=0.0), others, input_precision="ieee")
    if BIAS:
        sums += tl.load(bias + column, mask=here, other=0.0).to(tl.float32)[None, :]
    sums = _activated(sums, ACT)
    if GATED:
        if BIAS:
            others += tl.load(bias_v + column, mask=here, other=0.0).to(tl.float32)[None, :]
        sums *= others
    both = real[:, None] & here[None, :]
    place = row[:, None].to(tl.int64) * out_row + column[None, :]
    if RESIDUAL:
        sums += tl.load(residual + place, mask=both, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=both)


def product(
    x: Tensor,
    layer: Layer,
    gate: Layer | None = None,
    norm: nn.Module | None = None,
    act: str = "",
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """act(norm(x) Wᵀ + b) [⊙ the same of the gate, without act] [+ residual], for rows × width."""
    (weight, bias), (other, other_bias) = layer, gate or layer
    (rows, k), n = x.shape, len(weight)
    if rows > MANY:
        return _many_rows(x if norm is None else normed(x, norm), layer, gate, act, residual).to(dtype or x.dtype)
    out = torch.empty(rows, n, dtype=dtype or x.dtype, device=x.device)
    gain, shift, eps, around = _around(norm, weight)
    forms = {"BIAS": bias is not None, "GATED": gate is not None, "ACT": ACTS[act], "RESIDUAL": residual is not None}
    inner = (weight, other, weight if bias is None else bias, weight if other_bias is None else other_bias)
    if rows == 1:
        bn, bk, warps = (2, 1024, 4) if n <= 1024 else (8, 1024, 4) if n <= 4096 else (16, 256, 2)
        _one_row[(triton.cdiv(n, bn),)](
            x, gain, shift, eps, *inner, x if residual is None else residual, out, n,
            K=k, ALL=triton.next_power_of_2(k), **around, **forms, BN=bn, BK=bk, num_warps=warps,
        )  # fmt: skip
        return out
    if norm is not None:
        x = normed(x, norm)
    bm = min(64, max(16, triton.next_power_of_2(rows)))
    bn, bk, stages = (16, 128, 5) if n <= 1024 else (32, 128, 5) if n <= 4096 else (128, 64, 3)
    if x.dtype == torch.float32:
        bn, bk, stages = 16, 32, 3  # twice as wide, they would not fit
    _some_rows[(triton.cdiv(n, bn), triton.cdiv(rows, bm))](
        x, x.stride(0), *inner, x if residual is None else residual, out, out.stride(0), rows, n,
        K=k, **forms, BM=bm, BN=bn, BK=bk, STAGES=stages, num_warps=4,
    )  # fmt: skip
    return out


def _around(norm: nn.Module | None, idle: Tensor) -> tuple[Tensor, Tensor, float, dict[str, int]]:
    """Gain, shift and ε of a norm, and what kind it is."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return idle, idle, 0.0, {"NORM": 0, "SHIFT": False}
    shift = getattr(norm, "bias", None)
    kind = {"NORM": 2 if isinstance(norm, nn.RMSNorm) else 1, "SHIFT": shift is not None}
    return norm.weight, norm.weight if shift is None else shift, norm.eps or 0.0, kind


def normed(x: Tensor, norm: nn.Module, more: Tensor | None = None) -> Tensor:
    """norm(x [+ more]), for rows × width."""
    (rows, k), (gain, shift, eps, around) = x.shape, _around(norm, x)
    made = torch.empty(rows, k, dtype=x.dtype, device=x.device)
    _norm_rows[(rows,)](
        x, x.stride(0), x if more is None else more, gain, shift, eps, made, K=k, ALL=triton.next_power_of_2(k),
        **around, MORE=more is not None, num_warps=4,
    )  # fmt: skip
    return made


@triton.jit
def _finish(
    y, gate, residual, count, GATED: tl.constexpr, ACT: tl.constexpr, RESIDUAL: tl.constexpr, SOME: tl.constexpr
):
    """What follows a product, in its place: act(y) [⊙ gate] [+ residual]."""
    at = tl.program_id(0).to(tl.int64) * SOME + tl.arange(0, SOME)
    here = at < count
    x = _activated(tl.load(y + at, mask=here, other=0.0).to(tl.float32), ACT)
    if GATED:
        x *= tl.load(gate + at, mask=here, other=0.0).to(tl.float32)
    if RESIDUAL:
        x += tl.load(residual + at, mask=here, other=0.0).to(tl.float32)
    tl.store(y + at, x.to(y.dtype.element_ty), mask=here)


def _many_rows(x: Tensor, layer: Layer, gate: Layer | None, act: str, residual: Tensor | None) -> Tensor:
    """The same by torch's products, which are the fastest from some hundred rows on."""
    y = nn.functional.linear(x, *layer)
    other = y if gate is None else nn.functional.linear(x, *gate)
    forms = {"GATED": gate is not None, "ACT": ACTS[act], "RESIDUAL": residual is not None}
    if any(forms.values()):
        _finish[(triton.cdiv(y.numel(), 1024),)](
            y, other, y if residual is None else residual, y.numel(), **forms, SOME=1024, num_warps=4
        )
    return y
