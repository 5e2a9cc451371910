"""Forward, and forward with backward, of the GPT-2 124M shape against peers with equal weights.

python bench/forward.py                      this CPU, fp32: Hugging Face's GPT-2 and torch's nn.TransformerEncoder
python bench/forward.py --device cuda        bf16, compiled, batch 16 x 1024

Interleaved A/B/A/B; medians with the spread; a ratio above 1 means ours is faster. Peak memory of each comes from
a process of its own (CPU) or from the allocator (CUDA).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

import kept
from clearhead.config.presets import presets
from clearhead.model.transformer import build_transformer
from peers import HuggingFace, Ours, TorchEncoder

PEERS = {"huggingface": (HuggingFace, "gelu-tanh"), "torch-encoder": (TorchEncoder, "gelu")}
NAMES = {"huggingface": "Hugging Face", "torch-encoder": "nn.TransformerEncoder"}


def make(name: str, options: argparse.Namespace) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Ours and the peer, with one and the same function."""
    peer, activation = PEERS[name]
    config = presets["gpt2-124m"].replace(
        **{"ffn.activation": activation, "n_layers": options.layers}
    )
    net = build_transformer(config.model)
    both = Ours(net), peer(net)
    ids = torch.randint(0, 50257, (1, 64))
    with torch.no_grad():
        gap = (both[0].eval()(ids) - both[1].eval()(ids)).abs().max().item()
    assert gap < 1e-3, f"{name} computes something else: {gap}"
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    return tuple(model.to(options.device, dtype) for model in both)


def step(model: torch.nn.Module, ids: torch.Tensor, targets: torch.Tensor, backward: bool) -> None:
    if backward:
        model(ids, targets).backward()
        model.zero_grad()
    else:
        with torch.no_grad():
            model(ids)


def batch(options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 50257, (options.batch, options.tokens + 1), device=options.device)
    return ids[:, :-1], ids[:, 1:].contiguous()


def title(options: argparse.Namespace) -> str:
    size = "GPT-2 124M" if options.layers == 12 else f"GPT-2 with {options.layers} layers"
    return f"{size}, {options.batch} × {options.tokens:,}"


def measure(options: argparse.Namespace) -> tuple[list[dict], list[kept.Row]]:
    """What is told, and what is kept of it."""
    rows = []
    figures = []
    ids, targets = batch(options)
    for peer in options.peers:
        pair = make(peer, options)
        for compiled in options.compiled:
            models = [torch.compile(m, dynamic=False) if compiled else m for m in pair]
            for backward in options.backward:
                for m in models:
                    m.train(backward)
                    for _ in range(options.warm):
                        step(m, ids, targets, backward)
                times = ([], [])
                peaks = [0.0, 0.0]
                for _ in range(options.repeats):
                    for side, m in enumerate(models):
                        if ids.is_cuda:
                            torch.cuda.reset_peak_memory_stats()
                        start = time.perf_counter()
                        for _ in range(options.steps):
                            step(m, ids, targets, backward)
                        if ids.is_cuda:
                            torch.cuda.synchronize()
                        times[side].append((time.perf_counter() - start) / options.steps)
                        if ids.is_cuda:
                            peaks[side] = torch.cuda.max_memory_allocated() / 2**30
                ours, theirs = (median(t) for t in times)
                rows.append(
                    {
                        "peer": peer,
                        "mode": "compiled" if compiled else "eager",
                        "work": "forward+backward" if backward else "forward",
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
                work = f"{title(options)}, {rows[-1]['work']}, {rows[-1]['mode']}"
                sides = {"ours": times[0], NAMES[peer]: times[1]}
                figures += kept.rows(
                    work, "ms", {name: [t * 1e3 for t in spent] for name, spent in sides.items()}
                )
                if ids.is_cuda:
                    figures += kept.rows(
                        f"{work}: peak memory",
                        "GiB",
                        {n: [p] for n, p in zip(sides, peaks, strict=True)},
                    )
        del pair, models
        torch.compiler.reset()
    return rows, figures


def print_row(r: dict) -> None:
    sides = [
        f"{name} {r[f'{name}_ms']:>8} ms ({r[f'{name}_range'][0]}–{r[f'{name}_range'][1]})"
        for name in ("ours", "peer")
    ]
    peaks = f"  peak {r['peaks_gib'][0]} / {r['peaks_gib'][1]} GiB" if r["peaks_gib"] else ""
    print(
        f"{r['peer']:<14} {r['mode']:<9} {r['work']:<17} {'  '.join(sides)}"
        f"  ratio {r['ratio']:.2f} (best {r['ratio_of_best']:.2f})  {r['tokens_per_s']:,} tok/s{peaks}",
        flush=True,
    )


def peak_of(side: str, options: argparse.Namespace, backward: bool) -> float:
    """Peak resident memory of one model alone, in a fresh process, above the weights."""
    code = [
        sys.executable,
        __file__,
        "--peak",
        side,
        "--batch",
        str(options.batch),
        "--tokens",
        str(options.tokens),
    ]
    return float(
        subprocess.run(
            [*code, *(["--with-backward"] if backward else [])], capture_output=True, text=True
        ).stdout
    )


def print_peak(options: argparse.Namespace) -> None:
    pair = make("torch-encoder" if options.peak == "torch-encoder" else "huggingface", options)
    model = pair[0] if options.peak == "ours" else pair[1]
    del pair
    ids, targets = batch(options)
    model.train(options.with_backward)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of building the models
    before = status("VmRSS")
    for _ in range(2):
        step(model, ids, targets, options.with_backward)
    print(status("VmHWM") - before)


def status(field: str) -> float:
    """A line of this process's status, in GiB."""
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
    kept.offer(parser)
    options = parser.parse_args()
    cuda = options.device == "cuda"
    options.batch = options.batch or (16 if cuda else 2)
    options.tokens = options.tokens or (1024 if cuda else 512)
    options.steps = 8 if cuda else 1  # as training does, a GPU is not waited for after every step
    options.compiled = [mode == "compiled" for mode in options.modes]
    options.backward = [work == "backward" for work in options.work]
    torch.manual_seed(0)
    if options.peak:
        print_peak(options)
        return
    print(
        f"torch {torch.__version__}, {options.device}, batch {options.batch} x {options.tokens} tokens"
    )
    rows, figures = measure(options)
    if not cuda:
        for backward in options.backward:
            sides = ["ours", *options.peers]
            peaks = {side: peak_of(side, options, backward) for side in sides}
            gib = {side: round(peak, 2) for side, peak in peaks.items()}
            print(
                f"peak memory above the weights, {'forward+backward' if backward else 'forward'} eager, GiB: {gib}"
            )
            rows.append(
                {"work": "forward+backward" if backward else "forward", "cpu_peak_gib": gib}
            )
            work = f"{title(options)}, {rows[-1]['work']}, eager: peak memory above the weights"
            figures += kept.rows(
                work, "GiB", {NAMES.get(side, side): [peak] for side, peak in peaks.items()}
            )
    if options.keep:
        kept.write(figures, "transformers", device=options.device)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
