"""Whose folder it is: an experiment settles in it, and goes on there as what it was."""

from dataclasses import replace
from pathlib import Path

import experiments
import pytest
from experiments import SMALL

import clearhead as ch
from clearhead import io
from clearhead.io import file_lock
from clearhead.lab import experiment
from clearhead.lab.experiment import Experiment


@pytest.fixture
def data(tmp_path_factory):
    return experiments.text(tmp_path_factory.mktemp("data"))


def planned(data):
    return Experiment(
        "lm-small", seeds=(0,), base=ch.presets["lm-small"].replace(**SMALL, **{"data.train": data})
    )


@pytest.mark.parametrize("written", [0, 1])
def test_a_process_that_is_killed_while_it_settles_can_be_started_again(
    data, tmp_path, monkeypatch, written
):
    left = [None] * written
    whole = experiment.write_atomic

    def overwrite(path, content):
        if not left:
            path.with_name(f".{path.name}.1").write_bytes(content[:9])
            raise KeyboardInterrupt
        left.pop()
        whole(path, content)

    with monkeypatch.context() as patch:
        for module in (experiment, io):
            patch.setattr(module, "overwrite", overwrite)
        with pytest.raises(KeyboardInterrupt):
            planned(data).create_or_resume(tmp_path / "lab")
    assert planned(data).create_or_resume(tmp_path / "lab") == planned(data)


def test_the_same_data_may_be_spelled_otherwise(data, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(data).parent)
    planned(Path(data).name).create_or_resume(tmp_path)
    (tmp_path / "runs/base/0").mkdir(parents=True)
    (tmp_path / "runs/base/0/run.json").touch()
    planned(f"./{Path(data).name}").create_or_resume(tmp_path)
    with pytest.raises(ch.ClearheadError, match=r"compares with data.train = "):
        planned(data).create_or_resume(tmp_path)


def test_a_folder_in_which_a_run_is_about_to_begin_is_no_other_experiments(data, tmp_path):
    planned(data).create_or_resume(tmp_path)
    with file_lock(tmp_path / "runs/base/0.lock"):
        with pytest.raises(ch.ClearheadError, match=r"compares with seeds = \[0\], not \[1\]"):
            replace(planned(data), seeds=(1,)).create_or_resume(tmp_path)
        assert planned(data).create_or_resume(tmp_path) == planned(data)
    replace(planned(data), seeds=(1,)).create_or_resume(tmp_path)
