"""What ends a run before its time, a loss that explodes or a Ctrl-C, loses nothing that was saved."""

import math
import os
import signal
import subprocess
import sys
import time

import pytest
from runs import equal, run, through, weights

import clearhead as ch
from clearhead.cli.main import app
from clearhead.train.trainer import divergence_threshold


@pytest.mark.parametrize(
    ("options", "batches"), [({}, "batch 7"), ({"accumulate": 2}, "batches 14 to 15")]
)
def test_a_loss_that_explodes_stops_with_step_batch_and_last_good_checkpoint(
    options, batches, tmp_path
):
    made = run(tmp_path / "run", steps=20, save=2, **options)

    def push(progress):
        if progress.step == 7:
            made.net.final_norm.weight.data.mul_(1e4)
        return True

    with pytest.raises(
        ch.ClearheadError,
        match=rf"loss of step 7 is \d.*, of {batches}: .*checkpoint is .*00000006",
    ):
        made.train(push)
    assert made.best_loss < 10


def test_no_loss_counts_as_exploded_that_a_sane_run_could_have():
    small = ch.presets["tiny-pictures"].model
    words = ch.presets["gpt2-124m"].model
    assert divergence_threshold(small, 0.0) > 10 * math.log(10)
    assert divergence_threshold(words, 0.01) > 10 * math.log(50000)
    assert divergence_threshold(words, 200.0) > 1000
    number = (
        ch.presets["tiny-encoder"]
        .replace(**{"model.head": {"kind": "regression", "pooling": "mean"}})
        .model
    )
    assert (divergence_threshold(number, 0.0), divergence_threshold(number, 1e6)) == (
        1000,
        1000 * (1e6 + 1),
    )


def test_a_loss_that_is_no_number_stops_with_step_and_last_good_checkpoint(tmp_path):
    made = run(tmp_path / "run", steps=20, save=2)

    def poison(progress):
        if progress.step == 7:
            made.net.final_norm.weight.data.fill_(math.nan)
        return True

    with pytest.raises(
        ch.ClearheadError, match=r"loss of step 7 is nan.*last good checkpoint is .*00000006"
    ):
        made.train(poison)


@pytest.mark.parametrize(
    "numbers", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM] * 2], ids=len
)
def test_an_interrupt_in_the_middle_of_a_step_saves_a_whole_one(numbers, tmp_path, monkeypatch):
    before = [signal.getsignal(number) for number in numbers]
    made = run(tmp_path / "cut", save=100, report=100, check=100)
    move = made.optimizer.step

    def interrupted(factor):
        if made.step == 3:
            for number in numbers:
                os.kill(os.getpid(), number)
        move(factor)

    monkeypatch.setattr(made.optimizer, "step", interrupted)
    result = through(made)
    assert [signal.getsignal(number) for number in numbers] == before
    assert (result.status, result.step) == ("stopped", 4)
    again = run(tmp_path / "cut", save=100, report=100, check=100)
    assert again.resume()
    whole = through(run(tmp_path / "whole", save=100, report=100, check=100))
    assert equal(weights(through(again).checkpoint), weights(whole.checkpoint))


def test_a_second_ctrl_c_ends_at_once(tmp_path, monkeypatch):
    made = run(tmp_path / "run")

    def impatient(factor):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(made.optimizer, "step", impatient)
    with pytest.raises(KeyboardInterrupt):
        through(made)
    assert not (tmp_path / "run" / "steps").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_saves_and_ends_with_130(
    number, tmp_path, monkeypatch, capsys
):
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 200)
    words = [
        "train",
        "tiny-decoder",
        "--data.train=a.txt",
        "--data.vocab_size=300",
        "--train.log_every=1",
        "--out=run",
    ]
    words += ["--train.save_every=1000000", "--train.eval_every=1000000"]
    command = [sys.executable, "-m", "clearhead", *words, "--train.max_steps=1000000"]
    quick = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    child = subprocess.Popen(command, **quick)
    end = time.monotonic() + 60
    log = tmp_path / "run" / "log.jsonl"
    while not log.exists() or not log.read_text():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    child.send_signal(number)
    told, _ = child.communicate(timeout=60)
    assert child.returncode == 130, told
    assert "stopped by hand" in told
    assert "the same command goes on" in told
    (saved,) = (tmp_path / "run" / "steps").iterdir()
    step = int(saved.name)
    monkeypatch.chdir(tmp_path)
    app([*words, f"--train.max_steps={step + 2}"], standalone_mode=False)
    assert f"going on after step {step:,}" in capsys.readouterr().out


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    made = run(tmp_path / "run", steps=20, save=3)

    def poison(progress):
        if progress.step == 6:
            made.net.final_norm.weight.data.fill_(math.nan)
        return True

    with pytest.raises(ch.ClearheadError, match=r"weights after step 6 hold no numbers.*00000004"):
        made.train(poison)
    assert made.checkpoints.latest().step == 4
