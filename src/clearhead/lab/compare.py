"""Comparing, from Python and from the shell: `clearhead.compare`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from clearhead.config.model import Config, EncoderDecoder, ModelConfig, parameters_by_part
from clearhead.config.presets import UnknownPresetError, presets
from clearhead.errors import ClearheadError, check_type, suggest
from clearhead.io import file_lock
from clearhead.lab.experiment import (
    EXPERIMENT_FILE,
    LOCK_SUFFIX,
    Experiment,
    Provenance,
    Vary,
    format_vary,
)
from clearhead.lab.report import (
    cost_table,
    describe_memory,
    describe_method,
    findings,
    length_table,
    render_markdown,
    results_table,
    text_table,
    title,
    too_few_seeds,
    write_report,
)
from clearhead.lab.runner import MakeDisplay, no_display, run_experiment
from clearhead.lab.stats import Summary
from clearhead.train.diagnosis import Finding
from clearhead.train.train import Echo, load_config, no_echo

MAX_SEEDS = 1000  # seeds; whoever asks for more has mistaken one for their number


@dataclass(frozen=True, repr=False)
class Comparison:
    """What came out: print() shows it, `table()` has the numbers, `findings` the sentences; all of it is in `out`."""

    summary: Summary
    output: Path
    completed: bool = True  # False where somebody interrupted

    def table(self) -> list[dict[str, Any]]:
        """A row for each variant."""
        return [row.to_dict() for row in self.summary.rows]

    @property
    def findings(self) -> list[Finding]:
        """What can be said of the variants, the sentences that print() ends with."""
        return findings(self.summary, self.output)

    def __str__(self) -> str:
        costs = f"{text_table(cost_table(self.summary))}\n{describe_memory(self.summary)}"
        parts = [text_table(results_table(self.summary)), costs]
        parts += (
            [text_table(length_table(self.summary))] if self.summary.experiment.eval_lengths else []
        )
        said = [str(finding) for finding in self.findings]
        return "\n\n".join([*parts, "\n".join([*said, describe_method(self.summary)])])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return render_markdown(self.summary, self.findings, self.output)


def compare(
    recipe: str | Path | Config,
    vary: Vary | None = None,
    seeds: int | Sequence[int] | None = None,
    output: str | Path | None = None,
    *,
    metric: str = "",
    baseline: str = "",
    eval_lengths: Sequence[int] = (),
    device: str = "",
    compile: bool | None = None,
    tensorboard: bool = False,
    record_activations: bool = False,
    quiet: bool = False,
    **changes: object,
) -> Comparison:
    """Trains every combination of the values of `vary` with each seed, and tells what can be said of them.

    `what` is a preset, a run.toml or a configuration, and `out` the folder of the experiment (default "comparison"),
    which is gone on with if it holds one. Or `what` is such a folder itself, or its experiment.toml, to be repeated in
    another `out`. `seeds` are how many (default 3), or which. Changes are options of all runs, as in `clearhead.train`:
    `data__train="texts/"`, `train__max_steps=500`.
    """
    check_type(
        recipe, str | Path | Config, "a preset, a run.toml, a configuration or an experiment"
    )
    check_type(vary or {}, Mapping, "vary as a dictionary of options and their values")
    check_type(baseline, str, "against as the name of a variant")
    check_type(eval_lengths, Sequence, "lengths as a list of numbers")
    options: dict[str, Any] = {"device": device, "compiled": compile}
    options |= {"tensorboard": tensorboard, "microscope": record_activations}
    experiment, place = plan_experiment(
        recipe, format_vary(vary or {}), seeds, output, changes, metric, baseline, eval_lengths
    )
    return run_comparison(experiment, place, echo=no_echo if quiet else print, **options)


def plan_experiment(
    what: str | Path | Config,
    vary: tuple[str, ...],
    seeds: int | Sequence[int] | None,
    out: str | Path | None,
    changes: dict[str, object],
    metric: str = "",
    against: str = "",
    lengths: Sequence[int] = (),
    command: str = "",
) -> tuple[Experiment, Path]:
    """The experiment that is meant, every combination checked, and its folder; nothing has happened yet."""
    free = {"metric": metric.replace("_", " "), "against": against, "lengths": tuple(lengths)}
    asked: dict[str, Any] = {name: value for name, value in free.items() if value}
    if (file := _experiment_file(what)) is not None:
        trained = {"vary": vary or None, "seeds": seeds, **changes}
        for option in (name for name, value in trained.items() if value is not None):
            begun = f"{what} is an experiment, in which all runs are trained and judged alike"
            raise ClearheadError(
                f"{begun}; leave out --{option.replace('__', '.')}, or begin another."
            )
        if (
            Path(str(what)).is_dir()
            and out is not None
            and Path(out).resolve() != file.parent.resolve()
        ):
            raise ClearheadError(
                f"{what} is gone on with where it is; {file} can be repeated in another --out."
            )
        own = file.parent if Path(str(what)).is_dir() else Path("comparison")
        read = Experiment.read(file)
        for path in (*read.base.data.train, *read.base.data.valid) if own != file.parent else ():
            if "*" not in path and not Path(path).is_absolute() and not Path(path).exists():
                raise ClearheadError(
                    f"there is no {path} here; {file} names it from the folder in which it was begun."
                )
        return replace(read, **asked), own if out is None else Path(out)
    if not isinstance(what, Config) and str(what) not in presets and Path(what).is_dir():
        raise ClearheadError(
            f"{what} holds no experiment; name a preset, a run.toml, or the folder of an experiment."
        )
    try:
        base = load_config(what, changes)
    except UnknownPresetError:
        known = (
            "no preset (clearhead presets lists them), no run.toml, and no folder of an experiment"
        )
        raise ClearheadError(f"{what} is {known}; {suggest(str(what), presets)}") from None
    seeds = 3 if seeds is None else seeds
    if not isinstance(seeds, Sequence):
        if type(seeds) is not int or not 0 < seeds <= MAX_SEEDS:
            raise ClearheadError(
                f"--seeds {seeds} must be how many, from 1 to {MAX_SEEDS:,}, or name them: 1,5,9."
            )
        seeds = range(base.train.seed, base.train.seed + seeds)
    name = "" if isinstance(what, Config) else str(what)
    made = Experiment(
        name,
        vary,
        tuple(seeds),
        provenance=Provenance(command, date=date.today().isoformat()),
        base=base,
        **asked,
    )
    return made, Path("comparison" if out is None else out)


def _experiment_file(what: str | Path | Config) -> Path | None:
    """The file of an experiment, where that or its folder is named."""
    if isinstance(what, Config):
        return None
    path = Path(what)
    return next(
        (
            file
            for file in (path, path / EXPERIMENT_FILE)
            if file.name == EXPERIMENT_FILE and file.is_file()
        ),
        None,
    )


def run_comparison(
    experiment: Experiment,
    out: Path,
    *,
    echo: Echo,
    make_display: MakeDisplay = no_display,
    **options: Any,
) -> Comparison:
    """All runs of it, and the report, which is written anew now and then."""
    first = os.environ.get("RANK", "0") == "0"
    experiment = experiment.create_or_resume(out)
    if first:
        for line in describe_plan(experiment, out):
            echo(line)
    done = run_experiment(
        experiment,
        out,
        lambda: write_report(experiment, out),
        echo=echo,
        make_display=make_display,
        **options,
    )
    with file_lock(out / LOCK_SUFFIX):
        return Comparison(write_report(experiment, out), out, done)


def describe_plan(experiment: Experiment, out: Path) -> list[str]:
    """What is about to be trained, and what will not come of it."""
    width = max(len(v.name) for v in experiment.variants)
    found = [f"{title(experiment)}, in {out}"]
    for v in experiment.variants:
        start = v.config.train.init_from
        found.append(
            f"  {v.name:<{width}}  {f'from {start}' if start else _describe_size(v.config.model)}"
        )
    return [*found, *map(str, too_few_seeds(experiment))]


def _describe_size(m: ModelConfig) -> str:
    """How large a model is, as far as it is known before the data tell how many tokens there are."""
    if not m.vocab_size:
        return f"{sum(parameters_by_part(m).values()):,} parameters"
    one, two = (sum(parameters_by_part(_with_vocab_size(m, tokens)).values()) for tokens in (1, 2))
    return f"{2 * one - two:,} parameters, and {two - one:,} for each token of its vocabulary"


def _with_vocab_size(m: ModelConfig, tokens: int) -> ModelConfig:
    """So many on each side of a translator whose sides have vocabularies of their own."""
    if isinstance(m.architecture, EncoderDecoder) and m.architecture.source_vocab_size:
        m = replace(m, architecture=replace(m.architecture, source_vocab_size=tokens))
    return replace(m, vocab_size=tokens)
