"""How a trained model fares on texts of other lengths than it was trained on, also on longer ones."""

from pathlib import Path

import torch

from clearhead.config import Learned
from clearhead.data.packed import Dataset, Report
from clearhead.model.masks import positions_in
from clearhead.train.lessons import prepare
from clearhead.train.team import ALONE
from clearhead.train.tokenizers import Origin
from clearhead.train.validate import validate
from clearhead.weights import formats
from clearhead.weights.checkpoint import Home

Measured = dict[str, dict[str, float]]


def loss_by_length(place: Path, lengths: tuple[int, ...], device: str) -> Measured:
    """{"512": {"loss": …, "beyond": …}}: of a run's model on what it held out, cut into rows of each length.

    Every held-out token is counted once at each length; what is hidden from a masked-word model differs between them.
    `beyond` is the share of tokens that stand further from the beginning of their text than any token in training. The
    length of training is always among them. Learned positions end with the context: there is nothing to tell of longer
    rows.
    """
    read = formats.read(place, Home.of(device, ""))
    config, net = read.config, read.net
    own = config.train.length or config.model.context
    found: Measured = {}
    for length in sorted({own, *lengths}):
        found[str(length)] = {}
        if length > config.model.context and isinstance(config.model.position, Learned):
            continue
        rows = max(1, config.train.rows * own // length)
        longest = max(length, config.model.context)
        longer = config.change(**{"model.context": longest, "train.length": length, "train.rows": rows})
        net.context = longest  # no weight of the other kinds of positions depends on it
        origin = Origin(longer, place, True, read.tokenizer, read.source_tokenizer)
        data = prepare(longer, origin, Report(config.data.broken)).data
        loss, _ = validate(net, data, torch.device(device), ALONE)
        if loss is not None:
            found[str(length)] = {"loss": loss, "beyond": _beyond(data, own)}
    return found


def _beyond(data: Dataset, own: int) -> float:
    """The share of tokens at position `own` or further on."""
    far = every = 0
    for batch in data.held_out():
        segments = torch.ones_like(batch.tokens) if batch.segments is None else batch.segments
        real = segments != 0
        far += int((positions_in(segments)[real] >= own).sum())
        every += int(real.sum())
    return far / max(1, every)
