"""`clearhead.compare`: train variants with several seeds and compare them."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from clearhead.config.model import Config, EncoderDecoder, ModelConfig, parameters_by_part
from clearhead.config.presets import UnknownPresetError, presets
from clearhead.errors import ClearheadError, check_type, suggest
from clearhead.evaluate.results import text_table
from clearhead.io import file_lock
from clearhead.lab.experiment import (
    EXPERIMENT_FILE,
    LOCK_SUFFIX,
    Experiment,
    Provenance,
    Vary,
    format_vary,
    has_started_runs,
)
from clearhead.lab.report import (
    cost_table,
    describe_memory,
    describe_method,
    findings,
    length_table,
    render_markdown,
    results_table,
    title,
    too_few_seeds,
    write_report,
)
from clearhead.lab.runner import TrainOptions, run_experiment
from clearhead.lab.stats import Summary
from clearhead.train.diagnosis import Finding
from clearhead.train.strategy import Echo
from clearhead.train.train import MakeDisplay, dotted_options, load_config, no_display, no_echo
from clearhead.weights.bundled import bundled_models

DEFAULT_OUTPUT = "comparison"
DEFAULT_SEEDS = 3
MAX_SEEDS = 1000  # a larger number is meant as a seed


@dataclass(frozen=True, repr=False)
class Comparison:
    """Results of an experiment; printing it shows tables and findings."""

    summary: Summary
    output: Path
    completed: bool = True  # False if interrupted

    def table(self) -> list[dict[str, Any]]:
        """One row of numbers per variant."""
        return [row.to_dict() for row in self.summary.rows]

    @property
    def findings(self) -> list[Finding]:
        """What the experiment shows, followed by caveats."""
        return findings(self.summary, self.output)

    def __str__(self) -> str:
        parts = [
            text_table(results_table(self.summary)),
            f"{text_table(cost_table(self.summary))}\n{describe_memory(self.summary)}",
        ]
        if self.summary.experiment.eval_lengths:
            parts.append(text_table(length_table(self.summary)))
        lines = [str(finding) for finding in self.findings]
        parts.append("\n".join([*lines, describe_method(self.summary)]))
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return render_markdown(self.summary, self.findings, self.output)


def compare(
    recipe: str | Path | Config,
    vary: Vary | None = None,
    seeds: int | Sequence[int] | None = None,
    output: str | Path | None = None,
    *,
    model: Mapping[str, object] | None = None,
    data: Mapping[str, object] | None = None,
    train: Mapping[str, object] | None = None,
    inference: Mapping[str, object] | None = None,
    metric: str = "",
    baseline: str = "",
    eval_lengths: Sequence[int] = (),
    device: str = "",
    compile: bool | None = None,
    quiet: bool = False,
    record_activations: bool = False,
    logger: str | None = None,
) -> Comparison:
    """Train every combination of the values in `vary` with each seed, and compare the variants.

        ch.compare("lm-small", {"model.position": ["none", "rotary"]}, data={"train": "a.txt"})

    `seeds` is their number (default 3) or a list. `model`, `data`, `train` and `inference` replace
    options of all runs, as in `clearhead.train`. An experiment that already exists in the folder
    `output` (default: comparison) is resumed. `recipe` may also be such a folder, to resume or
    reanalyze it, or its experiment.toml, to repeat it in another folder.
    """
    check_type(
        recipe, str | Path | Config, "a preset, a run.toml, a configuration or an experiment"
    )
    check_type(vary or {}, Mapping, "vary as a dictionary of options and their values")
    check_type(baseline, str, "baseline as the name of a variant")
    check_type(eval_lengths, Sequence, "eval_lengths as a list of numbers")
    experiment, folder = plan_experiment(
        recipe,
        format_vary(vary or {}),
        seeds,
        output,
        dotted_options(model=model, data=data, train=train, inference=inference),
        metric,
        baseline,
        eval_lengths,
    )
    return run_comparison(
        experiment,
        folder,
        echo=no_echo if quiet else print,
        device=device,
        compile=compile,
        record_activations=record_activations,
        logger=logger,
    )


def plan_experiment(
    recipe: str | Path | Config,
    vary: tuple[str, ...],
    seeds: int | Sequence[int] | None,
    output: str | Path | None,
    overrides: Mapping[str, object],
    metric: str = "",
    baseline: str = "",
    eval_lengths: Sequence[int] = (),
    command: str = "",
) -> tuple[Experiment, Path]:
    """Create or read the experiment, with all variants checked, and choose its folder."""
    analysis: dict[str, Any] = {
        "metric": metric,
        "baseline": baseline,
        "eval_lengths": tuple(eval_lengths),
    }
    analysis = {name: value for name, value in analysis.items() if value}
    file = None if isinstance(recipe, Config) else _find_experiment(Path(recipe))
    if file is not None:
        for option, value in {"vary": vary or None, "seeds": seeds, **overrides}.items():
            if value is not None:
                raise ClearheadError(
                    f"{recipe} is an existing experiment, so --{option} cannot change; leave it "
                    "out, or start a new experiment."
                )
        return _open_experiment(Path(str(recipe)), file, output, analysis)

    if not isinstance(recipe, Config) and str(recipe) not in presets and Path(recipe).is_dir():
        raise ClearheadError(
            f"{recipe} contains no {EXPERIMENT_FILE}; name a preset, a run.toml, or the folder of "
            "an experiment."
        )
    if str(recipe) not in presets and str(recipe) in bundled_models():
        raise ClearheadError(
            f"{recipe} is a trained model; compare trains variants of a preset. To compare trained "
            "models, run clearhead evaluate for each."
        )
    try:
        base = load_config(recipe, overrides)
    except UnknownPresetError:
        raise ClearheadError(
            f"{recipe} is neither a preset (see `clearhead presets`) nor a run.toml nor the folder "
            f"of an experiment; {suggest(str(recipe), presets)}"
        ) from None
    if seeds is None:
        seeds = DEFAULT_SEEDS
    if not isinstance(seeds, Sequence):
        if type(seeds) is not int or not 0 < seeds <= MAX_SEEDS:
            raise ClearheadError(
                f"--seeds must be a number from 1 to {MAX_SEEDS:,}, or a list such as 1,5,9; got "
                f"{seeds}."
            )
        seeds = range(base.train.seed, base.train.seed + seeds)
    experiment = Experiment(
        "" if isinstance(recipe, Config) else str(recipe),
        vary,
        tuple(seeds),
        provenance=Provenance(command, date=date.today().isoformat()),
        base=base,
        **analysis,
    )
    return experiment, Path(DEFAULT_OUTPUT if output is None else output)


def _find_experiment(path: Path) -> Path | None:
    """experiment.toml, if it or its folder is named."""
    for file in (path, path / EXPERIMENT_FILE):
        if file.name == EXPERIMENT_FILE and file.is_file():
            return file
    return None


def _open_experiment(
    path: Path, file: Path, output: str | Path | None, analysis: dict[str, Any]
) -> tuple[Experiment, Path]:
    """Resume an experiment in its folder, or repeat it from its file in another one."""
    folder = file.parent
    if path.is_dir():
        if output is not None and Path(output).resolve() != folder.resolve():
            raise ClearheadError(
                f"{path} is resumed in its own folder; to repeat it in {output}, name {file}."
            )
        return replace(Experiment.read(file), **analysis), folder
    experiment = Experiment.read(file)
    data = experiment.base.data
    for name in (*data.train, *data.valid):
        if "*" not in name and not Path(name).is_absolute() and not Path(name).exists():
            raise ClearheadError(
                f"{name} does not exist here; {file} names it relative to the folder where the "
                "experiment was started."
            )
    return replace(experiment, **analysis), Path(DEFAULT_OUTPUT if output is None else output)


def run_comparison(
    experiment: Experiment,
    output: Path,
    *,
    echo: Echo,
    make_display: MakeDisplay = no_display,
    device: str = "",
    compile: bool | None = None,
    record_activations: bool = False,
    logger: str | None = None,
) -> Comparison:
    """Run an experiment and write its report."""
    is_new = not output.exists()
    experiment = experiment.create_or_resume(output)
    if os.environ.get("RANK", "0") == "0":
        for line in describe_plan(experiment, output):
            echo(line)
    try:
        completed = run_experiment(
            experiment,
            output,
            lambda: write_report(experiment, output),
            echo=echo,
            make_display=make_display,
            device=device,
            options=TrainOptions(compile, record_activations, logger),
        )
    except ClearheadError:
        if is_new and not has_started_runs(output):  # failed before its first step
            shutil.rmtree(output, ignore_errors=True)
        raise
    with file_lock(output / LOCK_SUFFIX):
        return Comparison(write_report(experiment, output), output, completed)


def describe_plan(experiment: Experiment, output: Path) -> list[str]:
    """Lines about the variants that will be trained."""
    lines = [f"{title(experiment)}, in {output}"]
    width = max(len(variant.name) for variant in experiment.variants)
    for variant in experiment.variants:
        init_from = variant.config.train.init_from
        size = f"from {init_from}" if init_from else _describe_size(variant.config.model)
        lines.append(f"  {variant.name:<{width}}  {size}")
    return [*lines, *map(str, too_few_seeds(experiment))]


def _describe_size(model: ModelConfig) -> str:
    """Number of parameters, which depends on the vocabulary if that follows from the data."""
    if not model.vocab_size:
        return f"{sum(parameters_by_part(model).values()):,} parameters"
    one = sum(parameters_by_part(_with_vocab_size(model, 1)).values())
    two = sum(parameters_by_part(_with_vocab_size(model, 2)).values())
    return f"{2 * one - two:,} parameters, and {two - one:,} per token of the vocabulary"


def _with_vocab_size(model: ModelConfig, size: int) -> ModelConfig:
    architecture = model.architecture
    if isinstance(architecture, EncoderDecoder) and architecture.source_vocab_size:
        model = replace(model, architecture=replace(architecture, source_vocab_size=size))
    return replace(model, vocab_size=size)
