"""Paired tests, compared with simulation, enumeration, and scipy if it is installed."""

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.lab.stats import (
    holm_correction,
    paired_test,
    t_central_probability,
    t_critical_value,
)


@pytest.mark.parametrize("degrees_of_freedom", [1, 2, 3, 4, 9, 30])
def test_t_distribution_equals_scipy(degrees_of_freedom):
    stats = pytest.importorskip("scipy.stats")
    for t in (0.01, 0.5, 1.0, 2.0, 4.3, 40.0):
        expected = 1 - 2 * stats.t.sf(t, degrees_of_freedom)
        assert t_central_probability(t, degrees_of_freedom) == pytest.approx(expected, abs=1e-12)
    expected = stats.t.ppf(0.975, degrees_of_freedom)
    assert t_critical_value(0.95, degrees_of_freedom) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("degrees_of_freedom", "value"), [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228)]
)
def test_critical_values_equal_tables(degrees_of_freedom, value):
    assert t_critical_value(0.95, degrees_of_freedom) == pytest.approx(value, abs=5e-4)


def test_fewer_than_three_pairs_are_not_tested():
    assert paired_test([]) is paired_test([1.0]) is paired_test([1.0, 1.1]) is None
    assert paired_test([1.0, 1.1, 1.2]) is not None


def test_intervals_and_p_values_have_their_nominal_rates():
    generator = random.Random(0)

    def simulate(mean):
        return [paired_test([generator.gauss(mean, 1.0) for _ in range(4)]) for _ in range(4000)]

    coverage = statistics.fmean(test.ci_low <= 0.3 <= test.ci_high for test in simulate(0.3))
    assert coverage == pytest.approx(0.95, abs=0.012)
    false_positives = statistics.fmean(test.p_value < 0.05 for test in simulate(0.0))
    assert false_positives == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize(
    ("differences", "p_exact"),
    [
        ([1.0, 2.0, 3.0], 2 / 8),
        ([1.0, -2.0, 3.0], 6 / 8),
        ([0.1] * 6, 2 / 64),
        ([float(i) for i in range(20)], None),
    ],
)
def test_exact_p_value_counts_sign_flips(differences, p_exact):
    assert paired_test(differences).p_exact == p_exact


def test_identical_runs_have_no_difference():
    test = paired_test([0.0, 0.0, 0.0])
    assert (test.mean, test.p_value, test.p_exact) == (0.0, 1.0, 1.0)


def test_equal_differences_claim_no_more_than_their_signs():
    rounded = [0.91 - 0.90, 0.92 - 0.91, 0.57 - 0.56]
    assert paired_test([0.01] * 3).p_value == paired_test(rounded).p_value == 2 / 8
    six = paired_test([-0.1] * 6)
    assert six.p_value == six.p_exact
    twenty = paired_test([0.1] * 20)
    assert twenty.p_value == 2 / 2**20
    assert twenty.ci_low is twenty.ci_high is None


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_correction_equals_its_definition(p_values):
    corrected = holm_correction(p_values)
    for i, p in enumerate(p_values):
        smaller = sorted(q for j, q in enumerate(p_values) if (q, j) <= (p, i))
        scaled = [min(1.0, q * (len(p_values) - rank)) for rank, q in enumerate(smaller)]
        assert corrected[i] == pytest.approx(max(scaled))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_correction_keeps_the_order_and_only_increases(p_values):
    corrected = holm_correction(p_values)
    assert all(c >= p for c, p in zip(corrected, p_values, strict=True))
    pairs = zip(p_values, corrected, strict=True)
    for (p, c), (q, d) in itertools.combinations(pairs, 2):
        assert (p <= q) <= (c <= d) or p == q
