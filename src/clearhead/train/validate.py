"""How good a network is on what is held out."""

import math

import torch
from torch import Tensor

from clearhead.config import Classes
from clearhead.data.packed import IGNORE, Dataset
from clearhead.model.transformer import Transformer
from clearhead.train.lesson import hidden_of, to
from clearhead.train.team import Alone


@torch.no_grad()
def validate(net: Transformer, data: Dataset, device: torch.device, team: Alone) -> tuple[float, float | None]:
    """The loss of a lesson, and the share of classes that were told right, where there are classes."""
    net.eval()
    judges, count = isinstance(net.config.head, Classes), 0
    sums: Tensor = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in data.held_out():
        mine, counts = team.share(batch)
        mine = to(mine, device, net)
        hidden = hidden_of(net, mine)
        loss, _ = net.loss(hidden, mine.targets, mine.segments)
        right = (net.predict(hidden, mine.segments).argmax(dim=-1) == mine.targets).sum() if judges else loss * 0
        sums += torch.stack([loss.double(), right.double()]) * counts
        count += int((batch.targets != IGNORE).sum())
    team.fold(net)
    total, right = team.total(sums).tolist()
    return (total / count, right / count if judges else None) if count else (math.nan, None)
