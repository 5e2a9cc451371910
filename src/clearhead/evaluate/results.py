"""Results of an evaluation: metrics with bootstrap confidence intervals, as text and as JSON."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import ClearheadError, suggest
from clearhead.evaluate.metrics import SampleWeights
from clearhead.lens.view import View

BOOTSTRAP_SAMPLES = 1000
INTERVAL_PERCENTILES = (2.5, 97.5)
NORMAL_QUANTILE = 1.959964  # 95 % of a normal distribution lie within ± this many deviations
Statistics = Callable[[SampleWeights], Sequence[float]]


# --- metrics with intervals
@dataclass(frozen=True)
class Metric:
    """A metric with its 95 % confidence interval."""

    name: str
    value: float
    low: float | None  # None if there is no interval
    high: float | None
    n: int
    unit: str  # what is counted by n and resampled: documents, sentences, rows
    description: str
    seed: int = 0
    is_degenerate: bool = False  # all bootstrap samples are equal

    @property
    def method(self) -> str:
        """The formula, and how the interval was computed."""
        return f"{self.description}; {self.interval}"

    @property
    def interval(self) -> str:
        """How the interval was computed."""
        count = f"{self.n:,} {self.unit}"
        if self.low is None:
            reason = ": all bootstrap samples are equal" if self.is_degenerate else ""
            return f"no interval from {count}{reason}"
        if self.is_degenerate:
            return f"95 % Wilson interval of a proportion of {count}"
        samples = f"{BOOTSTRAP_SAMPLES:,} bootstrap samples"
        return f"95 % interval from {samples} of {count} (seed {self.seed})"


def bootstrap_metrics(
    descriptions: Mapping[str, str],
    statistics: Statistics,
    n: int,
    unit: str,
    seed: int,
    proportions: Collection[str] = (),
) -> list[Metric]:
    """Metrics with percentile bootstrap intervals.

    `statistics` computes the values from the weight of each of n units. A statistic that resampling
    only increases, such as the calibration error, may lie below its interval, which is then
    extended to it. If all samples are equal, `proportions` of 0 or 1 have Wilson intervals and
    other metrics none.
    """
    values = statistics(np.ones(n))
    rng = np.random.default_rng(seed)
    num_samples = BOOTSTRAP_SAMPLES if n > 1 else 0
    samples = np.array([statistics(_resample(n, rng)) for _ in range(num_samples)])
    columns = samples.reshape(-1, len(values)).T
    metrics = []
    for (name, description), value, column in zip(
        descriptions.items(), values, columns, strict=True
    ):
        low, high = _percentile_interval(value, column)
        metric = Metric(name, float(value), low, high, n, unit, description, seed)
        if low is not None and low == high:
            metric = _degenerate(metric, name in proportions)
        metrics.append(metric)
    return metrics


def _degenerate(metric: Metric, is_proportion: bool) -> Metric:
    """For a proportion of 0 or 1, an interval z² / (n + z²) wide (Wilson 1927); else none."""
    if not is_proportion or metric.value not in (0, 1):
        return replace(metric, low=None, high=None, is_degenerate=True)
    width = NORMAL_QUANTILE**2 / (metric.n + NORMAL_QUANTILE**2)
    low = metric.value * (1 - width)
    high = metric.value + (1 - metric.value) * width
    return replace(metric, low=low, high=high, is_degenerate=True)


def _resample(n: int, rng: np.random.Generator) -> SampleWeights:
    return np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)


def _percentile_interval(
    value: float, samples: NDArray[np.float64]
) -> tuple[float | None, float | None]:
    """The interval without NaN samples; none if a sample is infinite."""
    samples = samples[~np.isnan(samples)]
    if not len(samples) or np.isinf(samples).any():
        return None, None
    low, high = np.percentile(samples, INTERVAL_PERCENTILES)
    return float(min(low, value)), float(max(high, value))


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of an evaluation: `result.value("accuracy")`, or print it to see all metrics."""

    metrics: list[Metric]
    examples: list[dict[str, Any]]  # results of each document, sentence or row
    views: dict[str, View] = field(default_factory=dict)  # of classifiers
    notes: list[str] = field(default_factory=list)  # what was truncated or skipped
    data: tuple[str, ...] = ()  # the files

    def __getitem__(self, name: str) -> Metric:
        """The metric with this name."""
        metrics = {metric.name: metric for metric in self.metrics}
        if name not in metrics:
            raise ClearheadError(f"unknown metric {name!r}; {suggest(name, metrics)}")
        return metrics[name]

    def value(self, name: str) -> float:
        """The value of the metric with this name."""
        return self[name].value

    def table(self) -> list[dict[str, Any]]:
        """One JSON object per metric."""
        names = ("name", "value", "low", "high", "n", "method")
        return [{name: getattr(metric, name) for name in names} for metric in self.metrics]

    def to_json(self) -> str:
        """Everything but the examples; non-finite numbers are null."""
        views = {name: view.table() for name, view in self.views.items()}
        value = {"data": list(self.data), "metrics": self.table(), **views, "notes": self.notes}
        return _dump_json(value)

    def examples_to_jsonl(self) -> str:
        """One line of JSON per example."""
        return "".join(_dump_json(example) + "\n" for example in self.examples)

    def __str__(self) -> str:
        rows = [("", "value", "95 % interval", "")]
        rows += [
            (metric.name, format_number(metric.value), _format_interval(metric), metric.description)
            for metric in self.metrics
        ]
        lines = [text_table(rows, left_columns=(0, 3))]
        bootstrapped = [m for m in self.metrics if m.low is not None and not m.is_degenerate]
        usual = (bootstrapped or self.metrics)[0].interval
        lines += ["", f"Intervals: {usual}."]
        unusual = [metric for metric in self.metrics if metric.interval != usual]
        for interval, group in groupby(unusual, lambda metric: metric.interval):
            names = ", ".join(metric.name for metric in group)
            lines.append(f"{names}: {interval}.")
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__


def _format_interval(metric: Metric) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f"{format_number(metric.low)} – {format_number(metric.high)}"


def text_table(rows: Sequence[Sequence[str]], left_columns: Collection[int] = (0,)) -> str:
    """Aligned columns for a terminal: the left ones to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i in left_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_number(value: float) -> str:
    """Four decimals for small numbers, two for larger ones, four digits for very large ones."""
    return f"{value:.4g}" if abs(value) >= 1e5 else f"{value:.{decimal_places(value)}f}"


def decimal_places(value: float) -> int:
    """The decimals with which a value and its spread are shown."""
    return 4 if abs(value) < 10 else 2


def _dump_json(value: Any) -> str:
    return json.dumps(_without_non_finite(value), ensure_ascii=False, allow_nan=False)


def _without_non_finite(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_non_finite(item) for name, item in value.items()}
        case list():
            return [_without_non_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value
