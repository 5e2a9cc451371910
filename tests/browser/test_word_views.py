"""Tokens, position, predict, lens and vector views show the model's numbers."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app
from clearhead.generate.sampling import apply_top_k, apply_top_p

pytestmark = pytest.mark.slow

MOLES = ["American shrew mole", "one mole of carbon dioxide", "take a biopsy of the mole"]
TEXTS = [
    *MOLES,
    "the king and the queen saw a man and a woman eat an apple; cats and dogs, cat and dog",
]
TOKENIZER = ch.Tokenizer.train_bpe(TEXTS * 3, 420)
TEXT = "take a biopsy of"


def make_model(preset="tiny-decoder", **changes):
    made = ch.new(preset, vocab_size=len(TOKENIZER), tokenizer=TOKENIZER, seed=3, **changes)
    with torch.no_grad():
        for parameter in made.net.parameters():
            parameter *= 3  # so that some tokens are likelier than others
    return made


MODEL = make_model(context_length=64)


@pytest.fixture
def predict(page_on):
    with page_on(MODEL) as visit:
        visit.go("#view=predict").set(text=TEXT)
        visit.wait_until("!!document.querySelector('table.candidates')")
        yield visit
        assert not visit.complaints
        assert not visit.outside


def slide(visit, key, value):
    visit.page.evaluate(
        """([key, value]) => {
            const slider = document.querySelector(`input[data-key=${key}]`);
            slider.value = value;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        [key, value],
    )
    visit.page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def fact(visit, name):
    return float(visit.page.get_attribute(f"b[data-fact={name}]", "data-value"))


def written(visit):
    return visit.state()["generated"]["ids"]


def test_sliders_use_the_full_vocabulary_without_requests(predict):
    logits = MODEL.logits(TEXT)[-1].double().numpy()
    asked = []
    doubts = []
    predict.page.on("request", lambda request: "/api/" in request.url and asked.append(request.url))
    for temperature in (0.1, 0.3, 0.6, 1.0, 1.4, 2.0):
        slide(predict, "temperature", temperature)
        shares = np.exp(logits / temperature - np.logaddexp.reduce(logits / temperature))
        doubts.append(fact(predict, "entropy"))
        assert doubts[-1] == pytest.approx(-float((shares * np.log2(shares)).sum()), abs=1e-4)
        for share in (0.3, 0.9):
            slide(predict, "top_p", share)
            falling = np.sort(shares)[::-1]
            count = int((np.cumsum(falling) - falling < share).sum())
            assert fact(predict, "kept") == count
            assert fact(predict, "mass") == pytest.approx(falling[:count].sum(), abs=1e-5)
            left = falling[:count] / falling[:count].sum()
            assert fact(predict, "entropy") == pytest.approx(
                -float((left * np.log2(left)).sum()), abs=1e-4
            )
        slide(predict, "top_p", 1)
    assert doubts == sorted(doubts)
    assert not asked


def test_kept_tokens_equal_the_library(predict):
    generator = torch.Generator().manual_seed(0)
    for number in range(40):
        logits = (4 * torch.randn(1, 50, generator=generator)).round(
            decimals=number % 3
        )  # with ties
        temperature = [0.3, 1.0, 2.0][number % 3]
        k = [0, 1, 7, 50][number % 4]
        p = [1.0, 0.5, 0.9, 0.05][number % 4]
        x = logits / temperature
        x = apply_top_k(x, torch.tensor([[float(k)]]), max(k, 1)) if k else x
        x = apply_top_p(x, torch.tensor([[p]]))
        found = predict.page.evaluate(
            """async ([logits, temperature, top_k, top_p]) => {
                const { rankLogits, samplingDistribution } = await import("ch/generation");
                const ranks = rankLogits(Float32Array.from(logits));
                const { kept } = samplingDistribution(ranks, { temperature, top_k, top_p });
                return Array.from(ranks.order.subarray(0, kept));
            }""",
            [logits[0].tolist(), temperature, k, p],
        )
        assert sorted(found) == x[0].isfinite().nonzero()[:, 0].tolist()


