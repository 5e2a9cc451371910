"""Tiny networks that take optimizer steps."""

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


def tiny_net(preset="tiny-decoder", dtype=torch.float32, device="cpu"):
    return build_transformer(ch.presets[preset].model, 0, device, dtype).train()


def backward(net, seed=0):
    """Compute the gradients of one random batch; return its loss."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(64, (4, 17), generator=generator).to(next(net.parameters()).device)
    total, count = net.loss(net(ids[:, :-1]), ids[:, 1:])
    (total / count).backward()
    return (total / count).item()


def take_steps(net, optimizer, steps, seed=0, ema=None):
    for step in range(steps):
        backward(net, seed + step)
        optimizer.clip_grad_norm(1.0)
        optimizer.step(1 / (1 + step))
        optimizer.zero_grad()
        if ema is not None:
            ema.update()


def same_weights(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def squared_distance(a, b):
    return sum(
        (p.float() - q.float()).square().sum()
        for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )
