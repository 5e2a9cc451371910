"""Tiny nets that take steps."""

import pytest
import torch

import clearhead as ch
from clearhead.config.training import Adam, AdamW, Muon
from clearhead.model.transformer import build_transformer

MUON = Muon(adam=Adam(lr=3e-3))
ADAMW = AdamW(lr=3e-3)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")),
]


def tiny(name="tiny-decoder", dtype=torch.float32, device="cpu"):
    return build_transformer(ch.presets[name].model, 0, device, dtype).train()


def learn(net, seed=0):
    """Gradients of one random batch, and its loss."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(64, (4, 17), generator=generator).to(next(net.parameters()).device)
    total, count = net.loss(net(ids[:, :-1]), ids[:, 1:])
    (total / count).backward()
    return (total / count).item()


def train(net, optimizer, steps, seed=0, ema=None):
    for step in range(steps):
        learn(net, seed + step)
        optimizer.clip(1.0)
        optimizer.step(1 / (1 + step))
        optimizer.zero()
        if ema is not None:
            ema.update()


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def distance(a, b):
    return sum(
        (p.float() - q.float()).square().sum()
        for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )
