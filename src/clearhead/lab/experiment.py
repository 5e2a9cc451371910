"""An experiment as a folder that reproduces itself.

out/experiment.toml        what is compared: a base, what is varied, the seeds; `clearhead compare out` goes on with it
out/data.json              what the files that are learned from were when it began
out/runs/NAME/SEED/        one training run each, as `clearhead train` leaves it
out/results.jsonl          a line for each run that came to its end
out/report.html, report.md, table.csv, curves.png   what came out, as far as it is known
"""

import glob
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import torch

from clearhead import __version__, reader
from clearhead import config as c
from clearhead.config import Config, Data
from clearhead.data.alone import alone
from clearhead.data.unpacked import STDIN
from clearhead.errors import ClearheadError, nearest, unreadable
from clearhead.files import overwrite, write_json
from clearhead.lab.grid import Variant, variants
from clearhead.train.unchanged import FILE as DATA
from clearhead.train.unchanged import fingerprints, same_paths
from clearhead.variants import say
from clearhead.weights.fields import apart

FILE, RESULTS, RUNS, LOCK = "experiment.toml", "results.jsonl", "runs", ".lock"
SIGNS = "*/*/run.json", f"*/*{LOCK}"  # that a run has begun, or that some process is about to begin it
FREE = (
    "what",
    "metric",
    "against",
    "lengths",
    "earlier",
)  # what may change when all is trained: none of it is a training's
SEED = "{seed}"
LOSS, LAST = "loss", "last"  # what every training leaves
FIGURES = {  # of clearhead evaluate, by what a model answers
    "language": ("perplexity", "word perplexity", "bits per byte"),
    "translation": ("bleu", "chrf", "perplexity"),
    "masked-word": ("accuracy", "perplexity"),
    "classes": ("accuracy", "f1", "macro f1", "matthews", "calibration error"),
    "number": ("pearson", "spearman", "error"),
    "hidden": (),
}


@dataclass(frozen=True)
class Made:
    """What an experiment was begun with."""

    command: str = say("what was typed", "")
    clearhead: str = say("version", __version__)
    torch: str = say("version", str(torch.__version__))
    python: str = say("version", platform.python_version())
    day: str = say("when it was begun", "")


@dataclass(frozen=True)
class Training:
    """A variant with a seed."""

    variant: str
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        return self.variant, self.seed

    @property
    def place(self) -> str:
        """Its folder, in that of the experiment."""
        return f"{RUNS}/{self.variant}/{self.seed}"


@dataclass(frozen=True)
class Run(Training):
    """One training, and all that it is told."""

    config: Config

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"


