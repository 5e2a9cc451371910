"""The training loop: next-token prediction on a stream of tokens, every position a lesson (L5.3)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.model.transformer import Transformer


def fit(
    net: Transformer,
    tokens: Tensor,
    steps: int,
    batch: int = 16,
    rate: float = 3e-3,
    seed: int = 0,
    report: Callable[[int, float], bool] = lambda step, loss: True,
) -> None:
    """AdamW with warm-up and cosine decay. `report(step, loss)` is called after each step; False ends the training."""
    matrices = [p for p in net.parameters() if p.dim() >= 2]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)
    net.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * schedule(step, steps)
        x, y = windows(tokens, batch, net.context, seed, step)
        total, count = net.loss(net(x), y)
        loss = total / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if not report(step, loss.item()):
            break
    net.eval()


def schedule(step: int, steps: int, warm: int = 20) -> float:
    """A short rise, then half a cosine down to a tenth."""
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def windows(tokens: Tensor, batch: int, context: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Random pieces of the stream and what follows each token: a pure function of seed and step."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(tokens) - context, (batch, 1), generator=generator)
    rows = tokens[starts + torch.arange(context + 1)]
    return rows[:, :-1], rows[:, 1:]
