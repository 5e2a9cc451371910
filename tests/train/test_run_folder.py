"""The folder of a run: locked, cleaned, and bound to its data and configuration."""

import json
import os

import numpy as np
import pytest
import sample_data
from sample_data import SHORT_RUN, TINY_MODEL
from typer.testing import CliRunner

import clearhead as ch
from clearhead import io
from clearhead.cli.main import app
from clearhead.config.training import DataConfig
from clearhead.train.checkpoint import fingerprint_data, lock_output, read_log
from clearhead.train.strategy import SINGLE_PROCESS

OPTIONS = {
    **SHORT_RUN,
    **TINY_MODEL,
    "model.context_length": 16,
    "data.tokenizer": "bytes",
    "train.max_steps": 4,
}


def train(data, output, recipe="lm-small", **changes):
    return sample_data.train(recipe, output, {**OPTIONS, "data.train": data, **changes})


def files_in(folder):
    return sorted(str(path) for path in folder.rglob("*"))


# --- lock and cleanup


def test_second_run_in_the_same_folder_is_refused(tmp_path):
    data = sample_data.write_text(tmp_path)
    output = tmp_path / "run"
    with lock_output(output, SINGLE_PROCESS), pytest.raises(ch.ClearheadError, match="in progress"):
        train(data, output)
    train(data, output)
    assert not (output / ".lock").exists()


