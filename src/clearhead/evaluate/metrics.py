"""The formulas of classes and numbers, each in which a row may count more than once, or not at all."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clearhead.errors import ClearheadError, suggest
from clearhead.lens.view import View

# ---- formulas: The formulas of classes and numbers, each in which a row may count more than once, or not at all.

FloatArray = NDArray[np.float64]


# ---------------------------------------------------------------- of a table of classes: what is true down, told across
def accuracy(table: FloatArray) -> float:
    return float(np.trace(table) / table.sum())


def precision(table: FloatArray) -> FloatArray:
    """TP / (TP + FP) of each class; no number where it was never told."""
    return _shares(np.diag(table), table.sum(axis=0))


def recall(table: FloatArray) -> FloatArray:
    """TP / (TP + FN) of each class; no number where it never occurs."""
    return _shares(np.diag(table), table.sum(axis=1))


def f1_scores(table: FloatArray) -> FloatArray:
    """2 TP / (2 TP + FP + FN) of each class; no number where it neither occurs nor was told."""
    return _shares(2 * np.diag(table), table.sum(axis=0) + table.sum(axis=1))


def weighted_bincount(places: NDArray[np.int64], weights: FloatArray, n: int) -> FloatArray:
    """The sum of weights at each of n places."""
    return np.bincount(places, weights, n).astype(np.float64)


def _shares(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def matthews_correlation(table: FloatArray) -> float:
    """The correlation of what is true and what was told (Gorodkin 2004); 0 where one of them is always the same."""
    total = table.sum()
    told = table.sum(axis=0)
    true = table.sum(axis=1)
    spread = (total**2 - told @ told) * (total**2 - true @ true)
    return float((np.trace(table) * total - told @ true) / math.sqrt(spread)) if spread > 0 else 0.0


# ---------------------------------------------------------------- of bins of confidence
def reliability_bins(
    confidence: FloatArray, right: FloatArray, counts: FloatArray, bins: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How many answers each bin of confidence holds, their mean confidence, and the share that was right."""
    at = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    n, sure, true = (
        weighted_bincount(at, counts * x, bins)
        for x in (np.ones_like(confidence), confidence, right)
    )
    return n, _shares(sure, n), _shares(true, n)


def expected_calibration_error(
    confidence: FloatArray, right: FloatArray, counts: FloatArray, bins: int
) -> float:
    """Σ (share of a bin) · |share that was right − mean confidence| (Naeini 2015)."""
    n, sure, true = reliability_bins(confidence, right, counts, bins)
    return float(np.nansum(n * np.abs(true - sure)) / n.sum())


# ---------------------------------------------------------------- of two lists of numbers
def pearson(x: ArrayLike, y: ArrayLike, counts: FloatArray | None = None) -> float:
    """No number where one of them is always the same."""
    both = np.array([x, y], np.float64)
    weights = np.ones(both.shape[1]) if counts is None else counts
    a, b = both - (both @ weights / weights.sum())[:, None]
    spread = math.sqrt((weights @ a**2) * (weights @ b**2))
    return float(weights @ (a * b) / spread) if spread > 0 else math.nan


def spearman(x: ArrayLike, y: ArrayLike, counts: FloatArray | None = None) -> float:
    """The correlation of ranks."""
    return pearson(_ranks(x, counts), _ranks(y, counts), counts)


def _ranks(x: ArrayLike, counts: FloatArray | None) -> FloatArray:
    """The place of each in order; equals share the mean of theirs."""
    _, place = np.unique(np.asarray(x), return_inverse=True)
    n = weighted_bincount(
        place, np.ones(len(place)) if counts is None else counts, int(place.max()) + 1
    )
    return (np.cumsum(n) - (n - 1) / 2)[place]


# ---- figures: What comes out of an evaluation: figures, each with the interval that chance leaves open.

BOOTSTRAP_SAMPLES = 1000
INTERVAL_PERCENTILES = 2.5, 97.5  # percent: between them lie 95
NORMAL_QUANTILE = (
    1.959964  # standard deviations of a normal distribution between which 95 % lie, to both sides
)
SampleWeights = NDArray[np.float64]  # how often each unit counts
Statistics = Callable[[SampleWeights], Sequence[float]]


@dataclass(frozen=True)
class Metric:
    """A number that tells how good a model is, and between which two it may well be on other data of this kind."""

    name: str
    value: float
    low: (
        float | None
    )  # None where nothing can be drawn: there is one unit, no finite value, or one value of all draws
    high: float | None
    n: int
    unit: str  # what there are n of, and what is drawn anew: documents, sentences, rows
    description: str  # what the value is
    seed: int = 0
    is_degenerate: bool = False  # whether all draws are alike and tell nothing; the interval of a share is then Wilson's

    @property
    def method(self) -> str:
        """What the value is, and where its interval comes from."""
        return f"{self.description}; {self.interval}"

    @property
    def interval(self) -> str:
        """Where the interval comes from."""
        if self.low is None:
            alike = ", of which all draws are alike" if self.is_degenerate else ""
            return f"no interval can be drawn from {self.n:,} {self.unit}{alike}"
        if self.is_degenerate:
            return (
                f"Wilson's 95 % for a share of {self.n:,} {self.unit}, of which all draws are alike"
            )
        return f"95 % of {BOOTSTRAP_SAMPLES:,} bootstrap samples of {self.n:,} {self.unit} (seed {self.seed})"


