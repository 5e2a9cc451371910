"""Training steps (forward, backward, clipping, AdamW) against peers with equal weights.

python bench/train.py --device cuda      GPT-2 124M, bf16, compiled; peers with autocast
python bench/train.py                    CPU, fp32: 4 layers, d_model 128, length 64, 12 rows

Interleaved rounds, medians with the spread; a ratio above 1 means ours is faster. Peak memory is
what a step needs above what was allocated before it was built.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import benchmark_results
from clearhead.config.presets import presets
from clearhead.data.packed_batch import PackedBatch
from clearhead.data.readers import DataReport
from clearhead.model.transformer import build_transformer
from clearhead.train.trainer import Trainer
from clearhead.weights.checkpoint import Checkpoint
from peers import HuggingFace, Plain

SHAPES = {
    "cuda": {},
    "cpu": {
        "vocab_size": 65,
        "context_length": 64,
        "d_model": 128,
        "n_layers": 4,
        "attention.n_heads": 4,
    },
}
LEARNING_RATE = 6e-4
WEIGHT_DECAY = 0.1
GRAD_CLIP = 1.0
NAMES = {"ours": "ours", "plain": "plain PyTorch", "huggingface": "Hugging Face"}


class RandomDataset:
    """Rows of random tokens, the same for all models."""

    packing_efficiency = 1.0
    batches_per_epoch = 1000

    def __init__(self, rows: int, length: int, vocab_size: int) -> None:
        self.report = DataReport()
        generator = torch.Generator().manual_seed(0)
        self.ids = [
            torch.randint(vocab_size, (rows, length + 1), generator=generator) for _ in range(4)
        ]

    def batch(self, step: int) -> PackedBatch:
        ids = self.ids[step % len(self.ids)]
        return PackedBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())

    def valid_batches(self):
        return iter(())


def ours(
    net, config, data: RandomDataset, device: str, compiled: bool
) -> Callable[[], torch.Tensor]:
    folder = Path(tempfile.mkdtemp()) / "run"
    run = Trainer(Checkpoint(net, config), data, folder, device, compile=compiled)

    def step() -> torch.Tensor:
        total, count = run.training_step()
        run.step += 1
        return total / count

    return step


def theirs(
    model: torch.nn.Module, data: RandomDataset, device: str, compiled: bool
) -> Callable[[], torch.Tensor]:
    """Plain PyTorch: fp32 weights, autocast on a GPU, fused AdamW."""
    model = model.to(device).train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)
    call = torch.compile(model, dynamic=False) if compiled else model
    index = 0

    def step() -> torch.Tensor:
        nonlocal index
        batch = data.batch(index)
        index += 1
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = call(
                batch.tokens.to(device, non_blocking=True),
                batch.targets.to(device, non_blocking=True),
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, nargs="+", default=None)
    parser.add_argument("--peers", nargs="+", default=["plain", "huggingface"])
    parser.add_argument(
        "--compile",
        choices=["none", "ours", "all"],
        default=None,
        help="default: all on a GPU, otherwise none",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=None, help="steps per round")
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    rows: list[benchmark_results.Row] = []
    compiled = args.compile or ("all" if args.device == "cuda" else "none")
    for batch in args.batch or ([16, 64] if args.device == "cuda" else [12]):
        result, saved = measure(args, batch, compiled)
        rows += saved
        print(json.dumps(result), flush=True)
    if args.save:
        benchmark_results.save(rows, "transformers", device=args.device)


def measure(
    args: argparse.Namespace, rows: int, compiled: str
) -> tuple[dict, list[benchmark_results.Row]]:
    """The printed result and the saved rows."""
    device = args.device
    cuda = args.device == "cuda"
    config = (
        presets["gpt2-124m"]
        .replace(**SHAPES[device])
        .replace(
            **{
                "train.grad_accum": 1,
                "train.batch_size": rows,
                "train.optimizer.lr": LEARNING_RATE,
                "train.warmup_steps": 0,
            },
            **{
                "train.schedule": "constant",
                "train.grad_clip": GRAD_CLIP,
                "train.optimizer.weight_decay": WEIGHT_DECAY,
            },
        )
    )
    data = RandomDataset(rows, config.model.context_length, config.model.vocab_size)
    makers = {"plain": Plain, "huggingface": HuggingFace}
    sides = {}
    peaks = {}
    for name in ("ours", *args.peers):
        net = build_transformer(config.model)
        before = torch.cuda.memory_allocated() if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        if name == "ours":
            sides[name] = ours(net, config, data, device, compiled != "none")
        else:
            sides[name] = theirs(makers[name](net), data, device, compiled == "all")
        losses = [float(sides[name]()) for _ in range(6)]  # also warms up
        print(
            f"{name}: losses of the first steps {[round(loss, 4) for loss in losses]}", flush=True
        )
        peaks[name] = (
            round((torch.cuda.max_memory_allocated() - before) / 2**30, 2) if cuda else None
        )
    times: dict[str, list[float]] = {name: [] for name in sides}
    steps = args.steps or (15 if cuda else 10)
    for _ in range(args.rounds):
        for name, step in sides.items():
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            if cuda:
                torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / steps)
    tokens = rows * config.model.context_length
    result = {"device": device, "compiled": compiled, "rows": rows, "torch": torch.__version__}
    for name, seconds in times.items():
        middle = median(seconds)
        result[name] = {
            "ms": round(middle * 1e3, 2),
            "range": [round(f(seconds) * 1e3, 2) for f in (min, max)],
            "tokens_per_s": round(tokens / middle),
            "ratio": round(middle / median(times["ours"]), 3),
            "peak_gib": peaks[name],
        }
        print(f"{name:<12} {json.dumps(result[name])}", flush=True)
    size = "GPT-2 124M" if cuda else "4-layer GPT, d_model 128"
    workload = f"{size}, step of {rows} × {config.model.context_length:,}"
    workload += {"none": "", "ours": ", ours compiled", "all": ", compiled"}[compiled]
    saved = benchmark_results.compare(
        workload, "ms", {NAMES[name]: [t * 1e3 for t in seconds] for name, seconds in times.items()}
    )
    saved.append(
        benchmark_results.measure(
            f"{workload}: throughput", "tok/s", [tokens / t for t in times["ours"]]
        )
    )
    if cuda:
        saved += benchmark_results.compare(
            f"{workload}: peak memory", "GiB", {NAMES[name]: [peak] for name, peak in peaks.items()}
        )
    return result, saved


if __name__ == "__main__":
    main()
