"""What the microscope costs: the small lecture model trained on this machine with it and without, in turns.

Three measures: the clock on the wall, the processor's time (which others on the machine do not change much), and the
share of its own time that each run spent looking.

python bench/microscope.py [--steps 400] [--turns 5] [--out figures.json] [--keep]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import kept
from clearhead.config.presets import presets
from clearhead.data.batch import DataReport, PackedBatch
from clearhead.model.transformer import build_transformer
from clearhead.train.activation_recorder import ActivationRecorder
from clearhead.train.trainer import Trainer
from clearhead.weights.checkpoint import Checkpoint


class Numbers:
    """Rows of random tokens: what is learned does not matter here."""

    packing_efficiency = 1.0
    batches_per_epoch = 10**6

    def __init__(self, rows: int, length: int, vocabulary: int) -> None:
        self.size = (rows, length + 1)
        self.vocabulary = vocabulary
        self.report = DataReport()

    def batch(self, step: int) -> PackedBatch:
        ids = torch.randint(
            self.vocabulary, self.size, generator=torch.Generator().manual_seed(step)
        )
        return PackedBatch(ids[:, :-1], ids[:, 1:])

    def valid_batches(self):
        yield self.batch(10**9)


def train(steps: int, device: str, looking: bool) -> dict[str, float]:
    """Seconds of one run in a fresh folder, and of its looks and its picture."""
    far = {f"train.{name}": 10 * steps for name in ("check", "save")}
    config = presets["lecture-small"].replace(
        **{"train.max_steps": steps, "train.log_every": 10, **far}
    )
    m = config.model
    with tempfile.TemporaryDirectory() as out:
        data = Numbers(config.train.batch_size, m.context_length, m.vocab_size)
        run = Trainer(
            Checkpoint(build_transformer(m), config), data, Path(out), device, compile=False
        )
        start = time.perf_counter()
        busy = time.process_time()
        scope = ActivationRecorder(run.model, run.data, run.output) if looking else None
        if scope is not None:
            scope(0)
        run.train(lambda progress: True, on_step=scope)
        spent = {"seconds": time.perf_counter() - start, "processor": time.process_time() - busy}
        if scope is None:
            return spent
        start = time.perf_counter()
        scope.finish(steps)
        size = sum(file.stat().st_size for file in scope.folder.iterdir())
        picture = time.perf_counter() - start
        return spent | {
            "looks": len(scope.recorded_steps),
            "looking": scope.seconds,
            "picture": picture,
            "bytes": size,
        }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--out", type=Path)
    kept.offer(options)
    given = options.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train(20, device, looking=True)  # warms up
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for turn in range(given.turns):
        for looking in (False, True) if turn % 2 else (True, False):
            runs[looking].append(train(given.steps, device, looking))
    without, seen = (median(run["seconds"] for run in runs[looking]) for looking in (False, True))
    busy, busy_seen = (
        median(run["processor"] for run in runs[looking]) for looking in (False, True)
    )
    figures = {
        "device": device,
        "threads": torch.get_num_threads(),
        "steps": given.steps,
        "without": [round(run["seconds"], 3) for run in runs[False]],
        "with": [round(run["seconds"], 3) for run in runs[True]],
        "ratio": round(seen / without, 4),
        "processor_without": [round(run["processor"], 3) for run in runs[False]],
        "processor_with": [round(run["processor"], 3) for run in runs[True]],
        "processor_ratio": round(busy_seen / busy, 4),
        "share": round(median(run["looking"] / run["seconds"] for run in runs[True]), 4),
        "looks": median(run["looks"] for run in runs[True]),
        "megabytes": round(median(run["bytes"] for run in runs[True]) / 1e6, 2),
        "picture": round(median(run["picture"] for run in runs[True]), 2),
    }
    print(
        f"lecture-small, {given.steps} steps on {device}, medians of {given.turns} runs each, in turns"
    )
    print(f"without {without:.2f} s, with {seen:.2f} s: x {figures['ratio']:.3f} (at most 1.03)")
    print(
        f"processor: without {busy:.2f} s, with {busy_seen:.2f} s: x {figures['processor_ratio']:.3f}"
    )
    print(
        f"{figures['looks']:.0f} looks take {figures['share']:.2%} of the run, {figures['megabytes']} MB"
    )
    print(f"the picture at the end takes {figures['picture']} s more")
    print(json.dumps(figures))
    if given.keep:
        work = f"the microscope in {given.steps} steps of lecture-small"
        seen_runs = runs[True]
        shares = [100 * run["looking"] / run["seconds"] for run in seen_runs]
        whole = [
            100 * (run["looking"] + run["picture"]) / (run["seconds"] - run["looking"])
            for run in seen_runs
        ]
        rows = [
            kept.row(f"{work}: looking", "%", shares),
            kept.row(f"{work}: looking, and the picture at the end", "%", whole),
            kept.row(
                f"{work}: size of what is kept", "MB", [run["bytes"] / 1e6 for run in seen_runs]
            ),
        ]
        kept.write(rows, device=device)
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
