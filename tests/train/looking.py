"""A film of one look at a fresh model."""

import torch

import clearhead as ch
from clearhead.data.batch import DataReport
from clearhead.train.activation_recorder import ActivationRecorder
from clearhead.weights.checkpoint import Checkpoint


class Rows:
    """Held-out rows of any kind."""

    packing_efficiency = 1.0
    batches_per_epoch = 1

    def __init__(self, batch):
        self.one = batch
        self.report = DataReport()

    def batch(self, step):
        return self.one

    def valid_batches(self):
        yield self.one


def ids(rows, length, seed=0):
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(seed))


def look(out, name, batch, tokenizer=None, **changes):
    """A film of one look at a fresh model, and the model."""
    model = ch.new(name, seed=1, **changes)
    scope = ActivationRecorder(Checkpoint(model.net, model.config, tokenizer), Rows(batch), out)
    scope(0)
    return ch.lens.read_training_trace(out), model, scope
