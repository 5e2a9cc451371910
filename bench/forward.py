"""Forward and backward passes of GPT-2 124M against peers with equal weights.

python bench/forward.py                      CPU, fp32; also nn.TransformerEncoder
python bench/forward.py --device cuda        bf16, compiled, batch 16 x 1024

Interleaved rounds; medians with the spread; a ratio above 1 means ours is faster. Peak memory is
measured in a separate process (CPU) or by the allocator (CUDA).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

import benchmark_results
from clearhead.config.presets import presets
from clearhead.model.transformer import build_transformer
from peers import HuggingFace, Ours, TorchEncoder

PEERS = {"huggingface": (HuggingFace, "gelu-tanh"), "torch-encoder": (TorchEncoder, "gelu")}
NAMES = {"huggingface": "Hugging Face", "torch-encoder": "nn.TransformerEncoder"}


def make(name: str, args: argparse.Namespace) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Our model and the peer with equal weights."""
    peer, activation = PEERS[name]
    config = presets["gpt2-124m"].replace(**{"ffn.activation": activation, "n_layers": args.layers})
    net = build_transformer(config.model)
    both = Ours(net), peer(net)
    ids = torch.randint(0, 50257, (1, 64))
    with torch.no_grad():
        difference = (both[0].eval()(ids) - both[1].eval()(ids)).abs().max().item()
    assert difference < 1e-3, f"{name} has other logits, by {difference}"
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    return tuple(model.to(args.device, dtype) for model in both)


def step(model: torch.nn.Module, ids: torch.Tensor, targets: torch.Tensor, backward: bool) -> None:
    if backward:
        model(ids, targets).backward()
        model.zero_grad()
    else:
        with torch.no_grad():
            model(ids)


def batch(args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 50257, (args.batch, args.tokens + 1), device=args.device)
    return ids[:, :-1], ids[:, 1:].contiguous()


def title(args: argparse.Namespace) -> str:
    size = "GPT-2 124M" if args.layers == 12 else f"GPT-2 with {args.layers} layers"
    return f"{size}, {args.batch} × {args.tokens:,}"


def measure(args: argparse.Namespace) -> tuple[list[dict], list[benchmark_results.Row]]:
    """The printed and the saved rows."""
    rows = []
    saved = []
    ids, targets = batch(args)
    for peer in args.peers:
        pair = make(peer, args)
        for compiled in args.compiled:
            models = [torch.compile(m, dynamic=False) if compiled else m for m in pair]
            for backward in args.backward:
                for m in models:
                    m.train(backward)
                    for _ in range(args.warm):
                        step(m, ids, targets, backward)
                times = ([], [])
                peaks = [0.0, 0.0]
                for _ in range(args.repeats):
                    for side, m in enumerate(models):
                        if ids.is_cuda:
                            torch.cuda.reset_peak_memory_stats()
                        start = time.perf_counter()
                        for _ in range(args.steps):
                            step(m, ids, targets, backward)
                        if ids.is_cuda:
                            torch.cuda.synchronize()
                        times[side].append((time.perf_counter() - start) / args.steps)
                        if ids.is_cuda:
                            peaks[side] = torch.cuda.max_memory_allocated() / 2**30
                ours, theirs = (median(t) for t in times)
                rows.append(
                    {
                        "peer": peer,
                        "mode": "compiled" if compiled else "eager",
                        "workload": "forward+backward" if backward else "forward",
                        "ours_ms": round(ours * 1e3, 1),
                        "peer_ms": round(theirs * 1e3, 1),
                        "ours_range": [round(f(times[0]) * 1e3, 1) for f in (min, max)],
                        "peer_range": [round(f(times[1]) * 1e3, 1) for f in (min, max)],
                        "ratio": round(theirs / ours, 3),
                        "ratio_of_best": round(min(times[1]) / min(times[0]), 3),
                        "tokens_per_s": round(ids.numel() / ours),
                        "peaks_gib": [round(p, 2) for p in peaks] if ids.is_cuda else None,
                    }
                )
                print_row(rows[-1])
                work = f"{title(args)}, {rows[-1]['workload']}, {rows[-1]['mode']}"
                sides = {"ours": times[0], NAMES[peer]: times[1]}
                saved += benchmark_results.compare(
                    work,
                    "ms",
                    {name: [t * 1e3 for t in seconds] for name, seconds in sides.items()},
                )
                if ids.is_cuda:
                    saved += benchmark_results.compare(
                        f"{work}: peak memory",
                        "GiB",
                        {n: [p] for n, p in zip(sides, peaks, strict=True)},
                    )
        del pair, models
        torch.compiler.reset()
    return rows, saved


