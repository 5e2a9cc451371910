"""Image and audio models open with their example file."""

import json
import wave
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

import clearhead as ch
from clearhead.cli.main import app
from clearhead.serve.registry import ModelRegistry
from clearhead.weights import bundled
from page_models import byte_model

pytestmark = pytest.mark.slow

CARD = {
    "title": "A",
    "description": "Reads.",
    "datasets": [],
    "training_commands": [],
    "limitations": [],
}
FILES = {"digits": "seven.png", "spoken-digits": "seven.wav"}
MADE = {"digits": "Draw instead", "spoken-digits": "Use a tone"}


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "BUNDLED_DIR", tmp_path)
    for name, preset in (("digits", "tiny-images"), ("spoken-digits", "tiny-audio")):
        ch.save(ch.new(preset, seed=2), tmp_path / name)
        card = CARD | {"usage": [f"clearhead classify {name} {{model_dir}}/{FILES[name]}"]}
        (tmp_path / name / "card.json").write_text(json.dumps(card))
    Image.linear_gradient("L").save(tmp_path / "digits" / "seven.png")
    with wave.open(str(tmp_path / "spoken-digits" / "seven.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes((9000 * np.sin(np.arange(8000) ** 1.5 / 900)).astype("<i2").tobytes())
    return tmp_path


def prediction(page):
    labels, values = page.evaluate(
        """(({ labels, values }) => [labels, [...values]])(
          document.querySelector('main ch-bar-chart'))"""
    )
    return dict(zip(labels, values, strict=True))


def expected(folder, name):
    model = ch.load(folder / name, device="cpu")
    file = str(folder / name / FILES[name])
    return (
        model.classify(images=file) if name == "digits" else model.classify(audio=file)
    ).probabilities


@pytest.mark.parametrize("name", FILES)
def test_example_can_be_replaced_by_own_input(page_on, models, name):
    with page_on(ModelRegistry({name: name for name in FILES}, 2**30, device="cpu")) as visit:
        page = visit.go(f"#view=patches&model={name}").page
        first = prediction(page)
        assert first == pytest.approx(expected(models, name), abs=1e-5)
        assert page.get_by_text(FILES[name]).count()
        page.get_by_role("button", name=MADE[name]).click()
        visit.ready()
        made = prediction(page)
        assert made != first
        assert visit.state()["tone" if name != "digits" else "drawing"] == (
            440 if name != "digits" else ""
        )
        other = next(other for other in FILES if other != name)
        visit.set(
            model=other
        )  # which is not given what this one read, and has an example of its own
        visit.wait_until(f"document.querySelector('main').innerText.includes('{FILES[other]}')")
        assert prediction(visit.ready().page) == pytest.approx(expected(models, other), abs=1e-5)
        visit.set(model=name)
        visit.wait_until(f"!document.querySelector('main').innerText.includes('{FILES[other]}')")
        assert prediction(visit.ready().page) == made
        page.get_by_role("button", name="Use the example").click()
        visit.ready()
        assert prediction(page) == first
        assert not visit.complaints


@pytest.mark.parametrize("name", FILES)
def test_saved_page_has_the_example(browser, models, name):
    with ThreadPoolExecutor() as elsewhere:  # playwright has a loop of its own in this thread
        words = ["explore", name, "--output", str(models / "page.html")]
        elsewhere.submit(app, words, standalone_mode=False).result()
    page = browser.new_page()
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((models / "page.html").as_uri() + "#view=patches")
    page.wait_for_selector("body[data-ready]")
    assert prediction(page) == pytest.approx(expected(models, name), abs=1e-5)
    assert page.locator(".head-patches ch-patch-grid").count() == 4
    assert page.locator("main .problem").all_inner_texts() == []
    assert page.get_by_role("button", name=MADE[name]).count() == 0  # nobody would answer
    page.close()
    assert complaints == []


def test_saved_page_has_the_opened_file(page_on, browser, models):
    Image.radial_gradient("L").save(models / "own.png")
    with page_on(ModelRegistry({"digits": "digits"}, 2**30, device="cpu")) as visit:
        page = visit.go("#view=patches&model=digits").page
        example = prediction(page)
        page.locator("main input[type=file]").set_input_files(models / "own.png")
        visit.wait_until("document.querySelector('main').innerText.includes('own.png')")
        own = prediction(visit.ready().page)
        with page.expect_download() as download:
            page.get_by_role("button", name="Save page").click()
        download.value.save_as(models / "page.html")
    saved = browser.new_page()
    saved.goto((models / "page.html").as_uri() + "#view=patches")
    saved.wait_for_selector("body[data-ready]")
    assert prediction(saved) == own != example
    assert saved.get_by_text("own.png").count()
    saved.close()


def test_ablated_heads_keep_their_pattern(page_on):
    edits = json.dumps([{"name": "blocks.0.attn.z", "op": "ablate", "head": 1}])
    with page_on(byte_model()) as visit:
        page = visit.go(f"#view=attention&text=hello&layer=0&head=1&edits={edits}").page
        note = page.locator("ch-figure", has_text="Difference")
        assert "there is no difference. An edit changes the output" in note.inner_text()
        assert "keeps its own pattern" in note.inner_text()
        visit.set(layer=1)
        assert "full color is" in note.inner_text()
        assert "keeps its own pattern" not in note.inner_text()
        assert not visit.complaints
