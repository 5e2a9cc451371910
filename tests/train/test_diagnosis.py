"""Diagnosis: findings are right, and noise is not a finding."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loss_curves import SEEDS, STEPS, converging, log_lines, memorizing, rising

from clearhead.train.diagnosis import diagnose, expected_range, noise_std


def finding_names(*curves, expected=(), **options):
    return [finding.name for finding in diagnose(log_lines(*curves, **options), expected)]


def finding_names_of_losses(losses):
    lines = [{"step": 10 * i, "loss": loss} for i, loss in enumerate(losses, 1)]
    return [finding.name for finding in diagnose(lines)]


@pytest.mark.parametrize("eval_every", [20, 100, 200])
def test_overfitting_is_found(eval_every):
    for seed in range(SEEDS):
        lines = log_lines(memorizing, rising, eval_every=eval_every, seed=seed)
        (finding,) = diagnose(lines)
        assert (finding.name, finding.is_problem) == ("overfitting", True)


def test_overfitting_names_step_and_losses():
    message = str(diagnose(log_lines(memorizing, rising, noise=1e-4))[0])
    assert "from 1.514 at step 800 to 1.86" in message
    assert "the training loss fell" in message
    assert "model.dropout" in message


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.03])
@pytest.mark.parametrize("eval_every", [20, 100])
def test_noise_on_a_converged_curve_is_not_a_finding(eval_every, noise):
    wrong = [
        finding_names(converging, eval_every=eval_every, noise=noise, seed=seed) != ["converged"]
        for seed in range(SEEDS)
    ]
    assert sum(wrong) <= 1


@pytest.mark.parametrize("eval_every", [100, 250, 400])
def test_flat_noisy_curve_has_no_trend(eval_every):
    false_alarms = {"overfitting", "diverging", "spikes"}
    names = [
        finding_names(lambda step: 1.5, eval_every=eval_every, noise=0.03, seed=seed)
        for seed in range(SEEDS)
    ]
    assert not any(false_alarms & set(each) for each in names)
    assert sum("still improving" in each for each in names) <= 1


@pytest.mark.parametrize("eval_every", [20, 100, 250])
def test_falling_curve_is_still_improving(eval_every):
    def falling(step):
        return 1.5 + 3 * math.exp(-step / 1200)

    for seed in range(SEEDS):
        assert finding_names(falling, eval_every=eval_every, seed=seed) == ["still improving"]


def test_rising_training_loss_is_diverging():
    def diverging(step):
        return converging(step) + 0.001 * max(0, step - 1000)

    for seed in range(SEEDS):
        assert finding_names(diverging, seed=seed) == ["diverging"]


def test_spike_is_found_with_its_step():
    for seed in range(SEEDS):
        lines = log_lines(converging, seed=seed)
        lines[120]["loss"] += 2.0
        lines[121]["loss"] += 1.5  # the same spike
        _, finding = diagnose(lines)
        assert (finding.name, finding.is_problem) == ("spikes", True)
        assert "at step 1,210" in finding.message


def test_few_validations_are_too_early_to_tell():
    assert finding_names(converging, eval_every=500) == ["too early to tell"]
    assert finding_names(converging, steps=10) == ["too early to tell"]
    assert finding_names_of_losses([]) == ["too early to tell"]


def test_slow_start_is_not_diverging():
    # The last mean of few reports is lower than the median of the last five.
    losses = [6.914, 6.898, 6.848, 6.716, 6.534, 6.345]
    assert finding_names_of_losses(losses) == ["too early to tell"]
    assert finding_names_of_losses([*losses, 6.6, 6.9, 7.2, 7.5, 7.8]) == ["diverging"]


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        (1.4, 1.6, "as expected"),
        (1.2, 1.4, "higher than expected"),
        (1.7, 2.0, "lower than expected"),
    ],
)
def test_last_loss_is_compared_with_the_expected_range(low, high, name):
    expected = (500, 2.0, 4.0, STEPS, low, high)
    assert finding_names(converging, expected=expected) == ["converged", name]


@pytest.mark.parametrize(("low", "high"), [(1.4, 1.6), (1.2, 1.4), (1.7, 2.0)])
def test_other_loss_on_other_data_is_not_a_problem(low, high):
    expected = (500, 2.0, 4.0, STEPS, low, high)
    _, finding = diagnose(log_lines(converging), expected, "tinyshakespeare")
    assert "on tinyshakespeare" in finding.message
    assert not finding.is_problem


def test_expected_range_is_interpolated():
    expected = (100, 2.0, 4.0, 200, 1.0, 2.0)
    ranges = [expected_range(expected, step) for step in (99, 100, 150, 200, 201)]
    assert ranges == [None, (2, 4), (1.5, 3), (1, 2), None]
    assert expected_range((100, 1.0, 2.0), 100) == (1, 2)
    assert expected_range((), 100) is None


def test_noise_std_ignores_the_trend():
    generator = random.Random(0)
    values = [5 * math.exp(-i / 100) + generator.gauss(0, 0.1) for i in range(2000)]
    assert noise_std(values) == pytest.approx(0.1, rel=0.1)


@given(st.lists(st.floats(0, 20), min_size=2, max_size=200), st.integers(1, 7))
def test_falling_losses_are_never_a_problem(losses, eval_every):
    lines = [
        {"step": 10 * i, "loss": loss} for i, loss in enumerate(sorted(losses, reverse=True), 1)
    ]
    for line in lines[::eval_every]:
        line["valid_loss"] = line["loss"]
    problems = {"diverging", "spikes", "overfitting", "unstable"}
    assert not {finding.name for finding in diagnose(lines)} & problems
