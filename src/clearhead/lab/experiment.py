"""An experiment: variants of a configuration, trained with several seeds, in a reproducible folder.

experiment.toml            base configuration, varied options, seeds
data_fingerprints.json     state of the data files when the experiment began
runs/VARIANT/SEED/         one training run each, as `clearhead train` leaves it
results.jsonl              one line per finished run
report.html, report.md, table.csv, curves.png    results so far
"""

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
from clearhead.config.model import Config
from clearhead.config.options import option
from clearhead.config.parse import dataclass_from_dict, read_config_file
from clearhead.config.serialize import (
    dataclass_to_dict,
    dataclass_to_toml,
    diff_trees,
    format_toml_value,
)
from clearhead.config.training import DataConfig
from clearhead.data.readers import STDIN
from clearhead.errors import ClearheadError, cannot_read, check_int, suggest
from clearhead.io import file_lock, read_json_lines, read_log, write_atomic, write_json
from clearhead.train.checkpoint import (
    FINGERPRINT_FILE,
    LOG_FILE,
    REPORT_DATA_FILE,
    RUN_FILE,
    fingerprint_data,
    same_paths,
)
from clearhead.train.diagnosis import curve_of
from clearhead.train.report import median_targets_per_second, read_report_data, training_seconds
from clearhead.train.train import override_config
from clearhead.train.training_data import check_seq_len

EXPERIMENT_FILE = "experiment.toml"
RESULTS_FILE = "results.jsonl"
RUNS_FOLDER = "runs"
LOCK_SUFFIX = ".lock"
# A run has started, or a process has locked it to start it.
STARTED_PATTERNS = (f"*/*/{RUN_FILE}", f"*/*{LOCK_SUFFIX}")
# Fields that do not affect training, so they may change when an experiment is resumed.
MUTABLE_FIELDS = ("recipe", "metric", "baseline", "eval_lengths", "earlier_comparisons")
SEED_PLACEHOLDER = "{seed}"
BEST_LOSS = "best_loss"
FINAL_LOSS = "final_loss"
METRIC_TITLES = {BEST_LOSS: "best validation loss", FINAL_LOSS: "final validation loss"}
EVALUATION_METRICS = {  # of `clearhead evaluate`, by task
    "lm": ("perplexity", "word_perplexity", "bits_per_byte"),
    "translation": ("bleu", "chrf", "perplexity"),
    "mlm": ("accuracy", "perplexity"),
    "classification": (
        "accuracy",
        "f1",
        "macro_f1",
        "matthews_correlation",
        "calibration_error",
    ),
    "regression": ("pearson", "spearman", "rmse"),
    "none": (),
}
MAX_SEED = 2**63 - 1

Vary = Mapping[str, str | Sequence[object]]  # option -> values, as a list or comma-separated text


# --- variants


@dataclass(frozen=True)
class Variant:
    """One combination of values, as a configuration."""

    name: str
    config: Config


def format_vary(vary: Vary) -> tuple[str, ...]:
    """["model.position=none,rotary"] from {"model.position": ["none", "rotary"]}."""
    formatted = []
    for name, values in vary.items():
        text = values if isinstance(values, str) else ",".join(map(_format_value, values))
        formatted.append(f"{name.replace('__', '.')}={text}")
    return tuple(formatted)


def expand_grid(base: Config, vary: Sequence[str]) -> list[Variant]:
    """All combinations of values, with checked configurations; the first option changes slowest."""
    grid: dict[str, list[str]] = {}
    for text in vary:
        name, values = _parse_vary(text)
        if name in grid:
            raise ClearheadError(f"--vary {name} is given twice; list all values in one.")
        grid[name] = values
    short_names = _short_names(list(grid))
    labels = {
        name: dict(zip(values, map(_folder_name, _distinct_parts(values)), strict=True))
        for name, values in grid.items()
    }
    variants: list[Variant] = []
    for combination in itertools.product(*grid.values()):
        overrides = dict(zip(grid, combination, strict=True))
        parts = [f"{short_names[name]}={labels[name][value]}" for name, value in overrides.items()]
        variant_name = ",".join(parts) or "base"
        try:
            config = override_config(base, overrides)
            check_seq_len(config)
        except ClearheadError as error:
            raise ClearheadError(
                f"{variant_name}: {error}" if len(grid) > 1 else str(error)
            ) from None
        for other in variants:
            if other.name == variant_name:
                raise ClearheadError(f"two variants have the same name, {variant_name}.")
            if other.config == config:
                raise ClearheadError(
                    f"variants {other.name} and {variant_name} have the same configuration."
                )
        variants.append(Variant(variant_name, config))
    return variants