def print_row(r: dict) -> None:
    sides = [
        f"{name} {r[f'{name}_ms']:>8} ms ({r[f'{name}_range'][0]}–{r[f'{name}_range'][1]})"
        for name in ("ours", "peer")
    ]
    peaks = f"  peak {r['peaks_gib'][0]} / {r['peaks_gib'][1]} GiB" if r["peaks_gib"] else ""
    print(
        f"{r['peer']:<14} {r['mode']:<9} {r['workload']:<17} {'  '.join(sides)}"
        f"  ratio {r['ratio']:.2f} (best {r['ratio_of_best']:.2f})"
        f"  {r['tokens_per_s']:,} tok/s{peaks}",
        flush=True,
    )


def peak_of(side: str, args: argparse.Namespace, backward: bool) -> float:
    """Peak memory of one model above the weights, in a separate process."""
    code = [
        sys.executable,
        __file__,
        "--peak",
        side,
        "--batch",
        str(args.batch),
        "--tokens",
        str(args.tokens),
    ]
    return float(
        subprocess.run(
            [*code, *(["--with-backward"] if backward else [])], capture_output=True, text=True
        ).stdout
    )


def print_peak(args: argparse.Namespace) -> None:
    pair = make("torch-encoder" if args.peak == "torch-encoder" else "huggingface", args)
    model = pair[0] if args.peak == "ours" else pair[1]
    del pair
    ids, targets = batch(args)
    model.train(args.with_backward)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = status("VmRSS")
    for _ in range(2):
        step(model, ids, targets, args.with_backward)
    print(status("VmHWM") - before)


def status(field: str) -> float:
    """A memory field of this process's status, in GiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument(
        "--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"]
    )
    parser.add_argument(
        "--work", nargs="+", default=["forward", "backward"], choices=["forward", "backward"]
    )
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--with-backward", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    cuda = args.device == "cuda"
    args.batch = args.batch or (16 if cuda else 2)
    args.tokens = args.tokens or (1024 if cuda else 512)
    args.steps = 8 if cuda else 1  # as in training, without synchronizing after every step
    args.compiled = [mode == "compiled" for mode in args.modes]
    args.backward = [work == "backward" for work in args.work]
    torch.manual_seed(0)
    if args.peak:
        print_peak(args)
        return
    print(f"torch {torch.__version__}, {args.device}, batch {args.batch} x {args.tokens} tokens")
    rows, saved = measure(args)
    if not cuda:
        for backward in args.backward:
            sides = ["ours", *args.peers]
            peaks = {side: peak_of(side, args, backward) for side in sides}
            gib = {side: round(peak, 2) for side, peak in peaks.items()}
            print(
                "peak memory above the weights, "
                f"{'forward+backward' if backward else 'forward'} eager, GiB: {gib}"
            )
            rows.append(
                {"workload": "forward+backward" if backward else "forward", "cpu_peak_gib": gib}
            )
            work = f"{title(args)}, {rows[-1]['workload']}, eager: peak memory above the weights"
            saved += benchmark_results.compare(
                work, "GiB", {NAMES.get(side, side): [peak] for side, peak in peaks.items()}
            )
    if args.save:
        benchmark_results.save(saved, "transformers", device=args.device)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
