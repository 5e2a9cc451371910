"""Bootstrap intervals."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import ClearheadError
from clearhead.evaluate.results import Evaluation, bootstrap_metrics, format_number


def mean_of(values, seed=0):
    values = np.array(values, float)
    return bootstrap_metrics(
        {"mean": "the mean"},
        lambda counts: [counts @ values / counts.sum()],
        len(values),
        "rows",
        seed,
    )[0]


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30), st.integers(0, 5))
def test_interval_contains_the_value(values, seed):
    metric = mean_of(values, seed)
    assert metric.value == pytest.approx(np.mean(values), abs=1e-9)
    if metric.low is None:
        assert max(values) - min(values) < 1e-9
    else:
        assert min(values) - 1e-9 <= metric.low <= metric.value <= metric.high <= max(values) + 1e-9
    assert metric == mean_of(values, seed)


def test_interval_of_a_mean_is_normal():
    values = np.random.default_rng(1).normal(3, 2, 2000)
    metric = mean_of(values)
    error = values.std() / math.sqrt(2000)
    assert (metric.low, metric.high) == pytest.approx(
        (metric.value - 1.96 * error, metric.value + 1.96 * error), abs=0.01
    )


def test_interval_shrinks_with_the_square_root_of_n():
    values = np.random.default_rng(1).normal(size=100)
    few = mean_of(values)
    many = mean_of(np.tile(values, 64))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(8, rel=0.1)


def test_interval_of_a_biased_statistic_starts_at_the_value():
    values = np.tile([-1.0, 1.0], 50)
    metric = bootstrap_metrics({"x": ""}, lambda counts: [abs(counts @ values)], 100, "rows", 0)[0]
    assert metric.low == metric.value == 0 < metric.high


@pytest.mark.filterwarnings("error")
def test_infinite_statistics_have_no_interval():
    metrics = bootstrap_metrics(
        {"x": "", "y": ""},
        lambda counts: [math.inf, 1 / counts[0] if counts[0] else math.inf],
        5,
        "rows",
        0,
    )
    assert [(metric.low, metric.high) for metric in metrics] == [(None, None), (None, None)]


@pytest.mark.parametrize(("value", "low", "high"), [(1.0, 0.7225, 1.0), (0.0, 0.0, 0.2775)])
def test_degenerate_proportions_have_wilson_intervals(value, low, high):
    """Wilson intervals of 10 of 10 and 0 of 10, as in published tables."""
    descriptions = {"accuracy": "a proportion", "f1": "not a proportion"}
    accuracy, f1 = bootstrap_metrics(
        descriptions, lambda counts: [value, value], 10, "rows", 0, ("accuracy",)
    )
    assert (accuracy.low, accuracy.high) == pytest.approx((low, high), abs=1e-4)
    assert "Wilson" in accuracy.method
    assert (f1.value, f1.low, f1.high) == (value, None, None)
    assert "no interval" in f1.method
    bootstrapped = bootstrap_metrics(
        descriptions, lambda counts: [counts[0], value], 10, "rows", 0, ("accuracy",)
    )[0]
    assert "bootstrap" in bootstrapped.method
    text = str(Evaluation([accuracy, f1, replace(f1, name="macro_f1"), bootstrapped], []))
    assert "Intervals: 95 % interval from 1,000 bootstrap samples" in text
    assert "accuracy: 95 % Wilson interval" in text
    assert "f1, macro_f1: no interval" in text


def test_identical_units_have_no_interval():
    (half,) = bootstrap_metrics(
        {"accuracy": "a proportion"}, lambda counts: [0.5], 10, "rows", 0, ("accuracy",)
    )
    assert (half.value, half.low, half.high) == (0.5, None, None)


def test_one_unit_has_no_interval():
    metric = mean_of([2.0])
    assert (metric.value, metric.low, metric.high) == (2.0, None, None)
    assert "no interval" in metric.method


def test_metrics_are_found_by_name():
    evaluation = Evaluation(
        bootstrap_metrics({"bits_per_byte": "how"}, lambda counts: [1.5], 3, "rows", 0), []
    )
    assert evaluation.value("bits_per_byte") == evaluation["bits_per_byte"].value == 1.5
    with pytest.raises(ClearheadError, match="bits_per_byte"):
        evaluation.value("bits_per_bite")


def test_non_finite_values_are_null_in_json():
    evaluation = Evaluation(
        bootstrap_metrics({"x": "how"}, lambda counts: [math.inf], 1, "rows", 0),
        [{"loss": math.nan}],
    )
    assert json.loads(evaluation.to_json())["metrics"][0]["value"] is None
    assert json.loads(evaluation.examples_to_jsonl()) == {"loss": None}


@pytest.mark.parametrize(
    ("value", "text"), [(0.12345, "0.1235"), (34.567, "34.57"), (2.5e7, "2.5e+07")]
)
def test_numbers_have_four_significant_digits(value, text):
    assert format_number(value) == text
