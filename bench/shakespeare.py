"""tinyshakespeare by character: how low the validation loss gets (whole split), and how soon.

python bench/shakespeare.py tinyshakespeare.txt                  three seeds of shakespeare-char-cpu
python bench/shakespeare.py tinyshakespeare.txt --device cuda    three seeds of shakespeare-char

`training` seconds leave out what comes before the fifth step (compiling); `whole` is everything: reading, compiling,
validating, saving.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean

import kept
from clearhead.config.presets import presets
from clearhead.train.train import build_trainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--aim", type=float, default=None, help="the loss whose time is asked for")
    kept.offer(parser)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    aim = options.aim or (1.47 if gpu else 1.60)
    found = []
    for seed in range(options.seeds):
        found.append(one(options.text, options.device, seed, aim))
        print(json.dumps(found[-1]), flush=True)
    print(json.dumps({"mean_best": round(mean(f["best"] for f in found), 4), "runs": found}))
    if options.keep:
        work = f"tinyshakespeare, {options.seeds} seeds"
        reached = f"training_s_to_{aim}"
        rows = [
            kept.row(f"{work}: lowest validation loss", "nats", [f["best"] for f in found], mean)
        ]
        if all(f[reached] is not None for f in found):
            rows.append(
                kept.row(f"{work}: training until {aim:g}", "s", [f[reached] for f in found], mean)
            )
        rows.append(
            kept.row(f"{work}: everything included", "s", [f["whole_s"] for f in found], mean)
        )
        kept.write(rows, device=options.device)


def one(text: str, device: str, seed: int, aim: float) -> dict:
    began = time.perf_counter()
    gpu = device == "cuda"
    config = presets["shakespeare-char" if gpu else "shakespeare-char-cpu"]
    config = config.replace(**{"data.train": [text], "train.seed": seed})
    marks = {}

    def each(step: int) -> None:
        if step == 5:
            marks["compiled"] = time.perf_counter()

    def watch(at) -> bool:
        if at.valid is not None and at.valid <= aim:
            marks.setdefault("reached", time.perf_counter())
        return True

    with tempfile.TemporaryDirectory() as folder:
        run = build_trainer(config, Path(folder) / "run", resume=False, device=device, compile=gpu)
        result = run.train(watch, each)
    end = time.perf_counter()
    return {
        "seed": seed,
        "best": round(result.best_loss, 4),
        f"training_s_to_{aim}": round(marks["reached"] - marks["compiled"], 1)
        if "reached" in marks
        else None,
        "training_s": round(end - marks["compiled"], 1),
        "whole_s": round(end - began, 1),
    }


if __name__ == "__main__":
    main()
