"""Runs of several processes: `torchrun … together.py FILE` does a list of jobs, one after the other."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from runs import Counting, run

import clearhead as ch
from clearhead.data.batch import IGNORE_INDEX, PackedBatch
from clearhead.train.data_parallel import FSDP
from clearhead.train.distributed import distributed_training

RANK, AGAIN = (int(os.environ.get(name, "0")) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))


class Uneven(Counting):
    """Rows of two documents that teach very unequally: the first row nearly nothing, the last everywhere."""

    def row(self, number):
        return super().row(number) % 61

    def pack(self, numbers):
        rows = torch.stack([self.row(n) for n in numbers])
        places = torch.arange(self.length).expand(len(rows), -1)
        targets = rows[:, 1:].clone()
        targets[places >= 1 + torch.arange(len(rows))[:, None] * self.length // len(rows)] = (
            IGNORE_INDEX
        )
        return PackedBatch(rows[:, :-1], targets, 1 + (places >= self.length // 2).long())

    def batch(self, step):
        return self.pack(range(step * self.rows, (step + 1) * self.rows))

    def valid_batches(self):
        for rows in (4, 3, 1):  # shared out among more processes than rows
            yield self.pack(range(10**6 * rows, 10**6 * rows + rows))


class Pairs(Uneven):
    """What is counted from, and the counting."""

    def pack(self, numbers):
        rows = super().pack(numbers)
        return PackedBatch(
            rows.tokens,
            rows.targets,
            rows.segment_ids,
            rows.tokens.flip(1),
            rows.segment_ids.flip(1),
        )


class Judged(Uneven):
    """Whether a row starts low."""

    def pack(self, numbers):
        rows = torch.stack([self.row(n) for n in numbers])
        return PackedBatch(rows[:, :-1], (rows[:, 0] < 30).long())


class Disturbed(Uneven):
    """Data that comes with a signal to the process that asks for the batch of a step."""

    def __init__(self, number, **when):
        super().__init__()
        self.number = number
        self.when = when

    def batch(self, step):
        if {"rank": RANK, "step": step, "again": AGAIN} in self.when.values():
            os.kill(os.getpid(), self.number)
        return super().batch(step)


DATA = {
    "uneven": Uneven,
    "pairs": Pairs,
    "judged": Judged,
    "interrupted": lambda: Disturbed(signal.SIGINT, a={"rank": 1, "step": 3, "again": 0}),
    "killed": lambda: Disturbed(
        signal.SIGKILL, a={"rank": 1, "step": 5, "again": 0}, b={"rank": 0, "step": 8, "again": 1}
    ),
}


def do(job, team):
    """A run to its end, or until a step."""
    made = run(Path(job["out"]), DATA[job["data"]](), job["preset"], team=team, **job["options"])
    made.resume()
    if job["poisoned"] and RANK == 1:
        made.net.final_norm.weight.data.fill_(torch.nan)
    try:
        done = made.train(lambda progress: progress.step != job["until"])
    except ch.ClearheadError as error:
        return {"error": str(error)}
    return {"end": done.status, "step": done.step, "loss": done.loss, "best": done.best_loss}


def job(out, data="uneven", preset="tiny-decoder", until=None, poisoned=False, **options):
    base = {"rows": 4, "steps": 6, "check": 3, "save": 3}
    base |= {f"model.dropout.{where}": 0.0 for where in ("residual", "embedding", "attention")}
    options = {**base, **options}
    return {
        "out": str(out),
        "data": data,
        "preset": preset,
        "until": until,
        "poisoned": poisoned,
        "options": options,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs = json.loads(Path(sys.argv[1]).read_text())
    with distributed_training("cpu", ch.presets["tiny-decoder"].train) as copies:
        teams = {False: copies, True: FSDP("cpu")}
        for each in jobs:
            result = do(each, teams[each["options"].get("sharded", False)])
            Path(each["out"], f"result.{RANK}.json").write_text(json.dumps(result))
