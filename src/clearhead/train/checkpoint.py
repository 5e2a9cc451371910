"""A run as a folder: its configuration, its log, and checkpoints that are whole or not there.

    out/run.json               what is trained, on what, and how
    out/data.json              what the files that are learned from were when the run began
    out/log.jsonl              a line for each report
    out/steps/00000200/        a model that `clearhead.load` reads, with state.safetensors and state.json beside it
    out/best                   the step with the lowest validation loss, as a link
    out/average                the mean of the last models, where it was asked for

A checkpoint holds all that the next step needs: weights, optimiser, averages, and the step. The model is what was
validated; where that is a moving average, the weights that training goes on with are part of the state. The order of
the data and all that is drawn at random follow from the seed and the step, so nothing else is kept. All tensors are
whole, so a run goes on with any number of processes.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from clearhead import reader
from clearhead.config import Config
from clearhead.errors import ClearheadError
from clearhead.files import json_lines, overwrite
from clearhead.model.transformer import build
from clearhead.train.unchanged import same_paths
from clearhead.weights import folder as own
from clearhead.weights.checkpoint import Checkpoint, Home, fill
from clearhead.weights.fields import apart
from clearhead.weights.store import Safetensors
from clearhead.weights.whole import whole

STATE, FACTS, STEPS, BEST, AVERAGE = "state.safetensors", "state.json", "steps", "best", "average"
KEPT = {"step", "best", "best_step", "since", "first"}  # what a run remembers


@dataclass(frozen=True)
class Saved:
    """Where a run stands: the step that comes next, and what is remembered about the ones before."""

    step: int
    facts: dict[str, Any]
    folder: Path

    def weights(self) -> dict[str, Tensor]:
        return _read(self.folder / own.WEIGHTS)

    def state(self) -> dict[str, Tensor]:
        return _read(self.folder / STATE)


class Checkpoints:
    """The checkpoints of one run. The last `keep` remain, and the best.

    Those between two that were due, every `save` steps, do not count: of a better model, or of an interrupt. So what
    is kept and averaged does not depend on how a run was cut.
    """

    def __init__(self, out: Path, keep: int = 1, save: int = 1) -> None:
        self.out, self.keep, self.every = out, keep, save

    def place(self, step: int) -> Path:
        return self.out / STEPS / f"{step:08d}"

    def save(self, step: int, model: Checkpoint, state: Mapping[str, Tensor], facts: dict[str, Any]) -> None:
        """All of it under its step's name, or nothing."""
        with whole(self.place(step)) as new:
            own.write(new, model)
            save_file({name: t.detach().cpu().contiguous() for name, t in state.items()}, new / STATE)
            (new / FACTS).write_text(json.dumps({"step": step, **facts}) + "\n", encoding="utf-8")

    def average(self, model: Checkpoint, count: int) -> int:
        """The mean of the last models in fp32, as a model of its own; of how many, for there may be fewer."""
        stored = [Safetensors([place / own.WEIGHTS]) for place in self._due()[-count:]]
        means = (
            (name, torch.stack([one.read(name).float() for one in stored]).mean(dim=0)) for name in stored[0].shapes
        )
        net = fill(build(model.config.model, seed=None), means, Home(), str(self.out / STEPS))
        with whole(self.out / AVERAGE) as new:
            own.write(new, replace(model, net=net))
        return len(stored)

    def last(self) -> Saved | None:
        """The newest one that is whole."""
        if not (found := self._steps()):
            return None
        facts = reader.load(found[-1] / FACTS)
        if type(facts.get("step")) is not int or not facts.keys() >= KEPT:
            raise ClearheadError(f"{found[-1] / FACTS} is damaged: it does not tell where the run stands.")
        return Saved(int(facts.pop("step")), facts, found[-1])

    def holds(self, step: int) -> bool:
        return (self.place(step) / FACTS).is_file()

    def _steps(self) -> list[Path]:
        found = (self.out / STEPS).glob("*") if (self.out / STEPS).is_dir() else ()
        return sorted(path for path in found if re.fullmatch(r"\d{8}", path.name) and (path / FACTS).is_file())

    def _due(self) -> list[Path]:
        """Those that every run of this length has: one every so many steps, and the newest."""
        found = self._steps()
        return [place for place in found if int(place.name) % self.every == 0 or place == found[-1]]

    def tidy(self, best: int | None) -> None:
        """`best` is the link to this step, if to any, also where a run was killed before it was; older ones go.

        The link changes in one step: it always leads to a whole checkpoint.
        """
        kept = self._due()[-self.keep :]
        if best is not None:
            kept.append(self.place(best))
            there = self.place(best).relative_to(self.out)
            if not (self.out / BEST).is_symlink() or (self.out / BEST).readlink() != there:
                draft = self.out / f".{BEST}.{os.getpid()}"
                draft.unlink(missing_ok=True)
                draft.symlink_to(there)
                draft.replace(self.out / BEST)
        for place in self._steps():
            if place not in kept:  # first the name goes: half of what is removed is no checkpoint
                shutil.rmtree(place.rename(place.with_name(f".{place.name}.old")))


def _read(file: Path) -> dict[str, Tensor]:
    """All tensors of a file, mapped: they take no memory until they are copied to where they are needed."""
    stored = Safetensors([file])
    return {name: stored.read(name) for name in stored.shapes}


def reports(log: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, each with a step and its loss."""
    damaged = ClearheadError(f"{log} is damaged: not every line is a report with a step and a loss.")
    try:
        found = json_lines(log)
    except UnicodeDecodeError:
        raise damaged from None
    for line in found:
        if not isinstance(line, dict) or not all(isinstance(line.get(name), int | float) for name in ("step", "loss")):
            raise damaged
    return found


class Log:
    """One line of JSON for each report; what a killed run wrote after its last checkpoint is taken back."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in reports(path) if line["step"] <= step]
        self.loss = float(kept[-1]["loss"]) if kept else math.nan  # of the last report
        overwrite(path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def write(self, **values: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


FREE = ("steps", "report", "check", "save", "keep", "patience", "average", "sharded", "probes", "expected")


def check_same(run: Path, tree: reader.Tree) -> None:
    """A run goes on as what it was: only how long it lasts and how often it reports may change."""
    before = Config.of(reader.load(run)).tree()
    for path, old, new in apart(before, tree, ""):
        if path.removeprefix("train.") not in FREE and not same_paths(path, old, new):
            raise ClearheadError(
                f"{run.parent} holds a run with {path} = {old!r}, not {new!r}; choose another --out for this one."
            )
