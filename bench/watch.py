"""What watching costs a user: calls that look, against model.logits of the same text. A ratio of 1 is free.

python bench/watch.py [--turns 15] [--out figures.json] [--keep]

GPT-2 124M with random weights; on a CPU float32, one thread and the processor's own time, which others on the machine
change little; on a GPU bfloat16 and the clock. Each turn makes every call once, in a new order; ratios are taken
within a turn, and their medians are told with the quartiles. Peak memory is what a call needs beyond the weights, on
a CPU from a process of its own; kept is what it still holds at the end.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import torch

import clearhead as ch
import kept

HEAD = {"blocks.5.attn.pattern": lambda pattern: pattern[:, 3]}
PLAIN = "logits"
CALLS: dict[str, Callable] = {
    PLAIN: lambda model, ids: model.logits(ids),
    "the residual stream": lambda model, ids: model.watch(
        ids, ["blocks.*.resid_pre", "blocks.*.resid_mid", "blocks.*.resid_post"]
    ),
    "one head's pattern": lambda model, ids: model.watch(ids, HEAD),
    "all patterns": lambda model, ids: model.watch(ids, "blocks.*.attn.pattern"),
    "everything": lambda model, ids: model.watch(ids),
}
STREAM = (PLAIN, "the residual stream")
CASES = {(1, 256): STREAM, (8, 128): STREAM, (1, 1024): tuple(CALLS)}
LIMITS = {"the residual stream": 1.05, "one head's pattern": 1.3}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def made() -> ch.Model:
    torch.set_num_threads(1)
    return ch.new("gpt2-124m", device=DEVICE, dtype="bfloat16" if DEVICE == "cuda" else "float32")


def text(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, 50257, shape, generator=torch.Generator().manual_seed(0))


def seconds(call: Callable, model: ch.Model, ids: torch.Tensor) -> float:
    if DEVICE == "cpu":
        start = time.process_time()
        call(model, ids)
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    call(model, ids)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def times(model: ch.Model, shape: tuple[int, int], turns: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in CASES[shape]}
    for turn in range(-2, turns):  # the first ones warm up
        for name in random.sample(CASES[shape], len(CASES[shape])):
            spent = seconds(CALLS[name], model, text(shape))
            if turn >= 0:
                found[name].append(spent)
    return found


def memory(name: str, model: ch.Model, shape: tuple[int, int]) -> tuple[float, float]:
    """Peak and kept MB of one call; on a CPU a process may ask this only once."""
    call = CALLS[name]
    ids = text(shape)
    short = text((1, 8))
    call(model, short)
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = call(model, ids)
        peak = torch.cuda.max_memory_allocated() - before
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = resident("VmRSS")
        kept = call(model, ids)
        peak = resident("VmHWM") - before
    values = [kept] if isinstance(kept, torch.Tensor) else kept.values()
    return peak / 1e6, sum(
        {v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for v in values}.values()
    ) / 1e6


def resident(what: str) -> int:
    """Bytes of this process that are in memory now (VmRSS), or were at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def memory_apart(name: str, shape: tuple[int, int]) -> tuple[float, float]:
    asked = [sys.executable, __file__, "--memory", json.dumps([name, shape])]
    return tuple(
        json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=15)
    options.add_argument("--out", type=Path)
    kept.offer(options)
    options.add_argument("--memory", help=argparse.SUPPRESS)
    given = options.parse_args()
    model = made()
    if given.memory:
        name, shape = json.loads(given.memory)
        print(json.dumps(memory(name, model, tuple(shape))))
        return
    figures = []
    rows = []
    for shape in CASES:
        spent = times(model, shape, given.turns)
        for name, seconds in spent.items():
            ratios = [mine / plain for mine, plain in zip(seconds, spent[PLAIN], strict=True)]
            low, _, high = quantiles(ratios)
            peak, held = (
                memory(name, model, shape) if DEVICE == "cuda" else memory_apart(name, shape)
            )
            row = {
                "shape": shape,
                "call": name,
                "ms": median(seconds) * 1e3,
                "ratio": median(ratios),
            }
            figures.append(row | {"quartiles": [low, high], "peak_MB": peak, "kept_MB": held})
            limit = f"at most {LIMITS[name]}" if name in LIMITS else ""
            print(
                f"{shape[0]} x {shape[1]:<5} {name:<20} {median(seconds) * 1e3:8.2f} ms  x {median(ratios):.3f} "
                f"({low:.3f}–{high:.3f})  peak {peak:6.0f} MB, kept {held:6.1f} MB  {limit}",
                flush=True,
            )
            if name != PLAIN:
                work = f"GPT-2 124M, {shape[0]} × {shape[1]:,}: watching {name}"
                cost = kept.figure(median(ratios), low, high)
                rows.append(
                    kept.Row(work, "× a plain pass", cost, rounds=given.turns, quartiles=True)
                )
            if name == "one head's pattern" and DEVICE == "cpu":
                rows.append(
                    kept.Row(
                        f"{work}, kept", "matrices", kept.figure(held * 1e6 / (4 * shape[1] ** 2))
                    )
                )
    if given.keep:
        kept.write(rows, device=DEVICE)
    if given.out:
        given.out.write_text(
            json.dumps({"device": DEVICE, "figures": figures}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
