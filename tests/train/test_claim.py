"""The folder of a run: of one process at a time, without what a killed one left, and for the data it began with."""

import json
import os

import numpy as np
import pytest
import samples
from samples import NARROW, QUICK

import clearhead as ch
from clearhead import io
from clearhead.config.training import DataConfig
from clearhead.train.checkpoint import fingerprint_data, lock_output
from clearhead.train.distributed import SINGLE_PROCESS

SMALL = {
    **QUICK,
    **NARROW,
    "model.context_length": 16,
    "data.tokenizer": "bytes",
    "train.max_steps": 4,
}


def learned(data, out, preset="lm-small", **changes):
    return ch.train(
        preset, out, quiet=True, device="cpu", **{**SMALL, "data.train": data, **changes}
    )


def test_a_second_run_in_the_same_folder_is_refused_and_the_next_is_not(tmp_path):
    data = samples.texts(tmp_path)
    out = tmp_path / "run"
    with (
        lock_output(out, SINGLE_PROCESS),
        pytest.raises(ch.ClearheadError, match=r"a run is under way in .*run; wait for its end"),
    ):
        learned(data, out)
    assert not out.exists()
    learned(data, out)
    assert not (out / ".lock").exists()


def test_a_run_that_is_refused_leaves_no_folder(tmp_path):
    with pytest.raises(ch.ClearheadError, match="there is nothing to learn from"):
        learned([], tmp_path / "run")
    assert not (tmp_path / "run").exists()


FEW = r"a row needs 16 tokens and one more; there are \d+ to train on"


