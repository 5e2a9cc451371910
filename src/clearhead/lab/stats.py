"""What differences between pairs of runs allow to claim: paired by seed, and corrected for how many are looked at.

    t = mean(d) / (s(d) / √n),  d the differences of pairs of the same seed

Student's t says how often chance alone gives so large a mean where differences spread normally. The exact test needs no
such assumption: if the variants were alike, each difference could as well have the other sign, so all 2ⁿ choices of
signs are counted; it can never give less than 2 / 2ⁿ. Where all differences are the same, as those of an accuracy on
few rows may be, they do not spread at all, and Student's t would be sure of anything: then the signs alone count.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.lab.experiment import Experiment, RunResult

# ---- certainty: What differences between pairs of runs allow to claim: paired by seed, and corrected for how many are looked at.

MIN_PAIRS = 3  # pairs; of fewer nothing is claimed
MAX_EXACT_PAIRS = 14  # pairs, from which on all choices of signs are too many to count
SIGNIFICANCE_LEVEL = 0.05
ROUNDING_TOLERANCE = 1e-9  # of the mean: a spread of less is that of rounding


@dataclass(frozen=True)
class PairedTest:
    """The mean difference of n pairs, its 95 % interval if they spread, and how likely chance alone gives so much."""

    n: int
    mean: float
    ci_low: float | None
    ci_high: float | None
    p_value: float  # by Student's t, where they spread
    p_exact: float | None  # by all choices of signs


def paired_test(differences: Sequence[float]) -> PairedTest | None:
    """None where there are too few to claim anything."""
    n = len(differences)
    if n < MIN_PAIRS:
        return None
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(n)
    exact = _sign_flip_p_value(differences) if n <= MAX_EXACT_PAIRS else None
    if error <= ROUNDING_TOLERANCE * abs(mean):
        return PairedTest(n, mean, None, None, 2 / 2**n if mean else 1.0, exact)
    half = error * t_critical_value(1 - SIGNIFICANCE_LEVEL, n - 1)
    return PairedTest(
        n,
        mean,
        mean - half,
        mean + half,
        max(0.0, 1 - t_central_probability(abs(mean) / error, n - 1)),
        exact,
    )


def t_central_probability(t: float, freedom: int) -> float:
    """The chance that Student's t lies between −t and t: for whole degrees of freedom a finite sum.

    With a = arctan(t / √ν), for even ν: sin a · (1 + ½ cos² a + ½·¾ cos⁴ a + …) up to cos^(ν−2);
    for odd ν: 2/π · (a + sin a · (cos a + ⅔ cos³ a + ⅔·⅘ cos⁵ a + …)) up to the same.
    """
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) ** odd
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def t_critical_value(share: float, freedom: int) -> float:
    """The t that this share lies inside of."""
    low = 0.0
    high = 1e4
    while high - low > 1e-12 * (1 + high):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if t_central_probability(middle, freedom) < share else (low, middle)
        )
    return high


def _sign_flip_p_value(differences: Sequence[float]) -> float:
    """The share of all choices of signs whose sum is at least as far from 0."""
    seen = abs(math.fsum(differences)) * (1 - 1e-12)
    choices = itertools.product((1, -1), repeat=len(differences))
    counted = [
        abs(math.fsum(s * d for s, d in zip(signs, differences, strict=True))) >= seen
        for signs in choices
    ]
    return sum(counted) / len(counted)


def holm_correction(chances: Sequence[float]) -> list[float]:
    """Each chance made larger, so that of all claims below a bound not even one is false more often than that bound.

    The smallest of m times m, the next times m − 1, …, and none below the one before.
    """
    found = [0.0] * len(chances)
    least = 0.0
    for rank, i in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        least = found[i] = max(least, min(1.0, chances[i] * (len(chances) - rank)))
    return found


# ---- summary: An experiment in a table: what the runs of each variant reached and cost, and what differences allow to claim.

LOWER_IS_BETTER = (
    "loss",
    "last",
    "perplexity",
    "bits",
    "error",
)  # of figures with such a name, less is better


@dataclass(frozen=True)
class Contrast:
    """A variant against the one that all are held against."""

    test: PairedTest
    p_corrected: float  # corrected for the number of variants that are compared

    @property
    def is_significant(self) -> bool:
        return self.p_corrected < SIGNIFICANCE_LEVEL


@dataclass(frozen=True)
class VariantSummary:
    """One variant."""

    name: str
    runs: tuple[RunResult, ...]
    metric: str
    differences: tuple[
        float, ...
    ]  # to the one that all are held against, a run of the same seed each
    contrast: Contrast | None  # None for that one itself, and where nothing can be claimed

    @property
    def values(self) -> list[float]:
        return [value for run in self.runs if (value := run.metric(self.metric)) is not None]

    @property
    def mean(self) -> float | None:
        return mean(self.values)

    @property
    def diverged(self) -> list[RunResult]:
        return [run for run in self.runs if run.status == "diverged"]

    def mean_of(self, name: str) -> float | None:
        """The mean of something else that is known of its runs."""
        ended = [getattr(run, name) for run in self.runs if run.status != "diverged"]
        return mean([value for value in ended if value is not None])

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for a table."""
        values = self.values
        chance = self.contrast.test if self.contrast else None
        return {
            "variant": self.name,
            "n": len(values),
            "mean": self.mean,
            "deviation": std(values),
            "lowest": min(values, default=None),
            "highest": max(values, default=None),
            "loss": self.mean_of("loss"),
            "last": self.mean_of("last"),
            "diverged": len(self.diverged),
            "difference": mean(self.differences),
            "from": chance and chance.ci_low,
            "to": chance and chance.ci_high,
            "p": chance and chance.p_value,
            "p_corrected": self.contrast and self.contrast.p_corrected,
            "p_exact": chance and chance.p_exact,
            "parameters": next((run.num_parameters for run in self.runs), None),
            "seconds": self.mean_of("seconds"),
            "tokens_a_second": self.mean_of("tokens_a_second"),
            "memory": max((run.peak_memory for run in self.runs if run.peak_memory), default=None),
        }


