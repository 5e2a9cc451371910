"""Translate, fill, chat, patches, compare, block and tour views show the model's numbers."""

import pytest
import torch

import clearhead as ch
from clearhead.generate.chat import encode_chat
from clearhead.lens.training_trace import read_training_trace
from clearhead.serve.registry import ModelRegistry
from page_models import percent

pytestmark = pytest.mark.slow

WORDS = ch.Tokenizer.bytes(("<|end|>", "<|mask|>", "<|begin|>"))
END = 256
MASK = 257
CHAT_TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "<|begin|>assistant\n"
)
SIZES = {"vocab_size": 259, "context_length": 64}


def shaken(preset, **changes):
    """Random weights that are sure of something."""
    model = ch.new(preset, seed=1, **changes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.net.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator)
    return model


def translator():
    around = {
        "inference__decoder_start_tokens": [END],
        "inference__eos_tokens": [END],
        "inference__sep_tokens": [END],
        "context_length": 16,
        "architecture__source_context_length": 64,
    }
    return shaken("tiny-encoder-decoder", tokenizer=WORDS, vocab_size=259, **around)


def encoder():
    return shaken("tiny-encoder", tokenizer=WORDS, inference__mask_token=[MASK], **SIZES)


def talker():
    return shaken(
        "tiny-decoder",
        tokenizer=WORDS,
        inference__chat_template=CHAT_TEMPLATE,
        inference__eos_tokens=[END],
        vocab_size=259,
        context_length=128,
    )


def numbers(page, selector, name):
    """A data attribute of every such element, as numbers."""
    found = page.evaluate(
        "([s, n]) => [...document.querySelectorAll(s)].map((e) => e.dataset[n])", [selector, name]
    )
    return [float(number) for number in found if number]


def maps(page, figure):
    """Values and labels of the maps in the figure whose caption holds those words."""
    return page.evaluate(
        """words => [...document.querySelectorAll("main ch-figure")]
        .filter((f) => f.caption.includes(words))
        .flatMap((f) => [...f.querySelectorAll("ch-heatmap")])
        .map(({ values: { shape, data }, rowLabels, isMasked }) =>
          ({ shape, data: [...data], rows: rowLabels, hatched: !!isMasked }))""",
        figure,
    )


def matrix(shown):
    return torch.tensor(shown["data"]).view(shown["shape"])


# ---------------------------------------------------------------- translate
def test_translation_shows_its_cross_attention(page_on):
    model = translator()
    with page_on(model) as visit:
        page = visit.go("#view=translate&source=A+dog+runs.&num_beams=4").page
        best = model.translate("A dog runs.", num_beams=4)
        steps = numbers(page, ".sum .term", "logprob")
        assert len(steps) == len(best.tokens)
        assert sum(steps) == pytest.approx(best.logprob, abs=1e-4)
        (shown,) = numbers(page, ".sum", "logprob")
        assert shown == pytest.approx(best.logprob, abs=1e-4)
        scores = numbers(page, ".beam-tree .finished", "score")
        assert scores
        assert numbers(page, ".translations tr", "score")[0] >= max(scores) - 1e-6
        (cross,) = maps(page, "Cross-attention")
        assert len(cross["rows"]) == len(best.tokens) == cross["shape"][0]
        cache = model.watch(
            [END, *best.tokens[:-1]], "blocks.0.cross_attn.pattern", source="A dog runs."
        )
        assert [
            row.split(" → ")[0] for row in cross["rows"]
        ] == cache.tokens  # as clearhead see names its rows
        assert torch.allclose(matrix(cross), cache["blocks.0.cross_attn.pattern"][0, 0], atol=1e-6)
        assert not visit.complaints
        assert not visit.outside


def test_beam_tree_selects_a_hypothesis(page_on):
    with page_on(translator()) as visit:
        page = visit.go("#view=translate&source=A+dog+runs.").page
        before = numbers(page, ".sum", "logprob")
        page.keyboard.press("Space")  # plays the search step by step
        visit.wait_until("clearhead.state.beam_step === 2")
        page.keyboard.press("Space")
        visit.set(beam_step=0)
        page.locator(".beam-tree .node.dropped").last.click()
        visit.ready()
        assert visit.state()["beam_node"] >= 0
        steps = numbers(page, ".sum .term", "logprob")
        shown = numbers(page, ".sum", "logprob")
        assert shown != before
        assert sum(steps) == pytest.approx(shown[0], abs=1e-4)
        page.go_back()
        visit.ready()
        assert numbers(page, ".sum", "logprob") == before


def test_edits_change_the_translation(page_on):
    model = translator()
    edits = [{"name": f"blocks.{layer}.cross_attn.out", "op": "ablate"} for layer in range(2)]
    with page_on(model) as visit:
        page = visit.go("#view=translate&source=A+dog+runs.").set(edits=edits).page
        visit.wait_until("document.querySelectorAll('.scored-tokens').length === 2")
        translations = page.evaluate(
            "[...document.querySelectorAll('.scored-tokens')].map((line) => line.dataset.text)"
        )
        assert translations[0] == model.translate("A dog runs.", num_beams=1).text
        assert translations[1] != translations[0]