def test_run_without_data_leaves_no_folder(tmp_path):
    with pytest.raises(ch.ClearheadError, match="no training data"):
        train([], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_run_that_fails_before_its_first_step_leaves_no_files(tmp_path):
    (tmp_path / "short.txt").write_text("few words")
    with pytest.raises(ch.ClearheadError):
        train([str(tmp_path / "short.txt")], tmp_path / "run")
    assert files_in(tmp_path) == [str(tmp_path / "short.txt")]


def test_run_that_fails_keeps_files_of_the_user(tmp_path):
    (tmp_path / "short.txt").write_text("few words")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    with pytest.raises(ch.ClearheadError):
        train([str(tmp_path / "short.txt")], tmp_path / "run")
    assert (tmp_path / "run" / "mine").exists()


def test_run_that_diverges_keeps_its_folder(tmp_path):
    data = sample_data.write_text(tmp_path)
    with pytest.raises(ch.ClearheadError, match="diverged"):
        train(data, tmp_path / "run", **{"train.optimizer.lr": 1e30})
    assert (tmp_path / "run" / "run.json").exists()


@pytest.mark.slow
def test_temporary_files_of_a_killed_run_are_removed_and_nothing_else(tmp_path):
    data = sample_data.write_text(tmp_path)
    output = tmp_path / "run"
    train(data, output)
    files_before = files_in(output)
    for name in (
        "checkpoints/.00000003.k3_x9abc",
        "checkpoints/.00000002.old",
        "tokens/.train.abcdefgh",
        ".average.abcdefgh",
    ):
        (output / name / "new").mkdir(parents=True)
        (output / name / "new" / "model.safetensors").touch()
    for name in (
        ".log.jsonl.123",
        ".run.json.123_456",
        ".data_fingerprints.json.9",
        ".tokenizer.json.77",
        "tokens/.train.lock",
    ):
        (output / name).touch()
    (output / ".best.123").symlink_to("checkpoints/00000004")
    (output / ".notes.txt").touch()
    train(data, output)
    assert files_in(output) == sorted([*files_before, str(output / ".notes.txt")])


def test_run_file_is_synced_before_the_log(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(io, "fsync", lambda path: synced.append(path.name.rpartition(".")[0]))
    train(sample_data.write_text(tmp_path), tmp_path / "run")
    assert synced.index(".run.json") < synced.index(".log.jsonl")


def test_json_is_replaced_atomically(tmp_path, monkeypatch):
    def kill(path):
        raise KeyboardInterrupt

    io.write_json(tmp_path / "a.json", [1])
    monkeypatch.setattr(io, "fsync", kill)
    with pytest.raises(KeyboardInterrupt):
        io.write_json(tmp_path / "a.json", [2])
    assert [(path.name, json.loads(path.read_text())) for path in tmp_path.iterdir()] == [
        ("a.json", [1])
    ]


@pytest.mark.slow
def test_lost_report_of_a_completed_run_is_written_again(tmp_path):
    data = sample_data.write_text(tmp_path)
    output = tmp_path / "run"
    train(data, output)
    report = output / "report.json"
    keys = json.loads(report.read_text()).keys()
    report.write_text("{}")
    train(data, output)
    assert json.loads(report.read_text()).keys() == keys


# --- configuration


@pytest.mark.slow
def test_paths_may_be_spelled_differently(tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    sample_data.write_text(tmp_path / "texts")
    monkeypatch.chdir(tmp_path)
    for steps, name in enumerate(("texts/", "texts", "./texts//"), 4):
        train([name], "run", **{"train.max_steps": steps})
    (tmp_path / "texts" / "text.txt").write_text("other words")
    with pytest.raises(ch.ClearheadError, match="texts has changed"):
        train(["texts/"], "run")
    (tmp_path / "other").mkdir()
    with pytest.raises(ch.ClearheadError, match=r"data.train = \['./texts//'\] → \['other'\]"):
        train(["other"], "run")


def test_run_of_an_earlier_version_without_an_option_is_resumed(tmp_path):
    data = sample_data.write_text(tmp_path)
    train(data, tmp_path / "run")
    run_file = tmp_path / "run" / "run.json"
    config = json.loads(run_file.read_text())
    del config["model"]["norm_position"]
    del config["train"]["label_smoothing"]
    run_file.write_text(json.dumps(config))
    model = train(data, tmp_path / "run", **{"train.max_steps": 6})
    assert model.config.train.max_steps == 6


@pytest.mark.parametrize("option", ["model.norm_position", "train.label_smoothing"])
def test_changed_option_is_refused(option, tmp_path):
    data = sample_data.write_text(tmp_path)
    train(data, tmp_path / "run")
    value = {"model.norm_position": "post", "train.label_smoothing": 0.1}[option]
    with pytest.raises(ch.ClearheadError, match=f"{option} = "):
        train(data, tmp_path / "run", **{option: value})


def test_all_changed_options_are_named_with_the_way_out(tmp_path):
    data = sample_data.write_text(tmp_path)
    train(data, tmp_path / "run")
    changes = {"train.optimizer.lr": 0.5, "train.seed": 7, "train.max_steps": 6}
    with pytest.raises(ch.ClearheadError, match=r"train\.init_from") as raised:
        train(data, tmp_path / "run", **changes)
    assert "train.optimizer.lr = 0.02 → 0.5; train.seed = 0 → 7." in str(raised.value)
    options = {**SHORT_RUN, **changes, "data.train": data, "train.init_from": f"{tmp_path}/run"}
    model = sample_data.train("lm-small", tmp_path / "other", options)
    assert model.config.train.seed == 7


# --- resuming by folder


def test_folder_of_a_run_resumes_it(tmp_path, monkeypatch, capsys):
    data = sample_data.write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    train(data, "run1")
    model = ch.train("run1", train={"max_steps": 6}, device="cpu")
    assert model.config.train.max_steps == 6
    assert "in run1, resuming after step 4" in capsys.readouterr().out
    assert json.loads((tmp_path / "run1/report.json").read_text())["recipe"] == "lm-small"
    ch.train("run1", "run2", quiet=True, device="cpu")
    assert read_log(tmp_path / "run2/log.jsonl")[-1]["step"] == 6
    assert not (tmp_path / "run").exists()


def test_configuration_of_a_run_does_not_start_over_in_another_folder(tmp_path, monkeypatch):
    data = sample_data.write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    train(data, "run1")
    done = CliRunner().invoke(app, ["train", "run1/run.json", "--train.max_steps=6"])
    assert isinstance(done.exception, ch.ClearheadError)
    assert "to resume that run, name its folder, run1" in str(done.exception)
    assert not (tmp_path / "run").exists()
    done = CliRunner().invoke(app, ["train", "run1", "--train.max_steps=6", "--device=cpu"])
    assert done.exit_code == 0, done.exception
    assert read_log(tmp_path / "run1/log.jsonl")[-1]["step"] == 6


@pytest.mark.parametrize("is_fine_tuned", [False, True])
def test_classifier_is_resumed_by_folder(is_fine_tuned, tmp_path):
    data = sample_data.write_labeled(tmp_path)
    train(data, tmp_path / "first", "finetune-classify")
    folder = tmp_path / "first"
    if is_fine_tuned:
        folder = tmp_path / "second"
        options = {**SHORT_RUN, "data.train": data, "train.max_steps": 4}
        options["train.init_from"] = str(tmp_path / "first")
        sample_data.train("finetune-classify", folder, options)
    ch.train(folder, train={"max_steps": 6}, quiet=True, device="cpu")
    assert read_log(folder / "log.jsonl")[-1]["step"] == 6


# --- data fingerprints


def write_labeled_images(folder):
    from PIL import Image

    for number in range(40):
        image = np.full((8, 8), 200 * (number % 2), np.uint8)
        path = folder / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return [str(folder / "images")]


IMAGE_OPTIONS = {"model.input.image_size": 8, "model.context_length": 5}
DATA_KINDS = {
    "text": (sample_data.write_text, "text.txt", "lm-small", {}),
    "rows": (sample_data.write_labeled, "rows.tsv", "finetune-classify", {}),
    "images": (write_labeled_images, "images/a/0.png", "image-patches", IMAGE_OPTIONS),
}


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.slow
def test_changed_data_is_refused_and_a_copy_is_not(kind, tmp_path):
    write, name, recipe, changes = DATA_KINDS[kind]
    data = write(tmp_path)
    output = tmp_path / "run"
    file = tmp_path / name
    train(data, output, recipe, **changes)
    os.utime(file, (1, 1))
    train(data, output, recipe, **changes, **{"train.max_steps": 6})
    before = files_in(output)
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    with pytest.raises(ch.ClearheadError, match="has changed since the run"):
        train(data, output, recipe, **changes, **{"train.max_steps": 8})
    assert files_in(output) == before


def test_fingerprints_of_a_run_that_never_began_are_ignored(tmp_path):
    data = sample_data.write_text(tmp_path)
    output = tmp_path / "run"
    output.mkdir()
    fingerprints = {data[0]: {"listing": "", "content": ""}}
    (output / "data_fingerprints.json").write_text(json.dumps(fingerprints))
    assert train(data, output).config.train.max_steps == 4


def fingerprint(data, output):
    """Fingerprints, saved as a run saves them."""
    output.mkdir(exist_ok=True)
    fingerprints = fingerprint_data(DataConfig(tuple(map(str, data))), output, resuming=True)
    (output / "data_fingerprints.json").write_text(json.dumps(fingerprints))
    return fingerprints


def test_missing_files_keep_their_fingerprint(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("words")
    before = fingerprint([file], tmp_path / "run")
    file.rename(tmp_path / "moved")
    assert fingerprint([file], tmp_path / "run") == before
    (tmp_path / "moved").rename(file)
    assert fingerprint([file], tmp_path / "run") == before


def test_hidden_files_are_ignored_and_labels_beside_images_are_not(tmp_path):
    names = ("texts/a.txt", "texts/.b.txt", "train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("words")
    data = [tmp_path / "texts", tmp_path / "train-images-idx3-ubyte"]
    before = fingerprint(data, tmp_path / "run")
    (tmp_path / "texts/.b.txt").write_text("others")
    assert fingerprint(data, tmp_path / "run") == before
    (tmp_path / "train-labels-idx1-ubyte").write_text("other")
    with pytest.raises(ch.ClearheadError, match="train-images-idx3-ubyte has changed"):
        fingerprint(data, tmp_path / "run")
