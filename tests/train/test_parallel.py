"""Several processes: the same run as one, however its weights are shared out, and nobody is left waiting."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs import run, weights
from together import Uneven, do, job

import clearhead as ch
from clearhead.train.distributed import SINGLE_PROCESS, distributed_training

SCRIPT = Path(__file__).with_name("together.py")
MUON = {"kind": "muon"}
ODD = {
    "model.ffn.d_ff": 50,
    "model.vocab_size": 67,
}  # rows that cannot be shared out evenly among four
CLASSES = {
    "model.head": {"kind": "classification", "classes": 2},
    "model.position": "rotary",
}  # fewer rows than processes
JOBS = {
    "adamw": {"clip": 0.5, **ODD},
    "muon": {"optimiser": MUON, "clip": 0.5, **ODD},
    "gathered": {"accumulate": 2, "ema": 0.8, "clip": 0.5},
    "pairs": {
        "data": "pairs",
        "preset": "tiny-encoder-decoder",
        "smoothing": 0.1,
        "optimiser": MUON,
    },
    "classes": {"data": "judged", "preset": "tiny-encoder", **CLASSES},
    "half": {"precision": "bfloat16", "accumulate": 2, "ema": 0.8},
}
CUT = {"ema": 0.8, "optimiser": MUON, **ODD}
TEAMS = [(2, False), (2, True), (4, True)]


def names(processes):
    """Four find nothing that two would not, but rows that cannot be shared out evenly."""
    return list(JOBS) if processes == 2 else ["adamw", "muon", "gathered", "classes"]


def torchrun(processes, jobs, folder, *options, wait=True):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        *options,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path]),
    }
    words += [str(SCRIPT), str(folder / "jobs.json")]
    if not wait:
        return subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of the jobs; and a run that it broke off."""
    out = tmp_path_factory.mktemp("alone")
    for name, options in JOBS.items():
        do(job(out / name, **options), SINGLE_PROCESS)
    do(job(out / "whole", **CUT), SINGLE_PROCESS)
    do(job(out / "cut", until=3, **CUT), SINGLE_PROCESS)
    return out


@pytest.fixture(scope="module")
def together(alone, tmp_path_factory):
    """What several processes make of them; each number and kind is started once."""
    made = {}

    def folder(processes, sharded):
        if (processes, sharded) not in made:
            out = tmp_path_factory.mktemp(f"{processes}{'shards' if sharded else 'copies'}")
            shutil.copytree(alone / "cut", out / "resumed", symlinks=True)
            jobs = [job(out / name, sharded=sharded, **JOBS[name]) for name in names(processes)]
            jobs += [
                job(out / "resumed", sharded=sharded, **CUT),
                job(out / "cut", until=3, sharded=sharded, **CUT),
            ]
            if processes == 4:
                shutil.copytree(folder(2, not sharded) / "cut", out / "other", symlinks=True)
                jobs += [job(out / "other", sharded=sharded, **CUT)]
            torchrun(processes, jobs, out)
            made[processes, sharded] = out
        return made[processes, sharded]

    return folder


def last(out):
    return max((out / "steps").iterdir(), key=lambda path: path.name)


