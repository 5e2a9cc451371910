"""Training an encoder-decoder (6 + 6 layers, 512 wide, 2017) on sentence pairs against torch's compiled nn.Transformer.

python bench/pairs.py --device cuda --data train.en train.de

Ours packs whole pairs into rows; the peer pads them: to one length (as it is usually done for static shapes), and
sorted by length into buckets of 8 ("bucketed", the best that padding can do). Equal weights, checked by equal losses.
Only real target tokens are counted. Interleaved, medians with the spread; a ratio above 1 means ours is faster.
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

import kept
from clearhead.config.presets import presets
from clearhead.data.batch import IGNORE_INDEX, DataReport, PackedBatch
from clearhead.data.pairs import TranslationDataset, balanced_source_seq_len
from clearhead.data.pairs import read_pairs as pairs_in
from clearhead.model.transformer import Transformer, build_transformer
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.trainer import Trainer, batch_loss
from clearhead.weights.checkpoint import Checkpoint

LONGEST = 32
SMOOTHING = 0.1
RATE = 5e-4


class Peer(nn.Module):
    """nn.Transformer with embeddings, waves and a tied unembedding around it, and our weights inside."""

    def __init__(self, net: Transformer, dropout: float) -> None:
        super().__init__()
        m = net.config
        self.tokens = nn.Embedding(m.vocab_size, m.d_model)
        self.drop = nn.Dropout(dropout)
        options = {"dropout": dropout, "batch_first": True}
        self.inner = nn.Transformer(
            m.d_model, m.attention.n_heads, m.n_layers, m.n_layers, m.d_ff, **options
        )
        self.inner.encoder.norm = self.inner.decoder.norm = None  # 2017 has no norm after the last
        self.register_buffer(
            "waves", net.position.embed(torch.arange(m.context_length)[None], torch.float32)[0]
        )
        with torch.no_grad():
            self.tokens.weight.copy_(net.embed.tokens.weight)
            for theirs, ours in zip(self.inner.encoder.layers, net.encoder.blocks, strict=True):
                _copy(theirs, ours, theirs.norm2)
            for theirs, ours in zip(self.inner.decoder.layers, net.blocks, strict=True):
                _copy(theirs, ours, theirs.norm3)
                _copy_attention(theirs.multihead_attn, ours.cross)
                theirs.norm2.load_state_dict(ours.cross_norm.state_dict())

    def embed(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) * self.tokens.embedding_dim**0.5 + self.waves[: ids.shape[1]]
        return self.drop(x)

    def forward(self, source: Tensor, target: Tensor, learned: Tensor, smoothing: float) -> Tensor:
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
            learned.flatten(),
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
    """Pairs as rows of one length for each side, a multiple of 8."""
    sides = [[s for s, _ in pairs], [t[:-1] for _, t in pairs], [t[1:] for _, t in pairs]]
    made = []
    for side, empty in zip(sides, (0, 0, IGNORE_INDEX), strict=True):
        width = -(-max(map(len, side)) // 8) * 8
        rows = torch.full((len(side), width), empty)
        for row, ids in zip(rows, side, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        made.append(rows.to(device))
    return made[0], made[1], made[2], sum(map(len, sides[2]))


def peer(
    model: Peer, batches: list[tuple[Tensor, Tensor, Tensor, int]], device: str
) -> Callable[[], int]:
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    call = torch.compile(model, dynamic=False) if device == "cuda" else model
    at = 0

    def step() -> int:
        nonlocal at
        source, target, learned, count = batches[at % len(batches)]
        at += 1
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = call(source, target, learned, SMOOTHING) / count
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
    parser.add_argument("--data", nargs=2, required=True, help="two aligned texts")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=256, help="pairs of a padded batch")
    parser.add_argument("--length", type=int, default=256, help="tokens of a packed row")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument(
        "--peers", nargs="+", default=["padded", "bucketed"], choices=["padded", "bucketed"]
    )
    kept.offer(parser)
    options = parser.parse_args()
    device = options.device
    cuda = options.device == "cuda"
    texts = list(pairs_in(options.data, DataReport()))
    tokenizer = Tokenizer.train_bpe(
        [x for pair in texts for x in pair[:2]], 8192, ("<|start|>", "<|end|>")
    )
    start, end = (tokenizer.special_tokens[name] for name in ("<|start|>", "<|end|>"))
    sources, targets = (tokenizer.encode_batch([pair[i] for pair in texts]) for i in (0, 1))
    ids = [([*s, end], [start, *t, end]) for s, t in zip(sources, targets, strict=True)]
    ids = [(s, t) for s, t in ids if 0 not in s and len(s) <= LONGEST and len(t) <= LONGEST + 1]
    tokens = sum(len(t) - 1 for _, t in ids) / len(ids)
    print(
        f"{len(ids)} pairs of up to {LONGEST} tokens, {tokens:.1f} target tokens each", flush=True
    )
    rows = max(1, round(options.sentences * tokens / options.length))
    config = presets["vaswani-base"].replace(
        **{
            "model.vocab_size": len(tokenizer),
            "model.n_layers": options.layers,
            "model.architecture.encoder_layers": options.layers,
        },
        **{
            "model.attention.bias": ["q", "k", "v", "out"],
            "model.dropout.residual": 0.1,
            "train.batch_size": rows,
        },
        **{
            "train.seq_len": options.length,
            "train.average_checkpoints": 0,
            "train.warmup_steps": 1,
            "train.schedule": "constant",
        },
        **{"train.optimizer.lr": RATE, "train.label_smoothing": SMOOTHING},
    )
    chance = torch.Generator().manual_seed(0)
    mixed = [ids[i] for i in torch.randperm(len(ids), generator=chance).tolist()]
    n = options.sentences
    groups = [mixed[i : i + n] for i in range(0, n * 8, n)]
    by_length = sorted(
        mixed[: n * 40], key=lambda pair: (-(-len(pair[1]) // 8), -(-len(pair[0]) // 8))
    )
    buckets = [by_length[i : i + n] for i in range(0, n * 40, n * 10)]
    fill = ([1] * LONGEST, [1] * (LONGEST + 1))  # one pair of full length: static shapes
    plain = [padded([*group[:-1], fill], device) for group in groups]
    bucketed = [padded(group, device) for group in buckets]
    net = build_transformer(config.model)
    _same(net, Peer(net, 0.0), plain[0])
    length = options.length
    fits = {
        "rows": rows,
        "length": length,
        "source_length": balanced_source_seq_len(map(_encoded, ids), length),
        "seed": 0,
    }
    data = TranslationDataset(ids, [], DataReport(), **fits)
    sides = {"ours": ours(net, config, data, device)}
    for name in options.peers:
        batches = {"padded": plain, "bucketed": bucketed}[name]
        sides[name] = peer(Peer(build_transformer(config.model), 0.1), batches, device)
    for name, step in sides.items():
        began = time.perf_counter()
        for _ in range(10):
            step()
        print(f"{name}: ten steps with compiling {time.perf_counter() - began:.1f} s", flush=True)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, step in sides.items():
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
            counted = sum(step() for _ in range(options.steps))
            if cuda:
                torch.cuda.synchronize()
            rates[name].append(counted / (time.perf_counter() - began))
    result = {
        "torch": torch.__version__,
        "device": device,
        "share_of_real_tokens": round(data.packing_efficiency, 3),
    }
    for name, found in rates.items():
        middle = median(found)
        result[name] = {
            "target_tokens_per_s": round(middle),
            "range": [round(min(found)), round(max(found))],
            "ours_is_faster": round(median(rates["ours"]) / middle, 2),
        }
        print(name, result[name], flush=True)
    print(json.dumps(result))
    if options.keep:
        size = "base" if options.layers == 6 else f"of {options.layers} layers"
        work = f"translation {size}, {n} pairs a step"
        torch_s = f"nn.Transformer{', compiled' if cuda else ''}"
        named = {
            who if who == "ours" else f"{torch_s}, {who}": found for who, found in rates.items()
        }
        share = kept.Row(
            f"{work}: share of real tokens", "%", kept.figure(100 * data.packing_efficiency)
        )
        kept.write([*kept.rows(work, "tok/s", named), share], device=device)


def _encoded(pair: tuple[list[int], list[int]]):
    from clearhead.data.pairs import EncodedPair

    return EncodedPair(*pair)


@torch.no_grad()
def _same(net: Transformer, other: Peer, batch: tuple[Tensor, Tensor, Tensor, int]) -> None:
    source, target, learned = (t[:4].cpu() for t in batch[:3])
    segment_ids = PackedBatch(
        target, learned, (learned != IGNORE_INDEX).long(), source, (source != 0).long()
    )
    mine = batch_loss(net.eval(), segment_ids, 0.0)[0].item()
    other.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    theirs = other(source, target, learned, 0.0).item()
    torch.backends.mha.set_fastpath_enabled(True)
    assert abs(mine - theirs) < 1e-3 * abs(mine), (
        f"the peer computes something else: {mine}, {theirs}"
    )
    print(f"equal losses: {mine:.3f}, {theirs:.3f}", flush=True)


if __name__ == "__main__":
    main()
