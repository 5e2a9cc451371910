"""What is varied: options with several values each, and every combination of them as a configuration with a name."""

import glob
import itertools
import json
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

from clearhead import __version__
from clearhead import config as c
from clearhead.config.model import Config, DataConfig
from clearhead.config.parse import (
    dataclass_from_dict,
    dataclass_to_dict,
    dataclass_to_toml,
    option,
    read_config_file,
)
from clearhead.data.readers import STDIN
from clearhead.errors import ClearheadError, cannot_read, suggest
from clearhead.io import file_lock, read_json_lines, write_atomic, write_json
from clearhead.train.checkpoint import FINGERPRINT_FILE as DATA
from clearhead.train.checkpoint import LOG_FILE, fingerprint_data, same_paths
from clearhead.train.datasets import check_seq_len
from clearhead.train.diagnosis import curve_of
from clearhead.train.report import REPORT_DATA_FILE, median_targets_per_second, training_seconds
from clearhead.train.train import RUN_FILE, apply_overrides
from clearhead.weights.mapping import diff_trees

# ---- grid: What is varied: options with several values each, and every combination of them as a configuration with a name.

Vary = Mapping[
    str, str | Sequence[object]
]  # an option, and its values as a list or as text with commas
OPENING_BRACKETS = "[{"
CLOSING_BRACKETS = "]}"


@dataclass(frozen=True)
class Variant:
    """One combination of values, as a configuration."""

    name: str
    config: Config


def format_vary(vary: Vary) -> tuple[str, ...]:
    """["model.position=none,rotary"]: the same as text, which `variants` reads."""
    return tuple(
        f"{option.replace('__', '.')}={values if isinstance(values, str) else ','.join(map(_format_toml, values))}"
        for option, values in vary.items()
    )


def expand_grid(base: Config, vary: Sequence[str]) -> list[Variant]:
    """All combinations, the first option changing slowest; each is checked as if it were to be trained."""
    grid = dict(_parse_option(text) for text in vary)
    if len(grid) < len(vary):
        raise ClearheadError(
            f"--vary {_first_duplicate([text.partition('=')[0] for text in vary])} is given twice."
        )
    short = _short_names(list(grid))
    found = list[Variant]()
    called = {
        option: dict(zip(values, map(_folder_name, _distinct_parts(values)), strict=True))
        for option, values in grid.items()
    }
    for values in itertools.product(*grid.values()):
        pairs = dict(zip(grid, values, strict=True))
        name = (
            ",".join(f"{short[option]}={called[option][value]}" for option, value in pairs.items())
            or "base"
        )
        try:
            found.append(Variant(name, apply_overrides(base, pairs)))
            check_seq_len(found[-1].config)
        except ClearheadError as error:
            raise ClearheadError(f"{name}: {error}" if len(grid) > 1 else str(error)) from None
    for kind, each in (
        ("called", [v.name for v in found]),
        ("the same configuration,", [v.config for v in found]),
    ):
        if twice := _first_duplicate(each):
            name = next(v.name for v in found if twice in (v.name, v.config))
            raise ClearheadError(
                f"two variants are {kind} {name}; every one of them must be another."
            )
    return found


def _parse_option(text: str) -> tuple[str, list[str]]:
    option, _, values = text.partition("=")
    if not values:
        raise ClearheadError(
            f"--vary {text} names no values; write them as in model.position=learned,rotary."
        )
    if option in ("train.seed", "seed"):
        raise ClearheadError(
            "seeds are not varied like options, for runs are paired by them; use --seeds."
        )
    return option, list(_split_values(values))


def _split_values(text: str) -> Iterator[str]:
    """At commas, but not inside of quotes, lists and tables."""
    depth = 0
    quote = ""
    start = 0
    for i, letter in enumerate(text):
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        elif letter == "," and not depth:
            yield text[start:i].strip()
            start = i + 1
        else:
            depth += (letter in OPENING_BRACKETS) - (letter in CLOSING_BRACKETS)
    yield text[start:].strip()


def _format_toml(value: object, inside: bool = False) -> str:
    """A value as TOML has it; a text that needs no quotes stays as it is."""
    match value:
        case str():
            return json.dumps(value) if inside or re.search(r"[,\[\]{}\"']", value) else value
        case Mapping():
            return (
                "{"
                + ", ".join(f"{name} = {_format_toml(item, True)}" for name, item in value.items())
                + "}"
            )
        case list() | tuple():
            return "[" + ", ".join(_format_toml(item, True) for item in value) + "]"
        case _:
            return json.dumps(value)