def test_same_seed_in_page_library_and_shell(predict, tmp_path):
    sampling = {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "seed": 5}
    predict.set(temperature=0.8, top_k=30, top_p=0.95, seed=5)
    for count in range(1, 7):
        predict.page.keyboard.press(".")
        predict.wait_until(f"clearhead.state.generated.ids.length === {count}")
    expected = MODEL.generate(TEXT, max_tokens=6, **sampling)
    assert written(predict) == expected.tokens
    ch.save(MODEL, tmp_path / "model")
    options = [
        "--max-tokens",
        "6",
        "--temperature",
        "0.8",
        "--top-k",
        "30",
        "--top-p",
        "0.95",
        "--seed",
        "5",
        "--json",
    ]
    result = CliRunner().invoke(app, ["generate", str(tmp_path / "model"), TEXT, *options])
    assert result.exit_code == 0, result.output
    assert expected.text in json.dumps(json.loads(result.stdout), ensure_ascii=False)


def test_generation_can_be_paused(predict):
    predict.page.click("text=Play")
    predict.wait_until("clearhead.state.generated.ids.length >= 3")
    predict.page.click("text=Pause")
    count = len(written(predict))
    predict.page.wait_for_timeout(500)
    assert len(written(predict)) <= count + 1
    assert written(predict) == MODEL.generate(TEXT, max_tokens=40).tokens[: len(written(predict))]
    predict.page.click("text=Play")
    predict.wait_until("!!document.querySelector('main').textContent.includes('Pause')")
    predict.set(text="one mole")
    predict.wait_until("!document.querySelector('main').textContent.includes('Pause')")
    predict.page.wait_for_timeout(300)
    assert not predict.page.query_selector(".so-far .generated")


def test_forced_tokens_can_be_undone_and_linked(predict):
    bar = predict.page.locator("table.candidates tbody tr").nth(3)
    forced = int(bar.get_attribute("data-id"))
    bar.locator("button").click()
    predict.wait_until("clearhead.state.generated.ids.length === 1")
    predict.page.keyboard.press(".")
    predict.wait_until("clearhead.state.generated.ids.length === 2")
    assert written(predict)[0] == forced
    link = predict.page.evaluate("location.hash")
    other = predict.context.new_page()
    other.goto(f"{predict.url}/{link}")
    other.wait_for_selector(".so-far .generated")
    other.locator(".so-far .generated").first.click()
    other.wait_for_selector(".alternatives button")
    best = MODEL.logits(TEXT)[-1].topk(8).indices.tolist()
    assert other.locator(".alternatives button .word").all_inner_texts() == TOKENIZER.to_str_tokens(
        best
    )
    other.close()
    predict.page.click("text=Undo")
    predict.wait_until("clearhead.state.generated.ids.length === 1")
    predict.page.go_back()
    predict.wait_until("clearhead.state.generated.ids.length === 2")


def test_context_cosines_equal_the_library(page_on):
    with page_on(MODEL) as visit:
        visit.go("#view=lens")
        visit.wait_until("!!document.querySelector('table.cosines')")
        rows = visit.page.locator("table.cosines tbody tr").all()
        shown = np.array(
            [[float(cell) for cell in row.locator("td").all_inner_texts()] for row in rows]
        )
        np.testing.assert_array_equal(shown[:, 0], 1.0)
        expected = ch.context(MODEL, "mole", MOLES).numpy()
        np.testing.assert_allclose(shown[:, 1:], expected.T, atol=6e-5)
        visit.page.click("text=it: tired or wide")
        visit.wait_until("clearhead.state.word === 'it'")
        visit.ready()
        assert "does not read what follows" in visit.page.inner_text("main")
        assert not visit.complaints


