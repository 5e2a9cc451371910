"""Export of figures as PNG, SVG, CSV and .npy, and of the page as one file."""

import csv
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

import clearhead as ch
from clearhead.cli.main import app
from clearhead.serve.explorer.saved_page import to_script_json
from page_models import byte_model

pytestmark = pytest.mark.slow

TEXT = "the cat, the cat"


def saved(visit, kind):
    """The bytes of a file that the first head's figure gives."""
    figure = visit.page.locator("ch-figure", has=visit.page.locator("ch-heatmap")).first
    figure.locator("summary").click()
    with visit.page.expect_download() as download:
        figure.get_by_role("button", name=kind, exact=True).click()
    return download.value.path().read_bytes()


def test_exported_files_equal_the_figure(page_on):
    model = byte_model()
    pattern = model.watch(TEXT, "blocks.1.attn.pattern")["blocks.1.attn.pattern"][0, 2].numpy()
    with page_on(model) as visit:
        visit.go(f"#text={TEXT}&view=attention&layer=1&head=2")
        numbers = np.load(io.BytesIO(saved(visit, ".npy")))
        assert numbers.dtype == np.float32
        assert np.allclose(numbers, pattern, atol=1e-6)
        rows = list(csv.DictReader(io.StringIO(saved(visit, "CSV").decode())))
        assert len(rows) == len(TEXT) ** 2
        assert rows[1] == {"query": "t", "key": "h", "weight": "masked"}
        assert float(rows[16]["weight"]) == pytest.approx(pattern[1, 0], abs=1e-6)
        drawing = saved(visit, "SVG").decode()
        assert drawing.count("<text") == 2 * len(TEXT)
        picture = Image.open(io.BytesIO(saved(visit, "PNG, 2×"))).convert("RGB")
        layout = visit.page.evaluate(
            "(({ grid, ...layout }) => layout)(document.querySelector('ch-heatmap').layout)"
        )
        assert picture.width == 2 * layout["width"]
        for r, c in ((1, 0), (5, 3), (9, 9)):
            x, y = (
                2 * (layout[a] + (n + 0.5) * layout[b])
                for n, a, b in ((c, "left", "cellWidth"), (r, "top", "cellHeight"))
            )
            share = pattern[r, c]
            wanted = [255 + (full - 255) * share for full in (0x2B, 0x83, 0xD8)]
            assert np.allclose(picture.getpixel((int(x), int(y))), wanted, atol=3)


def test_saved_page_works_without_a_server(page_on, browser, tmp_path):
    model = byte_model()
    with page_on(model) as visit:
        visit.go(f"#text={TEXT}&view=attention&layer=1&head=2&cell=blocks.1.attn.pattern@2,3,1")
        value = visit.page.locator(".inspector .value").inner_text()
        with visit.page.expect_download() as download:
            visit.page.get_by_role("button", name="Save page").click()
        download.value.save_as(tmp_path / "page.html")
    page = browser.new_page()
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: (
            request.url.startswith(("file:", "data:", "blob:")) or complaints.append(request.url)
        ),
    )
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.locator(".inspector .value").inner_text() == value
    assert (
        page.evaluate("() => document.querySelector('ch-heatmap').values.shape") == [len(TEXT)] * 2
    )
    assert page.get_by_text("Saved page of").count() == 1
    assert page.locator("form.prompt button").count() == 0
    assert page.locator("form.prompt textarea").get_attribute("readonly") is not None
    for view in page.evaluate(
        "() => [...document.querySelectorAll('nav.rail button')].map((_, i) => i)"
    ):
        page.locator("nav.rail button").nth(view).click()
        page.wait_for_selector("body[data-ready]")
        assert page.locator("main .problem").all_inner_texts() == [], (
            view
        )  # though only one was opened
        assert page.locator("ch-edit button:enabled").count() == 0
    page.evaluate("() => clearhead.set({text: 'something else'})")
    page.get_by_text("This needs the live model").first.wait_for()
    page.close()
    assert complaints == []


def reopened(visit, browser, path):
    """A page that was saved there, in a window of its own; and what it complains about."""
    with visit.page.expect_download() as download:
        visit.page.get_by_role("button", name="Save page").click()
    download.value.save_as(path)
    page = browser.new_page()
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    return page, complaints


