"""`clearhead compare` as a command: interrupted, killed, resumed, and in several processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny_experiments import compare, flags, write_text

from clearhead.lab.experiment import read_results

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
VARY = {"model.position": "none,rotary"}


def command(folder, *arguments, before=(), **changes):
    return [
        sys.executable,
        *before,
        "-m",
        "clearhead",
        "compare",
        "lm-small",
        "--vary",
        "model.position=none,rotary",
        *flags(**{"data.train": write_text(folder), **changes}),
        "--device",
        "cpu",
        *arguments,
    ]


def run_command(words, folder):
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=folder, env=ENVIRONMENT
    )


def read_validations(output):
    validations = {}
    for path in output.glob("runs/*/*/log.jsonl"):
        lines = map(json.loads, path.read_text().splitlines())
        validations[path.relative_to(output)] = [
            (line["step"], line["valid_loss"]) for line in lines if "valid_loss" in line
        ]
    return validations


def test_interrupted_and_killed_experiment_is_resumed(tmp_path):
    options = {
        "train.max_steps": 60,
        "train.save_every": 10,
        "train.log_every": 10,
        "train.eval_every": 10,
    }
    data = write_text(tmp_path)
    uninterrupted = compare(tmp_path / "uninterrupted", data, VARY, [5], options)
    output = tmp_path / "resumed"
    words = command(tmp_path, "--seeds", "5,", "--output", "resumed", **options)
    statuses = []
    for number, variant in ((signal.SIGINT, "none"), (signal.SIGKILL, "rotary")):
        process = subprocess.Popen(
            words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        checkpoint = output / f"runs/position={variant}/5/checkpoints/00000020"
        deadline = time.monotonic() + 60
        while not checkpoint.is_dir():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        process.communicate()
        statuses.append(process.returncode)
    assert statuses == [130, -signal.SIGKILL]
    assert len(read_results(output)) == 1
    resumed = run_command([*words[:4], "resumed"], tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "2 of 2: position=rotary, seed 5" in resumed.stdout
    assert "1 of 2" not in resumed.stdout
    assert read_validations(output) == read_validations(uninterrupted.output)
    assert not list(output.rglob("*.lock"))


def test_processes_distribute_the_runs(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    words = command(tmp_path, "--seeds", "2", "--output", "shared", before=torchrun)
    shared = run_command(words, tmp_path)
    assert shared.returncode == 0, shared.stderr
    assert all(shared.stdout.count(f"{n} of 4: ") == 1 for n in range(1, 5))
    assert shared.stdout.count("report: ") == 1
    results = read_results(tmp_path / "shared")
    assert len(results) == 4
    assert {run.num_processes for run in results.values()} == {2}
    assert "shared a machine" in (tmp_path / "shared/report.md").read_text()
    assert [len(lines) for lines in read_validations(tmp_path / "shared").values()] == [3] * 4
