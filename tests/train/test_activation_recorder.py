"""The activation recorder changes nothing, keeps to its time, and never leaves partial records."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_training import make_trainer, resume

import clearhead as ch
from clearhead.train import activation_recorder
from clearhead.train.activation_recorder import ActivationRecorder, recording_steps

DROPOUT = {f"model.dropout.{name}": 0.1 for name in ("residual", "attention", "embedding")}


@pytest.fixture(autouse=True)
def _unlimited_time(monkeypatch):
    """Runs of a few steps leave no time for recording."""
    monkeypatch.setattr(activation_recorder, "MAX_TIME_FRACTION", 1e9)


def make_recorder(trainer, step=0):
    return ActivationRecorder(trainer.model, trainer.data, trainer.output, step)


def train_and_record(trainer):
    recorder = make_recorder(trainer, trainer.step)
    recorder(trainer.step)
    trainer.train(lambda progress: True, on_step=recorder)
    return recorder


def recorded_files(output):
    return {path.name: path.read_bytes() for path in (output / "activations").glob("*.safetensors")}


def set_embeddings(trainer, change):
    with torch.no_grad():
        change(trainer.net.embed.tokens.weight)


# --- no side effects


@pytest.mark.parametrize("options", [DROPOUT, {"ema_decay": 0.9}, {"grad_accum": 2}], ids=str)
def test_recording_does_not_change_training(options, tmp_path):
    make_trainer(tmp_path / "plain", **options).train(lambda progress: True)
    recorder = train_and_record(make_trainer(tmp_path / "recorded", **options))
    assert recorder.recorded_steps == [0, 1, 2, 3, 5, 7, 10, 12]
    for file in ("model.safetensors", "training_state.safetensors"):
        plain, recorded = (
            (tmp_path / name / "checkpoints" / "00000012" / file).read_bytes()
            for name in ("plain", "recorded")
        )
        assert plain == recorded


@pytest.mark.parametrize("is_training", [True, False])
def test_recording_restores_modes_gradients_and_random_numbers(is_training, tmp_path):
    trainer = make_trainer(tmp_path, **DROPOUT)
    recorder = make_recorder(trainer)
    random_state = torch.random.get_rng_state()
    trainer.net.train(is_training)
    recorder.record(0)
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert all(module.training is is_training for module in trainer.net.modules())
    assert all(p.grad is None and p.requires_grad for p in trainer.net.parameters())


COMPILED_MODEL = """
import sys, torch
from pathlib import Path
from tiny_training import make_trainer
from clearhead.train.activation_recorder import ActivationRecorder

trainer, graphs = make_trainer(Path(sys.argv[1])), []
net = trainer.net
net.compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward, dynamic=False)
batch = trainer.data.batch(0)

def loss():
    net.zero_grad()
    total, _ = net.train().loss(net(batch.tokens), batch.targets)
    total.backward()
    return total

