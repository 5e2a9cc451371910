"""Cross-entropy loss on a GPU in one read of the logits. Needs triton.

The kernel leaves the gradient of the logits in their place. The compiler's own kernels read the
logits three times and write them twice, which for a vocabulary of 50,000 costs a tenth of a
training step.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

# Tuned on an H200: 3.0 TB/s read and written.
LOSS_LANES = 1024
VALUES_PER_LANE = 8
LOSS_WARPS = 16
VOCAB_MULTIPLE = 64  # rows of logits are padded to a multiple of this


@triton.jit
def _online_logsumexp(x, top, total):
    """Running maximum and sum of powers, per lane; numbers are in powers of two."""
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
    VALUES: tl.constexpr,
    SMOOTH: tl.constexpr,
):
    """One program per row: its loss, and its gradient in the place of its logits."""
    BLOCK: tl.constexpr = LANES * VALUES
    LOG2E: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    lane = tl.arange(0, LANES)[:, None] * VALUES + tl.arange(0, VALUES)[None, :]
    full_columns = columns // BLOCK * BLOCK
    top, total = tl.full([LANES], -1e30, tl.float32), tl.zeros([LANES], tl.float32)
    logit_sum = tl.zeros([LANES], tl.float32)
    for start in range(0, full_columns, BLOCK):
        x = tl.load(logits + start + lane).to(tl.float32)
        if SMOOTH:
            logit_sum += tl.sum(x, 1)
        top, total = _online_logsumexp(x * LOG2E, top, total)
    tail = full_columns + lane
    x = tl.load(logits + tail, mask=tail < columns, other=-float("inf")).to(tl.float32)
    if SMOOTH:
        logit_sum += tl.sum(tl.where(tail < columns, x, 0.0), 1)
    top, total = _online_logsumexp(x * LOG2E, top, total)
    highest = tl.max(top, 0)
    log_total = highest + tl.log2(tl.sum(total * tl.exp2(top - highest), 0))
    target_logit = tl.load(logits + tl.maximum(target, 0)).to(tl.float32)
    uniform = smoothing / columns
    loss = log_total / LOG2E - (1 - smoothing) * target_logit
    if SMOOTH:
        loss -= uniform * tl.sum(logit_sum, 0)
    weight = tl.where(target >= 0, 1.0, 0.0)
    tl.store(losses + row, loss * weight)
    tl.debug_barrier()  # all lanes have read target_logit before any overwrites it
    for start in range(0, full_columns, BLOCK):
        x = tl.load(logits + start + lane).to(tl.float32)
        p = (
            tl.exp2(x * LOG2E - log_total)
            - uniform
            - tl.where(start + lane == target, 1 - smoothing, 0.0)
        )
        tl.store(logits + start + lane, (p * weight).to(logits.dtype.element_ty))
    x = tl.load(logits + tail, mask=tail < columns, other=-float("inf")).to(tl.float32)
    p = tl.exp2(x * LOG2E - log_total)
    p = p - tl.where(tail < columns, uniform, 0.0) - tl.where(tail == target, 1 - smoothing, 0.0)
    tl.store(logits + tail, (p * weight).to(logits.dtype.element_ty), mask=tail < stride)


@torch.library.triton_op("clearhead::cross_entropy_rows", mutates_args=("logits",))
def cross_entropy_rows(
    logits: Tensor, targets: Tensor, columns: int, label_smoothing: float
) -> Tensor:
    """The loss of each row. Replaces the logits by their gradient, zero beyond `columns`."""
    losses = torch.empty(len(logits), device=logits.device)
    torch.library.wrap_triton(_cross_entropy_kernel)[(len(logits),)](
        logits,
        targets,
        losses,
        logits.stride(0),
        columns,
        label_smoothing,
        LANES=LOSS_LANES,
        VALUES=VALUES_PER_LANE,
        SMOOTH=label_smoothing > 0,
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
        label_smoothing: float,
    ) -> Tensor:
        padding = -len(weight) % VOCAB_MULTIPLE
        padded_weight = F.pad(weight, (0, 0, 0, padding))
        padded_bias = None if bias is None else F.pad(bias, (0, padding))
        logits = F.linear(hidden, padded_weight, padded_bias)
        losses = cross_entropy_rows(logits, targets, len(weight), label_smoothing)
        ctx.save_for_backward(hidden, padded_weight, logits)
        ctx.vocab_size = len(weight)
        ctx.has_bias = bias is not None
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, padded_weight, logits_grad = ctx.saved_tensors
        hidden_grad = (logits_grad @ padded_weight) * grad  # grad is a scalar in fp32
        weight_grad = (logits_grad.mT @ hidden)[: ctx.vocab_size] * grad
        bias_grad = logits_grad.sum(dim=0)[: ctx.vocab_size] * grad if ctx.has_bias else None
        return hidden_grad, weight_grad, bias_grad, None, None


def fused_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float
) -> Tensor:
    """The summed loss of rows of hidden states, one target each; negative targets are ignored."""
    if torch.is_autocast_enabled("cuda"):  # backward runs without autocast
        dtype = torch.get_autocast_dtype("cuda")
        hidden = hidden.to(dtype)
        weight = weight.to(dtype)
        bias = bias if bias is None else bias.to(dtype)
    loss: Tensor = _FusedCrossEntropy.apply(hidden, weight, bias, targets, label_smoothing)
    return loss
