"""What watching costs: GPT-2 124M, forward on this machine, silent against watched. A ratio of 1 is free.

python bench/watch.py
"""

import random
import time
from statistics import median

import torch

from clearhead.model.transformer import build
from clearhead.presets import presets
from clearhead.tap import SILENT, Watch

CASES = {
    "silent": lambda: SILENT,
    "the residual stream (blocks.*.post)": lambda: Watch(["blocks.*.post"]),
    "one head's pattern (blocks.5.attn.pattern)": lambda: Watch({"blocks.5.attn.pattern": lambda p: p[:, 3]}),
    "all patterns": lambda: Watch(["blocks.*.attn.pattern"]),
    "everything": lambda: Watch(["**"]),
}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = build(presets["gpt2-124m"].model, device=device).eval()
    ids = torch.randint(0, 50257, (1, 512), device=device)
    times: dict[str, list[float]] = {name: [] for name in CASES}
    with torch.no_grad():
        for turn in range(16):
            for name, tap in random.sample(list(CASES.items()), len(CASES)):
                start = time.perf_counter()
                net(ids, tap=tap())
                if device == "cuda":
                    torch.cuda.synchronize()
                if turn:
                    times[name].append(time.perf_counter() - start)
    base = median(times["silent"])
    for name, seconds in times.items():
        low, high = min(seconds) * 1e3, max(seconds) * 1e3
        print(f"{name:<44} {median(seconds) * 1e3:8.1f} ms ({low:.1f}–{high:.1f})  x {median(seconds) / base:.3f}")


if __name__ == "__main__":
    main()
