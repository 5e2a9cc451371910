"""Log-sum-exp and block maxima of logits, for beam search on a GPU. Needs triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOGSUMEXP_LANES = 2048


@triton.jit
def _logsumexp_kernel(logits, stride, columns, out, LANES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, total = tl.full([LANES], -1e30, tl.float32), tl.zeros([LANES], tl.float32)
    for start in range(0, columns, LANES):
        column = start + tl.arange(0, LANES)
        x = tl.load(logits + row * stride + column, mask=column < columns, other=-float("inf")).to(
            tl.float32
        )
        new = tl.maximum(top, x)
        total = total * tl.exp(top - new) + tl.exp(x - new)
        top = new
    highest = tl.max(top, 0)
    tl.store(out + row, highest + tl.log(tl.sum(total * tl.exp(top - highest), 0)))


def logsumexp_rows(logits: Tensor) -> Tensor:
    """log Σ exp of each row, rows × 1, in fp32."""
    out = torch.empty(len(logits), 1, device=logits.device)
    _logsumexp_kernel[(len(logits),)](
        logits, logits.stride(0), logits.shape[1], out, LANES=LOGSUMEXP_LANES, num_warps=8
    )
    return out


@triton.jit
def _block_max_kernel(
    logits, stride, n_blocks, out, BLOCK: tl.constexpr, BLOCKS_PER_PROGRAM: tl.constexpr
):
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCKS_PER_PROGRAM
    block = first + tl.arange(0, BLOCKS_PER_PROGRAM)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    in_range = (block < n_blocks)[:, None]
    x = tl.load(logits + row * stride + column, mask=in_range, other=-float("inf")).to(tl.float32)
    tl.store(out + row * n_blocks + block, tl.max(x, 1), mask=block < n_blocks)


def block_max(logits: Tensor, n_blocks: int, block: int) -> Tensor:
    """The maximum of each block of `block` columns, rows × blocks."""
    out = torch.empty(len(logits), n_blocks, device=logits.device)
    _block_max_kernel[(len(logits), triton.cdiv(n_blocks, 128))](
        logits, logits.stride(0), n_blocks, out, BLOCK=block, BLOCKS_PER_PROGRAM=128, num_warps=8
    )
    return out
