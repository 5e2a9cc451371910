"""All views: real numbers, offline, keyboard, edits, layout, size of the page."""

import re
from pathlib import Path

import pytest
import torch

import clearhead as ch
from clearhead.serve.explorer.assets import VENDOR_FOLDER, PageAssets
from page_models import byte_model, percent

pytestmark = pytest.mark.slow

PAGE = Path(ch.__file__).parent / "serve" / "page"
OWN = [path for path in PAGE.rglob("*.js") if "vendor" not in path.parts]


TEXT = "the cat, the cat"


def views(visit):
    return visit.page.evaluate("() => [...document.querySelectorAll('nav.rail button')].length")


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder"])
def test_all_views_work_offline(page_on, name):
    with page_on(byte_model(name)) as visit:
        visit.context.route(
            re.compile(r"^(?!http://127\.0\.0\.1|data:|blob:)"), lambda route: route.abort()
        )
        visit.go()
        for number in range(views(visit)):
            visit.page.locator("nav.rail button").nth(number).click()
            visit.ready()
            assert visit.page.locator("main h1").inner_text()
            assert not visit.page.get_by_text("failed to render").count()
        assert visit.outside == []
        assert visit.complaints == []


def test_inspector_values_equal_watch(page_on):
    model = byte_model()
    cache = model.watch(TEXT)
    dice = torch.Generator().manual_seed(0)
    names = [
        name
        for name in cache
        if name != "blocks.0.attn.masked_scores" and name != "blocks.1.attn.masked_scores"
    ]
    with page_on(model) as visit:
        visit.go(f"#text={TEXT}&view=attention")
        for _ in range(25):
            name = names[int(torch.randint(len(names), (), generator=dice))]
            index = [int(torch.randint(size, (), generator=dice)) for size in cache[name].shape[1:]]
            visit.set(cell=f"{name}@{','.join(map(str, index))}")
            shown = float(visit.page.locator(".inspector .value").get_attribute("data-value"))
            assert shown == pytest.approx(float(cache[name][(0, *index)]), abs=1e-6), name


def test_drawn_patterns_equal_watch(page_on):
    """Rows sum to 1, masked cells are hatched, and a later token changes no earlier row."""
    model = byte_model()
    pattern = model.watch(TEXT, "blocks.1.attn.pattern")["blocks.1.attn.pattern"][0, 2]
    with page_on(model) as visit:
        visit.go(f"#text={TEXT}&view=attention&layer=1&head=2")
        drawn = visit.page.evaluate(
            "() => Array.from(document.querySelector('ch-heatmap').values.data)"
        )
        found = torch.tensor(drawn).view_as(pattern)
        assert torch.allclose(found, pattern, atol=1e-6)
        assert torch.allclose(found.sum(dim=1), torch.ones(()), atol=1e-5)
        hatched = visit.page.evaluate(
            """() => [[0, 1], [1, 0], [3, 3]]
            .map(([r, c]) => !!document.querySelector('ch-heatmap').isMasked?.(r, c))"""
        )
        assert hatched == [True, False, False]
        visit.set(text=TEXT[:-1] + "r")
        changed = torch.tensor(
            visit.page.evaluate(
                "() => Array.from(document.querySelector('ch-heatmap').values.data)"
            )
        ).view_as(pattern)
        assert torch.allclose(changed[:-1], found[:-1], atol=1e-6)
        assert not torch.allclose(changed[-1], found[-1], atol=1e-6)


def test_encoders_have_no_mask(page_on):
    with page_on(byte_model("tiny-encoder")) as visit:
        visit.go("#view=attention")
        assert visit.page.evaluate("() => document.querySelector('ch-heatmap').isMasked") is None


def test_edits_change_the_prediction_and_the_url(page_on):
    model = byte_model()
    with page_on(model) as visit:
        visit.go(f"#text={TEXT}&view=attention&layer=0&head=1")
        visit.page.locator("ch-edit button", has_text="off").first.click()
        visit.ready()
        assert visit.state()["edits"] == [{"name": "blocks.0.attn.z", "head": 1, "op": "ablate"}]
        real = model.logits(TEXT, edits={"blocks.0.attn.z": ch.ablate(head=1)})[-1].softmax(dim=-1)
        assert percent(float(real.max())) in visit.page.locator(".edits p").inner_text()
        assert visit.page.locator("ch-figure", has_text="Difference").count() == 1
        visit.page.locator(".edits .chip").click()
        visit.ready()
        assert visit.state()["edits"] == []


