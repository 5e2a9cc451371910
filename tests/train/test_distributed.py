"""Distributed training equals training in one process, with DDP and with FSDP."""

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
from distributed_jobs import UnevenDataset, job, run_job
from safetensors.torch import load_file
from tiny_training import load_weights, make_trainer, run

import clearhead as ch
from clearhead.data.packed_batch import IGNORE_INDEX
from clearhead.train.strategy import SINGLE_PROCESS, SingleProcess, distributed_training

SCRIPT = Path(__file__).with_name("distributed_jobs.py")
MUON = {"kind": "muon"}
ODD = {"model.ffn.d_ff": 50, "model.vocab_size": 67}  # rows that four processes cannot split evenly
CLASSIFIER = {
    "model.head": {"kind": "classification", "num_labels": 2},  # fewer rows than processes
    "model.position": "rotary",
}
JOBS = {
    "adamw": {"grad_clip": 0.5, **ODD},
    "muon": {"optimizer": MUON, "grad_clip": 0.5, **ODD},
    "accumulated": {"grad_accum": 2, "ema_decay": 0.8, "grad_clip": 0.5},
    "pairs": {
        "data": "pairs",
        "preset": "tiny-encoder-decoder",
        "label_smoothing": 0.1,
        "optimizer": MUON,
    },
    "classifier": {"data": "labeled", "preset": "tiny-encoder", **CLASSIFIER},
    "bf16": {"precision": "bfloat16", "grad_accum": 2, "ema_decay": 0.8},
}
RESUMED = {"ema_decay": 0.8, "optimizer": MUON, **ODD}
SETUPS = [(2, "ddp"), (2, "fsdp"), (4, "fsdp")]


def job_names(num_processes):
    """With four processes, only jobs whose rows cannot be split evenly are new."""
    return list(JOBS) if num_processes == 2 else ["adamw", "muon", "accumulated", "classifier"]


def start_torchrun(num_processes, jobs, folder, *options):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={num_processes}",
        *options,
        str(SCRIPT),
        str(folder / "jobs.json"),
    ]
    python_path = os.pathsep.join([str(SCRIPT.parent), *sys.path])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def torchrun(num_processes, jobs, folder, *options):
    process = start_torchrun(num_processes, jobs, folder, *options)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return errors


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """All jobs in one process, and a run that is to be resumed."""
    folder = tmp_path_factory.mktemp("single")
    for name, options in JOBS.items():
        run_job(job(folder / name, **options), SINGLE_PROCESS)
    run_job(job(folder / "uninterrupted", **RESUMED), SINGLE_PROCESS)
    run_job(job(folder / "interrupted", until=3, **RESUMED), SINGLE_PROCESS)
    return folder


@pytest.fixture(scope="module")
def distributed(single, tmp_path_factory):
    """All jobs in several processes; each setup is started once."""
    folders = {}

    def folder_of(num_processes, strategy):
        key = num_processes, strategy
        if key not in folders:
            folder = tmp_path_factory.mktemp(f"{strategy}{num_processes}")
            folders[key] = folder
            jobs = [
                job(folder / name, strategy=strategy, **JOBS[name])
                for name in job_names(num_processes)
            ]
            shutil.copytree(single / "interrupted", folder / "resumed", symlinks=True)
            jobs.append(job(folder / "resumed", strategy=strategy, **RESUMED))
            jobs.append(job(folder / "interrupted", until=3, strategy=strategy, **RESUMED))
            if num_processes == 4:
                other = folder_of(2, "ddp" if strategy == "fsdp" else "fsdp")
                shutil.copytree(other / "interrupted", folder / "other", symlinks=True)
                jobs.append(job(folder / "other", strategy=strategy, **RESUMED))
            torchrun(num_processes, jobs, folder)
        return folders[key]

    return folder_of


def last_checkpoint(output):
    return max((output / "checkpoints").iterdir(), key=lambda path: path.name)


def assert_same_run(actual, expected, atol=2e-5, rtol=1e-4, loss_atol=1e-4):
    """Two runs have the same weights and report the same losses."""
    weights = load_weights(last_checkpoint(actual))
    expected_weights = load_weights(last_checkpoint(expected))
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        if not name.endswith("attn.k.bias"):  # its gradient is zero but for rounding
            torch.testing.assert_close(weights[name], value, atol=atol, rtol=rtol, msg=name)
    losses = []
    for output in (actual, expected):
        lines = map(json.loads, (output / "log.jsonl").read_text().splitlines())
        losses.append([(x["step"], x["loss"], x.get("valid_loss", 0)) for x in lines])
    torch.testing.assert_close(
        torch.tensor(losses[0]), torch.tensor(losses[1]), atol=loss_atol, rtol=0
    )


def read_results(output):
    return [json.loads(path.read_text()) for path in sorted(output.glob("result.*.json"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_processes", "strategy", "name"),
    [(*setup, name) for setup in SETUPS for name in job_names(setup[0])],
)
def test_distributed_run_equals_single_process(num_processes, strategy, name, single, distributed):
    output = distributed(num_processes, strategy) / name
    tolerance = {"atol": 2e-2, "rtol": 2e-2, "loss_atol": 2e-2} if name == "bf16" else {}
    assert_same_run(output, single / name, **tolerance)
    first, *others = read_results(output)
    assert len(others) == num_processes - 1
    assert all(other == first for other in others)


@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "strategy"), SETUPS)
def test_run_resumes_with_other_numbers_of_processes(
    num_processes, strategy, single, distributed, tmp_path
):
    folder = distributed(num_processes, strategy)
    assert_same_run(folder / "resumed", single / "uninterrupted")
    shutil.copytree(folder / "interrupted", tmp_path / "single", symlinks=True)
    run_job(job(tmp_path / "single", **RESUMED), SINGLE_PROCESS)
    assert_same_run(tmp_path / "single", single / "uninterrupted")
    if num_processes == 4:
        assert_same_run(folder / "other", single / "uninterrupted")