@dataclass(frozen=True)
class Experiment:
    """What is compared, and by what."""

    what: str = say("the preset or file that it began with", "")
    vary: tuple[str, ...] = say("options and their values; every combination is a variant", ())
    seeds: tuple[int, ...] = say("every variant is trained once with each", (0, 1, 2))
    metric: str = say("loss (the lowest on what is held out), last, or a figure of clearhead evaluate", LOSS)
    against: str = say("the variant that the others are held against; the first if empty", "")
    lengths: tuple[int, ...] = say("lengths of texts, also beyond the context, at which the loss is measured too", ())
    earlier: tuple[str, ...] = say("what was asked of the same runs before", ())
    made: Made = field(default=Made())
    base: Config = field(default=Config())

    def __post_init__(self) -> None:
        for mistake in self._mistakes():
            raise ClearheadError(mistake)

    def _mistakes(self) -> Iterator[str]:
        data, m = [v.config.data for v in self.variants], self.base.model
        if not all(type(number) is int for number in (*self.seeds, *self.lengths)):
            yield "seeds and lengths must be whole numbers."
        if len({seed for seed in self.seeds if 0 <= seed < 2**63}) < max(1, len(self.seeds)):
            yield f"--seeds {','.join(map(str, self.seeds))} must be different whole numbers from 0 to 2^63 - 1."
        if min(self.lengths, default=1) < 1:
            yield f"--lengths {min(self.lengths)} must be at least 1."
        if any(STDIN in (*d.train, *d.valid) for d in data):
            yield "standard input (-) can be read only once; several runs need files."
        if not all(d.train for d in data):
            yield "there is nothing to learn from; give --data.train a file, a folder or a glob."
        if not all(d.valid or d.held_out for d in data):
            yield "nothing is held out, so there is nothing to compare by; give data.valid, or data.held_out above 0."
        if self.against not in ("", *(names := [v.name for v in self.variants])):
            yield f"--against {self.against} is no variant; {nearest(self.against, names)}"
        answers = "translation" if isinstance(m.shape, c.EncoderDecoder) else m.head.kind
        logged = (LOSS, LAST, *(["accuracy"] if answers == "classes" else []))
        figures = [figure for figure in FIGURES[answers] if figure not in logged]
        if self.metric not in (*logged, *figures):
            more = f", and with --data.valid {', '.join(figures)}" if figures else ""
            yield f"--metric {self.metric} is unknown here; known: {', '.join(logged)}{more}."
        if self.metric not in logged and not all(d.valid for d in data):
            files = "files of their own; give --data.valid, in a new experiment if this one has none"
            yield f"--metric {self.metric} is measured on {files}."
        reads = isinstance(m.input, c.Tokens) and not isinstance(m.shape, c.EncoderDecoder)
        if self.lengths and not (reads and isinstance(m.head, c.Language | c.MaskedWord)):
            yield "--lengths is for models that read running texts; pairs, rows and pictures are as long as they are."

    @cached_property
    def variants(self) -> list[Variant]:
        return variants(self.base, self.vary)

    @cached_property
    def runs(self) -> list[Run]:
        """A seed of all variants before the next seed: what can be compared is known early.

        {seed} in train.start is the run's own: each goes on from the model that was trained with its seed.
        """
        return [
            Run(v.name, seed, replace(v.config, train=replace(v.config.train, seed=seed, start=start)))
            for seed in self.seeds
            for v in self.variants
            for start in [v.config.train.start.replace(SEED, str(seed))]
        ]

    @classmethod
    def read(cls, file: Path) -> Self:
        return reader.read(cls, reader.load(file))

    @property
    def question(self) -> str:
        return f"{self.metric} against {self.against or self.variants[0].name}"

    def settle(self, out: Path) -> Self:
        """From now on the folder is this experiment's; of one that has begun only what is asked of it may change.

        Given is the experiment as the folder has it: it knows how it began, and what was asked of its runs before.
        """
        if out.exists() and not out.is_dir():
            raise ClearheadError(f"{out} is a file; choose another --out.")
        paths = dict.fromkeys(p for v in self.variants for p in (*v.config.data.train, *v.config.data.valid))
        for path in paths:
            if not ((out / FILE).is_file() or Path(path).exists() or glob.glob(path, recursive=True)):  # noqa: PTH207
                raise unreadable(path, FileNotFoundError())
            if Path(path).is_dir() and out.resolve().is_relative_to(Path(path).resolve()):
                raise ClearheadError(f"--out {out} is in {path}: runs would read what others leave; choose another.")
        with alone(out / LOCK):
            if not (out / FILE).is_file() and not all(path.name.startswith(".") for path in out.iterdir()):
                raise ClearheadError(f"{out} holds something else; an experiment needs a folder of its own.")
            begun, mine = (out / RESULTS).is_file() or any(any((out / RUNS).glob(sign)) for sign in SIGNS), self
            before = Experiment.read(out / FILE) if begun else None
            if before is not None:
                asked = dict.fromkeys((*before.earlier, before.question))
                asked.pop(self.question, None)
                mine = replace(self, made=before.made, earlier=tuple(asked))
                for option, old, new in apart(reader.tree(before), reader.tree(mine), ""):
                    if option not in FREE and not same_paths(option.removeprefix("base."), old, new):
                        was = f"{option.removeprefix('base.')} = {old!r}, not {new!r}"
                        why = "what is compared must be trained and judged alike"
                        raise ClearheadError(f"{out} compares with {was}: {why}; choose another --out.")
            read = fingerprints(Data(tuple(paths)), out, begun)
            if mine != before:
                overwrite(out / FILE, reader.toml(mine).encode())  # first, for it tells whose folder this is
            write_json(out / DATA, read, 1)
        return mine
