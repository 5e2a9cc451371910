"""The folder of an experiment: claimed atomically, and resumed only by the same experiment."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_experiments import OPTIONS, compare, write_text

import clearhead as ch
from clearhead import io
from clearhead.io import file_lock
from clearhead.lab import experiment
from clearhead.lab.experiment import Experiment


@pytest.fixture
def data(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


def make_experiment(data):
    base = ch.presets["lm-small"].replace(**OPTIONS, **{"data.train": data})
    return Experiment("lm-small", seeds=(0,), base=base)


@pytest.mark.parametrize("num_written", [0, 1])
def test_killed_creation_can_be_repeated(data, tmp_path, monkeypatch, num_written):
    remaining = [None] * num_written
    write_atomic = io.write_atomic

    def write_or_kill(path, content):
        if not remaining:
            path.with_name(f".{path.name}.1").write_bytes(content[:9])
            raise KeyboardInterrupt
        remaining.pop()
        write_atomic(path, content)

    output = tmp_path / "lab"
    with monkeypatch.context() as patch:
        for module in (experiment, io):
            patch.setattr(module, "write_atomic", write_or_kill)
        with pytest.raises(KeyboardInterrupt):
            make_experiment(data).create_or_resume(output)
    assert make_experiment(data).create_or_resume(output) == make_experiment(data)


def test_data_paths_may_be_spelled_differently(data, tmp_path, monkeypatch):
    name = Path(data).name
    monkeypatch.chdir(Path(data).parent)
    make_experiment(name).create_or_resume(tmp_path)
    (tmp_path / "runs/base/0").mkdir(parents=True)
    (tmp_path / "runs/base/0/run.json").touch()
    make_experiment(f"./{name}").create_or_resume(tmp_path)
    with pytest.raises(ch.ClearheadError, match=r"data.train = "):
        make_experiment(data).create_or_resume(tmp_path)


def test_locked_run_binds_the_folder(data, tmp_path):
    original = make_experiment(data)
    original.create_or_resume(tmp_path)
    with file_lock(tmp_path / "runs/base/0.lock"):
        with pytest.raises(ch.ClearheadError, match=r"seeds = \[0\], got \[1\]"):
            replace(original, seeds=(1,)).create_or_resume(tmp_path)
        assert original.create_or_resume(tmp_path) == original
    replace(original, seeds=(1,)).create_or_resume(tmp_path)


def test_failure_before_the_first_run_leaves_no_folder(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ch.ClearheadError, match="no text"):
        compare(tmp_path / "lab", str(tmp_path / "empty.txt"), seeds=1)
    assert not (tmp_path / "lab").exists()
    (tmp_path / "lab").mkdir()  # not ours to remove
    with pytest.raises(ch.ClearheadError, match="no text"):
        compare(tmp_path / "lab", str(tmp_path / "empty.txt"), seeds=1)
    assert (tmp_path / "lab").is_dir()