# ---------------------------------------------------------------- fill
def test_clicked_tokens_are_masked(page_on):
    model = encoder()
    with page_on(model) as visit:
        page = visit.go("#view=fill&text=The+cat+sat").page
        page.locator(".maskable .token").nth(4).click()
        visit.ready()
        assert visit.state()["mask_positions"] == [4]
        ids = [
            MASK if place == 4 else token for place, token in enumerate(WORDS.encode("The cat sat"))
        ]
        best = model.logits(ids)[4, : len(WORDS)].softmax(-1).topk(10)
        bars = page.evaluate("[...document.querySelector('main ch-bar-chart').values]")
        assert bars == pytest.approx(best.values.tolist(), abs=1e-6)
        (looks,) = maps(page, "Bidirectional attention")
        assert not looks["hatched"]
        assert torch.allclose(matrix(looks).sum(1), torch.ones(len(ids)), atol=1e-5)
        assert not visit.complaints


def test_all_views_name_the_masked_token(page_on):
    model = encoder()
    best = model.logits([*WORDS.encode("The"), MASK, *WORDS.encode(" sat")])[3].softmax(-1).max()
    edit = {"name": "blocks.0.ffn.out", "op": "ablate"}
    with page_on(model) as visit:
        page = visit.go("#text=The+[MASK]+sat").page
        part = page.locator("main .part", has_text="masked token")
        assert percent(float(best)) in part.text_content()
        visit.set(view="lens", edits=[edit])
        assert page.locator("main ch-figure", has_text="At “<|mask|>”, layer by layer").count() == 1
        assert page.locator(".edits").inner_text().count("Masked token:") == 1
        visit.set(text="The cat sat")
        assert page.locator("main ch-figure", has_text="After “t”, layer by layer").count() == 1
        assert not visit.complaints


# ---------------------------------------------------------------- chat
def test_chat_equals_the_library(page_on):
    model = talker()
    with page_on(model) as visit:
        page = visit.go("#view=chat&temperature=0").page
        messages = [
            {"role": "system", "content": "You are an apple."},
            {"role": "user", "content": "Hello! What are you?"},
        ]
        ids = encode_chat(CHAT_TEMPLATE, messages, WORDS)
        shown = page.evaluate(
            """[...document.querySelector('.bands').querySelectorAll('.message-token')]
            .map((p) => p.textContent.trim())"""
        )
        assert shown == WORDS.to_str_tokens(ids)
        page.get_by_role("button", name="Answer").click()
        visit.wait_until("clearhead.state.messages.length === 2", 20)
        answer = model.generate(
            ids, max_tokens=model.config.model.context_length - len(ids), temperature=0
        ).text
        assert visit.state()["messages"][1] == {"role": "assistant", "content": answer.strip()}
        visit.set(messages=messages[1:], other_system="You are a pirate.")
        visit.wait_until("document.querySelectorAll('.changes tbody tr').length > 3")
        assert not visit.complaints


# ---------------------------------------------------------------- patches
@pytest.mark.parametrize("preset", ["tiny-images", "tiny-audio"])
def test_patches_show_classification_and_attention(page_on, preset):
    with page_on(shaken(preset)) as visit:
        page = visit.go("#view=patches").page
        visit.wait_until(
            "document.querySelectorAll('main ch-patch-grid').length === 5"
        )  # the picture, and four heads
        shares = page.evaluate("[...document.querySelector('main ch-bar-chart').values]")
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        weights = page.evaluate(
            """[...document.querySelectorAll('.head-patches ch-patch-grid')]
            .map((p) => p.weights.reduce((a, b) => a + b))"""
        )
        assert weights == pytest.approx([1] * 4, abs=1e-5)
        visit.set(view="attention")
        assert page.locator("main ch-heatmap").count()
        assert not visit.complaints


def test_links_contain_the_drawing(page_on):
    with page_on(shaken("tiny-images")) as visit:
        page = visit.go("#view=patches").page
        before = page.evaluate("[...document.querySelector('main ch-bar-chart').values]")
        box = page.locator("canvas.pad").bounding_box()
        page.mouse.move(box["x"] + 20, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 200, box["y"] + 240, steps=4)
        page.mouse.up()
        visit.ready()
        after = page.evaluate("[...document.querySelector('main ch-bar-chart').values]")
        assert after != before
        other = visit.context.new_page()
        other.goto(page.url)
        other.wait_for_selector("body[data-ready]")
        visit.wait_until("true")
        other.wait_for_selector("main ch-bar-chart")
        assert other.evaluate("[...document.querySelector('main ch-bar-chart').values]") == after