def _short_names(options: list[str]) -> dict[str, str]:
    """The end of each option's name that no other has: heads for model.attention.n_heads."""
    ends = {
        option: [".".join(option.split(".")[-n:]) for n in range(1, option.count(".") + 2)]
        for option in options
    }
    return {
        option: next(
            end
            for end in ends[option]
            if sum(end in others for others in ends.values()) == 1 or end == option
        )
        for option in options
    }


def _distinct_parts(values: list[str]) -> list[str]:
    """Of paths only the parts in which they differ: learned and rotary of runs/learned/best and runs/rotary/best."""
    parts = [value.split("/") for value in values]
    for end in (0, -1):
        while min(map(len, parts)) > 1 and len({part[end] for part in parts}) == 1 < len(parts):
            parts = [part[1:] if end == 0 else part[:-1] for part in parts]
    return ["/".join(part) for part in parts]


def _folder_name(value: str) -> str:
    """A value as part of the name of a folder."""
    return (
        re.sub(r"[^\w.,=+-]+", "-", re.sub(r"[\s\"']|^{kind *= *", "", value)).strip("-") or "empty"
    )


def _first_duplicate(found: Sequence[Any]) -> Any:
    return next((each for i, each in enumerate(found) if each in found[:i]), None)


# ---- experiment: An experiment as a folder that reproduces itself.

EXPERIMENT_FILE = "experiment.toml"
RESULTS_FILE = "results.jsonl"
RUNS_FOLDER = "runs"
LOCK_SUFFIX = ".lock"
STARTED_PATTERNS = (
    "*/*/run.json",
    f"*/*{LOCK_SUFFIX}",
)  # that a run has begun, or that some process is about to begin it
MUTABLE_FIELDS = (
    "what",
    "metric",
    "against",
    "lengths",
    "earlier",
)  # what may change when all is trained: none of it is a training's
SEED_PLACEHOLDER = "{seed}"
# what every training leaves
BEST_LOSS = "loss"
FINAL_LOSS = "last"
EVALUATION_METRICS = {  # of clearhead evaluate, by what a model answers
    "lm": ("perplexity", "word perplexity", "bits per byte"),
    "translation": ("bleu", "chrf", "perplexity"),
    "mlm": ("accuracy", "perplexity"),
    "classification": ("accuracy", "f1", "macro f1", "matthews", "calibration error"),
    "regression": ("pearson", "spearman", "error"),
    "hidden": (),
}


@dataclass(frozen=True)
class Provenance:
    """What an experiment was begun with."""

    command: str = option("what was typed", "")
    clearhead_version: str = option("version", __version__)
    torch_version: str = option("version", str(torch.__version__))
    python_version: str = option("version", platform.python_version())
    date: str = option("when it was begun", "")


@dataclass(frozen=True)
class RunId:
    """A variant with a seed."""

    variant: str
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        return self.variant, self.seed

    @property
    def path(self) -> str:
        """Its folder, in that of the experiment."""
        return f"{RUNS_FOLDER}/{self.variant}/{self.seed}"


@dataclass(frozen=True)
class RunSpec(RunId):
    """One training, and all that it is told."""

    config: Config

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"


