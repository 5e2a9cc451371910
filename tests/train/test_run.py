"""The loop: nothing is lost, nothing depends on how a run was cut, and what goes wrong is told."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs import Counting, equal, run, through, weights

import clearhead as ch

DROPOUT = {"model.dropout.residual": 0.1, "model.dropout.embedding": 0.1}
MUON = {"train.optimizer": {"kind": "muon"}}


HALF = {"precision": "bfloat16", "ema": 0.9, "accumulate": 2}


@pytest.mark.parametrize(
    "options", [{}, DROPOUT, MUON, {"ema": 0.9}, {"accumulate": 2}, HALF], ids=str
)
def test_a_resumed_run_equals_one_that_was_not_interrupted(options, tmp_path):
    whole = through(run(tmp_path / "whole", **options))
    first = through(run(tmp_path / "cut", **options), until=7)
    assert (first.status, first.step) == ("stopped", 7)
    again = run(tmp_path / "cut", **options)
    assert again.resume()
    assert again.step == 7
    second = through(again)
    assert (second.status, second.step) == (whole.status, whole.step) == ("done", 12)
    assert equal(weights(second.checkpoint), weights(whole.checkpoint))
    assert (second.checkpoint / "state.safetensors").read_bytes() == (
        whole.checkpoint / "state.safetensors"
    ).read_bytes()
    lines = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    ]
    assert [(x["step"], x["loss"]) for x in lines[0]] == [(x["step"], x["loss"]) for x in lines[1]]


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_is_not(tmp_path):
    script = Path(__file__).with_name("killed.py")
    kills = 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])}
    options = {
        "steps": 40,
        "save": 2,
        "report": 2,
        "check": 10,
        "average": 2,
        "model.dropout.residual": 0.1,
    }
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
        assert equal(weights(last), weights(whole.checkpoint))
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
    assert equal(
        weights(through(again).checkpoint), weights(through(run(tmp_path / "whole")).checkpoint)
    )


def test_accumulated_equals_the_full_batch(tmp_path):
    options = {"steps": 6, "clip": 0.5}
    full = through(run(tmp_path / "full", Counting(rows=4), **options))
    pieces = through(run(tmp_path / "pieces", Counting(rows=2), accumulate=2, **options))
    for name, value in weights(full.checkpoint).items():
        if name.endswith(
            "attn.k.bias"
        ):  # its gradient is zero but for rounding, which Adam makes large
            continue
        torch.testing.assert_close(weights(pieces.checkpoint)[name], value, atol=1e-5, rtol=1e-4)


def test_it_learns_and_says_so(tmp_path):
    seen = []
    made = run(tmp_path / "run", steps=150, report=50, check=50, **{"train.optimizer.lr": 1e-2})
    result = made.train(lambda progress: seen.append(progress) or True)
    assert result.loss < 0.5 < seen[0].loss
    assert result.best_loss == min(p.valid for p in seen if p.valid is not None)
    assert ch.load(tmp_path / "run" / "best").config.train.max_steps == 150


def test_a_run_that_ended_by_patience_has_ended(tmp_path):
    options = {"steps": 1000, "check": 1, "patience": 3, "train.optimizer.lr": 1e-12}
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
    def valid_batches(self):
        return iter(())


def test_without_anything_held_out_nothing_is_validated_and_patience_is_refused(tmp_path):
    result = through(run(tmp_path / "run", Unjudged(), check=1))
    assert (result.status, result.best_loss) == ("done", math.inf)
    text = (tmp_path / "run" / "log.jsonl").read_text()
    assert "valid" not in text
    assert "NaN" not in text
    with pytest.raises(
        ch.ClearheadError,
        match=r"train.patience = 2 needs data.valid, or data.valid_fraction above 0",
    ):
        run(tmp_path / "other", Unjudged(), patience=2)


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize(("before", "after"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_run_goes_on_in_another_precision_with_the_same_numbers(before, after, ema, tmp_path):
    made = run(tmp_path / "run", precision=before, ema=ema)
    through(made, until=5)
    again = run(tmp_path / "run", precision=after, ema=ema)
    assert again.resume()
    assert equal(again.optimizer.weights, made.optimizer.weights)
    assert {p.dtype for p in again.net.parameters()} == {getattr(torch, after)}
    assert through(again).status == "done"


def test_precision_is_of_the_passes_and_what_moves_is_always_fp32(tmp_path):
    for precision, dtype in (
        ("auto", torch.float32),
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
    ):
        made = run(tmp_path / precision, precision=precision)
        assert {p.dtype for p in made.net.parameters()} == {dtype}
        assert {w.dtype for w in made.optimizer.weights.values()} == {torch.float32}


def test_each_step_is_told_and_what_is_done_then_takes_no_time(tmp_path):
    told = []
    speeds = []

    def each(step):
        told.append(step)
        time.sleep(0.2)

    made = run(tmp_path / "run", steps=4, report=4, check=100, save=100)
    made.train(lambda progress: speeds.append(progress.targets_per_second) or True, each)
    assert told == [1, 2, 3, 4]
    assert speeds[0] > 4 * 64 / (4 * 0.2)
