"""Cost of model.watch relative to model.logits of the same tokens.

python bench/watch.py [--rounds 15] [--output metrics.json] [--save]

GPT-2 124M with random weights: on a CPU in float32 with one thread, by CPU time; on a GPU in
bfloat16, by wall time. Each round makes every call once, in random order; ratios are taken within a
round and reported as medians with quartiles. Peak memory excludes the weights and is measured in a
separate process on a CPU; retained memory is what the result holds.
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

import benchmark_results
import clearhead as ch

HEAD = {"blocks.5.attn.pattern": lambda pattern: pattern[:, 3]}
RESIDUAL = ["blocks.*.resid_pre", "blocks.*.resid_mid", "blocks.*.resid_post"]
BASELINE = "logits"
CALLS: dict[str, Callable] = {
    BASELINE: lambda model, ids: model.logits(ids),
    "the residual stream": lambda model, ids: model.watch(ids, RESIDUAL),
    "one head's pattern": lambda model, ids: model.watch(ids, HEAD),
    "all patterns": lambda model, ids: model.watch(ids, "blocks.*.attn.pattern"),
    "everything": lambda model, ids: model.watch(ids),
}
RESIDUAL_CALLS = (BASELINE, "the residual stream")
CASES = {(1, 256): RESIDUAL_CALLS, (8, 128): RESIDUAL_CALLS, (1, 1024): tuple(CALLS)}
LIMITS = {"the residual stream": 1.05, "one head's pattern": 1.3}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def new_model() -> ch.Model:
    torch.set_num_threads(1)
    return ch.new("gpt2-124m", device=DEVICE, dtype="bfloat16" if DEVICE == "cuda" else "float32")


def random_ids(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, 50257, shape, generator=torch.Generator().manual_seed(0))


def measure_seconds(call: Callable, model: ch.Model, ids: torch.Tensor) -> float:
    if DEVICE == "cpu":
        start = time.process_time()
        call(model, ids)
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    call(model, ids)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_times(model: ch.Model, shape: tuple[int, int], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in CASES[shape]}
    for index in range(-2, rounds):  # two warm-up rounds
        for name in random.sample(CASES[shape], len(CASES[shape])):
            seconds = measure_seconds(CALLS[name], model, random_ids(shape))
            if index >= 0:
                times[name].append(seconds)
    return times


def measure_memory(name: str, model: ch.Model, shape: tuple[int, int]) -> tuple[float, float]:
    """Peak and retained MB of one call; on a CPU only valid once per process."""
    call = CALLS[name]
    ids = random_ids(shape)
    call(model, random_ids((1, 8)))
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call(model, ids)
        peak = torch.cuda.max_memory_allocated() - before
    else:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = process_memory("VmRSS")
        result = call(model, ids)
        peak = process_memory("VmHWM") - before
    values = [result] if isinstance(result, torch.Tensor) else result.values()
    storages = {v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for v in values}
    return peak / 1e6, sum(storages.values()) / 1e6


def process_memory(field: str) -> int:
    """Bytes of memory in use (VmRSS) or its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure_memory_in_subprocess(name: str, shape: tuple[int, int]) -> tuple[float, float]:
    command = [sys.executable, __file__, "--memory", json.dumps([name, shape])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, retained = json.loads(done.stdout)
    return peak, retained


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    benchmark_results.add_save_argument(parser)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    args = parser.parse_args()
    model = new_model()
    if args.memory:
        name, shape = json.loads(args.memory)
        print(json.dumps(measure_memory(name, model, tuple(shape))))
        return
    metrics = []
    rows = []
    for shape in CASES:
        times = measure_times(model, shape, args.rounds)
        for name, seconds in times.items():
            ratios = [a / b for a, b in zip(seconds, times[BASELINE], strict=True)]
            low, _, high = quantiles(ratios)
            if DEVICE == "cuda":
                peak, retained = measure_memory(name, model, shape)
            else:
                peak, retained = measure_memory_in_subprocess(name, shape)
            milliseconds = median(seconds) * 1e3
            metrics.append(
                {
                    "shape": shape,
                    "call": name,
                    "ms": milliseconds,
                    "ratio": median(ratios),
                    "quartiles": [low, high],
                    "peak_MB": peak,
                    "retained_MB": retained,
                }
            )
            limit = f"at most {LIMITS[name]}" if name in LIMITS else ""
            print(
                f"{shape[0]} x {shape[1]:<5} {name:<20} {milliseconds:8.2f} ms  "
                f"x {median(ratios):.3f} ({low:.3f}–{high:.3f})  peak {peak:6.0f} MB, "
                f"retained {retained:6.1f} MB  {limit}",
                flush=True,
            )
            if name == BASELINE:
                continue
            workload = f"GPT-2 124M, {shape[0]} × {shape[1]:,}: watching {name}"
            rows.append(
                benchmark_results.Row(
                    workload,
                    "× a forward pass",
                    benchmark_results.measurement(median(ratios), low, high),
                    rounds=args.rounds,
                    quartiles=True,
                )
            )
            if name == "one head's pattern" and DEVICE == "cpu":
                matrices = benchmark_results.measurement(retained * 1e6 / (4 * shape[1] ** 2))
                rows.append(
                    benchmark_results.Row(f"{workload}, memory retained", "matrices", matrices)
                )
    if args.save:
        benchmark_results.save(rows, device=DEVICE)
    if args.output:
        text = json.dumps({"device": DEVICE, "metrics": metrics}, indent=1)
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
