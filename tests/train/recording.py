"""Activation recordings of fresh models."""

import torch

import clearhead as ch
from clearhead.data.readers import DataReport
from clearhead.train.activation_recorder import ActivationRecorder
from clearhead.weights.checkpoint import Checkpoint


class OneBatch:
    """A dataset with one validation batch of any kind."""

    packing_efficiency = 1.0
    batches_per_epoch = 1

    def __init__(self, batch):
        self.only_batch = batch
        self.report = DataReport()

    def batch(self, step):
        return self.only_batch

    def valid_batches(self):
        yield self.only_batch


def random_ids(rows, length, seed=0):
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(seed))


def record_once(output, preset, batch, tokenizer=None, **changes):
    """The trace of one recording of a fresh model, the model and the recorder."""
    model = ch.new(preset, seed=1, **changes)
    checkpoint = Checkpoint(model.net, model.config, tokenizer)
    recorder = ActivationRecorder(checkpoint, OneBatch(batch), output)
    recorder(0)
    return ch.lens.read_training_trace(output), model, recorder