def test_a_run_that_is_refused_when_its_tokens_are_made_leaves_none_of_them(tmp_path):
    (tmp_path / "short.txt").write_text("few words")
    with pytest.raises(ch.ClearheadError, match=FEW):
        learned([str(tmp_path / "short.txt")], tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["short.txt"]


def test_a_run_that_is_refused_removes_nothing_that_was_there(tmp_path):
    (tmp_path / "short.txt").write_text("few words")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    with pytest.raises(ch.ClearheadError, match=FEW):
        learned([str(tmp_path / "short.txt")], tmp_path / "run")
    assert (tmp_path / "run" / "mine").exists()


def test_a_run_that_fails_after_its_first_step_stays(tmp_path):
    with pytest.raises(ch.ClearheadError, match="a smaller rate may help"):
        learned(samples.texts(tmp_path), tmp_path / "run", **{"train.optimizer.lr": 1e30})
    assert (tmp_path / "run" / "run.json").exists()


def test_the_same_folder_may_be_spelled_otherwise(tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    samples.texts(tmp_path / "texts")
    monkeypatch.chdir(tmp_path)
    for steps, name in enumerate(("texts/", "texts", "./texts//"), 4):
        learned([name], "run", **{"train.max_steps": steps})
    (tmp_path / "texts" / "text.txt").write_text("other words")
    with pytest.raises(ch.ClearheadError, match="texts has changed since the run in run began"):
        learned(["texts/"], "run")
    (tmp_path / "other").mkdir()
    with pytest.raises(
        ch.ClearheadError, match=r"holds a run with data.train = \['./texts//'\], not \['other'\]"
    ):
        learned(["other"], "run")


def test_what_a_killed_run_left_half_written_is_removed_and_nothing_else(tmp_path):
    data = samples.texts(tmp_path)
    out = tmp_path / "run"
    learned(data, out)
    kept = sorted(str(path) for path in out.rglob("*"))
    for name in (
        "steps/.00000003.k3_x9abc",
        "steps/.00000002.old",
        "tokens/.train.abcdefgh",
        ".average.abcdefgh",
    ):
        (out / name / "new").mkdir(parents=True)
        (out / name / "new" / "model.safetensors").touch()
    for name in (
        ".log.jsonl.123",
        ".run.json.123",
        ".data.json.9",
        ".tokenizer.json.77",
        "tokens/.train.lock",
    ):
        (out / name).touch()
    (out / ".best.123").symlink_to("steps/00000004")
    (out / ".notes.txt").touch()
    learned(data, out)
    assert sorted(str(path) for path in out.rglob("*")) == sorted([*kept, str(out / ".notes.txt")])


def labelled_folder(folder):
    for label in ("a", "b"):
        (folder / "pictures" / label).mkdir(parents=True)
    from PIL import Image

    for number in range(40):
        picture = np.full((8, 8), 200 * (number % 2), np.uint8)
        Image.fromarray(picture).save(folder / "pictures" / "ab"[number % 2] / f"{number}.png")
    return [str(folder / "pictures")]


KINDS = {
    "texts": (samples.texts, "text.txt", "lm-small", {}),
    "rows": (samples.labelled, "rows.tsv", "finetune-classify", {}),
    "pictures": (
        labelled_folder,
        "pictures/a/0.png",
        "picture-patches",
        {"model.input.image_size": 8, "model.context_length": 5},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_have_changed_are_refused_and_a_copy_is_not(kind, tmp_path):
    make, name, preset, changes = KINDS[kind]
    data = make(tmp_path)
    out = tmp_path / "run"
    file = tmp_path / name
    learned(data, out, preset, **changes)
    os.utime(file, (1, 1))
    learned(data, out, preset, **changes, **{"train.max_steps": 6})
    before = sorted(str(path) for path in out.rglob("*"))
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        ch.ClearheadError, match=r"has changed since the run in .*run began; choose another --out"
    ):
        learned(data, out, preset, **changes, **{"train.max_steps": 8})
    assert sorted(str(path) for path in out.rglob("*")) == before


def test_the_data_of_a_run_that_never_began_bind_nobody(tmp_path):
    data = samples.texts(tmp_path)
    out = tmp_path / "run"
    out.mkdir()
    (out / "data.json").write_text(json.dumps({data[0]: {"listing": "", "content": ""}}))
    assert learned(data, out).config.train.max_steps == 4


def test_what_a_run_is_lies_on_the_disk_before_its_first_step(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(io, "sync", lambda path: synced.append(path.name.rpartition(".")[0]))
    learned(samples.texts(tmp_path), tmp_path / "run")
    assert synced.index(".run.json") < synced.index(".log.jsonl")


def test_json_takes_the_place_of_what_was_there_whole_or_not_at_all(tmp_path, monkeypatch):
    io.write_json(tmp_path / "a.json", [1])
    monkeypatch.setattr(io, "sync", killed)
    with pytest.raises(KeyboardInterrupt):
        io.write_json(tmp_path / "a.json", [2])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("a.json", "[\n  1\n]\n")
    ]


def killed(path):
    raise KeyboardInterrupt


def held(data, out):
    """What is known of data, kept as a run keeps it."""
    out.mkdir(exist_ok=True)
    found = fingerprint_data(DataConfig(tuple(map(str, data))), out, resuming=True)
    (out / "data.json").write_text(json.dumps(found))
    return found


def test_data_that_are_away_for_now_are_known_on(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("words")
    before = held([file], tmp_path / "run")
    file.rename(tmp_path / "away")
    assert held([file], tmp_path / "run") == before
    (tmp_path / "away").rename(file)
    assert held([file], tmp_path / "run") == before


def test_hidden_files_are_no_data_and_labels_beside_pictures_are(tmp_path):
    for name in (
        "texts/a.txt",
        "texts/.b.txt",
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("words")
    data = [tmp_path / "texts", tmp_path / "train-images-idx3-ubyte"]
    before = held(data, tmp_path / "run")
    (tmp_path / "texts/.b.txt").write_text("others")
    assert held(data, tmp_path / "run") == before
    (tmp_path / "train-labels-idx1-ubyte").write_text("other")
    with pytest.raises(ch.ClearheadError, match="train-images-idx3-ubyte has changed since"):
        held(data, tmp_path / "run")
