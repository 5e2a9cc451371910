"""How good a network is on what is held out."""

import torch
from torch import Tensor

from clearhead.config import Classes
from clearhead.data.packed import Dataset, lessons_in
from clearhead.model.transformer import Transformer
from clearhead.train.lesson import hidden_of, to
from clearhead.train.team import Alone


@torch.no_grad()
def validate(net: Transformer, data: Dataset, device: torch.device, team: Alone) -> tuple[float | None, float | None]:
    """The loss of a lesson, the share of classes that were told right where there are classes; None without data."""
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
        count += lessons_in(batch.targets)
    team.fold(net)
    total, right = team.total(sums).tolist()
    return (total / count, right / count if judges else None) if count else (None, None)
