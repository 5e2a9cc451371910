"""Formulas of metrics, written out, and with weighted examples."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clearhead.evaluate.metrics import (
    accuracy,
    expected_calibration_error,
    f1_scores,
    matthews_correlation,
    pearson,
    precision,
    recall,
    spearman,
)

Labels = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30)
Points = st.lists(
    st.tuples(st.integers(-5, 5), st.integers(-5, 5), st.integers(0, 3)), min_size=2, max_size=20
)  # small integers, for ties


def table_of(pairs):
    table = np.zeros((3, 3))
    for true, predicted in pairs:
        table[true, predicted] += 1
    return table


@given(Labels)
def test_f1_from_counts(pairs):
    expected = []
    for label in range(3):
        true_positives = sum(true == predicted == label for true, predicted in pairs)
        false_positives = sum(predicted == label != true for true, predicted in pairs)
        false_negatives = sum(true == label != predicted for true, predicted in pairs)
        expected.append(
            2 * true_positives / (2 * true_positives + false_positives + false_negatives)
            if true_positives + false_positives + false_negatives
            else math.nan
        )
    assert f1_scores(table_of(pairs)) == pytest.approx(expected, nan_ok=True)
    assert accuracy(table_of(pairs)) == pytest.approx(
        np.mean([true == predicted for true, predicted in pairs])
    )


@given(Labels)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(pairs):
    table = table_of(pairs)
    p = precision(table)
    r = recall(table)
    both = (p > 0) & (r > 0)
    assert f1_scores(table)[both] == pytest.approx(2 / (1 / p[both] + 1 / r[both]))


@given(Labels)
def test_matthews_equals_correlation_of_indicators(pairs):
    """Gorodkin: sums over classes of covariances and variances of their indicators."""
    true, predicted = (np.eye(3)[[pair[i] for pair in pairs]] for i in (0, 1))
    true = true - true.mean(0)
    predicted = predicted - predicted.mean(0)
    scale = math.sqrt((true**2).sum() * (predicted**2).sum())
    assert matthews_correlation(table_of(pairs)) == pytest.approx(
        (true * predicted).sum() / scale if scale > 1e-9 else 0, abs=1e-9
    )


def test_matthews_equals_the_binary_formula():
    tn = 5
    fp = 2
    fn = 3
    tp = 7
    expected = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert matthews_correlation(np.array([[tn, fp], [fn, tp]], float)) == pytest.approx(expected)


def test_calibration_error_sums_over_bins():
    confidence = np.array([0.95, 0.91, 0.55, 0.51, 1.0])
    correct = np.array([1.0, 0, 1, 1, 1])
    # Bin 0.9–1.0: confidence (0.95 + 0.91 + 1) / 3, two of three correct.
    # Bin 0.5–0.6: confidence 0.53, both correct.
    expected = 3 / 5 * abs(2.86 / 3 - 2 / 3) + 2 / 5 * (1 - 0.53)
    assert expected_calibration_error(confidence, correct, np.ones(5), 10) == pytest.approx(
        expected
    )


def test_calibrated_model_has_no_calibration_error():
    confidence = np.full(10, 0.7)
    correct = np.array([1.0] * 7 + [0] * 3)
    assert expected_calibration_error(confidence, correct, np.ones(10), 10) == pytest.approx(0)


@given(Points)
def test_spearman_is_the_correlation_of_ranks(points):
    x, y, _ = (np.array(column, float) for column in zip(*points, strict=True))
    ranks = [[(v < w).sum() + ((v == w).sum() + 1) / 2 for w in v] for v in (x, y)]
    assume(len(set(x)) > 1 and len(set(y)) > 1)
    assert spearman(x, y) == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])


@given(Points)
def test_weights_equal_repeated_examples(points):
    x, y, counts = (np.array(column, float) for column in zip(*points, strict=True))
    repeated = np.repeat(np.arange(len(x)), counts.astype(int))
    assume(len(set(x[repeated])) > 1 and len(set(y[repeated])) > 1)
    ones = np.ones(len(repeated))
    assert pearson(x, y, counts) == pytest.approx(pearson(x[repeated], y[repeated]))
    assert spearman(x, y, counts) == pytest.approx(spearman(x[repeated], y[repeated]))
    confidence = np.abs(x) / 5
    correct = (y > 0).astype(float)
    a = expected_calibration_error(confidence, correct, counts, 4)
    b = expected_calibration_error(confidence[repeated], correct[repeated], ones, 4)
    assert a == pytest.approx(b)


def test_constant_values_have_no_correlation():
    assert math.isnan(pearson([1, 1, 1], [1, 2, 3]))
    assert math.isnan(spearman([1, 2, 3], [5, 5, 5]))
