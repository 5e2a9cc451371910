"""h Eᵀ and −log p on a GPU, in one reading: a kernel that leaves the gradient of the logits in their place.

The compiler's own kernels read the logits three times and write them twice; on a vocabulary of 50,000 that is a tenth
of a training step. Needs triton, which torch brings along where it can use a GPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

# ---- loss: h Eᵀ and −log p on a GPU, in one reading: a kernel that leaves the gradient of the logits in their place.

# found by trying: 3.0 TB/s read and written on an H200
LOSS_LANES = 1024
VALUES_PER_LANE = 8
LOSS_WARPS = 16
VOCAB_MULTIPLE = 64  # rows of logits are multiples of this


@triton.jit
def _online_logsumexp(x, top, total):
    """Highest value and sum of powers so far, each lane for itself; numbers are in powers of two."""
    new = tl.maximum(top, tl.max(x, 1))
    return new, total * tl.exp2(top - new) + tl.sum(tl.exp2(x - new[:, None]), 1)


@triton.jit
def _cross_entropy_kernel(
    logits,
    targets,
    losses,
    stride,
    columns,
    smoothing,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    SMOOTH: tl.constexpr,
):
    BLOCK: tl.constexpr = LANES * EACH
    BITS: tl.constexpr = 1.4426950408889634  # log₂ e
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    lane = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    whole = columns // BLOCK * BLOCK
    top = tl.full([LANES], -1e30, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    plain = tl.zeros([LANES], tl.float32)
    for start in range(0, whole, BLOCK):
        x = tl.load(logits + start + lane).to(tl.float32)
        if SMOOTH:
            plain += tl.sum(x, 1)
        top, total = _online_logsumexp(x * BITS, top, total)
    at = whole + lane
    x = tl.load(logits + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    if SMOOTH:
        plain += tl.sum(tl.where(at < columns, x, 0.0), 1)
    top, total = _online_logsumexp(x * BITS, top, total)
    highest = tl.max(top, 0)
    log_total = highest + tl.log2(tl.sum(total * tl.exp2(top - highest), 0))
    known = tl.load(logits + tl.maximum(target, 0)).to(tl.float32)
    share = smoothing / columns
    loss = log_total / BITS - (1 - smoothing) * known
    if SMOOTH:
        loss -= share * tl.sum(plain, 0)
    taught = tl.where(target >= 0, 1.0, 0.0)
    tl.store(losses + row, loss * taught)
    tl.debug_barrier()  # all have read `known` before anyone writes
    for start in range(0, whole, BLOCK):
        x = tl.load(logits + start + lane).to(tl.float32)
        p = (
            tl.exp2(x * BITS - log_total)
            - share
            - tl.where(start + lane == target, 1 - smoothing, 0.0)
        )
        tl.store(logits + start + lane, (p * taught).to(logits.dtype.element_ty))
    x = tl.load(logits + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    p = (
        tl.exp2(x * BITS - log_total)
        - tl.where(at < columns, share, 0.0)
        - tl.where(at == target, 1 - smoothing, 0.0)
    )
    tl.store(logits + at, (p * taught).to(logits.dtype.element_ty), mask=at < stride)


@torch.library.triton_op("clearhead::lessons", mutates_args=("logits",))
def cross_entropy_rows(logits: Tensor, targets: Tensor, columns: int, smoothing: float) -> Tensor:
    """The loss of each row; what were logits is then their gradient, and zero beyond `columns`."""
    losses = torch.empty(len(logits), device=logits.device)
    torch.library.wrap_triton(_cross_entropy_kernel)[(len(logits),)](
        logits,
        targets,
        losses,
        logits.stride(0),
        columns,
        smoothing,
        LANES=LOSS_LANES,
        EACH=VALUES_PER_LANE,
        SMOOTH=smoothing > 0,
        num_warps=LOSS_WARPS,
    )
    return losses


class _FusedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
    ) -> Tensor:
        room = -len(weight) % VOCAB_MULTIPLE
        wide = F.pad(weight, (0, 0, 0, room))
        logits = F.linear(hidden, wide, None if bias is None else F.pad(bias, (0, room)))
        losses = cross_entropy_rows(logits, targets, len(weight), smoothing)
        ctx.save_for_backward(hidden, wide, logits)
        ctx.rows = len(weight)
        ctx.biased = bias is not None
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, wide, gradient = ctx.saved_tensors
        bias = (
            gradient.sum(dim=0)[: ctx.rows] * grad if ctx.biased else None
        )  # by a number in fp32, whatever they are
        return (gradient @ wide) * grad, (gradient.mT @ hidden)[: ctx.rows] * grad, bias, None, None


def fused_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> Tensor:
    """The summed loss of rows of hidden states against one target each; negative targets teach nothing."""
    loss: Tensor = _FusedCrossEntropy.apply(hidden, weight, bias, targets, smoothing)
    return loss


def kernel_compiles(device: torch.device) -> bool:
    """Whether kernels can be made here: triton needs a compiler for C, and a GPU that it knows."""
    try:
        hidden = torch.zeros(1, 16, device=device)
        weight = torch.zeros(4, 16, device=device)
        fused_cross_entropy(
            hidden, weight, None, torch.zeros(1, dtype=torch.long, device=device), 0.0
        )
    except Exception:  # whatever it is, there is another way
        return False
    return True


# ---- vocabulary: What a beam search asks of rows of logits, each in one reading of them, on a GPU. Needs triton.

LOGSUMEXP_LANES = 2048


@triton.jit
def _logsumexp_kernel(logits, stride, columns, totals, LANES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = tl.full([LANES], -1e30, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for start in range(0, columns, LANES):
        at = start + tl.arange(0, LANES)
        x = tl.load(logits + row * stride + at, mask=at < columns, other=-float("inf")).to(
            tl.float32
        )
        new = tl.maximum(top, x)
        total = total * tl.exp(top - new) + tl.exp(x - new)
        top = new
    highest = tl.max(top, 0)
    tl.store(totals + row, highest + tl.log(tl.sum(total * tl.exp(top - highest), 0)))


def logsumexp_rows(logits: Tensor) -> Tensor:
    """log Σ exp of each row, rows × 1, in fp32."""
    totals = torch.empty(len(logits), 1, device=logits.device)
    _logsumexp_kernel[(len(logits),)](
        logits, logits.stride(0), logits.shape[1], totals, LANES=LOGSUMEXP_LANES, num_warps=8
    )
    return totals


@triton.jit
def _block_max_kernel(logits, stride, blocks, tops, BLOCK: tl.constexpr, MANY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * MANY
    block = first + tl.arange(0, MANY)
    at = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits + row * stride + at, mask=(block < blocks)[:, None], other=-float("inf")).to(
        tl.float32
    )
    tl.store(tops + row * blocks + block, tl.max(x, 1), mask=block < blocks)


def block_max(logits: Tensor, blocks: int, block: int) -> Tensor:
    """The largest of each block of columns, rows × blocks."""
    found = torch.empty(len(logits), blocks, device=logits.device)
    _block_max_kernel[(len(logits), triton.cdiv(blocks, 128))](
        logits, logits.stride(0), blocks, found, BLOCK=block, MANY=128, num_warps=8
    )
    return found
