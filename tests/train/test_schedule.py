"""Learning-rate schedules and optimizer options: pure functions of the step, without torch."""

import math
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.config.model import Config
from clearhead.config.parse import dataclass_from_dict
from clearhead.config.serialize import dataclass_to_toml
from clearhead.config.training import (
    WSD,
    Adam,
    AdamW,
    Constant,
    Cosine,
    InverseSqrt,
    Muon,
    OptimizerConfig,
    Schedule,
    TrainConfig,
)
from clearhead.errors import ClearheadError

SCHEDULES = [Constant(), Cosine(), Cosine(0.0), WSD(), WSD(1.0), WSD(0.0), InverseSqrt()]


@given(st.sampled_from(SCHEDULES), st.integers(1, 500), st.integers(0, 600))
def test_factors_are_positive_and_at_most_one(schedule, max_steps, warmup_steps):
    factors = [schedule.lr_factor(step, max_steps, warmup_steps) for step in range(max_steps)]
    assert all(0 < factor <= 1 for factor in factors)


@pytest.mark.parametrize("schedule", [Constant(), Cosine(), WSD(), InverseSqrt()])
@pytest.mark.parametrize("warmup_steps", [1, 7, 20])
def test_warmup_is_linear_and_nothing_rises_after_it(schedule, warmup_steps):
    factors = [schedule.lr_factor(step, 100, warmup_steps) for step in range(100)]
    linear = [(n + 1) / warmup_steps for n in range(warmup_steps)]
    assert factors[:warmup_steps] == pytest.approx(linear)
    assert factors[warmup_steps - 1] == 1
    after = factors[warmup_steps - 1 :]
    assert after == sorted(after, reverse=True)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_warmup_the_first_step_is_at_the_peak(schedule):
    assert schedule.lr_factor(0, 100, 0) == 1


def test_constant_schedule_stays_at_the_peak():
    assert {Constant().lr_factor(step, 100, 10) for step in range(10, 100)} == {1.0}


def test_cosine_is_halfway_in_the_middle_and_ends_at_the_minimum():
    assert Cosine(0.1).lr_factor(60, 110, 10) == pytest.approx(0.55)
    assert Cosine(0.1).lr_factor(10_009, 10_010, 10) == pytest.approx(0.1, abs=1e-6)
    assert Cosine(0.1).lr_factor(2000, 110, 10) == pytest.approx(0.1)  # beyond max_steps


def test_wsd_is_flat_and_then_linear():
    factors = [WSD(0.25).lr_factor(step, 200, 20) for step in range(200)]
    assert set(factors[20:151]) == {1.0}
    assert factors[150:] == pytest.approx([n / 50 for n in range(50, 0, -1)])
    assert factors[-1] == pytest.approx(0.02)
    assert WSD(0.25).lr_factor(200, 200, 20) == 0


@pytest.mark.parametrize("warmup_steps", [1, 40, 4000])
def test_inverse_sqrt_is_the_formula_of_2017_up_to_its_peak(warmup_steps):
    def formula(n, d=512):
        return d**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)

    for step in (0, 1, 38, 39, 40, 3999, 4000, 99_999):
        factor = InverseSqrt().lr_factor(step, 100_000, warmup_steps)
        assert factor == pytest.approx(formula(step + 1) / formula(warmup_steps))


@pytest.mark.parametrize(
    ("schedule", "area"),
    [(Constant(), 1.0), (Cosine(0.1), 0.55), (WSD(0.4), 0.8), (InverseSqrt(), 0.02)],
)
def test_mean_factor_is_the_area_under_the_schedule(schedule, area):
    steps = 10_000
    mean = sum(schedule.lr_factor(step, steps, 0) for step in range(steps)) / steps
    assert mean == pytest.approx(area, rel=0.01)


# --- options


@dataclass(frozen=True)
class Options:
    schedule: Schedule = field(default=Constant())
    optimizer: OptimizerConfig = field(default=AdamW())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", [AdamW(lr=3e-4), Muon(momentum=0.9, adam=Adam(beta2=0.99))])
def test_options_survive_a_round_trip_through_toml(schedule, optimizer):
    options = Options(schedule, optimizer)
    assert dataclass_from_dict(Options, tomllib.loads(dataclass_to_toml(options))) == options


def test_table_or_name_selects_the_variant():
    toml = 'schedule = {kind="cosine", min_lr_ratio=0.2}\noptimizer = "muon"'
    options = dataclass_from_dict(Options, tomllib.loads(toml))
    assert options == Options(Cosine(0.2), Muon())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"schedule": Cosine(-0.1)}, "train.schedule.min_lr_ratio"),
        ({"schedule": WSD(1.5)}, "train.schedule.decay_fraction"),
        ({"optimizer": AdamW(lr=-1.0)}, "train.optimizer.lr"),
        ({"optimizer": AdamW(lr=0.0)}, "train.optimizer.lr"),
        ({"optimizer": AdamW(lr=math.nan)}, "train.optimizer.lr"),
        ({"optimizer": AdamW(lr=math.inf)}, "train.optimizer.lr"),
        ({"optimizer": AdamW(beta1=-1.0)}, "train.optimizer.beta1"),
        ({"optimizer": AdamW(beta2=1.0)}, "train.optimizer.beta2"),
        ({"optimizer": AdamW(weight_decay=-0.1)}, "train.optimizer.weight_decay"),
        ({"optimizer": Muon(momentum=1.0)}, "train.optimizer.momentum"),
        ({"optimizer": Muon(adam=Adam(beta1=2.0))}, "train.optimizer.adam.beta1"),
        ({"grad_clip": -1}, "train.grad_clip"),
        ({"expected_loss": (math.nan, 1.0, 2.0)}, "train.expected_loss"),
    ],
)
def test_invalid_option_is_refused_by_name(options, name):
    with pytest.raises(ClearheadError, match=name):
        Config(train=TrainConfig(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": AdamW(beta1=0.0, beta2=0.0, weight_decay=0.0)},
        {"optimizer": Muon(momentum=0.0)},
        {"schedule": Cosine(1.0)},
        {"schedule": WSD(0.0)},
    ],
)
def test_limits_are_inclusive(options):
    config = TrainConfig(grad_clip=0.0, **options)
    assert Config.from_dict(Config(train=config).to_dict()).train == config


def test_options_are_read_without_torch():
    code = "import clearhead.config.training, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