def _parse_vary(text: str) -> tuple[str, list[str]]:
    name, _, values = text.partition("=")
    if not values:
        raise ClearheadError(
            f"--vary {text} has no values; write it like model.position=learned,rotary."
        )
    if name in ("train.seed", "seed"):
        raise ClearheadError("seeds cannot be varied as an option; use --seeds.")
    return name, list(_split_values(values))


def _split_values(text: str) -> Iterator[str]:
    """Split at commas that are not inside quotes, lists or tables."""
    depth = 0
    quote = ""
    start = 0
    for i, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and not depth:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()


def _format_value(value: object) -> str:
    """Format a value as TOML; a string that needs no quotes gets none."""
    if isinstance(value, str) and not re.search(r"[,\[\]{}\"']", value):
        return value
    return format_toml_value(value)


def _short_names(options: list[str]) -> dict[str, str]:
    """Shortest unique suffix of each option: n_heads for model.attention.n_heads."""

    def suffixes(name: str) -> list[str]:
        parts = name.split(".")
        return [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]

    def is_unique(suffix: str) -> bool:
        return sum(suffix in suffixes(name) for name in options) == 1

    return {name: next(filter(is_unique, suffixes(name)), name) for name in options}


def _distinct_parts(values: list[str]) -> list[str]:
    """Parts in which paths differ: learned, rotary for runs/learned/best, runs/rotary/best."""
    paths = [value.split("/") for value in values]
    for end in (0, -1):
        while (
            len(paths) > 1 and min(map(len, paths)) > 1 and len({path[end] for path in paths}) == 1
        ):
            paths = [path[1:] if end == 0 else path[:-1] for path in paths]
    return ["/".join(path) for path in paths]


def _folder_name(value: str) -> str:
    """A value as part of a folder name."""
    compact = re.sub(r"[\s\"']|^{kind *= *", "", value)
    return re.sub(r"[^\w.,=+-]+", "-", compact).strip("-") or "empty"


# --- the experiment


@dataclass(frozen=True)
class Provenance:
    """Command and versions that an experiment was started with."""

    command: str = option("Command line.", "")
    clearhead_version: str = option("Version of clearhead.", __version__)
    torch_version: str = option("Version of torch.", str(torch.__version__))
    python_version: str = option("Version of Python.", platform.python_version())
    date: str = option("Date of the start.", "")


@dataclass(frozen=True)
class RunId:
    """A variant and a seed."""

    variant: str
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        return self.variant, self.seed

    @property
    def path(self) -> str:
        """Folder of the run, relative to that of the experiment."""
        return f"{RUNS_FOLDER}/{self.variant}/{self.seed}"


@dataclass(frozen=True)
class RunSpec(RunId):
    """A run with its configuration."""

    config: Config

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"