@dataclass(frozen=True)
class Experiment:
    """What is compared, and by what."""

    recipe: str = option("the preset or file that it began with", "")
    vary: tuple[str, ...] = option("options and their values; every combination is a variant", ())
    seeds: tuple[int, ...] = option("every variant is trained once with each", (0, 1, 2))
    metric: str = option(
        "loss (the lowest on what is held out), last, or a figure of clearhead evaluate", BEST_LOSS
    )
    baseline: str = option("the variant that the others are held against; the first if empty", "")
    eval_lengths: tuple[int, ...] = option(
        "lengths of texts, also beyond the context, at which the loss is measured too", ()
    )
    earlier_comparisons: tuple[str, ...] = option("what was asked of the same runs before", ())
    provenance: Provenance = field(default=Provenance())
    base: Config = field(default=Config())

    def __post_init__(self) -> None:
        for mistake in self._mistakes():
            raise ClearheadError(mistake)

    def _mistakes(self) -> Iterator[str]:
        data = [v.config.data for v in self.variants]
        m = self.base.model
        if not all(type(number) is int for number in (*self.seeds, *self.eval_lengths)):
            yield "seeds and lengths must be whole numbers."
        if len({seed for seed in self.seeds if 0 <= seed < 2**63}) < max(1, len(self.seeds)):
            yield f"--seeds {','.join(map(str, self.seeds))} must be different whole numbers from 0 to 2^63 - 1."
        if min(self.eval_lengths, default=1) < 1:
            yield f"--lengths {min(self.eval_lengths)} must be at least 1."
        if any(STDIN in (*d.train, *d.valid) for d in data):
            yield "standard input (-) can be read only once; several runs need files."
        if not all(d.train for d in data):
            yield "there is nothing to learn from; give --data.train a file, a folder or a glob."
        if not all(d.valid or d.valid_fraction for d in data):
            yield "nothing is held out, so there is nothing to compare by; give data.valid, or data.valid_fraction above 0."
        if self.baseline not in ("", *(names := [v.name for v in self.variants])):
            yield f"--against {self.baseline} is no variant; {suggest(self.baseline, names)}"
        answers = "translation" if isinstance(m.architecture, c.EncoderDecoder) else m.head.kind
        logged = (BEST_LOSS, FINAL_LOSS, *(["accuracy"] if answers == "classification" else []))
        figures = [figure for figure in EVALUATION_METRICS[answers] if figure not in logged]
        if self.metric not in (*logged, *figures):
            more = f", and with --data.valid {', '.join(figures)}" if figures else ""
            yield f"--metric {self.metric} is unknown here; known: {', '.join(logged)}{more}."
        if self.metric not in logged and not all(d.valid for d in data):
            files = (
                "files of their own; give --data.valid, in a new experiment if this one has none"
            )
            yield f"--metric {self.metric} is measured on {files}."
        reads = isinstance(m.input, c.Tokens) and not isinstance(m.architecture, c.EncoderDecoder)
        if self.eval_lengths and not (reads and isinstance(m.head, c.LMHead | c.MLMHead)):
            yield "--lengths is for models that read running texts; pairs, rows and pictures are as long as they are."

    @cached_property
    def variants(self) -> list[Variant]:
        return expand_grid(self.base, self.vary)

    @cached_property
    def runs(self) -> list[RunSpec]:
        """A seed of all variants before the next seed: what can be compared is known early.

        {seed} in train.init_from is the run's own: each goes on from the model that was trained with its seed.
        """
        return [
            RunSpec(
                v.name,
                seed,
                replace(v.config, train=replace(v.config.train, seed=seed, init_from=start)),
            )
            for seed in self.seeds
            for v in self.variants
            for start in [v.config.train.init_from.replace(SEED_PLACEHOLDER, str(seed))]
        ]

    @classmethod
    def read(cls, file: Path) -> Self:
        return dataclass_from_dict(cls, read_config_file(file))

    @property
    def comparison(self) -> str:
        return f"{self.metric} against {self.baseline or self.variants[0].name}"

    def create_or_resume(self, out: Path) -> Self:
        """From now on the folder is this experiment's; of one that has begun only what is asked of it may change.

        Given is the experiment as the folder has it: it knows how it began, and what was asked of its runs before.
        """
        if out.exists() and not out.is_dir():
            raise ClearheadError(f"{out} is a file; choose another --out.")
        paths = dict.fromkeys(
            p for v in self.variants for p in (*v.config.data.train, *v.config.data.valid)
        )
        for path in paths:
            if not (
                (out / EXPERIMENT_FILE).is_file()
                or Path(path).exists()
                or glob.glob(path, recursive=True)
            ):
                raise cannot_read(path, FileNotFoundError())
            if Path(path).is_dir() and out.resolve().is_relative_to(Path(path).resolve()):
                raise ClearheadError(
                    f"--out {out} is in {path}: runs would read what others leave; choose another."
                )
        with file_lock(out / LOCK_SUFFIX):
            if not (out / EXPERIMENT_FILE).is_file() and not all(
                path.name.startswith(".") for path in out.iterdir()
            ):
                raise ClearheadError(
                    f"{out} holds something else; an experiment needs a folder of its own."
                )
            begun = (out / RESULTS_FILE).is_file() or any(
                any((out / RUNS_FOLDER).glob(sign)) for sign in STARTED_PATTERNS
            )
            mine = self
            before = Experiment.read(out / EXPERIMENT_FILE) if begun else None
            if before is not None:
                asked = dict.fromkeys((*before.earlier_comparisons, before.comparison))
                asked.pop(self.comparison, None)
                mine = replace(self, provenance=before.provenance, earlier_comparisons=tuple(asked))
                for option, old, new in diff_trees(
                    dataclass_to_dict(before), dataclass_to_dict(mine), ""
                ):
                    if option not in MUTABLE_FIELDS and not same_paths(
                        option.removeprefix("base."), old, new
                    ):
                        was = f"{option.removeprefix('base.')} = {old!r}, not {new!r}"
                        why = "what is compared must be trained and judged alike"
                        raise ClearheadError(
                            f"{out} compares with {was}: {why}; choose another --out."
                        )
            read = fingerprint_data(DataConfig(tuple(paths)), out, begun)
            if mine != before:
                write_atomic(
                    out / EXPERIMENT_FILE, dataclass_to_toml(mine).encode()
                )  # first, for it tells whose folder this is
            write_json(out / DATA, read, 1)
        return mine