def bootstrap_metrics(
    descriptions: Mapping[str, str],
    statistics: Statistics,
    n: int,
    unit: str,
    seed: int,
    proportions: Collection[str] = (),
) -> list[Metric]:
    """The figures that `how` names and explains: what `statistics` gives where each of n units counts once.

    The interval is the percentile bootstrap: units are drawn with replacement, as many as there are, again and again.
    A statistic that chance only ever makes larger, as the calibration error, would lie below its interval, which then
    begins with it. Where all draws are alike they tell nothing: `shares` of 0 or 1 then have Wilson's interval, others
    none.
    """
    values = statistics(np.ones(n))
    chance = np.random.default_rng(seed)
    drawn = np.array(
        [statistics(_draw(n, chance)) for _ in range(BOOTSTRAP_SAMPLES if n > 1 else 0)]
    ).reshape(-1, len(values))
    found = zip(descriptions.items(), values, drawn.T, strict=True)
    made = [
        Metric(name, float(value), *_ends(value, x), n, unit, what, seed)
        for (name, what), value, x in found
    ]
    return [
        _of_alike(one, one.name in proportions) if one.low == one.high is not None else one
        for one in made
    ]


def _of_alike(one: Metric, share: bool) -> Metric:
    """Of a share p = 0 or 1 of n: z² / (n + z²) wide, to the inside (Wilson 1927)."""
    if not share or one.value not in (0, 1):
        return replace(one, low=None, high=None, is_degenerate=True)
    width = NORMAL_QUANTILE**2 / (one.n + NORMAL_QUANTILE**2)
    return replace(
        one,
        low=one.value * (1 - width),
        high=one.value + (1 - one.value) * width,
        is_degenerate=True,
    )


def _draw(n: int, chance: np.random.Generator) -> SampleWeights:
    return np.bincount(chance.integers(n, size=n), minlength=n).astype(np.float64)


def _ends(value: float, drawn: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Where it begins and ends; draws of which the statistic is no number tell nothing, and what is infinite no end."""
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn) or np.isinf(drawn).any():
        return None, None
    low, high = np.percentile(drawn, INTERVAL_PERCENTILES)
    return float(min(low, value)), float(max(high, value))


@dataclass(frozen=True, repr=False)
class Evaluation:
    """How good a model is on some data: `.value("accuracy")`, or all `.figures`; print() shows them."""

    metrics: list[Metric]
    examples: list[
        dict[str, Any]
    ]  # what came of each document, sentence or row, and where it stands
    views: dict[str, View] = field(
        default_factory=dict
    )  # of classes: what was taken for what, and how surely
    notes: list[str] = field(
        default_factory=list
    )  # how the data was read, and what was cut or left out
    data: tuple[str, ...] = ()  # the files

    def __getitem__(self, name: str) -> Metric:
        """The figure of that name; `bits_per_byte` is `bits per byte`."""
        known = {figure.name: figure for figure in self.metrics}
        wanted = name.replace("_", " ")
        if wanted not in known:
            raise ClearheadError(f"there is no figure {name!r}; {suggest(wanted, known)}")
        return known[wanted]

    def value(self, name: str) -> float:
        """The value of the figure of that name."""
        return self[name].value

    def table(self) -> list[dict[str, Any]]:
        """A row for each figure."""
        names = ("name", "value", "low", "high", "n", "method")
        return [{name: getattr(figure, name) for name in names} for figure in self.metrics]

    def to_json(self) -> str:
        """All but what came of each; what is no finite number is null."""
        views = {name: view.table() for name, view in self.views.items()}
        tree = {"data": list(self.data), "figures": self.table(), **views, "notes": self.notes}
        return json.dumps(_finite(tree), ensure_ascii=False, allow_nan=False)

    def examples_to_jsonl(self) -> str:
        """A line of JSON for each document, sentence or row."""
        return "".join(
            json.dumps(_finite(one), ensure_ascii=False, allow_nan=False) + "\n"
            for one in self.examples
        )

    def __str__(self) -> str:
        cells = [("", "value", "95 % interval", "")]
        cells += [(f.name, format_number(f.value), _range(f), f.description) for f in self.metrics]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        lines = [
            f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip()
            for a, b, c, d in cells
        ]
        how = next(
            (f for f in self.metrics if f.low is not None and not f.is_degenerate), self.metrics[0]
        ).interval
        apart = groupby((f for f in self.metrics if f.interval != how), lambda f: f.interval)
        others = [f"That of {', '.join(f.name for f in some)}: {other}." for other, some in apart]
        return "\n".join([*lines, "", f"The interval: {how}.", *others, *self.notes])

    __repr__ = __str__


def _range(figure: Metric) -> str:
    return (
        f"{format_number(figure.low)} – {format_number(figure.high)}"
        if figure.low is not None and figure.high is not None
        else ""
    )


def format_number(value: float) -> str:
    """Four digits after the point where it is small, two where it is larger, and four in all where it is huge."""
    return f"{value:.4g}" if abs(value) >= 1e5 else f"{value:.{decimal_places(value)}f}"


def decimal_places(value: float) -> int:
    """How many stand after the point; what belongs to a value, such as its spread, has as many."""
    return 4 if abs(value) < 10 else 2


def _finite(tree: Any) -> Any:
    match tree:
        case dict():
            return {name: _finite(part) for name, part in tree.items()}
        case list():
            return [_finite(part) for part in tree]
        case float() if not math.isfinite(tree):
            return None
    return tree