def test_page_works_with_the_keyboard_only(page_on, tmp_path):
    """Type, run, reach a head, read a cell, save it as CSV."""
    with page_on(byte_model()) as visit:
        visit.go()
        keys = visit.page.keyboard
        keys.press("/")
        keys.press("Control+A")
        keys.type("abcabc")
        keys.press("Enter")
        visit.ready()
        keys.press("Escape")
        keys.press("4")
        for key in ("]", "}", "}"):
            keys.press(key)
        visit.ready()
        assert (visit.state()["text"], visit.state()["view"]) == ("abcabc", "attention")
        assert (visit.state()["layer"], visit.state()["head"]) == (1, 2)
        for _ in range(60):
            keys.press("Tab")
            focused = visit.page.evaluate("() => document.activeElement.localName")
            shown = visit.page.evaluate(
                "() => getComputedStyle(document.activeElement).outlineStyle"
            )
            assert shown != "none", f"{focused} has no focus outline"
            if focused == "ch-heatmap":
                break
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            keys.press(key)
        announcement = visit.page.locator("ch-heatmap .live-text").first.inner_text()
        assert re.match(r"c → b 0\.\d+, rank \d of 3", announcement)
        keys.press("t")
        visit.ready()
        assert visit.page.locator("ch-heatmap table td").count() > 30
        keys.press("Shift+Tab")  # back to the figure's Save
        keys.press("Enter")
        visit.page.locator("details[open] .items button").first.wait_for()
        while visit.page.evaluate("() => document.activeElement.textContent.trim()") != "CSV":
            keys.press("Tab")
        with visit.page.expect_download() as download:
            keys.press("Enter")
        assert download.value.suggested_filename.endswith(".csv")


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows(page_on, width, scheme):
    with page_on(
        byte_model(), viewport={"width": width, "height": 800}, color_scheme=scheme
    ) as visit:
        visit.go()
        for number in range(views(visit)):
            visit.page.locator("nav.rail button").nth(number).click()
            visit.ready()
            wide = visit.page.evaluate("() => document.documentElement.scrollWidth")
            assert wide <= width, visit.state()["view"]


def test_javascript_has_no_random_numbers_and_no_html_injection():
    for path in OWN:
        source = path.read_text()
        assert "Math.random" not in source, path.name
        assert not re.search(
            r"innerHTML|unsafeHTML|insertAdjacentHTML|document\.write|eval\(|https?://(?!www\.w3\.org)",
            source,
        ), path.name


@pytest.mark.parametrize(
    ("view", "number"),
    [
        ("lens", "main ch-tensor-view ch-heatmap canvas"),
        ("lens", "table.predictions td"),
        ("lens", "main .columns ch-heatmap canvas"),
        ("lens", "main .columns .bar"),
        ("position", "main ch-heatmap canvas"),
        ("machine", "main svg text.number"),
        ("vectors", "main .bar"),
        ("vectors", "main section:last-of-type ch-heatmap canvas"),
    ],
)
def test_every_number_can_be_inspected(page_on, view, number):
    """Also numbers that are not activations: the inspector shows what they are and their value."""
    with page_on(byte_model()) as visit:
        visit.go(f"#text={TEXT}&view={view}")
        visit.page.locator(number).first.hover()
        visit.wait_until("!!document.querySelector('.inspector .value')")
        cell = visit.page.locator(".inspector .cell")
        assert cell.locator(".path").inner_text()
        assert float(cell.locator(".value").get_attribute("data-value")) is not None
        assert "where" in cell.locator("dl").inner_text()
        visit.page.locator(number).first.click()
        visit.page.mouse.move(5, 5)
        if visit.state()["view"] == view:
            visit.wait_until("!!document.querySelector('.inspector .value')")