@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "strategy"), SETUPS[2:])
def test_sharded_state_is_saved_like_unsharded(num_processes, strategy, single, distributed):
    states = []
    for folder in (single, distributed(num_processes, strategy)):
        state = load_file(last_checkpoint(folder / "accumulated") / "training_state.safetensors")
        states.append({name: (t.shape, t.dtype) for name, t in state.items()})
    assert states[0] == states[1]


def test_uneven_rows_would_reveal_a_mean_of_means():
    """Averaging the mean losses of two processes would be wrong for this data."""
    num_targets = (UnevenDataset().batch(0).targets != IGNORE_INDEX).sum(dim=1)
    assert num_targets[2:].sum() > 2 * num_targets[:2].sum() > 0


@pytest.mark.slow
def test_killed_processes_are_restarted_and_the_run_is_the_same(tmp_path):
    options = {
        "max_steps": 12,
        "save_every": 2,
        "log_every": 2,
        "eval_every": 4,
        "model.dropout.residual": 0.1,
    }
    jobs = [
        job(tmp_path / "undisturbed", **options),
        job(tmp_path / "killed", data="killed", **options),
    ]
    errors = torchrun(2, jobs, tmp_path, "--max-restarts=3")
    assert errors.count("failed (exitcode") == 2, errors  # both kills, and no failed restart
    weights = load_weights(last_checkpoint(tmp_path / "killed"))
    expected = load_weights(last_checkpoint(tmp_path / "undisturbed"))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_all_processes_stop_together(tmp_path):
    rarely = {"max_steps": 50, "log_every": 100, "eval_every": 100, "save_every": 100}
    patience = {
        "eval_every": 1,
        "max_steps": 100,
        "patience": 3,
        "optimizer": {"kind": "adamw", "lr": 1e-12},
    }
    jobs = [
        job(tmp_path / "ddp", data="interrupted", **rarely),
        job(tmp_path / "nan", nan_weights=True),
        job(tmp_path / "patience", **patience),
        job(tmp_path / "fsdp", data="interrupted", strategy="fsdp", **rarely),
    ]
    torchrun(2, jobs, tmp_path)
    for name in ("ddp", "fsdp"):
        results = read_results(tmp_path / name)
        assert [(r["status"], r["step"]) for r in results] == [("interrupted", 5)] * 2
        assert last_checkpoint(tmp_path / name).name == "00000005"
    assert all("loss nan at step 0" in r["error"] for r in read_results(tmp_path / "nan"))
    statuses = [r["status"] for r in read_results(tmp_path / "patience")]
    assert statuses == ["early_stopped"] * 2


@pytest.mark.slow
def test_ctrl_c_at_torchrun_saves_a_checkpoint(tmp_path):
    output = tmp_path / "run"
    rarely = {"max_steps": 10**6, "save_every": 10**6, "eval_every": 10**6, "log_every": 1}
    process = start_torchrun(2, [job(output, **rarely)], tmp_path)
    deadline = time.monotonic() + 60
    while not (output / "log.jsonl").exists() or not (output / "log.jsonl").read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    results = {(r["status"], r["step"]) for r in read_results(output)}
    assert results == {("interrupted", int(last_checkpoint(output).name))}


def test_indivisible_batch_size_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    config = ch.presets["tiny-decoder"].train
    with (
        pytest.raises(ch.ClearheadError, match=r"train\.batch_size"),
        distributed_training("cpu", config),
    ):
        pass


@pytest.mark.slow
def test_single_process_does_not_import_torch_distributed(tmp_path):
    code = """if True:
        import pathlib, sys, torch
        import clearhead as ch
        from clearhead.train.strategy import SINGLE_PROCESS, distributed_training
        from tiny_training import make_trainer

        with distributed_training("cpu", ch.presets["tiny-decoder"].train) as strategy:
            assert strategy is SINGLE_PROCESS
            trainer = make_trainer(pathlib.Path(sys.argv[1]), max_steps=2, strategy=strategy)
            trainer.train(lambda progress: True)
        assert not torch.distributed.is_initialized()
        assert "clearhead.train.distributed" not in sys.modules"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, env=environment, check=False).returncode == 0


def test_dropout_differs_between_processes_and_not_between_runs(tmp_path):
    class SecondProcess(SingleProcess):
        rank = 1
        is_main_process = True

    def random_numbers(strategy, name):
        options = {"max_steps": 1, "model.dropout.embedding": 0.5}
        trainer = make_trainer(tmp_path / name, strategy=strategy, **options)
        numbers = []
        loss_function = trainer.step_function.loss_function
        trainer.step_function.loss_function = lambda batch: (
            numbers.append(torch.rand(4)) or loss_function(batch)
        )
        run(trainer)
        return numbers[0]

    first = random_numbers(SINGLE_PROCESS, "first")
    again = random_numbers(SINGLE_PROCESS, "again")
    second = random_numbers(SecondProcess(), "second")
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