def near(a, b, **tolerance):
    """Two runs have the same weights and tell the same losses."""
    ours = weights(last(a))
    theirs = weights(last(b))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if not name.endswith(
            "attn.k.bias"
        ):  # its gradient is zero but for rounding, which Adam makes large
            torch.testing.assert_close(
                ours[name], value, **(tolerance or {"atol": 2e-5, "rtol": 1e-4}), msg=name
            )
    logs = [
        [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        for out in (a, b)
    ]
    told = [[(x["step"], x["loss"], x.get("valid", 0)) for x in log] for log in logs]
    torch.testing.assert_close(
        torch.tensor(told[0]), torch.tensor(told[1]), atol=tolerance.get("atol", 1e-4), rtol=0
    )


def results(out):
    return [json.loads(path.read_text()) for path in sorted(out.glob("result.*.json"))]


@pytest.mark.parametrize(
    ("processes", "sharded", "name"),
    [(*team, n) for team in TEAMS for n in names(team[0])],
    ids=str,
)
def test_many_processes_are_one(processes, sharded, name, alone, together):
    out = together(processes, sharded) / name
    near(out, alone / name, **({"atol": 2e-2, "rtol": 2e-2} if name == "half" else {}))
    first, *others = results(out)
    assert len(others) == processes - 1
    assert all(other == first for other in others)


@pytest.mark.parametrize(("processes", "sharded"), TEAMS, ids=str)
def test_what_one_process_saved_goes_on_with_many_and_back(
    processes, sharded, alone, together, tmp_path
):
    out = together(processes, sharded)
    near(out / "resumed", alone / "whole")
    shutil.copytree(out / "cut", tmp_path / "back", symlinks=True)
    do(job(tmp_path / "back", **CUT), SINGLE_PROCESS)
    near(tmp_path / "back", alone / "whole")
    if processes == 4:
        near(out / "other", alone / "whole")


@pytest.mark.parametrize(("processes", "sharded"), TEAMS[2:], ids=str)
def test_shards_are_saved_whole_under_the_same_names(processes, sharded, alone, together):
    from safetensors.torch import load_file

    ours, theirs = (
        load_file(last(out / "gathered") / "state.safetensors")
        for out in (together(processes, sharded), alone)
    )
    assert {n: (t.shape, t.dtype) for n, t in ours.items()} == {
        n: (t.shape, t.dtype) for n, t in theirs.items()
    }


def test_a_mean_of_each_processs_mean_would_be_another_loss():
    """The data of these tests can tell: its rows teach so unequally that the mistake would show."""
    targets = Uneven().batch(0).targets
    counts = (targets != -100).sum(dim=1)
    assert counts[2:].sum() > 2 * counts[:2].sum() > 0


def test_a_killed_process_is_restarted_and_the_run_ends_as_if_nothing_had_been(tmp_path):
    options = {"steps": 12, "save": 2, "report": 2, "check": 4, "model.dropout.residual": 0.1}
    jobs = [job(tmp_path / "calm", **options), job(tmp_path / "killed", data="killed", **options)]
    done = torchrun(2, jobs, tmp_path, "--max-restarts=3")
    assert done.stderr.count("failed (exitcode") == 2, (
        done.stderr
    )  # each kill was noticed, and no restart failed
    ours = weights(last(tmp_path / "killed"))
    theirs = weights(last(tmp_path / "calm"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_all_stop_together_whoever_is_interrupted_poisoned_or_out_of_patience(tmp_path):
    patience = {
        "check": 1,
        "steps": 100,
        "patience": 3,
        "optimiser": {"kind": "adamw", "rate": 1e-12},
    }
    jobs = [
        job(
            tmp_path / "interrupted", data="interrupted", steps=50, report=100, check=100, save=100
        ),
        job(tmp_path / "poisoned", poisoned=True),
        job(tmp_path / "patience", **patience),
        job(
            tmp_path / "shards",
            data="interrupted",
            steps=50,
            report=100,
            check=100,
            save=100,
            sharded=True,
        ),
    ]
    torchrun(2, jobs, tmp_path)
    for name in ("interrupted", "shards"):
        assert [(r["end"], r["step"]) for r in results(tmp_path / name)] == [("stopped", 5)] * 2
        assert last(tmp_path / name).name == "00000005"
    for result in results(tmp_path / "poisoned"):
        assert result["error"].startswith("the loss of step 0 is nan")
    assert [r["end"] for r in results(tmp_path / "patience")] == ["patience"] * 2


def test_ctrl_c_at_torchrun_saves(tmp_path):
    out = tmp_path / "run"
    child = torchrun(
        2, [job(out, steps=10**6, save=10**6, check=10**6, report=1)], tmp_path, wait=False
    )
    end = time.monotonic() + 60
    while not (out / "log.jsonl").exists() or not (out / "log.jsonl").read_text():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert {(r["end"], r["step"]) for r in results(out)} == {("stopped", int(last(out).name))}


def test_rows_that_cannot_be_shared_out_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    options = ch.presets["tiny-decoder"].train
    with (
        pytest.raises(
            ch.ClearheadError, match=r"train\.rows = 16 cannot be shared out among 3 processes"
        ),
        distributed_training("cpu", options),
    ):
        pass


def test_one_process_has_nothing_to_do_with_others(tmp_path):
    code = """if True:
        import pathlib, sys, torch
        import clearhead as ch
        from clearhead.train.team import ALONE, join
        from runs import run

        with join("cpu", ch.presets["tiny-decoder"].train) as team:
            assert team is ALONE
            run(pathlib.Path(sys.argv[1]), steps=2, team=team).train(lambda progress: True)
        assert not torch.distributed.is_initialized()
        assert "clearhead.train.data_parallel" not in sys.modules"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}
    assert (
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], env=environment, check=False
        ).returncode
        == 0
    )


def test_dropout_draws_differ_between_processes_and_not_between_runs(tmp_path):
    class Second(type(SINGLE_PROCESS)):
        rank = 1
        first = True

    def draws(team, name):
        made = run(tmp_path / name, steps=1, team=team, **{"model.dropout.embedding": 0.5})
        seen = []
        loss = made.compiled_step.loss_function
        made.compiled_step.loss_function = lambda batch: seen.append(torch.rand(4)) or loss(batch)
        made.train(lambda progress: True)
        return seen[0]

    first = draws(SINGLE_PROCESS, "a")
    again = draws(SINGLE_PROCESS, "b")
    second = draws(Second(), "c")
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