def test_escape_discards_and_enter_runs_the_prompt(page_on):
    with page_on(byte_model()) as visit:
        page = visit.go(f"#text={TEXT}&view=attention").page
        page.locator("form.prompt textarea").focus()
        page.keyboard.type("zzz")
        visit.wait_until(f"clearhead.state.text !== {TEXT!r}")  # typing is read after a rest
        page.keyboard.press("Escape")
        assert visit.ready().state()["text"] == TEXT
        assert page.locator("form.prompt textarea").input_value() == TEXT
        page.keyboard.press("/")
        page.keyboard.press("End")
        page.keyboard.type(" sat")
        page.keyboard.press("Enter")
        assert visit.ready().state()["text"] == f"{TEXT} sat"
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert visit.state()["query"] == 1
        page.keyboard.press("t")
        visit.wait_until("!!document.querySelector('main table.numbers')")


def test_edits_do_not_move_the_layout(page_on):
    with page_on(byte_model()) as visit:
        page = visit.go(f"#text={TEXT}&view=attention&layer=1&head=2").page
        off = page.locator("ch-edit button", has_text="off").first
        off.scroll_into_view_if_needed()
        before = off.bounding_box()
        off.click()
        visit.wait_until("/→/.test(document.querySelector('.edits p')?.textContent ?? '')")
        assert off.bounding_box() == before
        box = page.locator(".edits").bounding_box()
        assert 0 < box["y"] < 850 - box["height"]
        assert page.evaluate("() => document.querySelector('ch-head-grid').ablated") == [1 * 4 + 2]


def test_the_inspector_sheet_does_not_cover_the_clicked_cell(page_on):
    with page_on(byte_model(), viewport={"width": 400, "height": 800}) as visit:
        page = visit.go(f"#text={TEXT}&view=attention").page
        page.evaluate(
            "() => document.querySelector('main ch-heatmap').scrollIntoView({block: 'end'})"
        )
        page.locator("main ch-heatmap canvas").first.click(position={"x": 60, "y": 240})
        visit.wait_until("!!document.querySelector('.inspector.open .steps')")
        overlap = """() => {
          const map = document.querySelector('main ch-heatmap');
          const { top, cellHeight } = map.layout;
          const canvas = map.querySelector('canvas');
          return canvas.getBoundingClientRect().top + top + (map.cursor[0] + 1) * cellHeight
            - document.querySelector('.inspector').getBoundingClientRect().top; }"""
        visit.wait_until(f"({overlap})() <= 0")
        rail = page.locator("nav.rail").bounding_box()
        tab = page.locator("nav.rail [aria-current=page]").bounding_box()
        assert rail["x"] <= tab["x"]
        assert tab["x"] + tab["width"] <= rail["x"] + rail["width"]


def test_page_size_is_limited():
    assets = PageAssets().assets
    own = [asset for asset in assets if asset.suffix == ".js" and VENDOR_FOLDER not in asset.name]
    assert sum(len(asset.content) for asset in own) <= 395_000
    assert sum(len(asset.content) for asset in assets) <= 455_000
    assert sum(len(asset.gzipped) for asset in assets) <= 165_000  # what a browser is sent


def test_files_are_sent_unchanged():
    """A comment marker inside a template literal is text."""
    for asset in PageAssets().assets:
        assert asset.content == (PAGE / f"{asset.name}{asset.suffix}").read_bytes()


def test_cells_can_be_pinned_and_cleared(page_on):
    with page_on(byte_model()) as visit:
        visit.go(f"#text={TEXT}&view=attention")
        cells = visit.page.locator("main ch-heatmap canvas.base").first
        cells.scroll_into_view_if_needed()
        layout = visit.page.evaluate(
            "(({ grid, ...layout }) => layout)(document.querySelector('ch-heatmap').layout)"
        )

        def at(row, col):
            return {
                "x": layout["left"] + (col + 0.5) * layout["cellWidth"],
                "y": layout["top"] + (row + 0.5) * layout["cellHeight"],
            }

        cells.click(position=at(3, 1))
        cells.click(position=at(5, 2), modifiers=["Shift"])
        visit.ready()
        assert visit.state()["cell"] == "blocks.0.attn.pattern@0,3,1"
        assert visit.state()["pins"] == ["blocks.0.attn.pattern@0,5,2"]
        visit.page.keyboard.press("Escape")
        visit.ready()
        assert (visit.state()["cell"], visit.state()["pins"]) == ("", [])