# ---- outcome: What came of a run, as a line of results.jsonl: what it reached, and what it cost.


@dataclass(frozen=True)
class RunResult(RunId):
    """One run at its end; None where there is no such number."""

    status: str  # done, patience, or diverged
    error: str = ""  # it diverged
    steps: int = 0
    best_loss: float | None = None  # the lowest on what is held out
    final_loss: float | None = None  # the one at the end
    num_parameters: int = 0
    train_seconds: float | None = None  # of all steps, without validations and saving
    tokens_per_second: float | None = None
    peak_memory: int | None = None  # bytes at the peak
    machine: str = ""
    num_processes: int = 1  # that worked on this machine at once
    metrics: dict[str, float] = field(default_factory=dict)  # of clearhead evaluate
    loss_by_length: dict[str, dict[str, float]] = field(
        default_factory=dict
    )  # loss, and the share of tokens beyond

    @classmethod
    def from_folder(cls, place: Path, variant: str, seed: int, **known: Any) -> Self:
        """What the folder of a run tells; a run may have diverged before it told anything."""
        lines = read_json_lines(place / LOG_FILE)
        valid = [value for _, value in curve_of(lines, "valid")]
        told: dict[str, Any] = {
            "parameters": Config.from_dict(read_config_file(place / RUN_FILE)).num_parameters()
        }
        if lines and (place / REPORT_DATA_FILE).is_file():
            facts = read_config_file(place / REPORT_DATA_FILE)
            speed = median_targets_per_second(lines) * facts["speed"]["tokens"]
            told |= {
                "seconds": training_seconds(facts, lines),
                "tokens_a_second": speed,
                "machine": facts["machine"],
            }
        if lines:
            told["steps"] = lines[-1]["step"]
        if valid:
            told |= {"loss": min(valid), "last": valid[-1]}
            best = next(line for line in lines if line.get("valid") == min(valid))
            told["figures"] = {"accuracy": best["accuracy"]} if "accuracy" in best else {}
        return cls(variant, seed, **told, **known)

    def metric(self, metric: str) -> float | None:
        """What the run is judged by; a run that diverged has nothing to be judged by."""
        if self.status == "diverged":
            return None
        found = {**self.metrics, BEST_LOSS: self.best_loss, FINAL_LOSS: self.final_loss}.get(
            metric
        )  # evaluate has a loss of its own
        return found if found is not None and math.isfinite(found) else None


def read_results(out: Path) -> dict[tuple[str, int], RunResult]:
    """All that are known, by variant and seed."""
    try:
        found = [RunResult(**line) for line in read_json_lines(out / RESULTS_FILE)]
    except TypeError:
        raise ClearheadError(
            f"{out / RESULTS_FILE} holds lines that are no results of this version of clearhead."
        ) from None
    return {each.key: each for each in found}


def save_result(out: Path, outcome: RunResult) -> dict[tuple[str, int], RunResult]:
    """In the place of what was known of the run, in one step, and in one process at a time; all that is known then."""
    with file_lock(out / LOCK_SUFFIX):
        known = read_results(out) | {outcome.key: outcome}
        write_atomic(
            out / RESULTS_FILE,
            "".join(json.dumps(asdict(each)) + "\n" for each in known.values()).encode(),
        )
        return known
