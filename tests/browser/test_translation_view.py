"""Source and target token strips; comparing models; windows and pooling."""

import pytest
import torch

import clearhead as ch
from clearhead.serve.registry import ModelRegistry
from page_models import byte_model

pytestmark = pytest.mark.slow

SOURCE = "a dog ran"


@pytest.fixture
def visit(page_on):
    with page_on(byte_model("tiny-encoder-decoder", seed=5)) as visit:
        visit.go(f"#source={SOURCE}&text=ein&part=encoder&layer=1&head=2&view=block")
        yield visit
        assert not visit.complaints


def row(visit, label):
    return visit.page.locator(f".strip ch-tokens[aria-label='{label}'] .token")


def test_block_view_shows_a_source_token(visit):
    page = visit.page
    model = visit.server.registry.loaded["model"].model
    assert f"Token {len(SOURCE) - 1}:" in page.locator("main").inner_text()
    row(visit, "source tokens").nth(1).click()
    visit.ready()
    assert "Token 1:" in page.locator("main").inner_text()
    shown = page.evaluate("() => [...document.querySelector('main ch-heatmap').values.data]")
    resid_pre = model.watch("ein", "encoder.blocks.1.resid_pre", source=SOURCE)[
        "encoder.blocks.1.resid_pre"
    ][0, 1]
    assert torch.allclose(torch.tensor(shown), resid_pre, atol=1e-5)
    page.locator("main").focus()
    page.keyboard.press("ArrowRight")
    assert "Token 2:" in visit.ready().page.locator("main").inner_text()
    assert (visit.state()["key"], visit.state()["query"]) == (2, -1)
    row(visit, "tokens").nth(0).click()
    assert "Token 2:" in visit.ready().page.locator("main").inner_text()
    visit.set(part="attention")
    assert "Token 0:" in page.locator("main").inner_text()


def test_source_tokens_have_their_own_strip(visit):
    visit.set(view="tokens", query=2)
    row(visit, "source tokens").nth(4).click()
    pressed = """() => [...document.querySelectorAll('.piece')]
      .findIndex((one) => one.ariaPressed === 'true')"""
    assert visit.ready().page.evaluate(pressed) == 4
    visit.page.locator(".piece").nth(5).click()
    assert (visit.ready().state()["key"], visit.state()["query"]) == (5, 2)
    visit.set(side="target")
    assert visit.page.evaluate(pressed) == 2


def test_encoder_attention_follows_the_source_strip(visit):
    visit.set(view="attention", lines=True)
    strong = "() => document.querySelector('main ch-attention-lines').query"
    row(visit, "source tokens").nth(3).click()
    row(visit, "tokens").nth(1).hover()
    assert visit.ready().page.evaluate(strong) == 3
    row(visit, "source tokens").nth(6).hover()
    assert visit.ready().page.evaluate(strong) == 6
    visit.page.locator("main ch-attention-lines .query").nth(2).hover()
    assert visit.ready().page.evaluate(strong) == 2
    marked = """() => [...document.querySelectorAll('.strip .token.highlighted')]
      .map((one) => one.parentNode.ariaLabel)"""
    assert visit.page.evaluate(marked) == ["source tokens"]
    visit.set(lines=False)
    assert visit.page.evaluate("() => document.querySelector('main ch-heatmap').cursor") == [3, -1]
    visit.page.evaluate(
        "() => document.querySelector('main ch-heatmap').emit('pick', { row: 5, col: 1 })"
    )
    state = visit.ready().state()
    assert (state["key"], state["encoder_key"], state["query"]) == (5, 1, -1)
    assert visit.page.evaluate("() => document.querySelector('ch-head-grid').weightAt") == [5, 1]
    visit.set(part="cross")
    assert visit.page.evaluate("() => document.querySelector('main ch-heatmap').cursor") is None


def test_compared_model_is_loaded_on_demand(page_on, tmp_path):
    for name, seed in (("first", 3), ("second", 4)):
        ch.save(byte_model(seed=seed), tmp_path / name)
    registry = ModelRegistry(
        {name: str(tmp_path / name) for name in ("first", "second")}, 2**30, device="cpu"
    )
    with page_on(registry) as visit:
        visit.go("#view=compare&compare=models&text=hello")
        assert list(registry.loaded) == ["first"]
        visit.set(model2="second")
        figure = visit.page.locator("main ch-figure", has_text="Next token")
        assert figure.locator("tbody tr").count() > 6
        assert figure.locator("> :last-child").inner_text().startswith("The top tokens")  # its note
        assert not visit.complaints


@pytest.mark.parametrize("signed", [True, False])
def test_pooling_keeps_finite_values(page_on, signed):
    """In masked scores, each row is −∞ after the diagonal."""
    with page_on(byte_model()) as visit:
        script = """async (signed) => {
          const { maxPool } = await import("ch/heatmap"), low = -Infinity;
          const given = [3, low, low, low, 1, -4, low, low, 1, 1, 2, low, NaN, 1, 1, -1];
          const { data, max, largestCell } = maxPool({ data: given }, 4, 4, 2, signed, null);
          return [[...data].map(String), max, largestCell(0, 0), largestCell(1, 1)];
        }"""
        data, most, first, last = visit.go().page.evaluate(script, signed)
        assert data == ["-4" if signed else "3", "-Infinity", "1", "2"]
        assert (most, first, last) == (4, [1, 1] if signed else [0, 0], [2, 2])


def test_numbers_are_formatted(page_on):
    with page_on(byte_model()) as visit:
        script = """async () => {
          const { formatNumber, formatPercent } = await import("ch/format");
          return [
            [0.12345, -0.000012345, null, NaN].map((value) => formatNumber(value)),
            [0, 0.00001, 0.00123, 0.1234, 0.9999, 1, null].map(formatPercent),
          ];
        }"""
        numbers, percentages = visit.go().page.evaluate(script)
        assert numbers == ["0.123", "−1.23e−5", "", "NaN"]
        assert percentages == ["0%", "<0.01%", "0.12%", "12.3%", ">99.9%", "100%", "NaN"]


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-encoder"])
def test_sliding_window_is_described(page_on, name):
    model = byte_model(name, attention__sliding_window=3)
    far = model.watch("hello you", "blocks.0.attn.pattern")["blocks.0.attn.pattern"][0, 0, 5]
    assert far[3] > 0 == far[2]
    with page_on(model) as visit:
        visit.go("#view=attention&text=hello you")
        assert "at most 2 tokens away" in visit.page.locator("main").inner_text()