def test_saved_page_has_no_earlier_texts(page_on, browser, tmp_path):
    with page_on(byte_model()) as visit:
        visit.go("#view=attention&text=hunter2 is mine")
        for view in ("tokens", "predict", "lens", "compare"):
            visit.set(view=view)
        visit.set(second_text="for your eyes", view="compare")
        visit.set(view="vectors", expression="x - y + z")
        visit.set(expression="a - b + c")
        visit.set(
            text=TEXT,
            second_text="the dog, the dog",
            view="attention",
            layer=1,
            cell="blocks.1.attn.z@1,2,3",
        )
        visit.set(cell="blocks.1.attn.z@1,2,4")
        before = visit.state()
        page, complaints = reopened(visit, browser, tmp_path / "page.html")
        assert visit.ready().state() == before
    written = (tmp_path / "page.html").read_text()
    assert TEXT in written
    for private in ("hunter2", "104,117,110,116", "for your eyes", "x - y + z"):
        assert private not in written
    assert re.search(
        r"explain\?name=blocks\.1\.attn\.z&index=1(,|%2C)2(,|%2C)3", written
    )  # of this text, and seen
    for view in page.evaluate(
        "() => [...document.querySelectorAll('nav.rail button')].map((_, i) => i)"
    ):
        page.locator("nav.rail button").nth(view).click()
        page.wait_for_selector("body[data-ready]")
        assert page.locator("main .problem").all_inner_texts() == [], view
    page.evaluate("() => clearhead.set({ view: 'vectors' })")
    assert page.locator("main").get_by_label("Expression").first.input_value() == "a - b + c"
    page.close()
    assert complaints == []


def test_saved_page_has_the_open_model_only(page_on, browser, tmp_path):
    models = {
        "first": byte_model(),
        "second": byte_model("tiny-encoder", context_length=64, inference__mask_token=[0]),
    }
    with page_on(models) as visit:
        visit.go("#view=fill&model=first").set(model="second", view="machine")
        assert visit.page.get_by_label("model", exact=True).count() == 1
        page, complaints = reopened(visit, browser, tmp_path / "page.html")
    assert page.get_by_text("Saved page of “second”").count() == 1
    assert page.get_by_label("model", exact=True).count() == 0
    page.evaluate("() => clearhead.set({ view: 'tour' })")
    page.wait_for_selector("main button.stop")
    assert "With first" not in page.locator("main").inner_text()
    page.close()
    assert complaints == []


def test_saved_page_keeps_edits_and_masks(page_on, browser, tmp_path):
    model = byte_model("tiny-encoder", context_length=64, inference__mask_token=[0])
    edits = [{"name": "blocks.0.attn.out", "op": "ablate"}]
    bars = "() => [...document.querySelector('main ch-bar-chart').values]"
    with page_on(model) as visit:
        visit.go("#view=fill&text=a [MASK] ran")
        plain = visit.page.evaluate(bars)
        visit.set(edits=edits, view="block")
        assert "Token 1:" in visit.page.locator("main").inner_text()
        page, complaints = reopened(visit, browser, tmp_path / "page.html")
    assert "Token 1:" in page.locator("main").inner_text()
    assert page.locator("main .problem").all_inner_texts() == []
    page.evaluate("() => clearhead.set({ view: 'fill' })")
    page.wait_for_selector("main ch-bar-chart")
    gap = model.logits([97, 0, *b" ran"], edits={"blocks.0.attn.out": ch.ablate()})[1].softmax(-1)
    assert page.evaluate(bars) == pytest.approx(gap.topk(10).values.tolist(), abs=1e-6) != plain
    page.evaluate("() => clearhead.set({ mask_positions: [0] })")
    page.get_by_text("This needs the live model").first.wait_for()
    page.close()
    assert complaints == []


LETTERS = ch.Tokenizer.characters(" abcdefghijklmnopqrstuvwyz")  # no x, as in carbon dioxide


@pytest.mark.parametrize(
    "model",
    [
        byte_model(),
        byte_model("tiny-encoder", context_length=64, inference__mask_token=[0]),
        byte_model("tiny-encoder-decoder"),
        ch.new("tiny-decoder", tokenizer=LETTERS),
    ],
    ids=["decoder", "encoder", "encoder-decoder", "few letters"],
)
def test_pages_saved_from_the_shell_work(browser, tmp_path, model):
    ch.save(model, tmp_path / "model")
    words = ["explore", str(tmp_path / "model"), "--output", str(tmp_path / "page.html")]
    with ThreadPoolExecutor() as elsewhere:  # playwright has a loop of its own in this thread
        elsewhere.submit(app, words, standalone_mode=False).result()
    page = browser.new_page()
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("body[data-ready]")
    for view in ("machine", "tokens", "position", "block", "vectors", "lens", "fill", "attention"):
        place = {"layer": 1, "head": 1} if view == "attention" else {}
        page.evaluate("patch => clearhead.set(patch)", {"view": view, **place})
        page.wait_for_selector("body[data-ready]")
        assert page.locator("main .problem").all_inner_texts() == [], view
    assert page.evaluate("() => !!document.querySelector('ch-heatmap').values")
    page.close()
    assert complaints == []


def test_text_cannot_close_the_script_element():
    written = to_script_json({"text": "</script><script>alert(1)</script>"})
    assert "<" not in written
    assert json.loads(written)["text"].startswith("</script>")
    assert re.search(r"\\u003c/script", written)
