"""A whole training step (forward, backward, clipping, AdamW) against peers with equal weights, interleaved.

python bench/train.py --device cuda      GPT-2 124M, T = 1,024, bf16, compiled; the peers with autocast
python bench/train.py                    this CPU, fp32: 4 layers, 128 wide, context 64, 12 rows

Medians with the spread; a ratio above 1 means ours is faster. Peak memory is what a step needs above what lay there
before it was built.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import kept
from clearhead.config.presets import presets
from clearhead.data.batch import DataReport, PackedBatch
from clearhead.model.transformer import build_transformer
from clearhead.train.trainer import Trainer
from clearhead.weights.checkpoint import Checkpoint
from peers import HuggingFace, Plain

SHAPES = {
    "cuda": {},
    "cpu": {"vocabulary": 65, "context": 64, "width": 128, "layers": 4, "attention.n_heads": 4},
}
RATE = 6e-4
DECAY = 0.1
CLIP = 1.0
NAMES = {"ours": "ours", "plain": "plain torch", "huggingface": "Hugging Face"}


class Rows:
    """Random rows, the same for all."""

    packing_efficiency = 1.0
    batches_per_epoch = 1000

    def __init__(self, rows: int, length: int, vocabulary: int) -> None:
        self.report = DataReport()
        chance = torch.Generator().manual_seed(0)
        self.ids = [
            torch.randint(vocabulary, (rows, length + 1), generator=chance) for _ in range(4)
        ]

    def batch(self, step: int) -> PackedBatch:
        ids = self.ids[step % len(self.ids)]
        return PackedBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())

    def valid_batches(self):
        return iter(())


def ours(net, config, data: Rows, device: str, compiled: bool) -> Callable[[], torch.Tensor]:
    folder = Path(tempfile.mkdtemp()) / "run"
    run = Trainer(Checkpoint(net, config), data, folder, device, compile=compiled)

    def step() -> torch.Tensor:
        total, count = run.training_step()
        run.step += 1
        return total / count

    return step


def theirs(
    model: torch.nn.Module, data: Rows, device: str, compiled: bool
) -> Callable[[], torch.Tensor]:
    """As it is done in plain torch: fp32 weights, autocast on a GPU, fused AdamW."""
    model = model.to(device).train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)
    call = torch.compile(model, dynamic=False) if compiled else model
    at = 0

    def step() -> torch.Tensor:
        nonlocal at
        batch = data.batch(at)
        at += 1
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = call(
                batch.tokens.to(device, non_blocking=True),
                batch.targets.to(device, non_blocking=True),
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
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
        "--compile", choices=["none", "ours", "all"], default=None, help="all on a GPU, else none"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=None, help="steps of each side in a round")
    kept.offer(parser)
    options = parser.parse_args()
    rows: list[kept.Row] = []
    compiled = options.compile or ("all" if options.device == "cuda" else "none")
    for batch in options.batch or ([16, 64] if options.device == "cuda" else [12]):
        result, figures = measure(options, batch, compiled)
        rows += figures
        print(json.dumps(result), flush=True)
    if options.keep:
        kept.write(rows, "transformers", device=options.device)


def measure(options: argparse.Namespace, rows: int, compiled: str) -> tuple[dict, list[kept.Row]]:
    """What is told, and what is kept of it."""
    device = options.device
    cuda = options.device == "cuda"
    config = (
        presets["gpt2-124m"]
        .replace(**SHAPES[device])
        .replace(
            **{
                "train.grad_accum": 1,
                "train.batch_size": rows,
                "train.optimizer.lr": RATE,
                "train.warmup_steps": 0,
            },
            **{
                "train.schedule": "constant",
                "train.grad_clip": CLIP,
                "train.optimizer.weight_decay": DECAY,
            },
        )
    )
    data = Rows(rows, config.model.context_length, config.model.vocab_size)
    makers = {"plain": Plain, "huggingface": HuggingFace}
    sides = {}
    peaks = {}
    for name in ("ours", *options.peers):
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
    steps = options.steps or (15 if cuda else 10)
    for _ in range(options.rounds):
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
    for name, spent in times.items():
        middle = median(spent)
        result[name] = {
            "ms": round(middle * 1e3, 2),
            "range": [round(f(spent) * 1e3, 2) for f in (min, max)],
            "tokens_per_s": round(tokens / middle),
            "ours_is_faster": round(middle / median(times["ours"]), 3),
            "peak_gib": peaks[name],
        }
        print(f"{name:<12} {json.dumps(result[name])}", flush=True)
    work = f"{'GPT-2 124M' if cuda else 'GPT of 4 layers × 128'}, a step of {rows} × {config.model.context_length:,}"
    work += {"none": "", "ours": ", ours compiled", "all": ", compiled"}[compiled]
    figures = kept.rows(
        work, "ms", {NAMES[name]: [t * 1e3 for t in spent] for name, spent in times.items()}
    )
    figures.append(kept.row(f"{work}: speed", "tok/s", [tokens / t for t in times["ours"]]))
    if cuda:
        figures += kept.rows(
            f"{work}: peak memory", "GiB", {NAMES[name]: [peak] for name, peak in peaks.items()}
        )
    return result, figures


if __name__ == "__main__":
    main()
