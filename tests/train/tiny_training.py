"""Small runs: a tiny model and rows of numbers that follow a rule."""

import torch

import clearhead as ch
from clearhead.data.packed_batch import PackedBatch
from clearhead.data.readers import DataReport
from clearhead.io import read_log
from clearhead.train.strategy import SINGLE_PROCESS
from clearhead.train.trainer import Trainer
from clearhead.weights.checkpoint import Checkpoint

DEFAULT_OPTIONS = {
    "max_steps": 12,
    "warmup_steps": 2,
    "log_every": 1,
    "eval_every": 4,
    "save_every": 5,
    "keep_checkpoints": 2,
}
KILLED_OPTIONS = {
    "max_steps": 40,
    "save_every": 2,
    "log_every": 3,
    "eval_every": 10,
    "ema_decay": 0.9,
    "average_checkpoints": 2,
    "model.dropout.residual": 0.1,
}


class CountingDataset:
    """Rows that count upwards from a random number."""

    packing_efficiency = 1.0
    batches_per_epoch = 1000

    def __init__(self, batch_size=4, seq_len=16, seed=0):
        self.batch_size = batch_size
        self.seq_len = seq_len
        self.seed = seed
        self.report = DataReport()

    def row(self, number):
        generator = torch.Generator().manual_seed(self.seed * 7919 + number)
        start = torch.randint(64, (1,), generator=generator)
        return (start + torch.arange(self.seq_len + 1)) % 64

    def batch(self, step):
        first = step * self.batch_size
        rows = torch.stack([self.row(first + i) for i in range(self.batch_size)])
        return PackedBatch(rows[:, :-1], rows[:, 1:])

    def valid_batches(self):
        rows = torch.stack([self.row(10**9 + i) for i in range(8)])
        yield PackedBatch(rows[:, :-1], rows[:, 1:])


class WithoutValidation(CountingDataset):
    def valid_batches(self):
        return iter(())


def make_trainer(
    output,
    data=None,
    preset="tiny-decoder",
    strategy=SINGLE_PROCESS,
    device="cpu",
    compile=False,
    **options,
):
    """A run in a folder; options are those of `train`, or dotted."""
    dotted = {
        name if "." in name else f"train.{name}": value
        for name, value in (DEFAULT_OPTIONS | options).items()
    }
    config = ch.presets[preset].replace(**dotted)
    model = ch.new(config, seed=config.train.seed)
    checkpoint = Checkpoint(model.net, config)
    return Trainer(checkpoint, data or CountingDataset(), output, device, compile, strategy)


def run(trainer, until=None):
    """Train to the end, or until a step."""
    return trainer.train(lambda progress: until is None or progress.step < until)


def resume(output, **options):
    trainer = make_trainer(output, **options)
    assert trainer.resume()
    return trainer


def load_weights(folder):
    return dict(ch.load(folder, device="cpu").net.named_parameters())


def same_tensors(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def read_reports(output):
    """The reports of a run, without its speed."""
    return [{**report, "targets_per_second": None} for report in read_log(output / "log.jsonl")]
