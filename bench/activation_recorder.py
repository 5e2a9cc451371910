"""Cost of --record-activations: training lecture-small with and without it.

python bench/activation_recorder.py [--steps 400] [--rounds 5] [--output metrics.json] [--save]

Interleaved runs: wall time, CPU time, and the fraction of the time that recording takes.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import benchmark_results
from clearhead.config.presets import presets
from clearhead.data.packed_batch import PackedBatch
from clearhead.data.readers import DataReport
from clearhead.model.transformer import build_transformer
from clearhead.train.activation_recorder import ActivationRecorder
from clearhead.train.trainer import Trainer
from clearhead.weights.checkpoint import Checkpoint


class RandomDataset:
    """Rows of random tokens."""

    packing_efficiency = 1.0
    batches_per_epoch = 10**6

    def __init__(self, rows: int, length: int, vocab_size: int) -> None:
        self.size = (rows, length + 1)
        self.vocab_size = vocab_size
        self.report = DataReport()

    def batch(self, step: int) -> PackedBatch:
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(self.vocab_size, self.size, generator=generator)
        return PackedBatch(ids[:, :-1], ids[:, 1:])

    def valid_batches(self):
        yield self.batch(10**9)


def train(steps: int, device: str, record: bool) -> dict[str, float]:
    """The seconds of one run, of its recordings and of the final figure."""
    config = presets["lecture-small"].replace(
        **{
            "train.max_steps": steps,
            "train.log_every": 10,
            "train.eval_every": 10 * steps,
            "train.save_every": 10 * steps,
        }
    )
    m = config.model
    with tempfile.TemporaryDirectory() as folder:
        data = RandomDataset(config.train.batch_size, m.context_length, m.vocab_size)
        checkpoint = Checkpoint(build_transformer(m), config)
        trainer = Trainer(checkpoint, data, Path(folder), device, compile=False)
        wall_start = time.perf_counter()
        cpu_start = time.process_time()
        recorder = None
        if record:
            recorder = ActivationRecorder(trainer.model, trainer.data, trainer.output)
            recorder(0)
        trainer.train(lambda progress: True, on_step=recorder)
        result = {
            "wall": time.perf_counter() - wall_start,
            "cpu": time.process_time() - cpu_start,
        }
        if recorder is None:
            return result
        start = time.perf_counter()
        recorder.finish(steps)
        return result | {
            "recordings": len(recorder.recorded_steps),
            "recording": recorder.seconds,
            "figure": time.perf_counter() - start,
            "bytes": sum(file.stat().st_size for file in recorder.folder.iterdir()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train(20, device, record=True)  # warm-up
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for index in range(args.rounds):
        for record in (False, True) if index % 2 else (True, False):
            runs[record].append(train(args.steps, device, record))

    def middle(name: str, record: bool = True) -> float:
        return median(run[name] for run in runs[record])

    fractions = [100 * run["recording"] / run["wall"] for run in runs[True]]
    with_figure = [
        100 * (run["recording"] + run["figure"]) / (run["wall"] - run["recording"])
        for run in runs[True]
    ]
    metrics = {
        "device": device,
        "threads": torch.get_num_threads(),
        "steps": args.steps,
        "wall_ratio": round(middle("wall") / middle("wall", False), 4),
        "cpu_ratio": round(middle("cpu") / middle("cpu", False), 4),
        "recording_percent": round(median(fractions), 2),
        "recordings": middle("recordings"),
        "megabytes": round(middle("bytes") / 1e6, 2),
        "figure_seconds": round(middle("figure"), 2),
        "runs": {"without": runs[False], "with": runs[True]},
    }
    print(f"lecture-small, {args.steps} steps on {device}, medians of {args.rounds} runs each")
    print(f"wall time with / without: {metrics['wall_ratio']:.3f} (at most 1.03)")
    print(f"CPU time with / without: {metrics['cpu_ratio']:.3f}")
    print(
        f"{metrics['recordings']:.0f} recordings take {metrics['recording_percent']:.2f} % of the "
        f"run and {metrics['megabytes']} MB; the figure takes {metrics['figure_seconds']} s"
    )
    if args.save:
        workload = f"activation recording in {args.steps} steps of lecture-small"
        megabytes = [run["bytes"] / 1e6 for run in runs[True]]
        rows = [
            benchmark_results.measure(workload, "%", fractions),
            benchmark_results.measure(f"{workload}, with the final figure", "%", with_figure),
            benchmark_results.measure(f"{workload}: size on disk", "MB", megabytes),
        ]
        benchmark_results.save(rows, device=device)
    if args.output:
        args.output.write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
