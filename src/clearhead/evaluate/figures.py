"""What comes out of an evaluation: figures, each with the interval that chance leaves open."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import ClearheadError, nearest
from clearhead.lens.view import View

SAMPLES = 1000
ENDS = 2.5, 97.5  # percent: between them lie 95
Z = 1.959964  # standard deviations of a normal distribution between which 95 % lie, to both sides
Counts = NDArray[np.float64]  # how often each unit counts
Statistics = Callable[[Counts], Sequence[float]]


@dataclass(frozen=True)
class Figure:
    """A number that tells how good a model is, and between which two it may well be on other data of this kind."""

    name: str
    value: float
    low: float | None  # None where nothing can be drawn: there is one unit, no finite value, or one value of all draws
    high: float | None
    n: int
    unit: str  # what there are n of, and what is drawn anew: documents, sentences, rows
    how: str  # what the value is
    seed: int = 0
    alike: bool = False  # whether all draws are alike and tell nothing; the interval of a share is then Wilson's

    @property
    def method(self) -> str:
        """What the value is, and where its interval comes from."""
        return f"{self.how}; {self.interval}"

    @property
    def interval(self) -> str:
        """Where the interval comes from."""
        if self.low is None:
            alike = ", of which all draws are alike" if self.alike else ""
            return f"no interval can be drawn from {self.n:,} {self.unit}{alike}"
        if self.alike:
            return f"Wilson's 95 % for a share of {self.n:,} {self.unit}, of which all draws are alike"
        return f"95 % of {SAMPLES:,} bootstrap samples of {self.n:,} {self.unit} (seed {self.seed})"


def figures(
    how: Mapping[str, str], statistics: Statistics, n: int, unit: str, seed: int, shares: Collection[str] = ()
) -> list[Figure]:
    """The figures that `how` names and explains: what `statistics` gives where each of n units counts once.

    The interval is the percentile bootstrap: units are drawn with replacement, as many as there are, again and again.
    A statistic that chance only ever makes larger, as the calibration error, would lie below its interval, which then
    begins with it. Where all draws are alike they tell nothing: `shares` of 0 or 1 then have Wilson's interval, others
    none.
    """
    values, chance = statistics(np.ones(n)), np.random.default_rng(seed)
    drawn = np.array([statistics(_draw(n, chance)) for _ in range(SAMPLES if n > 1 else 0)]).reshape(-1, len(values))
    found = zip(how.items(), values, drawn.T, strict=True)
    made = [Figure(name, float(value), *_ends(value, x), n, unit, what, seed) for (name, what), value, x in found]
    return [_of_alike(one, one.name in shares) if one.low == one.high is not None else one for one in made]


def _of_alike(one: Figure, share: bool) -> Figure:
    """Of a share p = 0 or 1 of n: z² / (n + z²) wide, to the inside (Wilson 1927)."""
    if not share or one.value not in (0, 1):
        return replace(one, low=None, high=None, alike=True)
    width = Z**2 / (one.n + Z**2)
    return replace(one, low=one.value * (1 - width), high=one.value + (1 - one.value) * width, alike=True)


def _draw(n: int, chance: np.random.Generator) -> Counts:
    return np.bincount(chance.integers(n, size=n), minlength=n).astype(np.float64)


def _ends(value: float, drawn: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Where it begins and ends; draws of which the statistic is no number tell nothing, and what is infinite no end."""
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn) or np.isinf(drawn).any():
        return None, None
    low, high = np.percentile(drawn, ENDS)
    return float(min(low, value)), float(max(high, value))


@dataclass(frozen=True, repr=False)
class Evaluation:
    """How good a model is on some data: `.value("accuracy")`, or all `.figures`; print() shows them."""

    figures: list[Figure]
    each: list[dict[str, Any]]  # what came of each document, sentence or row, and where it stands
    views: dict[str, View] = field(default_factory=dict)  # of classes: what was taken for what, and how surely
    notes: list[str] = field(default_factory=list)  # how the data was read, and what was cut or left out
    data: tuple[str, ...] = ()  # the files

    def __getitem__(self, name: str) -> Figure:
        """The figure of that name; `bits_per_byte` is `bits per byte`."""
        known = {figure.name: figure for figure in self.figures}
        wanted = name.replace("_", " ")
        if wanted not in known:
            raise ClearheadError(f"there is no figure {name!r}; {nearest(wanted, known)}")
        return known[wanted]

    def value(self, name: str) -> float:
        """The value of the figure of that name."""
        return self[name].value

    def table(self) -> list[dict[str, Any]]:
        """A row for each figure."""
        names = ("name", "value", "low", "high", "n", "method")
        return [{name: getattr(figure, name) for name in names} for figure in self.figures]

    def json(self) -> str:
        """All but what came of each; what is no finite number is null."""
        views = {name: view.table() for name, view in self.views.items()}
        tree = {"data": list(self.data), "figures": self.table(), **views, "notes": self.notes}
        return json.dumps(_finite(tree), ensure_ascii=False, allow_nan=False)

    def each_json(self) -> str:
        """A line of JSON for each document, sentence or row."""
        return "".join(json.dumps(_finite(one), ensure_ascii=False, allow_nan=False) + "\n" for one in self.each)

    def __str__(self) -> str:
        cells = [("", "value", "95 % interval", "")]
        cells += [(f.name, number(f.value), _range(f), f.how) for f in self.figures]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip() for a, b, c, d in cells]
        how = next((f for f in self.figures if f.low is not None and not f.alike), self.figures[0]).interval
        apart = groupby((f for f in self.figures if f.interval != how), lambda f: f.interval)
        others = [f"That of {', '.join(f.name for f in some)}: {other}." for other, some in apart]
        return "\n".join([*lines, "", f"The interval: {how}.", *others, *self.notes])

    __repr__ = __str__


def _range(figure: Figure) -> str:
    return f"{number(figure.low)} – {number(figure.high)}" if figure.low is not None and figure.high is not None else ""


def number(value: float) -> str:
    """Four digits after the point where it is small, two where it is larger, and four in all where it is huge."""
    return f"{value:.4g}" if abs(value) >= 1e5 else f"{value:.{digits(value)}f}"


def digits(value: float) -> int:
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
