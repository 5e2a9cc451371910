"""Training Transformer base on sentence pairs against torch's compiled nn.Transformer.

python bench/train_translation.py --device cuda --data train.en train.de

Ours packs whole pairs into rows. The peer pads them: to one length (usual for static shapes), or
sorted by length into buckets of 8 ("bucketed", the best that padding can do). Equal weights,
checked by equal losses. Only non-padding target tokens count. Interleaved rounds, medians with the
spread; a ratio above 1 means ours is faster.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import benchmark_results
from clearhead.config.presets import presets
from clearhead.data.packed_batch import IGNORE_INDEX, PackedBatch
from clearhead.data.pairs import (
    EncodedPair,
    TranslationDataset,
    balanced_source_seq_len,
    read_pairs,
)
from clearhead.data.readers import DataReport
from clearhead.model.transformer import Transformer, build_transformer
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.train_step import batch_loss
from clearhead.train.trainer import Trainer
from clearhead.weights.checkpoint import Checkpoint

MAX_LENGTH = 32
LABEL_SMOOTHING = 0.1
LEARNING_RATE = 5e-4


class Peer(nn.Module):
    """nn.Transformer with our weights, sinusoidal embeddings and a tied head."""

    def __init__(self, net: Transformer, dropout: float) -> None:
        super().__init__()
        m = net.config
        self.tokens = nn.Embedding(m.vocab_size, m.d_model)
        self.drop = nn.Dropout(dropout)
        options = {"dropout": dropout, "batch_first": True}
        self.inner = nn.Transformer(
            m.d_model, m.attention.n_heads, m.n_layers, m.n_layers, m.d_ff, **options
        )
        self.inner.encoder.norm = self.inner.decoder.norm = None  # no final norm in 2017
        self.register_buffer(
            "positions", net.position.embed(torch.arange(m.context_length)[None], torch.float32)[0]
        )
        with torch.no_grad():
            self.tokens.weight.copy_(net.embed.tokens.weight)
            for theirs, ours in zip(self.inner.encoder.layers, net.encoder.blocks, strict=True):
                _copy(theirs, ours, theirs.norm2)
            for theirs, ours in zip(self.inner.decoder.layers, net.blocks, strict=True):
                _copy(theirs, ours, theirs.norm3)
                _copy_attention(theirs.multihead_attn, ours.cross_attn)
                theirs.norm2.load_state_dict(ours.cross_attn_norm.state_dict())

    def embed(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) * self.tokens.embedding_dim**0.5 + self.positions[: ids.shape[1]]
        return self.drop(x)

    def forward(self, source: Tensor, target: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        padded = source == 0
        n = target.shape[1]
        causal = torch.ones(n, n, dtype=torch.bool, device=target.device).triu(1)
        x = self.inner(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padded,
            memory_key_padding_mask=padded,
        )
        logits = F.linear(x, self.tokens.weight).flatten(0, 1)
        return F.cross_entropy(
            logits.float(),
            targets.flatten(),
            ignore_index=IGNORE_INDEX,
            reduction="sum",
            label_smoothing=smoothing,
        )


def _copy(theirs: nn.Module, ours: nn.Module, last: nn.Module) -> None:
    _copy_attention(theirs.self_attn, ours.attn)
    pairs = ((theirs.norm1, ours.attn_norm), (last, ours.ffn_norm))
    for own, other in (*pairs, (theirs.linear1, ours.ffn.up), (theirs.linear2, ours.ffn.down)):
        own.load_state_dict(other.state_dict())


def _copy_attention(theirs: nn.Module, ours: nn.Module) -> None:
    theirs.in_proj_weight.copy_(torch.cat([x.weight for x in (ours.q, ours.k, ours.v)]))
    theirs.in_proj_bias.copy_(torch.cat([x.bias for x in (ours.q, ours.k, ours.v)]))
    theirs.out_proj.load_state_dict(ours.out.state_dict())


def padded(
    pairs: list[tuple[list[int], list[int]]], device: str
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Pad pairs to one length per side, a multiple of 8."""
    sides = [[s for s, _ in pairs], [t[:-1] for _, t in pairs], [t[1:] for _, t in pairs]]
    tensors = []
    for side, empty in zip(sides, (0, 0, IGNORE_INDEX), strict=True):
        width = -(-max(map(len, side)) // 8) * 8
        rows = torch.full((len(side), width), empty)
        for row, ids in zip(rows, side, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        tensors.append(rows.to(device))
    return tensors[0], tensors[1], tensors[2], sum(map(len, sides[2]))


def peer(
    model: Peer, batches: list[tuple[Tensor, Tensor, Tensor, int]], device: str
) -> Callable[[], int]:
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    call = torch.compile(model, dynamic=False) if device == "cuda" else model
    index = 0

    def step() -> int:
        nonlocal index
        source, target, labels, count = batches[index % len(batches)]
        index += 1
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = call(source, target, labels, LABEL_SMOOTHING) / count
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return count

    return step


def ours(net: Transformer, config, data: TranslationDataset, device: str) -> Callable[[], int]:
    run = Trainer(
        Checkpoint(net, config),
        data,
        Path(tempfile.mkdtemp()) / "run",
        device,
        compile=device == "cuda",
    )

    def step() -> int:
        _, count = run.training_step()
        run.step += 1
        return count

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--data", nargs=2, required=True, help="two aligned files")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=256, help="pairs per padded batch")
    parser.add_argument("--length", type=int, default=256, help="tokens per packed row")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument(
        "--peers", nargs="+", default=["padded", "bucketed"], choices=["padded", "bucketed"]
    )
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    device = args.device
    cuda = args.device == "cuda"
    texts = list(read_pairs(args.data, DataReport()))
    tokenizer = Tokenizer.train_bpe(
        [x for pair in texts for x in pair[:2]], 8192, ("<|start|>", "<|end|>")
    )
    start, end = (tokenizer.special_tokens[name] for name in ("<|start|>", "<|end|>"))
    sources, targets = (tokenizer.encode_batch([pair[i] for pair in texts]) for i in (0, 1))
    ids = [([*s, end], [start, *t, end]) for s, t in zip(sources, targets, strict=True)]
    ids = [
        (s, t) for s, t in ids if 0 not in s and len(s) <= MAX_LENGTH and len(t) <= MAX_LENGTH + 1
    ]
    tokens = sum(len(t) - 1 for _, t in ids) / len(ids)
    print(
        f"{len(ids)} pairs of up to {MAX_LENGTH} tokens, {tokens:.1f} target tokens each",
        flush=True,
    )
    rows = max(1, round(args.sentences * tokens / args.length))
    config = presets["vaswani-base"].replace(
        **{
            "model.vocab_size": len(tokenizer),
            "model.n_layers": args.layers,
            "model.architecture.encoder_layers": args.layers,
        },
        **{
            "model.attention.bias": ["q", "k", "v", "out"],
            "model.dropout.residual": 0.1,
            "train.batch_size": rows,
        },
        **{
            "train.seq_len": args.length,
            "train.average_checkpoints": 0,
            "train.warmup_steps": 1,
            "train.schedule": "constant",
        },
        **{"train.optimizer.lr": LEARNING_RATE, "train.label_smoothing": LABEL_SMOOTHING},
    )
    generator = torch.Generator().manual_seed(0)
    shuffled = [ids[i] for i in torch.randperm(len(ids), generator=generator).tolist()]
    n = args.sentences
    groups = [shuffled[i : i + n] for i in range(0, n * 8, n)]
    by_length = sorted(
        shuffled[: n * 40], key=lambda pair: (-(-len(pair[1]) // 8), -(-len(pair[0]) // 8))
    )
    buckets = [by_length[i : i + n] for i in range(0, n * 40, n * 10)]
    full_pair = ([1] * MAX_LENGTH, [1] * (MAX_LENGTH + 1))  # for static shapes
    plain = [padded([*group[:-1], full_pair], device) for group in groups]
    bucketed = [padded(group, device) for group in buckets]
    net = build_transformer(config.model)
    _check_equal_losses(net, Peer(net, 0.0), plain[0])
    length = args.length
    pairs = [EncodedPair(*pair) for pair in ids]
    data = TranslationDataset(
        pairs,
        [],
        DataReport(),
        batch_size=rows,
        seq_len=length,
        source_seq_len=balanced_source_seq_len(pairs, length),
        seed=0,
    )
    sides = {"ours": ours(net, config, data, device)}
    for name in args.peers:
        batches = {"padded": plain, "bucketed": bucketed}[name]
        sides[name] = peer(Peer(build_transformer(config.model), 0.1), batches, device)
    for name, step in sides.items():
        start_time = time.perf_counter()
        for _ in range(10):
            step()
        print(
            f"{name}: ten steps with compiling {time.perf_counter() - start_time:.1f} s", flush=True
        )
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, step in sides.items():
            if cuda:
                torch.cuda.synchronize()
            start_time = time.perf_counter()
            num_tokens = sum(step() for _ in range(args.steps))
            if cuda:
                torch.cuda.synchronize()
            rates[name].append(num_tokens / (time.perf_counter() - start_time))
    result = {
        "torch": torch.__version__,
        "device": device,
        "packing_efficiency": round(data.packing_efficiency, 3),
    }
    for name, values in rates.items():
        middle = median(values)
        result[name] = {
            "target_tokens_per_s": round(middle),
            "range": [round(min(values)), round(max(values))],
            "ratio": round(median(rates["ours"]) / middle, 2),
        }
        print(name, result[name], flush=True)
    print(json.dumps(result))
    if args.save:
        size = "base" if args.layers == 6 else f"of {args.layers} layers"
        workload = f"translation {size}, step of {n} pairs"
        torch_s = f"nn.Transformer{', compiled' if cuda else ''}"
        named = {
            side if side == "ours" else f"{torch_s}, {side}": values
            for side, values in rates.items()
        }
        fraction = benchmark_results.Row(
            f"{workload}: fraction of non-padding tokens",
            "%",
            benchmark_results.measurement(100 * data.packing_efficiency),
        )
        benchmark_results.save(
            [*benchmark_results.compare(workload, "tok/s", named), fraction], device=device
        )


@torch.no_grad()
def _check_equal_losses(
    net: Transformer, other: Peer, batch: tuple[Tensor, Tensor, Tensor, int]
) -> None:
    source, target, targets = (t[:4].cpu() for t in batch[:3])
    packed = PackedBatch(
        target, targets, (targets != IGNORE_INDEX).long(), source, (source != 0).long()
    )
    mine = batch_loss(net.eval(), packed, 0.0)[0].item()
    other.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    theirs = other(source, target, targets, 0.0).item()
    torch.backends.mha.set_fastpath_enabled(True)
    assert abs(mine - theirs) < 1e-3 * abs(mine), f"the losses differ: {mine}, {theirs}"
    print(f"equal losses: {mine:.3f}, {theirs:.3f}", flush=True)


if __name__ == "__main__":
    main()
