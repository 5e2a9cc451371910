"""The microscope: it changes nothing, keeps to its time, and its film is whole however the run is cut."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import run

import clearhead as ch
from clearhead.train import activation_recorder
from clearhead.train.activation_recorder import ActivationRecorder, recording_steps

DROPOUT = {
    "model.dropout.residual": 0.1,
    "model.dropout.attention": 0.1,
    "model.dropout.embedding": 0.1,
}


@pytest.fixture(autouse=True)
def _always_time(monkeypatch):
    monkeypatch.setattr(
        activation_recorder, "SHARE", 1e9
    )  # runs of a few steps have no time to spare


def watched(made):
    """A run with a microscope from where it stands to its end."""
    scope = ActivationRecorder(made.model, made.data, made.out, made.step)
    scope(made.step)
    made.train(lambda progress: True, each=scope)
    return scope


def film_of(out):
    return {path.name: path.read_bytes() for path in (out / "microscope").glob("*.safetensors")}


# ---------------------------------------------------------------- it changes nothing
@pytest.mark.parametrize("options", [DROPOUT, {"ema": 0.9}, {"accumulate": 2}], ids=str)
def test_a_run_is_the_same_to_the_bit_with_and_without(options, tmp_path):
    bare = run(tmp_path / "bare", **options)
    seen = run(tmp_path / "seen", **options)
    bare.train(lambda progress: True)
    assert watched(seen).recorded_steps == [0, 1, 2, 3, 5, 7, 10, 12]
    for name in ("model.safetensors", "state.safetensors"):
        one, other = (
            (tmp_path / x / "steps" / "00000012" / name).read_bytes() for x in ("bare", "seen")
        )
        assert one == other


@pytest.mark.parametrize("training", [True, False])
def test_a_look_leaves_no_trace(training, tmp_path):
    made = run(tmp_path, **DROPOUT)
    scope = ActivationRecorder(made.model, made.data, made.output)
    chance = torch.random.get_rng_state()
    made.net.train(training)
    scope.record(0)
    assert torch.equal(chance, torch.random.get_rng_state())
    assert all(module.training is training for module in made.net.modules())
    assert all(p.grad is None and p.requires_grad for p in made.net.parameters())


COMPILED = """
import sys, torch
from pathlib import Path
from runs import run
from clearhead.train.microscope import Microscope

made, graphs = run(Path(sys.argv[1])), []
made.net.compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward, dynamic=False)
batch = made.data.batch(0)
def loss():
    made.net.zero_grad()
    total, _ = made.net.train().loss(made.net(batch.tokens), batch.targets)
    total.backward()
    return total
