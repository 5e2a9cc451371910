"""Comparing, from Python and from the shell: `clearhead.compare`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from clearhead import count
from clearhead.config import Config, EncoderDecoder, ModelConfig
from clearhead.data.alone import alone
from clearhead.errors import ClearheadError, check_kind, nearest
from clearhead.lab import report
from clearhead.lab.experiment import FILE, LOCK, Experiment, Made
from clearhead.lab.findings import findings, method, too_few
from clearhead.lab.grid import Vary, written
from clearhead.lab.summary import Summary
from clearhead.lab.work import Show, unseen, work
from clearhead.presets import NoPreset, presets
from clearhead.train.begin import read_config
from clearhead.train.diagnosis import Finding
from clearhead.train.teach import Say, silent

MANY = 1000  # seeds; whoever asks for more has mistaken one for their number


@dataclass(frozen=True, repr=False)
class Comparison:
    """What came out: print() shows it, `table()` has the numbers, `findings` the sentences; all of it is in `out`."""

    summary: Summary
    out: Path
    done: bool = True  # False where somebody interrupted

    def table(self) -> list[dict[str, Any]]:
        """A row for each variant."""
        return [row.tree() for row in self.summary.rows]

    @property
    def findings(self) -> list[Finding]:
        """What can be said of the variants, the sentences that print() ends with."""
        return findings(self.summary, self.out)

    def __str__(self) -> str:
        costs = f"{report.text(report.costs(self.summary))}\n{report.about_memory(self.summary)}"
        parts = [report.text(report.results(self.summary)), costs]
        parts += [report.text(report.lengths(self.summary))] if self.summary.experiment.lengths else []
        said = [str(finding) for finding in self.findings]
        return "\n\n".join([*parts, "\n".join([*said, method(self.summary)])])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return report.markdown(self.summary, self.findings, self.out)


def compare(
    what: str | Path | Config,
    vary: Vary | None = None,
    seeds: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    *,
    metric: str = "",
    against: str = "",
    lengths: Sequence[int] = (),
    device: str = "",
    compiled: bool | None = None,
    tensorboard: bool = False,
    microscope: bool = False,
    quiet: bool = False,
    **changes: object,
) -> Comparison:
    """Trains every combination of the values of `vary` with each seed, and tells what can be said of them.

    `what` is a preset, a run.toml or a configuration, and `out` the folder of the experiment (default "comparison"),
    which is gone on with if it holds one. Or `what` is such a folder itself, or its experiment.toml, to be repeated in
    another `out`. `seeds` are how many (default 3), or which. Changes are options of all runs, as in `clearhead.train`:
    `data__train="texts/"`, `train__steps=500`.
    """
    check_kind(what, str | Path | Config, "a preset, a run.toml, a configuration or an experiment")
    check_kind(vary or {}, Mapping, "vary as a dictionary of options and their values")
    check_kind(against, str, "against as the name of a variant")
    check_kind(lengths, Sequence, "lengths as a list of numbers")
    options: dict[str, Any] = {"device": device, "compiled": compiled}
    options |= {"tensorboard": tensorboard, "microscope": microscope}
    experiment, place = plan(what, written(vary or {}), seeds, out, changes, metric, against, lengths)
    return carry_out(experiment, place, say=silent if quiet else print, **options)


def plan(
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
    if (file := _experiment(what)) is not None:
        trained = {"vary": vary or None, "seeds": seeds, **changes}
        for option in (name for name, value in trained.items() if value is not None):
            begun = f"{what} is an experiment, in which all runs are trained and judged alike"
            raise ClearheadError(f"{begun}; leave out --{option.replace('__', '.')}, or begin another.")
        if Path(str(what)).is_dir() and out is not None and Path(out).resolve() != file.parent.resolve():
            raise ClearheadError(f"{what} is gone on with where it is; {file} can be repeated in another --out.")
        own = file.parent if Path(str(what)).is_dir() else Path("comparison")
        read = Experiment.read(file)
        for path in (*read.base.data.train, *read.base.data.valid) if own != file.parent else ():
            if "*" not in path and not Path(path).is_absolute() and not Path(path).exists():
                raise ClearheadError(f"there is no {path} here; {file} names it from the folder in which it was begun.")
        return replace(read, **asked), own if out is None else Path(out)
    if not isinstance(what, Config) and str(what) not in presets and Path(what).is_dir():
        raise ClearheadError(f"{what} holds no experiment; name a preset, a run.toml, or the folder of an experiment.")
    try:
        base = read_config(what, changes)
    except NoPreset:
        known = "no preset (clearhead presets lists them), no run.toml, and no folder of an experiment"
        raise ClearheadError(f"{what} is {known}; {nearest(str(what), presets)}") from None
    seeds = 3 if seeds is None else seeds
    if not isinstance(seeds, Sequence):
        if type(seeds) is not int or not 0 < seeds <= MANY:
            raise ClearheadError(f"--seeds {seeds} must be how many, from 1 to {MANY:,}, or name them: 1,5,9.")
        seeds = range(base.train.seed, base.train.seed + seeds)
    name = "" if isinstance(what, Config) else str(what)
    made = Experiment(name, vary, tuple(seeds), made=Made(command, day=date.today().isoformat()), base=base, **asked)
    return made, Path("comparison" if out is None else out)


def _experiment(what: str | Path | Config) -> Path | None:
    """The file of an experiment, where that or its folder is named."""
    if isinstance(what, Config):
        return None
    path = Path(what)
    return next((file for file in (path, path / FILE) if file.name == FILE and file.is_file()), None)


def carry_out(experiment: Experiment, out: Path, *, say: Say, show: Show = unseen, **options: Any) -> Comparison:
    """All runs of it, and the report, which is written anew now and then."""
    first = os.environ.get("RANK", "0") == "0"
    experiment = experiment.settle(out)
    if first:
        for line in opening(experiment, out):
            say(line)
    done = work(experiment, out, lambda: report.write(experiment, out), say=say, show=show, **options)
    with alone(out / LOCK):
        return Comparison(report.write(experiment, out), out, done)


def opening(experiment: Experiment, out: Path) -> list[str]:
    """What is about to be trained, and what will not come of it."""
    width = max(len(v.name) for v in experiment.variants)
    found = [f"{report.title(experiment)}, in {out}"]
    for v in experiment.variants:
        start = v.config.train.start
        found.append(f"  {v.name:<{width}}  {f'from {start}' if start else _size(v.config.model)}")
    return [*found, *map(str, too_few(experiment))]


def _size(m: ModelConfig) -> str:
    """How large a model is, as far as it is known before the data tell how many tokens there are."""
    if not m.vocabulary:
        return f"{sum(count.parts(m).values()):,} parameters"
    one, two = (sum(count.parts(_with(m, tokens)).values()) for tokens in (1, 2))
    return f"{2 * one - two:,} parameters, and {two - one:,} for each token of its vocabulary"


def _with(m: ModelConfig, tokens: int) -> ModelConfig:
    """So many on each side of a translator whose sides have vocabularies of their own."""
    if isinstance(m.shape, EncoderDecoder) and m.shape.vocabulary:
        m = replace(m, shape=replace(m.shape, vocabulary=tokens))
    return replace(m, vocabulary=tokens)
