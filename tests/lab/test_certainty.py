"""What chance allows to claim, held against simulation, counting, and scipy where it is installed."""

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


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30])
def test_the_share_inside_of_t_is_that_of_scipy(freedom):
    stats = pytest.importorskip("scipy.stats")
    for t in (0.01, 0.5, 1.0, 2.0, 4.3, 40.0):
        assert t_central_probability(t, freedom) == pytest.approx(
            1 - 2 * stats.t.sf(t, freedom), abs=1e-12
        )
    assert t_critical_value(0.95, freedom) == pytest.approx(stats.t.ppf(0.975, freedom))


def test_known_bounds_of_student():
    assert [round(t_critical_value(0.95, n), 3) for n in (1, 2, 4, 10)] == [
        12.706,
        4.303,
        2.776,
        2.228,
    ]


def test_fewer_than_three_pairs_claim_nothing():
    assert paired_test([]) is paired_test([1.0]) is paired_test([1.0, 1.1]) is None
    assert paired_test([1.0, 1.1, 1.2]) is not None


def test_intervals_hold_the_truth_as_often_as_they_say_and_false_alarms_are_as_rare():
    draw = random.Random(0)
    found = [paired_test([draw.gauss(0.3, 1.0) for _ in range(4)]) for _ in range(4000)]
    assert statistics.fmean(one.ci_low <= 0.3 <= one.ci_high for one in found) == pytest.approx(
        0.95, abs=0.012
    )
    null = [paired_test([draw.gauss(0.0, 1.0) for _ in range(4)]) for _ in range(4000)]
    assert statistics.fmean(one.p_value < 0.05 for one in null) == pytest.approx(0.05, abs=0.012)


def test_the_exact_chance_is_counted_and_never_below_what_the_signs_allow():
    assert paired_test([1.0, 2.0, 3.0]).p_exact == 2 / 8
    assert paired_test([1.0, -2.0, 3.0]).p_exact == 6 / 8
    assert paired_test([0.1] * 6).p_exact == 2 / 64
    assert paired_test([float(i) for i in range(20)]).p_exact is None


def test_runs_that_are_the_same_are_no_difference():
    same = paired_test([0.0, 0.0, 0.0])
    assert (same.mean, same.p_value, same.p_exact) == (0.0, 1.0, 1.0)


def test_differences_that_do_not_spread_claim_no_more_than_their_signs():
    assert (
        paired_test([0.01] * 3).p_value
        == paired_test([0.91 - 0.90, 0.92 - 0.91, 0.57 - 0.56]).p_value
        == 2 / 8
    )
    assert paired_test([-0.1] * 6).p_value == paired_test([-0.1] * 6).p_exact
    assert paired_test([0.1] * 20).p_value == 2 / 2**20
    assert paired_test([0.1] * 20).ci_low is paired_test([0.1] * 20).ci_high is None


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_is_what_its_definition_says(chances):
    found = holm_correction(chances)
    for i, p in enumerate(chances):
        before = [q for j, q in enumerate(chances) if (q, j) <= (p, i)]
        ranked = sorted(before)
        assert found[i] == pytest.approx(
            max(min(1.0, q * (len(chances) - r)) for r, q in enumerate(ranked))
        )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_keeps_the_order_and_claims_no_more_than_single_tests(chances):
    found = holm_correction(chances)
    assert all(a >= b for a, b in zip(found, chances, strict=True))
    for (a, x), (b, y) in itertools.combinations(zip(chances, found, strict=True), 2):
        assert (a <= b) <= (x <= y) or a == b
