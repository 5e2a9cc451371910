"""Drawing a token on a GPU: all of `draw` in one kernel, a program for each row. Needs triton.

What a top-k or a nucleus leaves is told by its least logit, which is searched by bisection over the floats in their
order: it is counted, or summed, what lies above the middle, in a pass over the row. So that few passes are needed, the
search begins from the lanes' own highest values, and ends as soon as what lies above is what is wanted.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_LANES = 4096
MAX_EXCESS = 8  # tokens too many that are taken away one by one


@triton.jit
def _hash(x):
    """As `draw._mix`."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _ordered_int(x):
    """Whole numbers that are ordered as the floats are."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _load_row(x, start, vocabulary, LANES: tl.constexpr):
    at = start + tl.arange(0, LANES)
    return tl.load(x + at, mask=at < vocabulary, other=-float("inf"))


@triton.jit
def _count_at_least(x, vocabulary, least, LANES: tl.constexpr):
    """How many are at least that."""
    found = tl.zeros([LANES], tl.int32)
    for start in range(0, vocabulary, LANES):
        found += (_ordered_int(_load_row(x, start, vocabulary, LANES)) >= least).to(tl.int32)
    return tl.sum(found, 0)


@triton.jit
def _next_above(x, vocabulary, least, LANES: tl.constexpr):
    """The least that is more, and how many are more."""
    found = tl.zeros([LANES], tl.int32)
    above = tl.full([LANES], 2147483647, tl.int32)
    for start in range(0, vocabulary, LANES):
        order = _ordered_int(_load_row(x, start, vocabulary, LANES))
        found += (order > least).to(tl.int32)
        above = tl.minimum(above, tl.where(order > least, order, 2147483647))
    return tl.min(above, 0), tl.sum(found, 0)


@triton.jit
def _mass_at_least(x, vocabulary, least, highest, temperature, LANES: tl.constexpr):
    """The sum of powers of those that are at least that, and how many they are."""
    mass = tl.zeros([LANES], tl.float32)
    found = tl.zeros([LANES], tl.int32)
    for start in range(0, vocabulary, LANES):
        value = _load_row(x, start, vocabulary, LANES)
        kept = _ordered_int(value) >= least
        mass += tl.where(kept, tl.exp((value - highest) / temperature), 0.0)
        found += kept.to(tl.int32)
    return tl.sum(mass, 0), tl.sum(found, 0)


@triton.jit
def _midpoint(low, high):
    return ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)


@triton.jit
def _sample_kernel(
    shaped, shaped_row, logits, logits_row, vocabulary, columns, how, keys, places, tokens, log_probs,
    LANES: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    shaped += row * shaped_row
    logits += row * logits_row
    temperature = tl.load(how + row * 4)
    top_k = tl.load(how + row * 4 + 1).to(tl.int32)
    top_p = tl.load(how + row * 4 + 2)
    min_p = tl.load(how + row * 4 + 3)
    tops = tl.full([LANES], -float("inf"), tl.float32)
    raw_top = tl.full([LANES], -1e30, tl.float32)
    raw_total = tl.zeros([LANES], tl.float32)
    for start in range(0, vocabulary, LANES):
        tops = tl.maximum(tops, _load_row(shaped, start, vocabulary, LANES))
    for start in range(0, columns, LANES):
        raw = _load_row(logits, start, columns, LANES)
        new = tl.maximum(raw_top, raw)
        raw_total = raw_total * tl.exp(raw_top - new) + tl.exp(raw - new)
        raw_top = new
    highest = tl.max(tops, 0)
    raw_highest = tl.max(raw_top, 0)
    log_total = raw_highest + tl.log(tl.sum(raw_total * tl.exp(raw_top - raw_highest), 0))

    least = _ordered_int(tl.full([], -float("inf"), tl.float32)) + 1  # all that may be drawn
    top = _ordered_int(highest)
    heat = tl.where(temperature > 0, tl.maximum(temperature, 1e-6), 1.0)
    if (top_k > 0) & (top_k < vocabulary) & (temperature > 0):
        lanes = _ordered_int(tops)
        high = top
        if top_k <= LANES:
            many = tl.sum((lanes >= least).to(tl.int32), 0)
            if many >= top_k:
                while (least < high) & (many > top_k):
                    middle = _midpoint(least, high)
                    above = tl.sum((lanes >= middle).to(tl.int32), 0)
                    if above >= top_k:
                        least = middle
                        many = above
                    else:
                        high = middle - 1
        high = top
        many = _count_at_least(shaped, vocabulary, least, LANES)
        while (least < high) & (many > top_k + NEAR):
            middle = _midpoint(least, high)
            above = _count_at_least(shaped, vocabulary, middle, LANES)
            if above >= top_k:
                least = middle
                many = above
            else:
                high = middle - 1
        while many > top_k:
            more, above = _next_above(shaped, vocabulary, least, LANES)
            if above >= top_k:
                least = more
                many = above
            else:
                many = top_k  # the others are equals
    if (top_p < 1) & (temperature > 0):
        whole, many = _mass_at_least(shaped, vocabulary, least, highest, heat, LANES)
        high = top
        fewer = 0
        while (least < high) & (many - fewer > 1):
            middle = _midpoint(least, high)
            mass, above = _mass_at_least(shaped, vocabulary, middle, highest, heat, LANES)
            if mass >= whole * top_p:
                least = middle
                many = above
            else:
                high = middle - 1
                fewer = above
    floor = tl.where(min_p > 0, highest / heat + tl.log(tl.maximum(min_p, 1e-30)), -float("inf"))
    key = tl.load(keys + row).to(tl.uint32)
    place = tl.load(places + row).to(tl.uint32)
    seed = _hash(key ^ _hash(place + 1))
    best = tl.full([LANES], -float("inf"), tl.float32)
    who = tl.full([LANES], 2147483647, tl.int32)
    for start in range(0, vocabulary, LANES):
        at = start + tl.arange(0, LANES)
        value = _load_row(shaped, start, vocabulary, LANES)
        kept = _ordered_int(value) >= least
        value = value / heat
        if temperature > 0:
            bits = _hash(seed ^ _hash(at.to(tl.uint32) * 2 + 1))
            kept = kept & (value >= floor)
            value -= tl.log(-tl.log(((bits >> 9).to(tl.float32) + 0.5) / 8388608.0))
        value = tl.where(kept, value, -float("inf"))
        who = tl.where(value > best, at, who)
        best = tl.maximum(best, value)
    token = tl.min(tl.where(best == tl.max(best, 0), who, 2147483647), 0)
    token = tl.minimum(token, vocabulary - 1)  # where nothing is a number
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(log_probs + row, tl.load(logits + token) - log_total)


def sample_tokens(
    shaped: Tensor, logits: Tensor, options: Tensor, keys: Tensor, places: Tensor
) -> tuple[Tensor, Tensor]:
    """The token of each row by the shaped logits, its log-probability by the others.

    Options are temperature, top-k, top-p and min-p.
    """
    rows, vocabulary = shaped.shape
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    log_probs = torch.empty(rows, device=logits.device)
    _sample_kernel[(rows,)](
        shaped, shaped.stride(0), logits, logits.stride(0), vocabulary, logits.shape[1], options, keys, places,
        tokens, log_probs,
        LANES=min(MAX_LANES, max(128, triton.next_power_of_2(vocabulary))), NEAR=MAX_EXCESS, num_warps=32,
    )  # fmt: skip
    return tokens, log_probs
