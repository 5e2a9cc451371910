"""An experiment in a table: what the runs of each variant reached and cost, and what differences allow to claim."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.lab.certainty import SURE, Paired, holm, paired
from clearhead.lab.experiment import Experiment
from clearhead.lab.outcome import Outcome

LESS = ("loss", "last", "perplexity", "bits", "error")  # of figures with such a name, less is better


@dataclass(frozen=True)
class Versus:
    """A variant against the one that all are held against."""

    chance: Paired
    p: float  # corrected for the number of variants that are compared

    @property
    def claimed(self) -> bool:
        return self.p < SURE


@dataclass(frozen=True)
class Row:
    """One variant."""

    name: str
    runs: tuple[Outcome, ...]
    metric: str
    differences: tuple[float, ...]  # to the one that all are held against, a run of the same seed each
    versus: Versus | None  # None for that one itself, and where nothing can be claimed

    @property
    def values(self) -> list[float]:
        return [value for run in self.runs if (value := run.value(self.metric)) is not None]

    @property
    def mean(self) -> float | None:
        return mean(self.values)

    @property
    def diverged(self) -> list[Outcome]:
        return [run for run in self.runs if run.end == "diverged"]

    def average(self, name: str) -> float | None:
        """The mean of something else that is known of its runs."""
        ended = [getattr(run, name) for run in self.runs if run.end != "diverged"]
        return mean([value for value in ended if value is not None])

    def tree(self) -> dict[str, Any]:
        """All numbers, for a table."""
        values, chance = self.values, self.versus.chance if self.versus else None
        return {
            "variant": self.name,
            "n": len(values),
            "mean": self.mean,
            "deviation": deviation(values),
            "lowest": min(values, default=None),
            "highest": max(values, default=None),
            "loss": self.average("loss"),
            "last": self.average("last"),
            "diverged": len(self.diverged),
            "difference": mean(self.differences),
            "from": chance and chance.low,
            "to": chance and chance.high,
            "p": chance and chance.p,
            "p_corrected": self.versus and self.versus.p,
            "p_exact": chance and chance.exact,
            "parameters": next((run.parameters for run in self.runs), None),
            "seconds": self.average("seconds"),
            "tokens_a_second": self.average("tokens_a_second"),
            "memory": max((run.memory for run in self.runs if run.memory), default=None),
        }


@dataclass(frozen=True)
class Summary:
    """All variants in their order, as far as runs are done."""

    experiment: Experiment
    rows: list[Row]

    @property
    def first(self) -> Row:
        """What the others are held against."""
        name = self.experiment.against or self.experiment.variants[0].name
        return next(row for row in self.rows if row.name == name)

    @property
    def others(self) -> list[Row]:
        return [row for row in self.rows if row.name != self.first.name]

    @property
    def done(self) -> list[Outcome]:
        return [run for row in self.rows for run in row.runs]

    @property
    def less(self) -> bool:
        """Whether less of the figure is better."""
        return any(word in self.experiment.metric for word in LESS)


def summarise(experiment: Experiment, known: Mapping[tuple[str, int], Outcome]) -> Summary:
    against, metric = experiment.against or experiment.variants[0].name, experiment.metric
    runs = {v.name: [known[v.name, s] for s in experiment.seeds if (v.name, s) in known] for v in experiment.variants}
    differences = {name: _differences(each, runs[against], metric) for name, each in runs.items() if name != against}
    chances = {name: chance for name, each in differences.items() if (chance := paired(each)) is not None}
    corrected = dict(zip(chances, holm([chance.p for chance in chances.values()]), strict=True))
    versus = {name: Versus(chance, corrected[name]) for name, chance in chances.items()}
    return Summary(
        experiment,
        [
            Row(name, tuple(each), metric, tuple(differences.get(name, ())), versus.get(name))
            for name, each in runs.items()
        ],
    )


def _differences(runs: Iterable[Outcome], against: Iterable[Outcome], metric: str) -> list[float]:
    """Of runs of the same seed; a pair of which one diverged is none."""
    theirs = {run.seed: run.value(metric) for run in against}
    pairs = [(run.value(metric), theirs.get(run.seed)) for run in runs]
    return [ours - other for ours, other in pairs if ours is not None and other is not None]


def deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
