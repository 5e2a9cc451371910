"""A film of one look at a fresh model."""

import torch

import clearhead as ch
from clearhead.data.packed import Report
from clearhead.train.microscope import Microscope
from clearhead.weights.checkpoint import Checkpoint


class Rows:
    """Held-out rows of any kind."""

    share, epoch = 1.0, 1

    def __init__(self, batch):
        self.one, self.report = batch, Report()

    def batch(self, step):
        return self.one

    def held_out(self):
        yield self.one


def ids(rows, length, seed=0):
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(seed))


def look(out, name, batch, tokenizer=None, **changes):
    """A film of one look at a fresh model, and the model."""
    model = ch.new(name, seed=1, **changes)
    scope = Microscope(Checkpoint(model.net, model.config, tokenizer), Rows(batch), out)
    scope(0)
    return ch.lens.read_film(out), model, scope
