"""The loop: nothing is lost, nothing depends on how a run was cut, and what goes wrong is told."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs import Counting, run, weights

import clearhead as ch
from clearhead.train.health import highest

DROPOUT = {"model.dropout.residual": 0.1, "model.dropout.embedding": 0.1}
MUON = {"train.optimiser": {"kind": "muon"}}


def through(made, until=None):
    return made.train(lambda progress: until is None or progress.step < until)


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


HALF = {"precision": "bfloat16", "ema": 0.9, "accumulate": 2}


@pytest.mark.parametrize("options", [{}, DROPOUT, MUON, {"ema": 0.9}, {"accumulate": 2}, HALF], ids=str)
def test_a_resumed_run_equals_one_that_was_not_interrupted(options, tmp_path):
    whole = through(run(tmp_path / "whole", **options))
    first = through(run(tmp_path / "cut", **options), until=7)
    assert (first.end, first.step) == ("stopped", 7)
    again = run(tmp_path / "cut", **options)
    assert again.resume()
    assert again.step == 7
    second = through(again)
    assert (second.end, second.step) == (whole.end, whole.step) == ("done", 12)
    assert equal(weights(second.folder), weights(whole.folder))
    assert (second.folder / "state.safetensors").read_bytes() == (whole.folder / "state.safetensors").read_bytes()
    lines = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    ]
    assert [(x["step"], x["loss"]) for x in lines[0]] == [(x["step"], x["loss"]) for x in lines[1]]


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_is_not(tmp_path):
    script, kills = Path(__file__).with_name("killed.py"), 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])}
    options = {"steps": 40, "save": 2, "report": 2, "check": 10, "average": 2, "model.dropout.residual": 0.1}
    whole = through(run(tmp_path / "whole", **options))
    for seed in range(10):
        out = tmp_path / f"killed{seed}"
        done = subprocess.run(
            [sys.executable, str(script), str(out), str(seed)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        kills += int(done.stdout)
        (last,) = sorted((out / "steps").glob("[0-9]*"))[-1:]
        assert equal(weights(last), weights(whole.folder))
        for name in ("best", "average"):
            assert equal(weights(out / name), weights(tmp_path / "whole" / name))
        assert (out / "best").readlink() == (tmp_path / "whole" / "best").readlink()
        if kills >= 10:
            break
    assert kills >= 10


def test_a_full_disk_loses_nothing_that_was_saved(tmp_path, monkeypatch):
    from clearhead.train import checkpoint

    through(run(tmp_path / "run"), until=5)

    def full(*args):
        raise OSError(28, "No space left on device")

    made = run(tmp_path / "run")
    made.resume()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(ch.ClearheadError, match="No space left on device"):
            through(made)
    again = run(tmp_path / "run")
    assert again.resume()
    assert again.step == 5
    assert equal(weights(through(again).folder), weights(through(run(tmp_path / "whole")).folder))


def test_accumulated_equals_the_full_batch(tmp_path):
    options = {"steps": 6, "clip": 0.5}
    full = through(run(tmp_path / "full", Counting(rows=4), **options))
    pieces = through(run(tmp_path / "pieces", Counting(rows=2), accumulate=2, **options))
    for name, value in weights(full.folder).items():
        if name.endswith("attn.k.bias"):  # its gradient is zero but for rounding, which Adam makes large
            continue
        torch.testing.assert_close(weights(pieces.folder)[name], value, atol=1e-5, rtol=1e-4)


def test_it_learns_and_says_so(tmp_path):
    seen = []
    made = run(tmp_path / "run", steps=150, report=50, check=50, **{"train.optimiser.rate": 1e-2})
    result = made.train(lambda progress: seen.append(progress) or True)
    assert result.loss < 0.5 < seen[0].loss
    assert result.best == min(p.valid for p in seen if p.valid is not None)
    assert ch.load(tmp_path / "run" / "best").config.train.steps == 150


def test_the_last_checkpoints_and_the_best_remain(tmp_path):
    made = run(tmp_path / "run", steps=10, save=1, check=100, keep=3)
    made.best = -1.0  # nothing will be better
    through(made)
    kept = sorted(path.name for path in (tmp_path / "run" / "steps").iterdir())
    assert kept == ["00000008", "00000009", "00000010"]


def test_patience_ends_a_run_that_no_longer_gets_better(tmp_path):
    result = through(run(tmp_path / "run", steps=1000, check=1, patience=3, **{"train.optimiser.rate": 1e-12}))
    assert result.end == "patience"
    assert result.step < 100


def test_the_best_model_is_found_by_a_run_that_was_killed_before_it_pointed_to_it(tmp_path, monkeypatch):
    options = {"steps": 20, "check": 4, "save": 100, "train.optimiser.rate": 1e-2}
    made, out = run(tmp_path / "run", **options), tmp_path / "run"

    def killed(best):
        raise SystemError

    def watch(progress):
        if progress.step == 8:
            monkeypatch.setattr(made.checkpoints, "tidy", killed)
        return True

    with pytest.raises(SystemError):
        made.train(watch)
    assert (out / "best").readlink().name == "00000004"
    again = run(out, **options)
    again.resume()
    assert (out / "best").readlink().name == "00000008"
    again.best = -1.0
    through(again, until=9)
    assert (out / "best" / "model.safetensors").exists()


def test_a_best_loss_of_zero_stays_the_best(tmp_path):
    made = run(tmp_path / "run")
    made.note(0.0)
    made.save()
    again = run(tmp_path / "run")
    again.resume()
    assert again.best == 0.0


def test_a_run_that_ended_by_patience_has_ended(tmp_path):
    options = {"steps": 1000, "check": 1, "patience": 3, "train.optimiser.rate": 1e-12}
    first = through(run(tmp_path / "run", **options))
    again = run(tmp_path / "run", **options)
    again.resume()
    assert through(again) == first
    longer = run(tmp_path / "run", **{**options, "patience": 5})
    longer.resume()
    assert through(longer).step == first.step + 2


def test_a_finished_run_that_is_started_again_still_knows_its_loss(tmp_path):
    first = through(run(tmp_path / "run"))
    again = run(tmp_path / "run")
    again.resume()
    assert through(again) == first
    assert math.isfinite(first.loss)


class Unjudged(Counting):
    def held_out(self):
        return iter(())


def test_without_anything_held_out_nothing_is_validated_and_patience_is_refused(tmp_path):
    result = through(run(tmp_path / "run", Unjudged(), check=1))
    assert (result.end, result.best) == ("done", math.inf)
    text = (tmp_path / "run" / "log.jsonl").read_text()
    assert "valid" not in text
    assert "NaN" not in text
    with pytest.raises(ch.ClearheadError, match=r"train.patience = 2 needs data.valid, or data.held_out above 0"):
        run(tmp_path / "other", Unjudged(), patience=2)


def interrupted_at(made, step, monkeypatch):
    """Ctrl-C while that step is taken."""
    move = made.optimiser.step

    def interrupted(factor):
        if made.step == step - 1:
            os.kill(os.getpid(), signal.SIGINT)
        move(factor)

    monkeypatch.setattr(made.optimiser, "step", interrupted)


@pytest.mark.parametrize("cuts", [(7,), (4, 5), (8, 12), (11,)])
def test_what_is_kept_best_and_averaged_does_not_depend_on_how_a_run_was_cut(cuts, tmp_path, monkeypatch):
    options = {"save": 3, "check": 4, "keep": 3, "average": 3, "train.optimiser.rate": 1e-2}
    through(run(tmp_path / "whole", **options))
    for cut in cuts:
        made = run(tmp_path / "cut", **options)
        made.resume()
        interrupted_at(made, cut, monkeypatch)
        assert through(made).end == "stopped"
    again = run(tmp_path / "cut", **options)
    again.resume()
    assert through(again).end == "done"
    whole, cut = ({path.name for path in (tmp_path / name / "steps").iterdir()} for name in ("whole", "cut"))
    assert whole == cut == {"00000006", "00000009", "00000012"}
    assert equal(weights(tmp_path / "whole" / "average"), weights(tmp_path / "cut" / "average"))
    assert (tmp_path / "whole" / "best").readlink() == (tmp_path / "cut" / "best").readlink()


def test_an_average_of_fewer_models_than_asked_for_says_so(tmp_path):
    told = []
    made = run(tmp_path / "run", save=6, keep=3, average=3)
    made.say = told.append
    through(made)
    assert told == ["the average is of 2 checkpoints: there were no more, with one every 6 steps"]


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize(("before", "after"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_run_goes_on_in_another_precision_with_the_same_numbers(before, after, ema, tmp_path):
    made = run(tmp_path / "run", precision=before, ema=ema)
    through(made, until=5)
    again = run(tmp_path / "run", precision=after, ema=ema)
    assert again.resume()
    assert equal(again.optimiser.weights, made.optimiser.weights)
    assert {p.dtype for p in again.net.parameters()} == {getattr(torch, after)}
    assert through(again).end == "done"


@pytest.mark.parametrize(("options", "batches"), [({}, "batch 7"), ({"accumulate": 2}, "batches 14 to 15")])
def test_a_loss_that_explodes_stops_with_step_batch_and_last_good_checkpoint(options, batches, tmp_path):
    made = run(tmp_path / "run", steps=20, save=2, **options)

    def push(progress):
        if progress.step == 7:
            made.net.norm.weight.data.mul_(1e4)
        return True

    with pytest.raises(ch.ClearheadError, match=rf"loss of step 7 is \d.*, of {batches}: .*checkpoint is .*00000006"):
        made.train(push)
    assert made.best < 10


def test_no_loss_counts_as_exploded_that_a_sane_run_could_have():
    small, words = ch.presets["tiny-pictures"].model, ch.presets["gpt2-124m"].model
    assert highest(small, 0.0) > 10 * math.log(10)
    assert highest(words, 0.01) > 10 * math.log(50000)
    assert highest(words, 200.0) > 1000
    number = ch.presets["tiny-encoder"].change(**{"model.head": {"kind": "number", "pooling": "mean"}}).model
    assert (highest(number, 0.0), highest(number, 1e6)) == (1000, 1000 * (1e6 + 1))


def test_a_loss_that_is_no_number_stops_with_step_and_last_good_checkpoint(tmp_path):
    made = run(tmp_path / "run", steps=20, save=2)

    def poison(progress):
        if progress.step == 7:
            made.net.norm.weight.data.fill_(math.nan)
        return True

    with pytest.raises(ch.ClearheadError, match=r"loss of step 7 is nan.*last good checkpoint is .*00000006"):
        made.train(poison)


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM] * 2], ids=len)
def test_an_interrupt_in_the_middle_of_a_step_saves_a_whole_one(numbers, tmp_path, monkeypatch):
    before = [signal.getsignal(number) for number in numbers]
    made = run(tmp_path / "cut", save=100, report=100, check=100)
    move = made.optimiser.step

    def interrupted(factor):
        if made.step == 3:
            for number in numbers:
                os.kill(os.getpid(), number)
        move(factor)

    monkeypatch.setattr(made.optimiser, "step", interrupted)
    result = through(made)
    assert [signal.getsignal(number) for number in numbers] == before
    assert (result.end, result.step) == ("stopped", 4)
    again = run(tmp_path / "cut", save=100, report=100, check=100)
    assert again.resume()
    whole = through(run(tmp_path / "whole", save=100, report=100, check=100))
    assert equal(weights(through(again).folder), weights(whole.folder))


def test_a_second_ctrl_c_ends_at_once(tmp_path, monkeypatch):
    made = run(tmp_path / "run")

    def impatient(factor):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(made.optimiser, "step", impatient)
    with pytest.raises(KeyboardInterrupt):
        through(made)
    assert not (tmp_path / "run" / "steps").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_saves_and_ends_with_130(number, tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 200)
    words = ["train", "tiny-decoder", "--data.train=a.txt", "--data.vocabulary=300", "--train.report=1", "--out=run"]
    command = [sys.executable, "-m", "clearhead", *words, "--train.save=1000000", "--train.check=1000000"]
    quick = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    child, end = subprocess.Popen([*command, "--train.steps=1000000"], **quick), time.monotonic() + 60
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
    again = subprocess.run([*command, f"--train.steps={step + 2}"], **quick, check=False)
    assert (again.returncode, f"going on after step {step:,}" in again.stdout) == (0, True), again.stdout


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    made = run(tmp_path / "run", steps=20, save=3)

    def poison(progress):
        if progress.step == 6:
            made.net.norm.weight.data.fill_(math.nan)
        return True

    with pytest.raises(ch.ClearheadError, match=r"weights after step 6 hold no numbers.*00000004"):
        made.train(poison)
    assert made.checkpoints.last().step == 4


def test_half_a_checkpoint_is_no_checkpoint(tmp_path):
    through(run(tmp_path / "run"), until=5)
    (tmp_path / "run" / "steps" / "00000009").mkdir()
    (tmp_path / "run" / "steps" / ".00000010.abc").mkdir()
    made = run(tmp_path / "run")
    assert made.resume()
    assert made.step == 5


@pytest.mark.parametrize("options", [{"ema": 0.9}, {"ema": 0.9, "precision": "bfloat16"}], ids=str)
def test_the_model_that_is_saved_is_the_one_that_was_validated(options, tmp_path):
    made = run(tmp_path / "run", check=3, **{"train.optimiser.rate": 1e-2}, **options)
    best = through(made).best
    net = ch.load(tmp_path / "run" / "best", device="cpu", dtype="stored").net
    (batch,) = Counting().held_out()
    with torch.no_grad():
        total, count = net.loss(net(batch.tokens), batch.targets)
    assert float(total / count) == pytest.approx(best, rel=1e-6)
    assert not equal(dict(net.named_parameters()), dict(made.net.named_parameters()))


def test_precision_is_of_the_passes_and_what_moves_is_always_fp32(tmp_path):
    for precision, dtype in (("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        made = run(tmp_path / precision, precision=precision)
        assert {p.dtype for p in made.net.parameters()} == {dtype}
        assert {w.dtype for w in made.optimiser.weights.values()} == {torch.float32}


def test_the_mean_of_the_last_models_is_a_model(tmp_path):
    result = through(run(tmp_path / "run", check=3, save=3, keep=3, average=3))
    assert result.step == 12
    last = [weights(tmp_path / "run" / "steps" / f"{step:08d}") for step in (6, 9, 12)]
    for name, mean in weights(tmp_path / "run" / "average").items():
        torch.testing.assert_close(mean, sum(one[name] for one in last) / 3)
    with pytest.raises(ch.ClearheadError, match=r"train\.average = 3 is more than train\.keep = 2 checkpoints"):
        run(tmp_path / "other", average=3)


def test_each_step_is_told_and_what_is_done_then_takes_no_time(tmp_path):
    told, speeds = [], []

    def each(step):
        told.append(step)
        time.sleep(0.2)

    made = run(tmp_path / "run", steps=4, report=4, check=100, save=100)
    made.train(lambda progress: speeds.append(progress.lessons) or True, each)
    assert told == [1, 2, 3, 4]
    assert speeds[0] > 4 * 64 / (4 * 0.2)
