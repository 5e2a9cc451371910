"""A run as a folder: its configuration, its log, and checkpoints that are whole or not there.

    out/run.json               what is trained, on what, and how
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
from clearhead.model.transformer import build
from clearhead.weights import folder as own
from clearhead.weights.checkpoint import Checkpoint, Home, fill
from clearhead.weights.fields import apart
from clearhead.weights.store import Safetensors
from clearhead.weights.whole import whole

STATE, FACTS, STEPS, BEST, AVERAGE = "state.safetensors", "state.json", "steps", "best", "average"


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
    """The checkpoints of one run; the last `keep` and the best remain."""

    def __init__(self, out: Path, keep: int) -> None:
        self.out, self.keep = out, keep

    def place(self, step: int) -> Path:
        return self.out / STEPS / f"{step:08d}"

    def save(self, step: int, model: Checkpoint, state: Mapping[str, Tensor], facts: dict[str, Any]) -> None:
        """All of it under its step's name, or nothing."""
        with whole(self.place(step)) as new:
            own.write(new, model)
            save_file({name: t.detach().cpu().contiguous() for name, t in state.items()}, new / STATE)
            (new / FACTS).write_text(json.dumps({"step": step, **facts}) + "\n", encoding="utf-8")

    def average(self, model: Checkpoint, count: int) -> None:
        """The mean of the last models in fp32, as a model of its own."""
        stored = [Safetensors([place / own.WEIGHTS]) for place in self._steps()[-count:]]
        means = (
            (name, torch.stack([one.read(name).float() for one in stored]).mean(dim=0)) for name in stored[0].shapes
        )
        net = fill(build(model.config.model, seed=None), means, Home(), str(self.out / STEPS))
        with whole(self.out / AVERAGE) as new:
            own.write(new, replace(model, net=net))

    def last(self) -> Saved | None:
        """The newest one that is whole."""
        for place in reversed(self._steps()):
            facts = reader.load(place / FACTS)
            return Saved(int(facts.pop("step")), facts, place)
        return None

    def best(self) -> Path | None:
        link = self.out / BEST
        return link.resolve() if link.exists() else None

    def _steps(self) -> list[Path]:
        found = (self.out / STEPS).glob("*") if (self.out / STEPS).is_dir() else ()
        return sorted(path for path in found if re.fullmatch(r"\d{8}", path.name) and (path / FACTS).is_file())

    def point(self, step: int) -> None:
        """This one is the best. The link changes in one step: it always leads to a whole checkpoint."""
        place = self.place(step)
        draft = self.out / f".{BEST}.{os.getpid()}"
        draft.unlink(missing_ok=True)
        draft.symlink_to(place.relative_to(self.out))
        draft.replace(self.out / BEST)

    def tidy(self) -> None:
        """Older ones go."""
        best = self.best()
        for place in self._steps()[: -self.keep]:
            if place.resolve() != best:
                shutil.rmtree(place)


def _read(file: Path) -> dict[str, Tensor]:
    """All tensors of a file, mapped: they take no memory until they are copied to where they are needed."""
    stored = Safetensors([file])
    return {name: stored.read(name) for name in stored.shapes}


class Log:
    """One line of JSON for each report; what a killed run wrote after its last checkpoint is taken back."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in self._lines() if line.get("step", -1) <= step]
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        draft.replace(path)

    def _lines(self) -> list[dict[str, Any]]:
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:  # half a line: the run was killed while it wrote
                continue
        return found

    def write(self, **values: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


FREE = ("steps", "report", "check", "save", "keep", "patience", "average", "sharded", "probes", "expected")


def check_same(run: Path, tree: reader.Tree) -> None:
    """A run goes on as what it was: only how long it lasts and how often it reports may change."""
    before = Config.of(reader.load(run)).tree()
    for path, old, new in apart(before, tree, ""):
        if path.removeprefix("train.") not in FREE:
            raise ClearheadError(
                f"{run.parent} holds a run with {path} = {old!r}, not {new!r}; choose another --out for this one."
            )