def test_lens_view_equals_the_library(page_on):
    with page_on(MODEL) as visit:
        visit.go("#view=lens").set(text=TEXT)
        visit.wait_until("!!document.querySelector('table.predictions')")
        lens = ch.lens.logit_lens(MODEL, TEXT, top_k=1)
        layers = visit.page.locator(
            "table.predictions tr td:nth-of-type(1) .word"
        ).all_inner_texts()
        assert layers == [best[0][0] for best in lens.top_predictions(-1)]
        visit.set(query=0)
        first = TOKENIZER.to_str_tokens(TOKENIZER.encode(TEXT))[0]
        visit.wait_until(f"document.querySelector('main').textContent.includes('After “{first}”')")
        assert not visit.complaints


def test_tokens_view_equals_the_tokenizer(page_on):
    text = "mole 🦔"
    with page_on(MODEL) as visit:
        visit.go("#view=tokens").set(text=text, query=0)
        visit.wait_until("document.querySelectorAll('.piece').length > 1")
        ids = [int(word) for word in visit.page.locator(".piece .id").all_inner_texts()]
        assert ids == TOKENIZER.encode(text)
        visit.wait_until("!!document.querySelector('ch-heatmap.one-row')?.values")
        row = visit.page.evaluate(
            "Array.from(document.querySelector('ch-heatmap.one-row').values.data)"
        )
        np.testing.assert_allclose(
            row, MODEL.net.embed.tokens.weight[ids[0]].detach().numpy(), rtol=1e-6
        )
        assert not visit.complaints


def test_rotary_dials_show_the_score(page_on):
    model = make_model("tiny-llama", context_length=64)
    scores = model.watch(TEXT, "blocks.0.attn.scores")["blocks.0.attn.scores"][0, 0]
    read = "Number(document.querySelector('.rotated .large').textContent.replace('−', '-'))"
    with page_on(model) as visit:
        visit.go("#view=position").set(text=TEXT, query=3, key=1)
        visit.wait_until("!!document.querySelector('.rotated .large')")
        assert visit.page.evaluate(read) == pytest.approx(float(scores[3, 1]), rel=1e-4)
        visit.set(shift=20)
        assert visit.page.evaluate(read) == pytest.approx(float(scores[3, 1]), rel=1e-4)
        visit.set(distance=9)
        assert visit.page.evaluate(read) != pytest.approx(float(scores[3, 1]), rel=1e-3)
        assert visit.page.locator("text=Nothing changes").count() == 1
        assert not visit.complaints


def test_own_positions_are_marked(page_on):
    with page_on({"learned": MODEL, "relative": make_model(position="t5")}) as visit:
        visit.go("#view=position&model=learned")
        visit.wait_until("document.querySelectorAll('.dials svg').length > 0")
        badges = visit.page.locator("ch-figure > header").all_inner_texts()
        assert any("Position × dimension" in text and "yours" in text for text in badges)
        assert any("Rotary" in text and "for comparison" in text for text in badges)
        assert any("Sinusoidal" in text and "for comparison" in text for text in badges)
        visit.set(model="relative")
        visit.wait_until(
            """document.querySelector('main').textContent
            .includes('as a matrix over queries and keys')"""
        )
        assert not visit.complaints


def test_vector_expressions_equal_the_library(page_on):
    with page_on(MODEL) as visit:
        visit.go("#view=vectors").set(expression="king - man + zebra")
        visit.wait_until("!!document.querySelector('.multi-token')")
        visit.ready()
        shown = visit.page.locator("section").first.locator("ch-bar-chart .name").all_inner_texts()
        assert shown == list(ch.vectors(MODEL).solve("king - man + zebra").axes[0].labels)
        assert "zebra" in visit.page.inner_text(".multi-token")
        visit.set(expression="king -")
        visit.wait_until("!!document.querySelector('.problem')")
        assert "does not end with a word" in visit.page.inner_text(".problem")
        visit.set(expression="king")
        assert not visit.page.query_selector("section:first-of-type .problem")