@dataclass(frozen=True)
class Experiment:
    """What is compared, and by which metric."""

    recipe: str = option("Preset or file of the base configuration.", "")
    vary: tuple[str, ...] = option("Options and their values; variants are all combinations.", ())
    seeds: tuple[int, ...] = option("Seeds that every variant is trained with.", (0, 1, 2))
    metric: str = option(
        "best_loss (validation), final_loss, or a metric of clearhead evaluate.", BEST_LOSS
    )
    baseline: str = option("Variant that others are compared with; the first one if empty.", "")
    eval_lengths: tuple[int, ...] = option(
        "Sequence lengths at which the loss is measured too, also beyond the context length.", ()
    )
    earlier_comparisons: tuple[str, ...] = option("Comparisons of the same runs before.", ())
    provenance: Provenance = field(default=Provenance())
    base: Config = field(default=Config())

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_data()
        self._check_metric()

    def _check_numbers(self) -> None:
        is_valid = all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in self.seeds)
        if not self.seeds or not is_valid or len(set(self.seeds)) < len(self.seeds):
            seeds = ",".join(map(str, self.seeds))
            raise ClearheadError(
                f"--seeds must be different integers from 0 to 2^63 - 1, got {seeds or 'none'}."
            )
        for length in self.eval_lengths:
            check_int("--eval-lengths", length, minimum=1)
        names = [variant.name for variant in self.variants]
        if self.baseline not in ("", *names):
            raise ClearheadError(
                f"--baseline {self.baseline} is not a variant; {suggest(self.baseline, names)}"
            )

    def _check_data(self) -> None:
        for variant in self.variants:
            data = variant.config.data
            if STDIN in (*data.train, *data.valid):
                raise ClearheadError(
                    "standard input (-) can be read only once; several runs need files."
                )
            if not data.train:
                raise ClearheadError(
                    "no training data: set --data.train to a file, a folder or a glob."
                )
            if not data.valid and not data.valid_fraction:
                raise ClearheadError(
                    "a comparison needs validation data: set data.valid, or data.valid_fraction "
                    "above 0."
                )

    def _check_metric(self) -> None:
        model = self.base.model
        is_encoder_decoder = isinstance(model.architecture, c.EncoderDecoder)
        task = "translation" if is_encoder_decoder else model.head.kind
        logged = [BEST_LOSS, FINAL_LOSS]
        if task == "classification":
            logged.append("accuracy")
        evaluated = [metric for metric in EVALUATION_METRICS[task] if metric not in logged]
        if self.metric not in (*logged, *evaluated):
            more = f"; with --data.valid also {', '.join(evaluated)}" if evaluated else ""
            raise ClearheadError(
                f"unknown --metric {self.metric}; available: {', '.join(logged)}{more}."
            )
        has_valid_files = all(variant.config.data.valid for variant in self.variants)
        if self.metric not in logged and not has_valid_files:
            raise ClearheadError(
                f"--metric {self.metric} needs validation files; set --data.valid in a new "
                "experiment."
            )
        is_text = isinstance(model.input, c.Tokens) and not is_encoder_decoder
        if self.eval_lengths and not (is_text and isinstance(model.head, c.LMHead | c.MLMHead)):
            raise ClearheadError("--eval-lengths needs a model of running text.")

    @cached_property
    def variants(self) -> list[Variant]:
        return expand_grid(self.base, self.vary)

    @cached_property
    def runs(self) -> list[RunSpec]:
        """All runs, seed by seed, so that variants can be compared early.

        {seed} in train.init_from becomes the seed of the run, to fine-tune the matching model.
        """
        runs = []
        for seed in self.seeds:
            for variant in self.variants:
                train = variant.config.train
                init_from = train.init_from.replace(SEED_PLACEHOLDER, str(seed))
                train = replace(train, seed=seed, init_from=init_from)
                runs.append(RunSpec(variant.name, seed, replace(variant.config, train=train)))
        return runs

    @property
    def baseline_name(self) -> str:
        return self.baseline or self.variants[0].name

    @property
    def comparison(self) -> str:
        return f"{self.metric} against {self.baseline_name}"

    @classmethod
    def read(cls, file: Path) -> Self:
        return dataclass_from_dict(cls, read_config_file(file))

    def create_or_resume(self, output: Path) -> Self:
        """Claim a folder for this experiment, or resume the same experiment in it.

        Returns the experiment with the provenance and earlier comparisons in the folder. Once a run
        has started, only `MUTABLE_FIELDS` may change.
        """
        if output.exists() and not output.is_dir():
            raise ClearheadError(f"{output} is a file; choose another --output.")
        data_paths = self._check_data_paths(output)
        file = output / EXPERIMENT_FILE
        with file_lock(output / LOCK_SUFFIX):
            if not file.is_file() and not all(p.name.startswith(".") for p in output.iterdir()):
                raise ClearheadError(
                    f"{output} contains other files; choose an empty folder as --output."
                )
            is_resumed = has_started_runs(output)
            saved = None
            experiment = self
            if is_resumed:
                saved = Experiment.read(file)
                comparisons = dict.fromkeys((*saved.earlier_comparisons, saved.comparison))
                comparisons.pop(self.comparison, None)
                experiment = replace(
                    self, provenance=saved.provenance, earlier_comparisons=tuple(comparisons)
                )
                _check_same_experiment(saved, experiment, output)
            fingerprints = fingerprint_data(DataConfig(tuple(data_paths)), output, is_resumed)
            if experiment != saved:  # first: this file claims the folder
                write_atomic(file, dataclass_to_toml(experiment).encode())
            write_json(output / FINGERPRINT_FILE, fingerprints, 1)
        return experiment

    def _check_data_paths(self, output: Path) -> list[str]:
        """Data paths of all variants, which must exist before the first run."""
        data_configs = [variant.config.data for variant in self.variants]
        paths = list(dict.fromkeys(p for data in data_configs for p in (*data.train, *data.valid)))
        is_new = not (output / EXPERIMENT_FILE).is_file()
        for path in paths:
            if is_new and not Path(path).exists() and not glob.glob(path, recursive=True):  # noqa: PTH207
                raise cannot_read(path, FileNotFoundError())
            if Path(path).is_dir() and output.resolve().is_relative_to(Path(path).resolve()):
                raise ClearheadError(
                    f"--output {output} is inside the data folder {path}; choose another."
                )
        return paths


