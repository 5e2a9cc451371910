"""Schedules: pure functions of the step, readable without torch."""

import math
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.config.model import Config, TrainConfig
from clearhead.config.parse import dataclass_from_dict, dataclass_to_toml
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
)
from clearhead.errors import ClearheadError

ALL = [Constant(), Cosine(), Cosine(0.0), WSD(), WSD(1.0), WSD(0.0), InverseSqrt()]


@given(st.sampled_from(ALL), st.integers(1, 500), st.integers(0, 600))
def test_every_factor_is_above_zero_and_at_most_one(schedule, steps, warmup):
    factors = [schedule.factor(step, steps, warmup) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)


@pytest.mark.parametrize("schedule", [Constant(), Cosine(), WSD(), InverseSqrt()])
@pytest.mark.parametrize("warmup", [1, 7, 20])
def test_the_warm_up_is_a_straight_line_to_one_and_nothing_rises_after_it(schedule, warmup):
    factors = [schedule.factor(step, 100, warmup) for step in range(100)]
    assert factors[:warmup] == pytest.approx([(n + 1) / warmup for n in range(warmup)])
    assert factors[warmup - 1] == 1
    assert factors[warmup - 1 :] == sorted(factors[warmup - 1 :], reverse=True)


@pytest.mark.parametrize("schedule", ALL)
def test_without_a_warm_up_the_first_step_is_at_the_peak(schedule):
    assert schedule.factor(0, 100, 0) == 1


def test_constant_stays():
    assert {Constant().lr_factor(step, 100, 10) for step in range(10, 100)} == {1.0}


def test_cosine_is_half_way_down_in_the_middle_and_ends_at_its_final_share():
    assert Cosine(0.1).lr_factor(60, 110, 10) == pytest.approx(0.55)
    assert Cosine(0.1).lr_factor(10_009, 10_010, 10) == pytest.approx(0.1, abs=1e-6)
    assert Cosine(0.1).lr_factor(2000, 110, 10) == pytest.approx(0.1)  # a run that goes on


def test_trapezoid_is_flat_and_then_falls_in_a_straight_line_to_nearly_zero():
    factors = [WSD(0.25).lr_factor(step, 200, 20) for step in range(200)]
    assert set(factors[20:151]) == {1.0}
    assert factors[150:] == pytest.approx([n / 50 for n in range(50, 0, -1)])
    assert factors[-1] == pytest.approx(0.02)
    assert WSD(0.25).lr_factor(200, 200, 20) == 0


@pytest.mark.parametrize("warmup", [1, 40, 4000])
def test_inverse_square_root_is_the_formula_of_2017_up_to_its_peak(warmup):
    def paper(n, d=512):
        return d**-0.5 * min(n**-0.5, n * warmup**-1.5)

    for step in (0, 1, 38, 39, 40, 3999, 4000, 99_999):
        ours = InverseSqrt().lr_factor(step, 100_000, warmup)
        assert ours == pytest.approx(paper(step + 1) / paper(warmup))


def test_steps_of_every_schedule_add_up_to_the_area_under_it():
    steps = 10_000
    areas = {Constant(): 1.0, Cosine(0.1): 0.55, WSD(0.4): 0.8, InverseSqrt(): 2 / math.sqrt(steps)}
    for schedule, area in areas.items():
        mean = sum(schedule.factor(step, steps, 0) for step in range(steps)) / steps
        assert mean == pytest.approx(area, rel=0.01)


@dataclass(frozen=True)
class Both:
    schedule: Schedule = field(default=Constant())
    optimizer: OptimizerConfig = field(default=AdamW())


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("optimiser", [AdamW(lr=3e-4), Muon(momentum=0.9, adam=Adam(beta2=0.99))])
def test_options_read_back_as_they_are_written(schedule, optimizer):
    both = Both(schedule, optimizer)
    assert dataclass_from_dict(Both, tomllib.loads(dataclass_to_toml(both))) == both


def test_a_table_or_a_name_picks_the_schedule():
    read = dataclass_from_dict(
        Both, tomllib.loads('schedule = {kind="cosine", final=0.2}\noptimiser = "muon"')
    )
    assert read == Both(Cosine(0.2), Muon())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"schedule": Cosine(-0.1)},
            "train.schedule.min_lr_ratio = -0.1 must be a share from 0 to 1",
        ),
        ({"schedule": WSD(1.5)}, "train.schedule.decay_fraction = 1.5 must be a share"),
        (
            {"optimiser": AdamW(lr=-1.0)},
            "train.optimizer.lr = -1.0 must be a finite, positive number[.]$",
        ),
        (
            {"optimiser": AdamW(lr=0.0)},
            "train.optimizer.lr = 0.0 must be a finite, positive number[.]$",
        ),
        ({"optimiser": AdamW(lr=math.nan)}, "train.optimizer.lr = nan"),
        ({"optimiser": AdamW(lr=math.inf)}, "train.optimizer.lr = inf"),
        (
            {"optimiser": AdamW(beta1=-1.0)},
            "train.optimizer.beta1 = -1.0 must be at least 0 and less than 1",
        ),
        (
            {"optimiser": AdamW(beta2=1.0)},
            "train.optimizer.beta2 = 1.0 must be at least 0 and less than 1",
        ),
        (
            {"optimiser": AdamW(weight_decay=-0.1)},
            "train.optimizer.weight_decay = -0.1 must be a finite, positive number, or 0[.]$",
        ),
        ({"optimiser": Muon(momentum=1.0)}, "train.optimizer.momentum"),
        ({"optimiser": Muon(adam=Adam(beta1=2.0))}, "train.optimizer.adam.beta1"),
        ({"clip": -1}, "train.grad_clip = -1.0 must be a finite, positive number, or 0"),
        (
            {"expected": (math.nan, 1.0, 2.0)},
            r"train.expected_loss = \[nan, 1.0, 2.0\] must be finite numbers",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options, words):
    with pytest.raises(ClearheadError, match=words):
        Config(train=TrainConfig(**options))


def test_what_a_sentence_allows_is_allowed():
    none = AdamW(beta1=0.0, beta2=0.0, weight_decay=0.0)
    kept = Muon(momentum=0.0)
    for options in (
        {"optimiser": none},
        {"optimiser": kept},
        {"schedule": Cosine(1.0)},
        {"schedule": WSD(0.0)},
    ):
        assert Config.from_dict(
            Config(train=TrainConfig(grad_clip=0.0, **options)).to_dict()
        ).train == TrainConfig(grad_clip=0.0, **options)


def test_options_are_read_without_torch():
    code = "import clearhead.config.training, clearhead.config.training, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
