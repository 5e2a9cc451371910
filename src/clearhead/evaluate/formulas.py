"""The formulas of classes and numbers, each in which a row may count more than once, or not at all."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]


# ---------------------------------------------------------------- of a table of classes: what is true down, told across
def accuracy(table: Numbers) -> float:
    return float(np.trace(table) / table.sum())


def precision(table: Numbers) -> Numbers:
    """TP / (TP + FP) of each class; no number where it was never told."""
    return _shares(np.diag(table), table.sum(axis=0))


def recall(table: Numbers) -> Numbers:
    """TP / (TP + FN) of each class; no number where it never occurs."""
    return _shares(np.diag(table), table.sum(axis=1))


def f1_scores(table: Numbers) -> Numbers:
    """2 TP / (2 TP + FP + FN) of each class; no number where it neither occurs nor was told."""
    return _shares(2 * np.diag(table), table.sum(axis=0) + table.sum(axis=1))


def totals(places: NDArray[np.int64], weights: Numbers, n: int) -> Numbers:
    """The sum of weights at each of n places."""
    return np.bincount(places, weights, n).astype(np.float64)


def _shares(part: Numbers, whole: Numbers) -> Numbers:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def matthews(table: Numbers) -> float:
    """The correlation of what is true and what was told (Gorodkin 2004); 0 where one of them is always the same."""
    total, told, true = table.sum(), table.sum(axis=0), table.sum(axis=1)
    spread = (total**2 - told @ told) * (total**2 - true @ true)
    return float((np.trace(table) * total - told @ true) / math.sqrt(spread)) if spread > 0 else 0.0


# ---------------------------------------------------------------- of bins of confidence
def reliability(confidence: Numbers, right: Numbers, counts: Numbers, bins: int) -> tuple[Numbers, Numbers, Numbers]:
    """How many answers each bin of confidence holds, their mean confidence, and the share that was right."""
    at = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    n, sure, true = (totals(at, counts * x, bins) for x in (np.ones_like(confidence), confidence, right))
    return n, _shares(sure, n), _shares(true, n)


def calibration_error(confidence: Numbers, right: Numbers, counts: Numbers, bins: int) -> float:
    """Σ (share of a bin) · |share that was right − mean confidence| (Naeini 2015)."""
    n, sure, true = reliability(confidence, right, counts, bins)
    return float(np.nansum(n * np.abs(true - sure)) / n.sum())


# ---------------------------------------------------------------- of two lists of numbers
def pearson(x: ArrayLike, y: ArrayLike, counts: Numbers | None = None) -> float:
    """No number where one of them is always the same."""
    both = np.array([x, y], np.float64)
    weights = np.ones(both.shape[1]) if counts is None else counts
    a, b = both - (both @ weights / weights.sum())[:, None]
    spread = math.sqrt((weights @ a**2) * (weights @ b**2))
    return float(weights @ (a * b) / spread) if spread > 0 else math.nan


def spearman(x: ArrayLike, y: ArrayLike, counts: Numbers | None = None) -> float:
    """The correlation of ranks."""
    return pearson(_ranks(x, counts), _ranks(y, counts), counts)


def _ranks(x: ArrayLike, counts: Numbers | None) -> Numbers:
    """The place of each in order; equals share the mean of theirs."""
    _, place = np.unique(np.asarray(x), return_inverse=True)
    n = totals(place, np.ones(len(place)) if counts is None else counts, int(place.max()) + 1)
    return (np.cumsum(n) - (n - 1) / 2)[place]
