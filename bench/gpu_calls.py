"""Whole calls on a GPU, side by side: how long each takes, and what is told of it."""

import json
import time
from collections.abc import Callable
from statistics import median

import torch


def timed(side: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    side()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def told(
    label: str, times: dict[str, list[float]], first: dict[str, float], count: int, what: str
) -> dict:
    """Rates of so many things a call: medians with the spread, and ratios to ours; printed as they are told."""
    result = {}
    for name, spent in times.items():
        result[name] = {
            f"{what}_per_s": round(count / median(spent)),
            "range": [round(count / f(spent)) for f in (max, min)],
            "ours_is_faster": round(median(spent) / median(times["ours"]), 2),
            "first_call_s": round(first[name], 2),
        }
        print(f"{label} {name:<12} {json.dumps(result[name])}", flush=True)
    return result
