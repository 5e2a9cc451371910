"""The tour: every stop highlights its target, and its text is true."""

import re

import pytest

import clearhead as ch

pytestmark = pytest.mark.slow

WORDS = ch.Tokenizer.bytes(("<|end|>", "<|mask|>", "<|begin|>"))
CHAT_TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "<|begin|>assistant\n"
)
TEXTS = {"tokenizer": WORDS, "vocab_size": 259, "context_length": 128, "seed": 1}
BOTH = {
    "inference__decoder_start_tokens": [256],
    "inference__eos_tokens": [256],
    "inference__sep_tokens": [256],
    "context_length": 16,
    "architecture__source_context_length": 64,
}
MODELS = {
    "learned": lambda: ch.new(
        "tiny-decoder", inference__chat_template=CHAT_TEMPLATE, inference__eos_tokens=[256], **TEXTS
    ),
    "rotary": lambda: ch.new("tiny-llama", **TEXTS),
    "relative": lambda: ch.new("tiny-decoder", position="t5", **TEXTS),
    "encoder": lambda: ch.new("tiny-encoder", inference__mask_token=[257], **TEXTS),
    "translator": lambda: ch.new("tiny-encoder-decoder", **{**TEXTS, **BOTH}),
    "classifier": lambda: ch.new(
        "tiny-encoder", head="classification", inference__labels=["good", "bad"], **TEXTS
    ),
    "pictures": lambda: ch.new("tiny-images"),
    "sound": lambda: ch.new("tiny-audio"),
}
SEEN = """() => {
  const box = document.querySelector('.tour-target')?.getBoundingClientRect();
  return !!box && box.width > 0 && box.bottom > 0 && box.top < innerHeight; }"""


def check_claims(page, stop, say):
    """Check what the text of a stop says about the model."""
    lit = page.locator(".tour-target").first.inner_text()
    match stop:
        case "L1.2" | "L2.1" | "L2.4" if page.locator("textarea[name=source]").count() == 0:
            first = re.search("“(.+?)”", say)[1]
            assert page.locator("textarea[name=text]").input_value() == first
    match stop:
        case "L2.1":
            row = page.locator(".tour-target tr", has_text="with all tokens at the same position")
            assert row.locator("td").first.inner_text() == "<0.001%"
        case "L2.2":
            assert ("This model adds none" in say) == ("adds no position embeddings" in lit)
        case "L2.4":
            assert ("nothing changes" in say) == ("Nothing changes" in lit)
        case "L3.5":
            assert page.evaluate(
                "() => !!document.querySelector('.tour-target ch-heatmap').isMasked?.(0, 1)"
            )
        case "L4.3":
            assert ("subtract the mean, divide" in say) == ("μ =" in lit)
        case "L5.1" if "classifier" in say:
            assert "Logits" in lit
        case "L5.3a":
            text = page.locator("textarea[name=text]").input_value()
            assert text == "The chicken didn't cross the road because it"
        case "L6.4":
            assert ("matrix" in say) <= ("matrix" in lit)


@pytest.mark.parametrize("name", MODELS)
def test_tour_visits_all_stops(page_on, name):
    with page_on(MODELS[name](), reduced_motion="reduce") as visit:
        page = visit.go("#view=tour").page
        able = page.locator(".stop:not(:disabled)").count()
        page.get_by_role("button", name="Start the tour").click()
        stops = []
        for _ in range(60):
            visit.ready()
            if not (stop := visit.state()["tour"]):
                break
            stops.append(stop)
            try:
                visit.wait_until(f"({SEEN})()", 3)
            except AssertionError:
                raise AssertionError(f"nothing is highlighted at {stop}") from None
            assert page.locator("main .problem").count() == 0, stop
            check_claims(page, stop, page.locator(".tour-caption .text").inner_text())
            page.keyboard.press("n")
            visit.wait_until(f"clearhead.state.tour !== {stop!r}")
        assert len(stops) == able == len(set(stops))
        assert not visit.complaints
