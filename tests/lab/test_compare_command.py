"""The command as a person uses it: interrupted, killed, gone on with, and shared by several processes."""

import json
import os
import signal
import subprocess
import sys
import time

import experiments
import pytest

import clearhead as ch
from clearhead.lab.experiment import read_results

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
POSITIONS = {"model.position": "none,rotary"}
VARY = ["--vary", "model.position=none,rotary"]


def command(folder, *words, before=(), **changes):
    flags = experiments.flags(**{"data.train": experiments.text(folder), **changes})
    return [
        sys.executable,
        *before,
        "-m",
        "clearhead",
        "compare",
        "lm-small",
        *VARY,
        *flags,
        "--device",
        "cpu",
        *words,
    ]


def run(words, cwd):
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=cwd, env=ENVIRONMENT
    )


def validations(out):
    logs = {
        path: map(json.loads, path.read_text().splitlines())
        for path in out.glob("runs/*/*/log.jsonl")
    }
    return {
        path.relative_to(out): [(line["step"], line["valid"]) for line in lines if "valid" in line]
        for path, lines in logs.items()
    }


def until(process, there):
    end = time.monotonic() + 60
    while not there():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_is_interrupted_and_killed_goes_on_and_comes_to_the_same(tmp_path):
    steps = {
        "train.max_steps": 60,
        "train.save_every": 10,
        "train.log_every": 10,
        "train.eval_every": 10,
    }
    options = {**experiments.SMALL, **steps, "data.train": experiments.text(tmp_path)}
    whole = ch.compare(
        "lm-small", POSITIONS, [5], tmp_path / "whole", device="cpu", quiet=True, **options
    )
    out = tmp_path / "cut"
    words = command(tmp_path, "--seeds", "5,", "--out", "cut", **steps)
    ends = []
    for number, there in (
        (signal.SIGINT, out / "runs/position=none/5/steps/00000020"),
        (signal.SIGKILL, out / "runs/position=rotary/5/steps/00000020"),
    ):
        process = subprocess.Popen(
            words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        until(process, there.is_dir)
        process.send_signal(number)
        told = process.communicate()[0]
        ends.append(process.returncode)
    assert ends == [130, -signal.SIGKILL]
    assert "the same command goes on" not in told
    assert len(read_results(out)) == 1
    again = run([*words[:4], "cut"], tmp_path)
    assert again.returncode == 0, again.stderr
    assert "2 of 2: position=rotary, seed 5" in again.stdout
    assert "1 of 2" not in again.stdout
    assert validations(out) == validations(whole.output)
    assert not list(out.rglob("*.lock"))


def test_several_processes_share_the_runs_among_them(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    shared = run(command(tmp_path, "--seeds", "2", "--out", "shared", before=torchrun), tmp_path)
    assert shared.returncode == 0, shared.stderr
    assert all(shared.stdout.count(f"{n} of 4: ") == 1 for n in range(1, 5))
    assert shared.stdout.count("report: ") == 1
    found = read_results(tmp_path / "shared")
    assert len(found) == 4
    assert {run.num_processes for run in found.values()} == {2}
    assert "shared a machine" in (tmp_path / "shared/report.md").read_text()
    assert [len(lines) for lines in validations(tmp_path / "shared").values()] == [3] * 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--vary", "steps=1,2"], "did you mean --vary train.max_steps=1,2?"),
        (["--seeds", "²"], "--seeds ² must be whole numbers"),
    ],
)
def test_wrong_words_are_one_sentence_and_status_2(words, sentence, tmp_path):
    done = run(command(tmp_path, *words), tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "comparison").exists()
