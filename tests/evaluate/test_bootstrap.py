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
    found = mean_of(values, seed)
    assert found.value == pytest.approx(np.mean(values), abs=1e-9)
    if found.low is None:
        assert max(values) - min(values) < 1e-9
    else:
        assert min(values) - 1e-9 <= found.low <= found.value <= found.high <= max(values) + 1e-9
    assert found == mean_of(values, seed)


def test_interval_of_a_mean_is_normal():
    values = np.random.default_rng(1).normal(3, 2, 2000)
    found = mean_of(values)
    error = values.std() / math.sqrt(2000)
    assert (found.low, found.high) == pytest.approx(
        (found.value - 1.96 * error, found.value + 1.96 * error), abs=0.01
    )


def test_interval_shrinks_with_the_square_root_of_n():
    values = np.random.default_rng(1).normal(size=100)
    few = mean_of(values)
    many = mean_of(np.tile(values, 64))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(8, rel=0.1)


def test_interval_of_a_biased_statistic_starts_at_the_value():
    values = np.tile([-1.0, 1.0], 50)
    found = bootstrap_metrics({"x": ""}, lambda counts: [abs(counts @ values)], 100, "rows", 0)[0]
    assert found.low == found.value == 0 < found.high


@pytest.mark.filterwarnings("error")
def test_infinite_statistics_have_no_interval():
    found = bootstrap_metrics(
        {"x": "", "y": ""},
        lambda counts: [math.inf, 1 / counts[0] if counts[0] else math.inf],
        5,
        "rows",
        0,
    )
    assert [(one.low, one.high) for one in found] == [(None, None), (None, None)]


@pytest.mark.parametrize(("right", "low", "high"), [(1.0, 0.7225, 1.0), (0.0, 0.0, 0.2775)])
def test_degenerate_proportions_have_wilson_intervals(right, low, high):
    """Wilson intervals of 10 of 10 and 0 of 10, as in published tables."""
    descriptions = {"accuracy": "share", "f1": "no share"}
    found, other = bootstrap_metrics(
        descriptions, lambda counts: [right, right], 10, "rows", 0, ("accuracy",)
    )
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)
    assert "Wilson" in found.method
    assert (other.value, other.low, other.high) == (right, None, None)
    assert "no interval" in other.method
    drawn = bootstrap_metrics(
        descriptions, lambda counts: [counts[0], right], 10, "rows", 0, ("accuracy",)
    )[0]
    assert "bootstrap" in drawn.method
    text = str(Evaluation([found, other, replace(other, name="macro_f1"), drawn], []))
    assert "Intervals: 95 % interval from 1,000 bootstrap samples" in text
    assert "accuracy: 95 % Wilson interval" in text
    assert "f1, macro_f1: no interval" in text


def test_identical_units_have_no_interval():
    (half,) = bootstrap_metrics(
        {"accuracy": "share"}, lambda counts: [0.5], 10, "rows", 0, ("accuracy",)
    )
    assert (half.value, half.low, half.high) == (0.5, None, None)


def test_one_unit_has_no_interval():
    found = mean_of([2.0])
    assert (found.value, found.low, found.high) == (2.0, None, None)
    assert "no interval" in found.method


def test_metrics_are_found_by_name():
    found = Evaluation(
        bootstrap_metrics({"bits_per_byte": "how"}, lambda counts: [1.5], 3, "rows", 0), []
    )
    assert found.value("bits_per_byte") == found["bits_per_byte"].value == 1.5
    with pytest.raises(ClearheadError, match="bits_per_byte"):
        found.value("bits_per_bite")


def test_non_finite_values_are_null_in_json():
    found = Evaluation(
        bootstrap_metrics({"x": "how"}, lambda counts: [math.inf], 1, "rows", 0),
        [{"loss": math.nan}],
    )
    assert json.loads(found.to_json())["metrics"][0]["value"] is None
    assert json.loads(found.examples_to_jsonl()) == {"loss": None}


@pytest.mark.parametrize(
    ("value", "text"), [(0.12345, "0.1235"), (34.567, "34.57"), (2.5e7, "2.5e+07")]
)
def test_numbers_have_four_significant_digits(value, text):
    assert format_number(value) == text
