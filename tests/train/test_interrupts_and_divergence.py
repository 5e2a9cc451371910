"""Divergence, Ctrl-C and SIGTERM end a run without losing a checkpoint."""

import math
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny_training import load_weights, make_trainer, read_reports, resume, run, same_tensors

import clearhead as ch
from clearhead.cli.main import app
from clearhead.io import read_log
from clearhead.train.trainer import DivergenceError, divergence_threshold

RARELY = {"save_every": 100, "log_every": 100, "eval_every": 100}


def change_weights_at(trainer, step, change):
    def on_report(progress):
        if progress.step == step:
            change(trainer.net.final_norm.weight.data)
        return True

    return on_report


@pytest.mark.parametrize(
    ("options", "batches"), [({}, "batch 7"), ({"grad_accum": 2}, "batches 14 to 15")]
)
def test_exploding_loss_is_reported_with_step_batch_and_checkpoint(options, batches, tmp_path):
    trainer = make_trainer(tmp_path, max_steps=20, save_every=2, **options)
    pattern = rf"loss \d.* at step 7 \({batches}.*checkpoint: .*00000006"
    with pytest.raises(DivergenceError, match=pattern):
        trainer.train(change_weights_at(trainer, 7, lambda weight: weight.mul_(1e4)))
    assert trainer.best_loss < 10


def test_divergence_threshold_exceeds_losses_of_sane_runs():
    images = ch.presets["tiny-images"].model
    gpt2 = ch.presets["gpt2-124m"].model
    assert divergence_threshold(images, 0.0) > 10 * math.log(10)
    assert divergence_threshold(gpt2, 0.01) > 10 * math.log(50000)
    assert divergence_threshold(gpt2, 200.0) > 1000
    head = {"model.head": {"kind": "regression", "pooling": "mean"}}
    regression = ch.presets["tiny-encoder"].replace(**head).model
    assert divergence_threshold(regression, 0.0) == 1000
    assert divergence_threshold(regression, 1e6) == 1000 * (1e6 + 1)


def test_nan_loss_is_reported_with_step_and_checkpoint(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=20, save_every=2)
    with pytest.raises(DivergenceError, match=r"loss nan at step 7.*checkpoint: .*00000006"):
        trainer.train(change_weights_at(trainer, 7, lambda weight: weight.fill_(math.nan)))


def test_nan_weights_are_not_saved(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=20, save_every=3)
    with pytest.raises(DivergenceError, match=r"infinite weights after step 6.*00000004"):
        trainer.train(change_weights_at(trainer, 6, lambda weight: weight.fill_(math.nan)))
    assert trainer.checkpoints.latest().step == 4


@pytest.mark.parametrize(
    "signals", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM] * 2], ids=len
)
@pytest.mark.slow
def test_signal_within_a_step_saves_the_completed_step(signals, tmp_path, monkeypatch):
    handlers = [signal.getsignal(number) for number in signals]
    trainer = make_trainer(tmp_path / "interrupted", **RARELY)
    optimizer_step = trainer.optimizer.step

    def interrupted_step(lr_factor):
        if trainer.step == 3:
            for number in signals:
                os.kill(os.getpid(), number)
        optimizer_step(lr_factor)

    monkeypatch.setattr(trainer.optimizer, "step", interrupted_step)
    result = run(trainer)
    assert [signal.getsignal(number) for number in signals] == handlers
    assert (result.status, result.step) == ("interrupted", 4)
    resumed = run(resume(tmp_path / "interrupted", **RARELY))
    uninterrupted = run(make_trainer(tmp_path / "uninterrupted", **RARELY))
    assert same_tensors(load_weights(resumed.checkpoint), load_weights(uninterrupted.checkpoint))


@pytest.mark.parametrize("steps", [(2,), (4, 7), (3, 4), (11,)], ids=str)
def test_signals_between_reports_change_neither_log_nor_state(steps, tmp_path, monkeypatch):
    options = {"log_every": 5, "eval_every": 10, "ema_decay": 0.9, "train.optimizer.lr": 1e-2}
    uninterrupted = run(make_trainer(tmp_path / "uninterrupted", **options))
    for step in (*steps, None):
        trainer = make_trainer(tmp_path / "interrupted", **options)
        trainer.resume()
        training_step = trainer.training_step

        def interrupted_step(trainer=trainer, training_step=training_step, step=step):
            if trainer.step + 1 == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return training_step()

        monkeypatch.setattr(trainer, "training_step", interrupted_step)
        result = run(trainer)
        assert (result.status, result.step) == (
            ("interrupted", step) if step else ("completed", 12)
        )
    assert read_reports(tmp_path / "interrupted") == read_reports(tmp_path / "uninterrupted")
    for name in ("training_state.json", "training_state.safetensors", "model.safetensors"):
        expected = (uninterrupted.checkpoint / name).read_bytes()
        assert (result.checkpoint / name).read_bytes() == expected


def test_speed_of_a_report_includes_the_time_before_an_interrupt(tmp_path, monkeypatch):
    options = {"log_every": 4, "eval_every": 100, "save_every": 100, "max_steps": 4}
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for step in (3, None):
        trainer = make_trainer(tmp_path, **options)
        trainer.resume()
        training_step = trainer.training_step

        def slow_step(trainer=trainer, training_step=training_step, step=step):
            nonlocal now
            now += 1
            if trainer.step + 1 == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return training_step()

        monkeypatch.setattr(trainer, "training_step", slow_step)
        run(trainer)
        now += 1000
    [report] = read_log(tmp_path / "log.jsonl")
    assert report["targets_per_second"] == 64


def test_second_ctrl_c_raises_at_once(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "run")

    def interrupted_step(lr_factor):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(trainer.optimizer, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        run(trainer)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_command_saves_and_exits_with_130(number, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 200)
    arguments = ["train", "tiny-decoder", "--data.train=a.txt", "--data.vocab_size=300"]
    arguments += ["--train.log_every=1", "--output=run"]
    arguments += ["--train.save_every=1000000", "--train.eval_every=1000000"]
    command = [sys.executable, "-m", "clearhead", *arguments, "--train.max_steps=1000000"]
    child = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 60
    log = tmp_path / "run" / "log.jsonl"
    while not log.exists() or not log.read_text():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(number)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 130, output
    assert "interrupted at step" in output
    assert "run the same command again to resume" in output
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    step = int(saved.name)
    monkeypatch.chdir(tmp_path)
    app([*arguments, f"--train.max_steps={step + 2}"], standalone_mode=False)
    assert f"resuming after step {step:,}" in capsys.readouterr().out
