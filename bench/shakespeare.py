"""Character-level tinyshakespeare: the lowest validation loss, and how fast it is reached.

python bench/shakespeare.py tinyshakespeare.txt                  three seeds of shakespeare-char-cpu
python bench/shakespeare.py tinyshakespeare.txt --device cuda    three seeds of shakespeare-char

Training time starts at the fifth step, after compilation; total time includes reading, compiling,
validation and saving.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean

import benchmark_results
from clearhead.config.presets import presets
from clearhead.train.train import build_trainer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target-loss", type=float, default=None)
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    target_loss = args.target_loss or (1.47 if args.device == "cuda" else 1.60)
    results = []
    for seed in range(args.seeds):
        results.append(train(args.text, args.device, seed, target_loss))
        print(json.dumps(results[-1]), flush=True)
    best_losses = [result["best_loss"] for result in results]
    print(f"mean of the best losses: {mean(best_losses):.4f}")
    if args.save:
        workload = f"tinyshakespeare, {args.seeds} seeds"
        rows = [
            benchmark_results.measure(
                f"{workload}: lowest validation loss", "nats", best_losses, mean
            )
        ]
        times = [result["seconds_to_target"] for result in results]
        if all(seconds is not None for seconds in times):
            title = f"{workload}: training time to a validation loss of {target_loss:g}"
            rows.append(benchmark_results.measure(title, "s", times, mean))
        totals = [result["total_seconds"] for result in results]
        rows.append(benchmark_results.measure(f"{workload}: total time", "s", totals, mean))
        benchmark_results.save(rows, device=args.device)


def train(text: str, device: str, seed: int, target_loss: float) -> dict:
    start = time.perf_counter()
    is_cuda = device == "cuda"
    config = presets["shakespeare-char" if is_cuda else "shakespeare-char-cpu"]
    config = config.replace(**{"data.train": [text], "train.seed": seed})
    times = {}

    def on_step(step: int) -> None:
        if step == 5:
            times["compiled"] = time.perf_counter()

    def on_progress(progress) -> bool:
        if progress.valid_loss is not None and progress.valid_loss <= target_loss:
            times.setdefault("reached", time.perf_counter())
        return True

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        trainer = build_trainer(config, output, resume=False, device=device, compile=is_cuda)
        result = trainer.train(on_progress, on_step)
    end = time.perf_counter()
    seconds_to_target = None
    if "reached" in times:
        seconds_to_target = round(times["reached"] - times["compiled"], 1)
    return {
        "seed": seed,
        "best_loss": round(result.best_loss, 4),
        "seconds_to_target": seconds_to_target,
        "training_seconds": round(end - times["compiled"], 1),
        "total_seconds": round(end - start, 1),
    }


if __name__ == "__main__":
    main()