# ---------------------------------------------------------------- compare and training
def test_prompts_are_compared_by_their_difference(page_on):
    model = encoder()
    with page_on(model) as visit:
        page = visit.go("#view=compare&text=a+cat+sat&second_text=a+dog+sat&layer=1&head=2").page
        first, second = (
            model.watch(t, "blocks.1.attn.pattern")["blocks.1.attn.pattern"][0, 2]
            for t in ("a cat sat", "a dog sat")
        )
        shown = maps(page, "Side by side")
        assert torch.allclose(matrix(shown[2]), second - first, atol=1e-6)
        assert shown[2]["rows"][2] == "c / d"
        assert not visit.complaints


def test_training_trace_shows_recorded_steps(page_on, tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 30)
    ch.train(
        "tiny-decoder",
        tmp_path / "run",
        data={"train": str(tmp_path / "text.txt"), "tokenizer": "characters"},
        train={
            "max_steps": 6,
            "batch_size": 2,
            "seq_len": 16,
            "log_every": 2,
            "eval_every": 3,
            "save_every": 6,
            "probe_texts": ["the cat sat"],
        },
        device="cpu",
        record_activations=True,
    )
    trace = read_training_trace(tmp_path / "run")
    with page_on(
        ModelRegistry({"best": str(tmp_path / "run" / "best")}, 2**30, device="cpu")
    ) as visit:
        page = visit.go("#view=compare&compare=training&layer=1&head=3&trace_index=0").page
        for index, step in ((0, trace.steps[0]), (len(trace.steps) - 1, trace.steps[-1])):
            page.locator(".step-slider input").fill(str(index))
            visit.ready()
            assert f"step {step}" in page.locator(".step-slider output").inner_text()
            large = maps(page, "Attention during training")[-1]
            assert torch.allclose(matrix(large), trace.attention(step).values[1, 3], atol=1e-6)
        assert page.locator("ch-line-chart path").count() == 2  # training and validation
        assert not visit.complaints


# ---------------------------------------------------------------- block
def test_block_view_equals_watch(page_on):
    model = talker()
    with page_on(model) as visit:
        page = visit.go("#view=block&text=hello&layer=1&query=2").page
        cache = model.watch(
            "hello",
            [
                "blocks.1.resid_pre",
                "blocks.1.attn.out",
                "blocks.1.resid_mid",
                "blocks.1.ffn.out",
                "blocks.1.resid_post",
            ],
        )
        shown = maps(page, "Residual stream of")
        assert len(shown) == len(cache)
        for strip, value in zip(shown, cache.values(), strict=True):
            assert torch.allclose(matrix(strip).flatten(), value[0, 2], atol=1e-5)
        assert not visit.complaints


# ---------------------------------------------------------------- tour
@pytest.mark.parametrize("link", ["#view=block&tour=L4.3", "#tour=L4.3"])
def test_tour_link_opens_a_stop_and_escape_ends_it(page_on, link):
    with page_on(talker()) as visit:
        page = visit.go(link).page
        visit.wait_until("document.querySelector('.tour-caption h2')?.textContent === 'Layer norm'")
        visit.wait_until("document.querySelector('.tour-target')?.caption.startsWith('Norm')")
        page.keyboard.press("Escape")
        visit.ready()
        assert visit.state()["tour"] == ""
        visit.wait_until(
            """document.querySelector('.tour-caption').hidden
              && !document.querySelector('.tour-target')"""
        )


def test_ending_the_tour_restores_the_state(page_on):
    with page_on(talker()) as visit:
        page = visit.go("#view=block&text=my own&layer=1").page
        before = visit.state()
        visit.set(view="tour")
        page.get_by_role("button", name="Temperature").click()
        visit.ready()
        assert visit.state()["temperature"] != before["temperature"]
        page.keyboard.press("n")
        visit.ready()
        assert (
            visit.state()["temperature"] == before["temperature"]
        )  # each stop starts from what was there
        page.keyboard.press("Escape")
        assert visit.ready().state() == before


def test_the_tour_crosses_models(page_on):
    with page_on({"talker": talker(), "translator": translator()}) as visit:
        page = visit.go("#view=tour").page
        if page.get_by_role("button", name="Load translator").count():
            page.get_by_role("button", name="Load translator").click()
            visit.ready()
        page.get_by_role("button", name="With translator").first.click()
        visit.ready()
        assert visit.state()["model"] == "translator"
        assert visit.state()["view"] == "translate"
        page.keyboard.press("Escape")
        assert visit.ready().state()["model"] == ""
        assert not visit.complaints


def test_page_reloads_from_the_cache(page_on):
    with page_on(talker()) as visit:
        page = visit.go("#view=tour").page
        for _ in range(3):
            page.reload()
            visit.ready()
            assert page.locator(".stop").count() > 20
        assert not visit.complaints


# ---------------------------------------------------------------- narrow screens
@pytest.mark.parametrize(
    ("make", "views"),
    [
        (translator, ["translate"]),
        (encoder, ["fill"]),
        (talker, ["chat", "block", "compare", "tour"]),
    ],
)
def test_task_views_fit_400_pixels(page_on, make, views):
    with page_on(make(), viewport={"width": 400, "height": 800}) as visit:
        visit.go()
        for view in views:
            visit.set(view=view)
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= 400, view
        assert not visit.complaints