@dataclass(frozen=True)
class Summary:
    """All variants in their order, as far as runs are done."""

    experiment: Experiment
    rows: list[VariantSummary]

    @property
    def baseline(self) -> VariantSummary:
        """What the others are held against."""
        name = self.experiment.baseline or self.experiment.variants[0].name
        return next(row for row in self.rows if row.name == name)

    @property
    def others(self) -> list[VariantSummary]:
        return [row for row in self.rows if row.name != self.baseline.name]

    @property
    def results(self) -> list[RunResult]:
        return [run for row in self.rows for run in row.runs]

    @property
    def lower_is_better(self) -> bool:
        """Whether less of the figure is better."""
        return any(word in self.experiment.metric for word in LOWER_IS_BETTER)


def summarize(experiment: Experiment, known: Mapping[tuple[str, int], RunResult]) -> Summary:
    against = experiment.baseline or experiment.variants[0].name
    metric = experiment.metric
    runs = {
        v.name: [known[v.name, s] for s in experiment.seeds if (v.name, s) in known]
        for v in experiment.variants
    }
    differences = {
        name: _paired_differences(each, runs[against], metric)
        for name, each in runs.items()
        if name != against
    }
    chances = {
        name: chance
        for name, each in differences.items()
        if (chance := paired_test(each)) is not None
    }
    corrected = dict(
        zip(chances, holm_correction([chance.p_value for chance in chances.values()]), strict=True)
    )
    versus = {name: Contrast(chance, corrected[name]) for name, chance in chances.items()}
    return Summary(
        experiment,
        [
            VariantSummary(
                name, tuple(each), metric, tuple(differences.get(name, ())), versus.get(name)
            )
            for name, each in runs.items()
        ],
    )


def _paired_differences(
    runs: Iterable[RunResult], against: Iterable[RunResult], metric: str
) -> list[float]:
    """Of runs of the same seed; a pair of which one diverged is none."""
    theirs = {run.seed: run.metric(metric) for run in against}
    pairs = [(run.metric(metric), theirs.get(run.seed)) for run in runs]
    return [ours - other for ours, other in pairs if ours is not None and other is not None]


def std(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