before, count = loss(), len(graphs)
Microscope(made.model, made.data, made.out).look(0)
print(count > 0, bool(loss() == before), len(graphs) == count)
"""


def test_what_was_compiled_stays_as_it_was(tmp_path):
    # In a process of its own: the checks of shapes that these tests switch on are no part of the model.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    call = [sys.executable, "-c", COMPILED, str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == ["True"] * 3, done.stderr[-2000:]


def test_it_sees_the_weights_that_are_trained_and_not_their_average(tmp_path):
    made = run(tmp_path, ema=0.99)
    watched(made)
    ids = json.loads((tmp_path / "microscope" / "index.json").read_text())["embedded"]["tokens"]
    torch.testing.assert_close(
        ch.lens.read_training_trace(tmp_path).embeddings(12).vectors,
        made.net.embed.tokens.weight[ids].detach(),
        atol=1e-3,
        rtol=1e-3,
    )


# ---------------------------------------------------------------- when
def test_steps_are_spaced_by_the_logarithm_about_six_a_decade():
    assert sorted(recording_steps(1000)) == [
        0,
        1,
        2,
        3,
        5,
        7,
        10,
        15,
        22,
        32,
        46,
        68,
        100,
        147,
        215,
        316,
        464,
        681,
        1000,
    ]
    assert sorted(recording_steps(4)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("cost", "looks"), [(0.1, 19), (2, 15), (10, 3), (100, 2)])
def test_looks_keep_to_their_share_of_the_time_but_the_first_and_the_last_are_taken(
    cost, looks, tmp_path, monkeypatch
):
    now = [0.0]
    monkeypatch.setattr(activation_recorder, "SHARE", 0.03)
    monkeypatch.setattr(activation_recorder, "monotonic", lambda: now[0])
    made = run(tmp_path, steps=1000)
    scope = ActivationRecorder(made.model, made.data, made.output)
    see = scope.observer.observe
    monkeypatch.setattr(
        scope.observer, "see", lambda before: now.__setitem__(0, now[0] + cost) or see(before)
    )
    for step in range(1001):
        now[0] += step > 0
        scope(step)
    assert len(scope.recorded_steps) == looks
    assert (scope.recorded_steps[0], scope.recorded_steps[-1]) == (0, 1000)
    assert looks == 2 or looks * cost <= 30


# ---------------------------------------------------------------- whole, however the run is cut
def test_a_film_goes_on_from_a_checkpoint_as_if_nothing_had_been(tmp_path):
    watched(run(tmp_path / "whole", keep=9))
    watched(run(tmp_path / "cut", keep=9))
    for place in (tmp_path / "cut" / "steps").iterdir():
        if int(place.name) > 5:
            shutil.rmtree(place)
    made = run(tmp_path / "cut", keep=9)
    assert made.resume()
    assert made.step == 5
    ActivationRecorder(made.model, made.data, made.output, made.step)
    assert ch.lens.read_training_trace(tmp_path / "cut").steps == [0, 1, 2, 3, 5]
    assert len(film_of(tmp_path / "cut")) == 5
    watched(made)
    assert film_of(tmp_path / "cut") == film_of(tmp_path / "whole")
    assert ch.lens.read_training_trace(tmp_path / "cut").steps == [0, 1, 2, 3, 5, 7, 10, 12]


def test_a_microscope_may_come_to_a_run_that_has_begun(tmp_path):
    made = run(tmp_path)
    made.train(lambda progress: progress.step < 6)
    again = run(tmp_path)
    again.resume()
    assert watched(again).recorded_steps == [6, 7, 10, 12]


def test_a_fresh_run_in_the_same_folder_starts_a_new_film(tmp_path):
    watched(run(tmp_path, steps=5, save=100))
    shutil.rmtree(tmp_path / "steps")
    made = run(tmp_path, steps=5, seed=7)
    ActivationRecorder(made.model, made.data, made.output)
    assert film_of(tmp_path) == {}


@pytest.mark.parametrize("at", ["save_file", "place", "write_json"])
def test_a_look_that_is_killed_is_not_there(at, tmp_path, monkeypatch):
    made = run(tmp_path)
    scope = ActivationRecorder(made.model, made.data, made.output)
    scope(0)

    def killed(*args):
        if at == "save_file":
            args[1].write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(activation_recorder, at, killed)
        with pytest.raises(KeyboardInterrupt):
            scope(1)
    film = ch.lens.read_training_trace(tmp_path)
    assert film.steps == [0]
    film.attention(0)
    again = ActivationRecorder(made.model, made.data, made.output, step=1)
    assert sorted(path.name for path in (tmp_path / "microscope").iterdir()) == [
        "00000000.safetensors",
        "index.json",
        "tokens.json",
    ]
    again(1)
    assert ch.lens.read_training_trace(tmp_path).steps == [0, 1]


def test_a_full_disk_ends_the_film_and_not_the_run(tmp_path, monkeypatch, capsys):
    def full(*args):
        raise OSError(28, "No space left on device")

    made = run(tmp_path)
    scope = ActivationRecorder(made.model, made.data, made.output)
    scope(0)
    monkeypatch.setattr(activation_recorder, "save_file", full)
    assert made.train(lambda progress: True, on_step=scope).status == "done"
    assert capsys.readouterr().out.count("No space left on device") == 1
    assert "looks no more" in scope.finish(12)
    assert ch.lens.read_training_trace(tmp_path).steps == [0]


def test_weights_that_are_no_numbers_show_nothing(tmp_path):
    made = run(tmp_path)
    scope = ActivationRecorder(made.model, made.data, made.output)
    scope(0)
    with torch.no_grad():
        made.net.embed.tokens.weight.fill_(torch.nan)
    scope(1)
    assert ch.lens.read_training_trace(tmp_path).steps == [0]


def test_a_run_that_ends_early_is_seen_at_its_end(tmp_path):
    made = run(tmp_path, steps=100)
    scope = ActivationRecorder(made.model, made.data, made.output)
    scope(0)
    result = made.train(lambda progress: progress.step < 8, on_step=scope)
    assert "film.png" in scope.finish(result.step)
    film = ch.lens.read_training_trace(tmp_path)
    assert film.steps == [0, 1, 2, 3, 5, 7, 8]
    assert film.losses[0] is None
    assert all(loss > 0 for loss in film.losses[1:])
    assert (tmp_path / "microscope" / "film.png").read_bytes().startswith(b"\x89PNG")
