"""Sample a token per row on a GPU, in one kernel. Needs triton.

What top-k or top-p keeps is all logits from a threshold on. The threshold is found by bisection
over the floats in their order: each step counts, or sums the probabilities of, the logits above the
middle, in one pass over the row. To save passes the search starts from the maxima of the lanes and
stops as soon as the right tokens lie above.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_LANES = 4096
MAX_EXCESS = 8  # tokens above top_k from which the threshold rises token by token


@triton.jit
def _hash(x):
    """The same integer hash as in generate.sampling."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _ordered_int(x):
    """Integers in the same order as the floats."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _load_row(x, start, vocab_size, LANES: tl.constexpr):
    column = start + tl.arange(0, LANES)
    return tl.load(x + column, mask=column < vocab_size, other=-float("inf"))


@triton.jit
def _count_at_least(x, vocab_size, threshold, LANES: tl.constexpr):
    count = tl.zeros([LANES], tl.int32)
    for start in range(0, vocab_size, LANES):
        count += (_ordered_int(_load_row(x, start, vocab_size, LANES)) >= threshold).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def _next_above(x, vocab_size, threshold, LANES: tl.constexpr):
    """The smallest value above the threshold, and how many values are above it."""
    count, above = tl.zeros([LANES], tl.int32), tl.full([LANES], 2147483647, tl.int32)
    for start in range(0, vocab_size, LANES):
        value = _ordered_int(_load_row(x, start, vocab_size, LANES))
        count += (value > threshold).to(tl.int32)
        above = tl.minimum(above, tl.where(value > threshold, value, 2147483647))
    return tl.min(above, 0), tl.sum(count, 0)


@triton.jit
def _mass_at_least(x, vocab_size, threshold, highest, temperature, LANES: tl.constexpr):
    """The sum of exponentials of the values from the threshold on, and how many they are."""
    mass, count = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.int32)
    for start in range(0, vocab_size, LANES):
        value = _load_row(x, start, vocab_size, LANES)
        is_kept = _ordered_int(value) >= threshold
        mass += tl.where(is_kept, tl.exp((value - highest) / temperature), 0.0)
        count += is_kept.to(tl.int32)
    return tl.sum(mass, 0), tl.sum(count, 0)


@triton.jit
def _midpoint(low, high):
    return ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)


@triton.jit
def _sample_kernel(
    processed, processed_row, logits, logits_row, vocab_size, columns, row_options, rng_keys, steps,
    tokens, logprobs, LANES: tl.constexpr, MAX_EXCESS: tl.constexpr,
):  # fmt: skip
    """One program per row: sample from processed logits, report the raw log-probability."""
    row = tl.program_id(0).to(tl.int64)
    processed += row * processed_row
    logits += row * logits_row
    temperature = tl.load(row_options + row * 4)
    top_k = tl.load(row_options + row * 4 + 1).to(tl.int32)
    top_p = tl.load(row_options + row * 4 + 2)
    min_p = tl.load(row_options + row * 4 + 3)
    lane_max = tl.full([LANES], -float("inf"), tl.float32)
    raw_max = tl.full([LANES], -1e30, tl.float32)
    raw_total = tl.zeros([LANES], tl.float32)
    for start in range(0, vocab_size, LANES):
        lane_max = tl.maximum(lane_max, _load_row(processed, start, vocab_size, LANES))
    for start in range(0, columns, LANES):
        raw = _load_row(logits, start, columns, LANES)
        new = tl.maximum(raw_max, raw)
        raw_total = raw_total * tl.exp(raw_max - new) + tl.exp(raw - new)
        raw_max = new
    highest, raw_highest = tl.max(lane_max, 0), tl.max(raw_max, 0)
    log_total = raw_highest + tl.log(tl.sum(raw_total * tl.exp(raw_max - raw_highest), 0))

    threshold = _ordered_int(tl.full([], -float("inf"), tl.float32)) + 1  # keep everything finite
    top = _ordered_int(highest)
    divisor = tl.where(temperature > 0, tl.maximum(temperature, 1e-6), 1.0)
    if (top_k > 0) & (top_k < vocab_size) & (temperature > 0):
        lanes, high = _ordered_int(lane_max), top
        if top_k <= LANES:
            count = tl.sum((lanes >= threshold).to(tl.int32), 0)
            if count >= top_k:
                while (threshold < high) & (count > top_k):
                    middle = _midpoint(threshold, high)
                    above = tl.sum((lanes >= middle).to(tl.int32), 0)
                    if above >= top_k:
                        threshold, count = middle, above
                    else:
                        high = middle - 1
        high, count = top, _count_at_least(processed, vocab_size, threshold, LANES)
        while (threshold < high) & (count > top_k + MAX_EXCESS):
            middle = _midpoint(threshold, high)
            above = _count_at_least(processed, vocab_size, middle, LANES)
            if above >= top_k:
                threshold, count = middle, above
            else:
                high = middle - 1
        while count > top_k:
            next_value, above = _next_above(processed, vocab_size, threshold, LANES)
            if above >= top_k:
                threshold, count = next_value, above
            else:
                count = top_k  # the rest are ties
    if (top_p < 1) & (temperature > 0):
        total_mass, count = _mass_at_least(
            processed, vocab_size, threshold, highest, divisor, LANES
        )
        high, count_above_high = top, 0
        while (threshold < high) & (count - count_above_high > 1):
            middle = _midpoint(threshold, high)
            mass, above = _mass_at_least(processed, vocab_size, middle, highest, divisor, LANES)
            if mass >= total_mass * top_p:
                threshold, count = middle, above
            else:
                high, count_above_high = middle - 1, above
    min_value = highest / divisor + tl.log(tl.maximum(min_p, 1e-30))
    min_value = tl.where(min_p > 0, min_value, -float("inf"))
    rng_key = tl.load(rng_keys + row).to(tl.uint32)
    step = tl.load(steps + row).to(tl.uint32)
    seed = _hash(rng_key ^ _hash(step + 1))
    best = tl.full([LANES], -float("inf"), tl.float32)
    best_column = tl.full([LANES], 2147483647, tl.int32)
    for start in range(0, vocab_size, LANES):
        column = start + tl.arange(0, LANES)
        value = _load_row(processed, start, vocab_size, LANES)
        is_kept = _ordered_int(value) >= threshold
        value = value / divisor
        if temperature > 0:
            bits = _hash(seed ^ _hash(column.to(tl.uint32) * 2 + 1))
            is_kept = is_kept & (value >= min_value)
            value -= tl.log(-tl.log(((bits >> 9).to(tl.float32) + 0.5) / 8388608.0))
        value = tl.where(is_kept, value, -float("inf"))
        best_column = tl.where(value > best, column, best_column)
        best = tl.maximum(best, value)
    token = tl.min(tl.where(best == tl.max(best, 0), best_column, 2147483647), 0)
    token = tl.minimum(token, vocab_size - 1)  # if all logits are NaN
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, tl.load(logits + token) - log_total)


def sample_tokens(
    processed: Tensor, logits: Tensor, options: Tensor, rng_keys: Tensor, steps: Tensor
) -> tuple[Tensor, Tensor]:
    """A token per row by the processed logits, and its log-probability by the raw ones.

    The columns of `options` are temperature, top_k, top_p and min_p.
    """
    rows, vocab_size = processed.shape
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    logprobs = torch.empty(rows, device=logits.device)
    _sample_kernel[(rows,)](
        processed, processed.stride(0), logits, logits.stride(0), vocab_size, logits.shape[1],
        options, rng_keys, steps, tokens, logprobs,
        LANES=min(MAX_LANES, max(128, triton.next_power_of_2(vocab_size))), MAX_EXCESS=MAX_EXCESS,
        num_warps=32,
    )  # fmt: skip
    return tokens, logprobs
