"""Formulas of metrics for weighted examples: classification, calibration, correlation."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
SampleWeights = NDArray[np.float64]  # how often each example counts


# --- formulas of a confusion matrix
# Rows are true classes, columns predicted ones.
def accuracy(matrix: FloatArray) -> float:
    """Fraction of correct predictions."""
    return float(np.trace(matrix) / matrix.sum())


def precision(matrix: FloatArray) -> FloatArray:
    """TP / (TP + FP) of each class; NaN if it was never predicted."""
    return _divide(np.diag(matrix), matrix.sum(axis=0))


def recall(matrix: FloatArray) -> FloatArray:
    """TP / (TP + FN) of each class; NaN if it does not occur."""
    return _divide(np.diag(matrix), matrix.sum(axis=1))


def f1_scores(matrix: FloatArray) -> FloatArray:
    """2 TP / (2 TP + FP + FN) of each class; NaN if it neither occurs nor was predicted."""
    return _divide(2 * np.diag(matrix), matrix.sum(axis=0) + matrix.sum(axis=1))


def matthews_correlation(matrix: FloatArray) -> float:
    """Correlation of true and predicted classes (Gorodkin 2004); 0 if either is constant."""
    total = matrix.sum()
    predicted = matrix.sum(axis=0)
    true = matrix.sum(axis=1)
    variance = (total**2 - predicted @ predicted) * (total**2 - true @ true)
    if variance <= 0:
        return 0.0
    return float((np.trace(matrix) * total - predicted @ true) / math.sqrt(variance))


def weighted_bincount(index: NDArray[np.int64], weights: FloatArray, n: int) -> FloatArray:
    """The sum of weights for each of n indices."""
    return np.bincount(index, weights, n).astype(np.float64)


def _divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """The quotient; NaN for 0 / 0."""
    nan = np.full(len(denominator), np.nan)
    return np.divide(numerator, denominator, out=nan, where=denominator > 0)


# --- calibration
def reliability_bins(
    confidence: FloatArray, correct: FloatArray, weights: SampleWeights, num_bins: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For each bin of confidence: the number of predictions, mean confidence and accuracy."""
    index = np.minimum((confidence * num_bins).astype(np.int64), num_bins - 1)
    n = weighted_bincount(index, weights, num_bins)
    total_confidence = weighted_bincount(index, weights * confidence, num_bins)
    num_correct = weighted_bincount(index, weights * correct, num_bins)
    return n, _divide(total_confidence, n), _divide(num_correct, n)


def expected_calibration_error(
    confidence: FloatArray, correct: FloatArray, weights: SampleWeights, num_bins: int
) -> float:
    """Σ (fraction of a bin) · |accuracy − mean confidence| (Naeini 2015)."""
    n, mean_confidence, bin_accuracy = reliability_bins(confidence, correct, weights, num_bins)
    return float(np.nansum(n * np.abs(bin_accuracy - mean_confidence)) / n.sum())


# --- correlation
def pearson(x: ArrayLike, y: ArrayLike, weights: SampleWeights | None = None) -> float:
    """Pearson correlation; NaN if either is constant."""
    both = np.array([x, y], np.float64)
    if weights is None:
        weights = np.ones(both.shape[1])
    a, b = both - (both @ weights / weights.sum())[:, None]
    variance = (weights @ a**2) * (weights @ b**2)
    return float(weights @ (a * b) / math.sqrt(variance)) if variance > 0 else math.nan


def spearman(x: ArrayLike, y: ArrayLike, weights: SampleWeights | None = None) -> float:
    """Rank correlation; ties have their mean rank."""
    return pearson(_ranks(x, weights), _ranks(y, weights), weights)


def _ranks(x: ArrayLike, weights: SampleWeights | None) -> FloatArray:
    values = np.asarray(x)
    _, group = np.unique(values, return_inverse=True)
    if weights is None:
        weights = np.ones(len(group))
    n = weighted_bincount(group, weights, int(group.max()) + 1)
    return (np.cumsum(n) - (n - 1) / 2)[group]
