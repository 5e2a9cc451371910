"""The training loop: resumed runs equal uninterrupted ones, and steps do what they say."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_training import (
    KILLED_OPTIONS,
    CountingDataset,
    WithoutValidation,
    load_weights,
    make_trainer,
    read_reports,
    resume,
    run,
    same_tensors,
)

import clearhead as ch
from clearhead.train.trainer import TrainingTimer

DROPOUT = {"model.dropout.residual": 0.1, "model.dropout.embedding": 0.1}
MUON = {"train.optimizer": {"kind": "muon"}}
BF16 = {"precision": "bfloat16", "ema_decay": 0.9, "grad_accum": 2}
NO_PROGRESS = {"train.optimizer.lr": 1e-12}


def read_losses(output):
    lines = map(json.loads, (output / "log.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines]


SLOW_OPTIONS = (MUON, {"ema_decay": 0.9}, {"grad_accum": 2}, BF16)


@pytest.mark.parametrize(
    "options",
    [{}, DROPOUT, *(pytest.param(options, marks=pytest.mark.slow) for options in SLOW_OPTIONS)],
    ids=str,
)
def test_resumed_run_equals_uninterrupted_run(options, tmp_path):
    uninterrupted = run(make_trainer(tmp_path / "uninterrupted", **options))
    first = run(make_trainer(tmp_path / "resumed", **options), until=7)
    assert (first.status, first.step) == ("interrupted", 7)
    trainer = resume(tmp_path / "resumed", **options)
    assert trainer.step == 7
    second = run(trainer)
    assert (
        (second.status, second.step)
        == (uninterrupted.status, uninterrupted.step)
        == ("completed", 12)
    )
    assert same_tensors(load_weights(second.checkpoint), load_weights(uninterrupted.checkpoint))
    states = [
        (result.checkpoint / "training_state.safetensors").read_bytes()
        for result in (uninterrupted, second)
    ]
    assert states[0] == states[1]
    assert read_losses(tmp_path / "uninterrupted") == read_losses(tmp_path / "resumed")


@pytest.mark.slow
def test_run_killed_at_random_moments_equals_uninterrupted_run(tmp_path):
    """At least 10 kills, or $CLEARHEAD_KILLS."""
    min_kills = int(os.environ.get("CLEARHEAD_KILLS", "10"))
    script = Path(__file__).with_name("kill_training.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])}
    uninterrupted = tmp_path / "uninterrupted"
    last = run(make_trainer(uninterrupted, **KILLED_OPTIONS)).checkpoint.relative_to(uninterrupted)
    num_kills = 0
    for seed in range(min_kills):
        output = tmp_path / f"killed{seed}"
        command = [sys.executable, str(script), str(output), str(seed)]
        process = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        )
        num_kills += int(process.stdout)
        for name in ("model.safetensors", "training_state.safetensors", "training_state.json"):
            expected = (uninterrupted / last / name).read_bytes()
            assert (output / last / name).read_bytes() == expected, name
        assert read_reports(output) == read_reports(uninterrupted)
        for name in ("best", "average"):
            expected = load_weights(uninterrupted / name)
            assert same_tensors(load_weights(output / name), expected)
        assert (output / "best").readlink() == (uninterrupted / "best").readlink()
        shutil.rmtree(output)
        if num_kills >= min_kills:
            break
    print(f"{num_kills} kills")
    assert num_kills >= min_kills


def test_full_disk_loses_no_checkpoint(tmp_path, monkeypatch):
    from clearhead.train import checkpoint

    def no_space(*args):
        raise OSError(28, "No space left on device")

    run(make_trainer(tmp_path / "run"), until=5)
    trainer = resume(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", no_space)
        with pytest.raises(ch.ClearheadError, match="No space left on device"):
            run(trainer)
    trainer = resume(tmp_path / "run")
    assert trainer.step == 5
    uninterrupted = run(make_trainer(tmp_path / "uninterrupted"))
    assert same_tensors(
        load_weights(run(trainer).checkpoint), load_weights(uninterrupted.checkpoint)
    )


def test_accumulated_gradients_equal_full_batch_gradients(tmp_path):
    options = {"max_steps": 6, "grad_clip": 0.5}
    full = run(make_trainer(tmp_path / "full", CountingDataset(batch_size=4), **options))
    half = CountingDataset(batch_size=2)
    accumulated = run(make_trainer(tmp_path / "half", half, grad_accum=2, **options))
    weights = load_weights(accumulated.checkpoint)
    for name, expected in load_weights(full.checkpoint).items():
        if name.endswith("attn.k.bias"):  # its gradient is zero but for rounding
            continue
        torch.testing.assert_close(weights[name], expected, atol=1e-5, rtol=1e-4)


def test_training_reduces_the_loss_and_keeps_the_best(tmp_path):
    reports = []
    options = {"max_steps": 150, "log_every": 50, "eval_every": 50, "train.optimizer.lr": 1e-2}
    trainer = make_trainer(tmp_path / "run", **options)
    result = trainer.train(lambda progress: reports.append(progress) or True)
    assert result.loss < 0.5 < reports[0].loss
    valid_losses = [report.valid_loss for report in reports if report.valid_loss is not None]
    assert result.best_loss == min(valid_losses)
    assert ch.load(tmp_path / "run" / "best").config.train.max_steps == 150


def test_average_of_a_short_run_is_not_its_beginning(tmp_path):
    options = {"max_steps": 60, "eval_every": 60, "train.optimizer.lr": 1e-2, "ema_decay": 0.998}
    result = run(make_trainer(tmp_path, **options))
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert last["valid_loss"] == result.best_loss
    assert last["raw_valid_loss"] != last["valid_loss"]
    assert last["valid_loss"] == pytest.approx(last["raw_valid_loss"], abs=0.5)


def test_weights_without_average_are_validated_when_the_run_ends(tmp_path):
    options = {"max_steps": 1000, "eval_every": 1, "patience": 3, "ema_decay": 0.5, **NO_PROGRESS}
    result = run(make_trainer(tmp_path, **options))
    assert result.status == "early_stopped"
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "raw_valid_loss" in line] == [result.step]


def test_early_stopped_run_stays_stopped_until_patience_is_raised(tmp_path):
    options = {"max_steps": 1000, "eval_every": 1, "patience": 3, **NO_PROGRESS}
    first = run(make_trainer(tmp_path / "run", **options))
    assert first.status == "early_stopped"
    assert run(resume(tmp_path / "run", **options)) == first
    longer = resume(tmp_path / "run", **{**options, "patience": 5})
    assert run(longer).step == first.step + 2


def test_completed_run_that_is_started_again_knows_its_loss(tmp_path):
    first = run(make_trainer(tmp_path / "run"))
    assert run(resume(tmp_path / "run")) == first
    assert math.isfinite(first.loss)


def test_run_shorter_than_eval_every_is_validated_once(tmp_path):
    result = run(make_trainer(tmp_path, max_steps=3, eval_every=200))
    [valid_loss] = [line["valid_loss"] for line in read_reports(tmp_path) if "valid_loss" in line]
    assert result.best_loss == valid_loss


def test_without_validation_data_there_is_no_validation_and_no_patience(tmp_path):
    result = run(make_trainer(tmp_path / "run", WithoutValidation(), eval_every=1))
    assert (result.status, result.best_loss) == ("completed", math.inf)
    text = (tmp_path / "run" / "log.jsonl").read_text()
    assert "valid_loss" not in text
    assert "NaN" not in text
    with pytest.raises(ch.ClearheadError, match=r"train.patience = 2 needs validation data"):
        make_trainer(tmp_path / "other", WithoutValidation(), patience=2)


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
@pytest.mark.parametrize(("before", "after"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_run_resumes_in_another_precision_with_the_same_weights(before, after, ema_decay, tmp_path):
    trainer = make_trainer(tmp_path / "run", precision=before, ema_decay=ema_decay)
    run(trainer, until=5)
    resumed = resume(tmp_path / "run", precision=after, ema_decay=ema_decay)
    assert same_tensors(resumed.optimizer.weights, trainer.optimizer.weights)
    assert {p.dtype for p in resumed.net.parameters()} == {getattr(torch, after)}
    assert run(resumed).status == "completed"


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_precision_is_of_the_passes_and_updates_are_fp32(precision, dtype, tmp_path):
    trainer = make_trainer(tmp_path, precision=precision)
    assert {p.dtype for p in trainer.net.parameters()} == {dtype}
    assert {w.dtype for w in trainer.optimizer.weights.values()} == {torch.float32}


def test_on_step_is_called_after_each_step_and_not_timed(tmp_path):
    steps = []
    speeds = []

    def on_step(step):
        steps.append(step)
        time.sleep(0.2)

    def on_report(progress):
        speeds.append(progress.targets_per_second)
        return True

    options = {"max_steps": 4, "log_every": 4, "eval_every": 100, "save_every": 100}
    make_trainer(tmp_path / "run", **options).train(on_report, on_step)
    assert steps == [1, 2, 3, 4]
    assert speeds[0] > 4 * 64 / (4 * 0.2)


def test_time_is_estimated_without_stopping_the_clock_until_it_is_known(tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(TrainingTimer, "paused", lambda timer: pauses.append(timer))
    steps = []

    def estimate_time(step):
        steps.append(step)
        return step == 2

    trainer = make_trainer(tmp_path / "run", max_steps=4)
    trainer.train(lambda progress: True, estimate_time=estimate_time)
    assert steps == [1, 2]
    assert not pauses
