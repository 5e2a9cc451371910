"""Small runs to test the loop with: a tiny model and rows of numbers that follow a rule."""

import torch

import clearhead as ch
from clearhead.data.batch import DataReport, PackedBatch
from clearhead.train.distributed import SINGLE_PROCESS
from clearhead.train.trainer import Trainer
from clearhead.weights.checkpoint import Checkpoint


class Counting:
    """Rows that count upwards from a drawn number: something to learn."""

    packing_efficiency = 1.0
    batches_per_epoch = 1000

    def __init__(self, rows=4, length=16, seed=0):
        self.rows = rows
        self.length = length
        self.seed = seed
        self.report = DataReport()

    def row(self, number):
        generator = torch.Generator().manual_seed(self.seed * 7919 + number)
        start = torch.randint(64, (1,), generator=generator)
        return (start + torch.arange(self.length + 1)) % 64

    def batch(self, step):
        rows = torch.stack([self.row(step * self.rows + i) for i in range(self.rows)])
        return PackedBatch(rows[:, :-1], rows[:, 1:])

    def valid_batches(self):
        rows = torch.stack([self.row(10**9 + i) for i in range(8)])
        yield PackedBatch(rows[:, :-1], rows[:, 1:])


def run(
    out,
    data=None,
    preset="tiny-decoder",
    team=SINGLE_PROCESS,
    device="cpu",
    compiled=False,
    **options,
):
    """A run in a folder; options are those of `train`, and of the model with their section."""
    changes = {"steps": 12, "warmup": 2, "report": 1, "check": 4, "save": 5, "keep": 2, **options}
    config = ch.presets[preset].replace(
        **{k if "." in k else f"train.{k}": v for k, v in changes.items()}
    )
    model = ch.new(config, seed=config.train.seed)
    return Trainer(Checkpoint(model.net, config), data or Counting(), out, device, compiled, team)


def weights(folder):
    return dict(ch.load(folder, device="cpu").net.named_parameters())


def through(made, until=None):
    return made.train(lambda progress: until is None or progress.step < until)


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