before, num_graphs = loss(), len(graphs)
ActivationRecorder(trainer.model, trainer.data, trainer.output).record(0)
print(num_graphs > 0, bool(loss() == before), len(graphs) == num_graphs)
"""


def test_recording_does_not_recompile(tmp_path):
    # In its own process, because the compiler cannot trace the shape checks of these tests.
    python_path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", COMPILED_MODEL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": python_path},
    )
    assert result.stdout.split() == ["True"] * 3, result.stderr[-2000:]


def test_trained_weights_are_recorded_and_not_their_ema(tmp_path):
    trainer = make_trainer(tmp_path, ema_decay=0.99)
    train_and_record(trainer)
    index = json.loads((tmp_path / "activations" / "index.json").read_text())
    vectors = ch.lens.read_training_trace(tmp_path).embeddings(12).vectors
    expected = trainer.net.embed.tokens.weight[index["embedding_ids"]["tokens"]].detach()
    torch.testing.assert_close(vectors, expected, atol=1e-3, rtol=1e-3)


# --- when to record


def test_recording_steps_are_logarithmic():
    steps = [0, 1, 2, 3, 5, 7, 10, 15, 22, 32, 46, 68, 100, 147, 215, 316, 464, 681, 1000]
    assert sorted(recording_steps(1000)) == steps
    assert sorted(recording_steps(4)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("seconds", "count"), [(0.1, 19), (2, 15), (10, 3), (100, 2)])
def test_recording_keeps_to_its_time_but_for_the_first_and_last_step(
    seconds, count, tmp_path, monkeypatch
):
    clock = [0.0]
    monkeypatch.setattr(activation_recorder, "MAX_TIME_FRACTION", 0.03)
    monkeypatch.setattr(activation_recorder, "monotonic", lambda: clock[0])
    recorder = make_recorder(make_trainer(tmp_path, max_steps=1000))
    observe = recorder.observer.observe

    def slow_observe(previous_planes):
        clock[0] += seconds
        return observe(previous_planes)

    monkeypatch.setattr(recorder.observer, "observe", slow_observe)
    for step in range(1001):
        clock[0] += step > 0
        recorder(step)
    assert len(recorder.recorded_steps) == count
    assert (recorder.recorded_steps[0], recorder.recorded_steps[-1]) == (0, 1000)
    assert count == 2 or count * seconds <= 30


def test_last_step_of_an_interrupted_run_is_recorded(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=100)
    recorder = make_recorder(trainer)
    recorder(0)
    result = trainer.train(lambda progress: progress.step < 8, on_step=recorder)
    assert "training_trace.png" in recorder.finish(result.step)
    trace = ch.lens.read_training_trace(tmp_path)
    assert trace.steps == [0, 1, 2, 3, 5, 7, 8]
    assert trace.losses[0] is None
    assert all(loss > 0 for loss in trace.losses[1:])
    figure = tmp_path / "activations" / "training_trace.png"
    assert figure.read_bytes().startswith(b"\x89PNG")


# --- resuming and failures


def test_resumed_recording_equals_uninterrupted(tmp_path):
    resumed = tmp_path / "resumed"
    for output in (tmp_path / "uninterrupted", resumed):
        train_and_record(make_trainer(output, keep_checkpoints=9))
    for checkpoint in (resumed / "checkpoints").iterdir():
        if int(checkpoint.name) > 5:
            shutil.rmtree(checkpoint)
    trainer = resume(resumed, keep_checkpoints=9)
    assert trainer.step == 5
    make_recorder(trainer, trainer.step)
    assert ch.lens.read_training_trace(resumed).steps == [0, 1, 2, 3, 5]
    assert len(recorded_files(resumed)) == 5
    train_and_record(trainer)
    assert recorded_files(resumed) == recorded_files(tmp_path / "uninterrupted")
    assert ch.lens.read_training_trace(resumed).steps == [0, 1, 2, 3, 5, 7, 10, 12]


def test_recording_may_start_in_a_resumed_run(tmp_path):
    make_trainer(tmp_path).train(lambda progress: progress.step < 6)
    assert train_and_record(resume(tmp_path)).recorded_steps == [6, 7, 10, 12]


def test_new_run_in_the_same_folder_removes_old_records(tmp_path):
    train_and_record(make_trainer(tmp_path, max_steps=5, save_every=100))
    shutil.rmtree(tmp_path / "checkpoints")
    make_recorder(make_trainer(tmp_path, max_steps=5, seed=7))
    assert recorded_files(tmp_path) == {}


@pytest.mark.parametrize("function", ["save_file", "atomic_path", "write_json"])
def test_killed_recording_leaves_no_partial_record(function, tmp_path, monkeypatch):
    def kill(*args):
        if function == "save_file":
            args[1].write_bytes(b"half")
        raise KeyboardInterrupt

    trainer = make_trainer(tmp_path)
    recorder = make_recorder(trainer)
    recorder(0)
    with monkeypatch.context() as patch:
        patch.setattr(activation_recorder, function, kill)
        with pytest.raises(KeyboardInterrupt):
            recorder(1)
    trace = ch.lens.read_training_trace(tmp_path)
    assert trace.steps == [0]
    trace.attention(0)
    resumed = make_recorder(trainer, step=1)
    files = {path.name for path in (tmp_path / "activations").iterdir()}
    assert files == {"00000000.safetensors", "index.json", "tokens.json"}
    resumed(1)
    assert ch.lens.read_training_trace(tmp_path).steps == [0, 1]


def test_full_disk_stops_recording_and_not_training(tmp_path, monkeypatch, capsys):
    def no_space(*args):
        raise OSError(28, "No space left on device")

    trainer = make_trainer(tmp_path)
    recorder = make_recorder(trainer)
    recorder(0)
    monkeypatch.setattr(activation_recorder, "save_file", no_space)
    result = trainer.train(lambda progress: True, on_step=recorder)
    assert result.status == "completed"
    assert capsys.readouterr().out.count("No space left on device") == 1
    assert "not recorded" in recorder.finish(12)
    assert ch.lens.read_training_trace(tmp_path).steps == [0]


def test_nan_weights_are_not_recorded(tmp_path):
    trainer = make_trainer(tmp_path)
    recorder = make_recorder(trainer)
    recorder(0)
    set_embeddings(trainer, lambda weight: weight.fill_(torch.nan))
    recorder(1)
    assert ch.lens.read_training_trace(tmp_path).steps == [0]


# --- planes


def test_planes_are_aligned_with_the_previous_step(tmp_path):
    trainer = make_trainer(tmp_path)
    make_recorder(trainer)(0)
    set_embeddings(trainer, lambda weight: weight.neg_())  # only the signs of the axes change
    make_recorder(trainer, step=1)(1)
    trace = ch.lens.read_training_trace(tmp_path)
    first, second = (trace.embeddings(step).projection for step in (0, 1))
    torch.testing.assert_close(second, first, atol=1e-3, rtol=1e-2)
