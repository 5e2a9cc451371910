"""Runs of several processes: `torchrun … distributed_jobs.py FILE` runs a list of jobs."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from tiny_training import CountingDataset, make_trainer

import clearhead as ch
from clearhead.data.packed_batch import IGNORE_INDEX, PackedBatch
from clearhead.train.distributed import FSDP
from clearhead.train.strategy import distributed_training

RANK = int(os.environ.get("RANK", "0"))
RESTART = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class UnevenDataset(CountingDataset):
    """Rows of two documents with very different numbers of targets: few in the first row."""

    def row(self, number):
        return super().row(number) % 61

    def pack(self, numbers):
        rows = torch.stack([self.row(number) for number in numbers])
        positions = torch.arange(self.seq_len).expand(len(rows), -1)
        targets = rows[:, 1:].clone()
        num_targets = 1 + torch.arange(len(rows))[:, None] * self.seq_len // len(rows)
        targets[positions >= num_targets] = IGNORE_INDEX
        segment_ids = 1 + (positions >= self.seq_len // 2).long()
        return PackedBatch(rows[:, :-1], targets, segment_ids)

    def batch(self, step):
        return self.pack(range(step * self.batch_size, (step + 1) * self.batch_size))

    def valid_batches(self):
        for num_rows in (4, 3, 1):  # also fewer rows than processes
            yield self.pack(range(10**6 * num_rows, 10**6 * num_rows + num_rows))


class PairDataset(UnevenDataset):
    """The reversed rows as a source."""

    def pack(self, numbers):
        batch = super().pack(numbers)
        return PackedBatch(
            batch.tokens,
            batch.targets,
            batch.segment_ids,
            batch.tokens.flip(1),
            batch.segment_ids.flip(1),
        )


class LabeledDataset(UnevenDataset):
    """Whether a row starts low."""

    def pack(self, numbers):
        rows = torch.stack([self.row(number) for number in numbers])
        return PackedBatch(rows[:, :-1], (rows[:, 0] < 30).long())


class SignalDataset(UnevenDataset):
    """Sends a signal to its own process at (rank, step, restart)."""

    def __init__(self, number, *moments):
        super().__init__()
        self.number = number
        self.moments = moments

    def batch(self, step):
        if (RANK, step, RESTART) in self.moments:
            os.kill(os.getpid(), self.number)
        return super().batch(step)


DATASETS = {
    "uneven": UnevenDataset,
    "pairs": PairDataset,
    "labeled": LabeledDataset,
    "interrupted": lambda: SignalDataset(signal.SIGINT, (1, 3, 0)),
    "killed": lambda: SignalDataset(signal.SIGKILL, (1, 5, 0), (0, 8, 1)),
}


def job(output, data="uneven", preset="tiny-decoder", until=None, nan_weights=False, **options):
    """A run to its end, or until a step."""
    base = {"batch_size": 4, "max_steps": 6, "eval_every": 3, "save_every": 3}
    base |= {f"model.dropout.{name}": 0.0 for name in ("residual", "embedding", "attention")}
    return {
        "output": str(output),
        "data": data,
        "preset": preset,
        "until": until,
        "nan_weights": nan_weights,
        "options": base | options,
    }


def run_job(job, strategy):
    trainer = make_trainer(
        Path(job["output"]),
        DATASETS[job["data"]](),
        job["preset"],
        strategy=strategy,
        **{name: value for name, value in job["options"].items() if name != "strategy"},
        **{"train.strategy": job["options"].get("strategy", "ddp")},
    )
    trainer.resume()
    if job["nan_weights"] and RANK == 1:
        trainer.net.final_norm.weight.data.fill_(torch.nan)
    try:
        result = trainer.train(lambda progress: progress.step != job["until"])
    except ch.ClearheadError as error:
        return {"error": str(error)}
    return {
        "status": result.status,
        "step": result.step,
        "loss": result.loss,
        "best_loss": result.best_loss,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs = json.loads(Path(sys.argv[1]).read_text())
    with distributed_training("cpu", ch.presets["tiny-decoder"].train) as ddp:
        strategies = {"ddp": ddp, "fsdp": FSDP("cpu")}
        for each in jobs:
            result = run_job(each, strategies[each["options"].get("strategy", "ddp")])
            Path(each["output"], f"result.{RANK}.json").write_text(json.dumps(result))
