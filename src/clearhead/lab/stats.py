"""Statistics of an experiment: paired tests against a baseline, corrected for multiple comparisons.

    t = mean(d) / (s(d) / √n),  d the differences of runs with the same seed

Student's t-test assumes normal differences. The sign-flip test does not: under the null hypothesis
each difference could as well have the other sign, so all 2ⁿ choices of signs are counted; its
p-value is at least 2 / 2ⁿ. If all differences are equal, as they may be for accuracy on few rows,
the t-test would be infinitely confident, so only the signs count.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.lab.experiment import Experiment, RunResult

MIN_PAIRS = 3  # for any claim
MAX_EXACT_PAIRS = 14  # sign flips of more pairs are too many to enumerate
SIGNIFICANCE_LEVEL = 0.05
ROUNDING_TOLERANCE = 1e-9  # relative to the mean
LOWER_IS_BETTER = ("loss", "perplexity", "bits", "error", "rmse")  # parts of metric names


# --- tests


@dataclass(frozen=True)
class PairedTest:
    """Mean difference of pairs, its 95 % confidence interval, and p-values."""

    mean: float
    ci_low: float | None  # None if all differences are equal
    ci_high: float | None
    p_value: float  # t-test
    p_exact: float | None  # sign-flip test


def paired_test(differences: Sequence[float]) -> PairedTest | None:
    """Test whether the mean difference is zero; None with fewer than `MIN_PAIRS` pairs."""
    n = len(differences)
    if n < MIN_PAIRS:
        return None
    mean_difference = statistics.fmean(differences)
    standard_error = statistics.stdev(differences) / math.sqrt(n)
    p_exact = _sign_flip_p_value(differences) if n <= MAX_EXACT_PAIRS else None
    if standard_error <= ROUNDING_TOLERANCE * abs(mean_difference):
        p_value = 2 / 2**n if mean_difference else 1.0
        return PairedTest(mean_difference, None, None, p_value, p_exact)
    margin = standard_error * t_critical_value(1 - SIGNIFICANCE_LEVEL, n - 1)
    t = abs(mean_difference) / standard_error
    return PairedTest(
        mean_difference,
        mean_difference - margin,
        mean_difference + margin,
        max(0.0, 1 - t_central_probability(t, n - 1)),
        p_exact,
    )


def t_central_probability(t: float, degrees_of_freedom: int) -> float:
    """P(−t < T < t) of Student's t, as a finite sum for integer degrees of freedom ν.

    With a = arctan(t / √ν), for even ν: sin a · (1 + ½ cos² a + ½·¾ cos⁴ a + …) up to cos^(ν−2);
    for odd ν: 2/π · (a + sin a · (cos a + ⅔ cos³ a + ⅔·⅘ cos⁵ a + …)) up to the same.
    """
    angle = math.atan(t / math.sqrt(degrees_of_freedom))
    is_odd = degrees_of_freedom % 2
    term = math.cos(angle) ** is_odd
    total = 0.0
    for power in range(is_odd, degrees_of_freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if is_odd else total


def t_critical_value(confidence: float, degrees_of_freedom: int) -> float:
    """The t for which P(−t < T < t) is the confidence, by bisection."""
    low = 0.0
    high = 1e4
    while high - low > 1e-12 * (1 + high):
        middle = (low + high) / 2
        if t_central_probability(middle, degrees_of_freedom) < confidence:
            low = middle
        else:
            high = middle
    return high


def _sign_flip_p_value(differences: Sequence[float]) -> float:
    """Fraction of all sign choices whose sum is at least as far from 0."""
    observed = abs(math.fsum(differences)) * (1 - 1e-12)
    choices = itertools.product(*((d, -d) for d in differences))
    return statistics.fmean(abs(math.fsum(choice)) >= observed for choice in choices)


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Holm–Bonferroni: p-values that control the family-wise error rate.

    The smallest is multiplied by m, the next by m − 1, …, and none is below the one before.
    """
    corrected = [0.0] * len(p_values)
    running_max = 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, i in enumerate(order):
        running_max = max(running_max, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = running_max
    return corrected


# --- summary


@dataclass(frozen=True)
class Contrast:
    """A variant compared with the baseline."""

    test: PairedTest
    p_corrected: float  # for the number of variants

    @property
    def is_significant(self) -> bool:
        return self.p_corrected < SIGNIFICANCE_LEVEL


@dataclass(frozen=True)
class VariantSummary:
    """Results of one variant."""

    name: str
    runs: tuple[RunResult, ...]
    metric: str
    differences: tuple[float, ...]  # to the baseline's run with the same seed
    contrast: Contrast | None  # None for the baseline itself, and with too few pairs

    @property
    def values(self) -> list[float]:
        values = (run.metric(self.metric) for run in self.runs)
        return [value for value in values if value is not None]

    @property
    def mean(self) -> float | None:
        return mean(self.values)

    @property
    def diverged(self) -> list[RunResult]:
        return [run for run in self.runs if run.status == "diverged"]

    @property
    def losses_by_length(self) -> dict[int, list[float]]:
        """Losses of the runs at each sequence length that they can read."""
        losses: dict[int, list[float]] = {}
        for run in self.runs:
            for length, measured in run.loss_by_length.items():
                if measured:
                    losses.setdefault(int(length), []).append(measured["loss"])
        return dict(sorted(losses.items()))

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as a row of a table."""
        values = self.values
        completed = [run for run in self.runs if run.status != "diverged"]
        contrast = self.contrast
        test = contrast.test if contrast else None

        def mean_of(numbers: Iterable[float | None]) -> float | None:
            return mean([number for number in numbers if number is not None])

        return {
            "variant": self.name,
            "n": len(values),
            "mean": self.mean,
            "std": std(values),
            "min": min(values, default=None),
            "max": max(values, default=None),
            "best_loss": mean_of(run.best_loss for run in completed),
            "final_loss": mean_of(run.final_loss for run in completed),
            "num_diverged": len(self.diverged),
            "mean_difference": mean(self.differences),
            "ci_low": test.ci_low if test else None,
            "ci_high": test.ci_high if test else None,
            "p_value": test.p_value if test else None,
            "p_corrected": contrast.p_corrected if contrast else None,
            "p_exact": test.p_exact if test else None,
            "num_parameters": self.runs[0].num_parameters if self.runs else None,
            "train_seconds": mean_of(run.train_seconds for run in completed),
            "tokens_per_second": mean_of(run.tokens_per_second for run in completed),
            "peak_memory": max(
                (run.peak_memory for run in self.runs if run.peak_memory), default=None
            ),
        }


@dataclass(frozen=True)
class Summary:
    """Results of all variants so far, in order."""

    experiment: Experiment
    rows: list[VariantSummary]

    @property
    def baseline(self) -> VariantSummary:
        return next(row for row in self.rows if row.name == self.experiment.baseline_name)

    @property
    def others(self) -> list[VariantSummary]:
        return [row for row in self.rows if row.name != self.experiment.baseline_name]

    @property
    def results(self) -> list[RunResult]:
        return [run for row in self.rows for run in row.runs]

    @property
    def lower_is_better(self) -> bool:
        return any(part in self.experiment.metric for part in LOWER_IS_BETTER)


def summarize(experiment: Experiment, results: Mapping[tuple[str, int], RunResult]) -> Summary:
    metric = experiment.metric
    runs: dict[str, list[RunResult]] = {}
    for variant in experiment.variants:
        keys = [(variant.name, seed) for seed in experiment.seeds]
        runs[variant.name] = [results[key] for key in keys if key in results]
    baseline = experiment.baseline_name
    differences = {
        name: _paired_differences(runs[name], runs[baseline], metric) if name != baseline else []
        for name in runs
    }
    tests = {name: test for name in runs if (test := paired_test(differences[name]))}
    corrected = holm_correction([test.p_value for test in tests.values()])
    contrasts = dict(zip(tests, map(Contrast, tests.values(), corrected), strict=True))
    rows = [
        VariantSummary(
            name, tuple(runs[name]), metric, tuple(differences[name]), contrasts.get(name)
        )
        for name in runs
    ]
    return Summary(experiment, rows)


def _paired_differences(
    runs: Iterable[RunResult], baseline_runs: Iterable[RunResult], metric: str
) -> list[float]:
    """Differences of runs with the same seed, without runs that diverged."""
    baseline_values = {run.seed: run.metric(metric) for run in baseline_runs}
    pairs = [(run.metric(metric), baseline_values.get(run.seed)) for run in runs]
    return [a - b for a, b in pairs if a is not None and b is not None]


def std(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
