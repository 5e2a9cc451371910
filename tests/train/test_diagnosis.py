"""The diagnosis of a run is right, and does not cry wolf."""

import math
import random

import pytest
from courses import SEEDS, STEPS, learned, log, memorised, rising
from hypothesis import given
from hypothesis import strategies as st

from clearhead.train.diagnosis import diagnose, expected_range, noise_std


def names(*args, expected=(), **options):
    return [finding.name for finding in diagnose(log(*args, **options), expected)]


@pytest.mark.parametrize("check", [20, 100, 200])
def test_overfitting_is_called_by_name_with_step_and_height(check):
    for seed in range(SEEDS):
        (found,) = diagnose(log(memorised, rising, check=check, seed=seed))
        assert (found.name, found.is_problem) == ("overfitting", True)
    told = str(diagnose(log(memorised, rising, noise=1e-4))[0])
    assert "risen from 1.514 at step 800 to 1.86" in told
    assert "while the training loss fell" in told
    assert "dropout" in told


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.03])
@pytest.mark.parametrize("check", [20, 100])
def test_noise_on_a_settled_curve_is_no_finding(check, noise):
    wrong = [
        names(learned, check=check, noise=noise, seed=seed) != ["settled"] for seed in range(SEEDS)
    ]
    assert sum(wrong) <= 1


@pytest.mark.parametrize("check", [100, 250, 400])
def test_a_flat_noisy_curve_is_never_overfitting_or_falling(check):
    wolves = {"overfitting", "diverging", "spikes"}
    found = [names(lambda step: 1.5, check=check, noise=0.03, seed=seed) for seed in range(SEEDS)]
    assert not any(wolves & set(each) for each in found)
    assert sum("still falling" in each for each in found) <= 1


@pytest.mark.parametrize("check", [20, 100, 250])
def test_a_curve_that_falls_to_the_end_wants_more_steps(check):
    for seed in range(SEEDS):
        assert names(lambda step: 1.5 + 3 * math.exp(-step / 1200), check=check, seed=seed) == [
            "still falling"
        ]


def test_a_training_loss_that_rises_is_diverging():
    for seed in range(SEEDS):
        assert names(lambda step: learned(step) + 0.001 * max(0, step - 1000), seed=seed) == [
            "diverging"
        ]


def test_a_spike_is_told_with_its_step_and_noise_is_none():
    for seed in range(SEEDS):
        lines = log(learned, seed=seed)
        lines[120]["loss"] += 2.0
        lines[121]["loss"] += 1.5  # the same one
        (_, found) = diagnose(lines)
        assert (found.name, found.is_problem) == ("spikes", True)
        assert "shot up at step 1,210" in found.message


def test_few_validations_say_nothing():
    assert names(learned, check=500) == ["too early to tell"]
    assert names(learned, steps=10) == ["too early to tell"]
    assert [finding.name for finding in diagnose([])] == ["too early to tell"]


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        (1.4, 1.6, "as expected"),
        (1.2, 1.4, "above what is expected"),
        (1.7, 2.0, "better than expected"),
    ],
)
def test_the_end_is_held_against_what_is_expected(low, high, name):
    assert names(learned, expected=(500, 2.0, 4.0, STEPS, low, high)) == ["settled", name]


def test_the_expected_range_runs_straight_and_ends_where_it_ends():
    expected = (100, 2.0, 4.0, 200, 1.0, 2.0)
    assert [expected_range(expected, step) for step in (99, 100, 150, 200, 201)] == [
        None,
        (2, 4),
        (1.5, 3),
        (1, 2),
        None,
    ]
    assert expected_range((100, 1.0, 2.0), 100) == (1, 2)
    assert expected_range((), 100) is None


def test_a_wobble_is_the_deviation_of_the_noise_whatever_the_course():
    draw = random.Random(0)
    assert noise_std(
        [5 * math.exp(-i / 100) + draw.gauss(0, 0.1) for i in range(2000)]
    ) == pytest.approx(0.1, rel=0.1)


@given(st.lists(st.floats(0, 20), min_size=2, max_size=200), st.integers(1, 7))
def test_a_curve_that_only_falls_is_never_called_bad(losses, check):
    losses = sorted(losses, reverse=True)
    lines = [{"step": 10 * i, "loss": loss} for i, loss in enumerate(losses, 1)]
    for line in lines[::check]:
        line["valid"] = line["loss"]
    assert not {finding.name for finding in diagnose(lines)} & {
        "diverging",
        "spikes",
        "overfitting",
        "unsteady",
    }


def test_a_slow_start_is_not_diverging():
    losses = [
        6.914,
        6.898,
        6.848,
        6.716,
        6.534,
        6.345,
    ]  # the last mean of few is lower than the median of the last
    assert names_of(losses) == ["too early to tell"]
    assert names_of([*losses, 6.6, 6.9, 7.2, 7.5, 7.8]) == ["diverging"]


def names_of(losses):
    return [
        finding.name
        for finding in diagnose([{"step": 10 * i, "loss": x} for i, x in enumerate(losses, 1)])
    ]
