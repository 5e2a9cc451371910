"""Drawing a token on a GPU: all of `draw` in one kernel, a program for each row. Needs triton.

What a top-k or a nucleus leaves is told by its least logit, which is searched by bisection over the floats in their
order: it is counted, or summed, what lies above the middle, in a pass over the row. So that few passes are needed, the
search begins from the lanes' own highest values, and ends as soon as what lies above is what is wanted.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 4096
NEAR = 8  # tokens too many that are taken away one by one


@triton.jit
def _mix(x):
    """As `draw._mix`."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _order(x):
    """Whole numbers that are ordered as the floats are."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _row(x, start, vocabulary, LANES: tl.constexpr):
    at = start + tl.arange(0, LANES)
    return tl.load(x + at, mask=at < vocabulary, other=-float("inf"))


@triton.jit
def _count(x, vocabulary, least, LANES: tl.constexpr):
    """How many are at least that."""
    found = tl.zeros([LANES], tl.int32)
    for start in range(0, vocabulary, LANES):
        found += (_order(_row(x, start, vocabulary, LANES)) >= least).to(tl.int32)
    return tl.sum(found, 0)


@triton.jit
def _next(x, vocabulary, least, LANES: tl.constexpr):
    """The least that is more, and how many are more."""
    found, above = tl.zeros([LANES], tl.int32), tl.full([LANES], 2147483647, tl.int32)
    for start in range(0, vocabulary, LANES):
        order = _order(_row(x, start, vocabulary, LANES))
        found += (order > least).to(tl.int32)
        above = tl.minimum(above, tl.where(order > least, order, 2147483647))
    return tl.min(above, 0), tl.sum(found, 0)


@triton.jit
def _mass(x, vocabulary, least, highest, temperature, LANES: tl.constexpr):
    """The sum of powers of those that are at least that, and how many they are."""
    mass, found = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.int32)
    for start in range(0, vocabulary, LANES):
        value = _row(x, start, vocabulary, LANES)
        kept = _order(value) >= least
        mass += tl.where(kept, tl.exp((value - highest) / temperature), 0.0)
        found += kept.to(tl.int32)
    return tl.sum(mass, 0), tl.sum(found, 0)


@triton.jit
def _middle(low, high):
    return ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)


@triton.jit
def _kernel(
    shaped, shaped_row, logits, logits_row, vocabulary, columns, how, keys, places, tokens, log_probs,
    LANES: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    shaped += row * shaped_row
    logits += row * logits_row
    temperature, top_k = tl.load(how + row * 4), tl.load(how + row * 4 + 1).to(tl.int32)
    top_p, min_p = tl.load(how + row * 4 + 2), tl.load(how + row * 4 + 3)
    tops, raw_top = tl.full([LANES], -float("inf"), tl.float32), tl.full([LANES], -1e30, tl.float32)
    raw_total = tl.zeros([LANES], tl.float32)
    for start in range(0, vocabulary, LANES):
        tops = tl.maximum(tops, _row(shaped, start, vocabulary, LANES))
    for start in range(0, columns, LANES):
        raw = _row(logits, start, columns, LANES)
        new = tl.maximum(raw_top, raw)
        raw_total = raw_total * tl.exp(raw_top - new) + tl.exp(raw - new)
        raw_top = new
    highest, raw_highest = tl.max(tops, 0), tl.max(raw_top, 0)
    log_total = raw_highest + tl.log(tl.sum(raw_total * tl.exp(raw_top - raw_highest), 0))

    least = _order(tl.full([], -float("inf"), tl.float32)) + 1  # all that may be drawn
    top = _order(highest)
    heat = tl.where(temperature > 0, tl.maximum(temperature, 1e-6), 1.0)
    if (top_k > 0) & (top_k < vocabulary) & (temperature > 0):
        lanes, high = _order(tops), top
        if top_k <= LANES:
            many = tl.sum((lanes >= least).to(tl.int32), 0)
            if many >= top_k:
                while (least < high) & (many > top_k):
                    middle = _middle(least, high)
                    above = tl.sum((lanes >= middle).to(tl.int32), 0)
                    if above >= top_k:
                        least, many = middle, above
                    else:
                        high = middle - 1
        high, many = top, _count(shaped, vocabulary, least, LANES)
        while (least < high) & (many > top_k + NEAR):
            middle = _middle(least, high)
            above = _count(shaped, vocabulary, middle, LANES)
            if above >= top_k:
                least, many = middle, above
            else:
                high = middle - 1
        while many > top_k:
            more, above = _next(shaped, vocabulary, least, LANES)
            if above >= top_k:
                least, many = more, above
            else:
                many = top_k  # the others are equals
    if (top_p < 1) & (temperature > 0):
        whole, many = _mass(shaped, vocabulary, least, highest, heat, LANES)
        high, fewer = top, 0
        while (least < high) & (many - fewer > 1):
            middle = _middle(least, high)
            mass, above = _mass(shaped, vocabulary, middle, highest, heat, LANES)
            if mass >= whole * top_p:
                least, many = middle, above
            else:
                high, fewer = middle - 1, above
    floor = tl.where(min_p > 0, highest / heat + tl.log(tl.maximum(min_p, 1e-30)), -float("inf"))
    key, place = tl.load(keys + row).to(tl.uint32), tl.load(places + row).to(tl.uint32)
    seed = _mix(key ^ _mix(place + 1))
    best, who = tl.full([LANES], -float("inf"), tl.float32), tl.full([LANES], 2147483647, tl.int32)
    for start in range(0, vocabulary, LANES):
        at = start + tl.arange(0, LANES)
        value = _row(shaped, start, vocabulary, LANES)
        kept = _order(value) >= least
        value = value / heat
        if temperature > 0:
            bits = _mix(seed ^ _mix(at.to(tl.uint32) * 2 + 1))
            kept = kept & (value >= floor)
            value -= tl.log(-tl.log(((bits >> 9).to(tl.float32) + 0.5) / 8388608.0))
        value = tl.where(kept, value, -float("inf"))
        who = tl.where(value > best, at, who)
        best = tl.maximum(best, value)
    token = tl.min(tl.where(best == tl.max(best, 0), who, 2147483647), 0)
    token = tl.minimum(token, vocabulary - 1)  # where nothing is a number
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(log_probs + row, tl.load(logits + token) - log_total)


def draw(shaped: Tensor, logits: Tensor, options: Tensor, keys: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The token of each row by the shaped logits, its log-probability by the others.

    Options are temperature, top-k, top-p and min-p.
    """
    rows, vocabulary = shaped.shape
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    log_probs = torch.empty(rows, device=logits.device)
    _kernel[(rows,)](
        shaped, shaped.stride(0), logits, logits.stride(0), vocabulary, logits.shape[1], options, keys, places,
        tokens, log_probs,
        LANES=min(LANES, max(128, triton.next_power_of_2(vocabulary))), NEAR=NEAR, num_warps=32,
    )  # fmt: skip
    return tokens, log_probs