@pytest.mark.parametrize("preset", ["tiny-encoder", "tiny-encoder-decoder"])
def test_word_views_work_for_encoders(page_on, preset):
    with page_on(make_model(preset, context_length=64)) as visit:
        given = (
            {"source": TEXT, "text": "the mole"}
            if preset == "tiny-encoder-decoder"
            else {"text": TEXT}
        )
        visit.go("#view=tokens").set(**given)
        for view in ("tokens", "position", "lens", "vectors"):
            visit.set(view=view)
            assert visit.page.inner_text("main h1")
            assert "failed to render" not in visit.page.inner_text("main")
        assert not visit.complaints


def test_nan_weights_break_no_word_view(page_on):
    model = make_model()
    model.net.blocks[1].ffn.up.weight.data.fill_(float("nan"))
    with page_on(model) as visit:
        visit.go("#view=predict").set(text=TEXT)
        visit.wait_until("document.querySelector('main').textContent.includes('may be corrupt')")
        for view in ("tokens", "position", "lens", "vectors"):
            visit.set(view=view)
            assert "failed to render" not in visit.page.inner_text("main")
            if view == "lens":
                visit.wait_until(
                    "document.querySelector('main').textContent.includes('contain NaN or infinity')"
                )
        assert not [
            words
            for words in visit.complaints
            if "status of 400" not in words and "status of 500" not in words
        ]


@pytest.mark.parametrize(
    "text", ["", "<script>alert(1)</script>", "שלום עולם", "🦔" * 9, "mole " * 60]
)
def test_hostile_texts_break_no_word_view(page_on, text):
    with page_on(MODEL) as visit:
        for view in ("tokens", "predict", "lens"):
            visit.go(f"#view={view}").set(text=text)
            assert len(visit.page.inner_text("main")) > 60
            assert "failed to render" not in visit.page.inner_text("main")
        assert not [words for words in visit.complaints if "400" not in words]


def test_softmax_of_typed_logits(predict):
    """Softmax of the logits of the lecture, and of others, at any temperature."""
    page = predict.page
    figure = page.locator("ch-figure", has_text="Softmax of any logits")

    def probabilities():
        cells = figure.locator("[data-probability]").all()
        return [float(cell.get_attribute("data-probability")) for cell in cells]

    for text, logits in (("", [6, -5, 4, 1.5, 9.9]), ("1, −1000, 1000.5", [1, -1000, 1000.5])):
        if text:
            figure.get_by_label("Logits").fill(text)
            figure.get_by_label("Logits").press("Enter")
        for exponent in (-1, 0, 1.3):
            slide(predict, "typed_temperature", exponent)
            temperature = float(f"{10**exponent:.3g}")
            expected = ch.lens.softmax(logits, [temperature]).probabilities[0]
            assert np.allclose(probabilities(), expected, atol=1e-6)
    figure.get_by_role("button", name="the model's largest").click()
    assert len(probabilities()) == 5
    figure.get_by_label("Logits").fill("one, two")
    figure.get_by_label("Logits").press("Enter")
    figure.get_by_text("numbers separated by commas").wait_for()


def test_soft_lookup_becomes_hard(page_on):
    with page_on(MODEL) as visit:
        page = visit.go("#view=attention&lookup=true").page

        def weights():
            cells = page.locator(".lookup [data-weight]").all()
            return [float(cell.get_attribute("data-weight")) for cell in cells]

        expected = ch.lens.softmax([8, 8, 8, 9, 8]).probabilities[0]
        assert np.allclose(weights(), expected, atol=1e-6)
        slide(visit, "lookup_sharpness", 10)
        assert weights()[3] > 0.999
        page.get_by_role("button", name="order_10?").click()
        assert np.allclose(weights(), 0.2)
        assert "not found" in page.locator(".lookup-table").inner_text()
        assert not visit.complaints
