"""Timing of whole calls on a GPU."""

import json
import time
from collections.abc import Callable
from statistics import median

import torch


def timed(call: Callable[[], object]) -> float:
    """The seconds of a call, synchronized."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def print_rates(
    label: str, times: dict[str, list[float]], first: dict[str, float], count: int, unit: str
) -> dict:
    """Print and return rates: medians with spread, and ratios to ours."""
    result = {}
    for name, seconds in times.items():
        result[name] = {
            f"{unit}_per_s": round(count / median(seconds)),
            "range": [round(count / limit(seconds)) for limit in (max, min)],
            "ratio": round(median(seconds) / median(times["ours"]), 2),
            "first_call_s": round(first[name], 2),
        }
        print(f"{label} {name:<12} {json.dumps(result[name])}", flush=True)
    return result
