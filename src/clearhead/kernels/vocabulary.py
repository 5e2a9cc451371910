"""What a beam search asks of rows of logits, each in one reading of them, on a GPU. Needs triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 2048


@triton.jit
def _log_total(logits, stride, columns, totals, LANES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, total = tl.full([LANES], -1e30, tl.float32), tl.zeros([LANES], tl.float32)
    for start in range(0, columns, LANES):
        at = start + tl.arange(0, LANES)
        x = tl.load(logits + row * stride + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, x)
        total = total * tl.exp(top - new) + tl.exp(x - new)
        top = new
    highest = tl.max(top, 0)
    tl.store(totals + row, highest + tl.log(tl.sum(total * tl.exp(top - highest), 0)))


def log_total(logits: Tensor) -> Tensor:
    """log Σ exp of each row, rows × 1, in fp32."""
    totals = torch.empty(len(logits), 1, device=logits.device)
    _log_total[(len(logits),)](logits, logits.stride(0), logits.shape[1], totals, LANES=LANES, num_warps=8)
    return totals


@triton.jit
def _tops(logits, stride, blocks, tops, BLOCK: tl.constexpr, MANY: tl.constexpr):
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * MANY
    block = first + tl.arange(0, MANY)
    at = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits + row * stride + at, mask=(block < blocks)[:, None], other=-float("inf")).to(tl.float32)
    tl.store(tops + row * blocks + block, tl.max(x, 1), mask=block < blocks)


def tops(logits: Tensor, blocks: int, block: int) -> Tensor:
    """The largest of each block of columns, rows × blocks."""
    found = torch.empty(len(logits), blocks, device=logits.device)
    _tops[(len(logits), triton.cdiv(blocks, 128))](
        logits, logits.stride(0), blocks, found, BLOCK=block, MANY=128, num_warps=8
    )
    return found