def has_started_runs(output: Path) -> bool:
    """Whether a run of the experiment in a folder has started, perhaps in another process."""
    return (output / RESULTS_FILE).is_file() or any(
        any((output / RUNS_FOLDER).glob(pattern)) for pattern in STARTED_PATTERNS
    )


def _check_same_experiment(saved: Experiment, new: Experiment, output: Path) -> None:
    for path, old, value in diff_trees(dataclass_to_dict(saved), dataclass_to_dict(new), ""):
        name = path.removeprefix("base.")
        if path not in MUTABLE_FIELDS and not same_paths(name, old, value):
            raise ClearheadError(
                f"{output} contains an experiment with {name} = {old!r}, got {value!r}; choose "
                "another --output."
            )


# --- results


def metric_title(metric: str) -> str:
    return METRIC_TITLES.get(metric, metric.replace("_", " "))


@dataclass(frozen=True)
class RunResult(RunId):
    """Result of a run: a line of results.jsonl. None where there is no value."""

    status: str  # completed, early_stopped or diverged
    error: str = ""  # of a run that diverged
    steps: int = 0
    best_loss: float | None = None  # lowest validation loss
    final_loss: float | None = None  # last validation loss
    num_parameters: int = 0
    train_seconds: float | None = None  # without validation and saving
    tokens_per_second: float | None = None
    peak_memory: int | None = None  # bytes
    machine: str = ""
    num_processes: int = 1  # that shared the machine
    metrics: dict[str, float] = field(default_factory=dict)  # of `clearhead evaluate`
    # For each length the loss, and the fraction of tokens beyond the length in training.
    loss_by_length: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        run: RunId,
        *,
        status: str,
        error: str = "",
        peak_memory: int | None = None,
        num_processes: int = 1,
    ) -> Self:
        """Read log and report of a run, which may have diverged before it wrote either."""
        measured: dict[str, Any] = {}
        lines = read_log(folder / LOG_FILE)
        if lines:
            measured["steps"] = lines[-1]["step"]
        if valid_losses := [value for _, value in curve_of(lines, "valid_loss")]:
            best = next(line for line in lines if line.get("valid_loss") == min(valid_losses))
            measured["best_loss"] = best["valid_loss"]
            measured["final_loss"] = valid_losses[-1]
            measured["metrics"] = {"accuracy": best["accuracy"]} if "accuracy" in best else {}
        if lines and (folder / REPORT_DATA_FILE).is_file():
            report = read_report_data(folder)
            targets_per_second = median_targets_per_second(lines)
            measured["train_seconds"] = training_seconds(report, lines)
            measured["tokens_per_second"] = (
                targets_per_second * report["throughput"]["tokens_per_target"]
            )
            measured["machine"] = report["machine"]
        return cls(
            run.variant,
            run.seed,
            status=status,
            error=error,
            num_parameters=Config.read(folder / RUN_FILE).num_parameters(),
            peak_memory=peak_memory,
            num_processes=num_processes,
            **measured,
        )

    def metric(self, name: str) -> float | None:
        """Value of a metric; None if the run diverged or the value is not finite."""
        if self.status == "diverged":
            return None
        losses = {BEST_LOSS: self.best_loss, FINAL_LOSS: self.final_loss}
        value = losses[name] if name in losses else self.metrics.get(name)
        return value if value is not None and math.isfinite(value) else None


def read_results(output: Path) -> dict[tuple[str, int], RunResult]:
    """Results so far, by variant and seed."""
    try:
        results = [RunResult(**line) for line in read_json_lines(output / RESULTS_FILE)]
    except TypeError:
        raise ClearheadError(
            f"{output / RESULTS_FILE} does not have the format of clearhead {__version__}."
        ) from None
    return {result.key: result for result in results}


def save_result(output: Path, result: RunResult) -> dict[tuple[str, int], RunResult]:
    """Add or replace a result atomically; return all results."""
    with file_lock(output / LOCK_SUFFIX):
        results = read_results(output) | {result.key: result}
        lines = [json.dumps(asdict(each)) + "\n" for each in results.values()]
        write_atomic(output / RESULTS_FILE, "".join(lines).encode())
        return results
