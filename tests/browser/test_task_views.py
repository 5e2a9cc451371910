"""Translate, Fill, Chat, Patches, Compare, Block and Tour: what the page shows is what the model says."""

import pytest
import torch

import clearhead as ch
from clearhead.lens.training_trace import read_training_trace
from clearhead.serve.registry import ModelRegistry

WORDS = ch.Tokenizer.bytes(("<|end|>", "<|mask|>", "<|begin|>"))
END = 256
MASK = 257
CHAT_TEMPLATE = "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}<|begin|>assistant\n"
SIZES = {"vocabulary": 259, "context": 64}


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
        "context": 16,
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
        """words => [...document.querySelectorAll("main ch-figure")].filter((f) => f.caption.includes(words))
        .flatMap((f) => [...f.querySelectorAll("ch-map")])
        .map((m) => ({ shape: m.values.shape, data: [...m.values.data], rows: m.rows, hatched: !!m.masked }))""",
        figure,
    )


def matrix(shown):
    return torch.tensor(shown["data"]).view(shown["shape"])


# ---------------------------------------------------------------- translate
def test_a_translation_adds_up_and_every_written_token_has_its_row_of_cross_attention(page_on):
    model = translator()
    with page_on(model) as visit:
        page = visit.go("#view=translate&source=A+dog+runs.&beam=4").page
        best = model.translate(["A dog runs."], num_beams=4)[0]
        steps = numbers(page, ".sum .term", "own")
        assert len(steps) == len(best.tokens)
        assert sum(steps) == pytest.approx(best.logprob, abs=1e-4)
        (shown,) = numbers(page, ".sum", "logprob")
        assert shown == pytest.approx(best.logprob, abs=1e-4)
        ended = numbers(page, ".beam-tree .finished", "score")
        assert ended
        assert numbers(page, ".found-texts tr", "score")[0] >= max(ended) - 1e-6
        (cross,) = maps(page, "Cross-attention")
        assert len(cross["rows"]) == len(best.tokens) == cross["shape"][0]
        seen = model.watch(
            [END, *best.tokens[:-1]], "blocks.0.cross_attn.pattern", source="A dog runs."
        )
        assert [
            row.split(" → ")[0] for row in cross["rows"]
        ] == seen.tokens  # as clearhead see names its rows
        assert torch.allclose(matrix(cross), seen["blocks.0.cross_attn.pattern"][0, 0], atol=1e-6)
        assert not visit.complaints
        assert not visit.outside


def test_a_branch_can_be_followed_and_left_again(page_on):
    with page_on(translator()) as visit:
        page = visit.go("#view=translate&source=A+dog+runs.").page
        before = numbers(page, ".sum", "logprob")
        page.keyboard.press("Space")  # plays the search step by step
        visit.until("clearhead.state.upto === 2")
        page.keyboard.press("Space")
        visit.set(upto=0)
        page.locator(".beam-tree .node.dropped").last.click()
        visit.ready()
        assert visit.state()["branch"] >= 0
        steps = numbers(page, ".sum .term", "own")
        shown = numbers(page, ".sum", "logprob")
        assert shown != before
        assert sum(steps) == pytest.approx(shown[0], abs=1e-4)
        page.go_back()
        visit.ready()
        assert numbers(page, ".sum", "logprob") == before


def test_an_edit_shows_both_translations(page_on):
    model = translator()
    blind = [{"name": f"blocks.{layer}.cross_attn.out", "op": "ablate"} for layer in range(2)]
    with page_on(model) as visit:
        page = visit.go("#view=translate&source=A+dog+runs.").set(edits=blind).page
        visit.until("document.querySelectorAll('.written').length === 2")
        told = page.evaluate(
            "[...document.querySelectorAll('.written')].map((line) => line.dataset.text)"
        )
        assert told[0] == model.translate(["A dog runs."], num_beams=1)[0].text
        assert told[1] != told[0]


# ---------------------------------------------------------------- fill
def test_a_click_hides_a_token_and_the_model_says_what_stood_there(page_on):
    model = encoder()
    with page_on(model) as visit:
        page = visit.go("#view=fill&text=The+cat+sat").page
        page.locator(".hiding .token").nth(4).click()
        visit.ready()
        assert visit.state()["hide"] == [4]
        ids = [
            MASK if place == 4 else token for place, token in enumerate(WORDS.encode("The cat sat"))
        ]
        best = model.logits(ids)[4, : len(WORDS)].softmax(-1).topk(10)
        bars = page.evaluate("[...document.querySelector('main ch-bars').values]")
        assert bars == pytest.approx(best.values.tolist(), abs=1e-6)
        (looks,) = maps(page, "both ways")
        assert not looks["hatched"]
        assert torch.allclose(matrix(looks).sum(1), torch.ones(len(ids)), atol=1e-5)
        assert not visit.complaints


def test_where_a_word_is_hidden_the_page_tells_what_stands_there(page_on):
    model = encoder()
    best = model.logits([*WORDS.encode("The"), MASK, *WORDS.encode(" sat")])[3].softmax(-1).max()
    edit = {"name": "blocks.0.ffn.out", "op": "ablate"}
    with page_on(model) as visit:
        page = visit.go("#text=The+[MASK]+sat").page
        assert (
            f"{100 * best:.1f} %"
            in page.locator("main .part", has_text="the hidden word").text_content()
        )
        visit.set(view="lens", edits=[edit])
        assert page.locator("main ch-figure", has_text="At “<|mask|>”, layer by layer").count() == 1
        assert page.locator(".edits").inner_text().count("The hidden word:") == 1
        visit.set(text="The cat sat")
        assert page.locator("main ch-figure", has_text="After “t”, layer by layer").count() == 1
        assert not visit.complaints


# ---------------------------------------------------------------- chat
def test_chat_shows_the_very_tokens_and_answers_as_the_library_does(page_on):
    model = talker()
    with page_on(model) as visit:
        page = visit.go("#view=chat&temp=0").page
        said = [
            {"role": "system", "content": "You are an apple."},
            {"role": "user", "content": "Hello! What are you?"},
        ]
        ids = ch.generate.chat.encode(CHAT_TEMPLATE, said, WORDS)
        shown = page.evaluate(
            "[...document.querySelector('.bands').querySelectorAll('.piece-of')].map((p) => p.textContent.trim())"
        )
        assert shown == WORDS.to_str_tokens(ids)
        page.get_by_role("button", name="Answer").click()
        visit.until("clearhead.state.turns.length === 2", 20)
        answer = model.generate(
            ids, max_tokens=model.config.model.context_length - len(ids), temperature=0
        ).text
        assert visit.state()["turns"][1] == {"role": "assistant", "content": answer.strip()}
        visit.set(turns=said[1:], other="You are a pirate.")
        visit.until("document.querySelectorAll('.changes tbody tr').length > 3")
        assert not visit.complaints


# ---------------------------------------------------------------- patches
@pytest.mark.parametrize("preset", ["tiny-images", "tiny-audio"])
def test_what_is_drawn_or_heard_is_cut_judged_and_looked_at(page_on, preset):
    with page_on(shaken(preset)) as visit:
        page = visit.go("#view=patches").page
        visit.until(
            "document.querySelectorAll('main ch-patches').length === 5"
        )  # the picture, and four heads
        shares = page.evaluate("[...document.querySelector('main ch-bars').values]")
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        weights = page.evaluate(
            "[...document.querySelectorAll('.looks ch-patches')].map((p) => p.weights.reduce((a, b) => a + b))"
        )
        assert weights == pytest.approx([1] * 4, abs=1e-5)
        visit.set(view="attention")
        assert page.locator("main ch-map").count()
        assert not visit.complaints


def test_a_drawing_goes_with_the_link(page_on):
    with page_on(shaken("tiny-images")) as visit:
        page = visit.go("#view=patches").page
        before = page.evaluate("[...document.querySelector('main ch-bars').values]")
        box = page.locator("canvas.pad").bounding_box()
        page.mouse.move(box["x"] + 20, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 200, box["y"] + 240, steps=4)
        page.mouse.up()
        visit.ready()
        after = page.evaluate("[...document.querySelector('main ch-bars').values]")
        assert after != before
        other = visit.context.new_page()
        other.goto(page.url)
        other.wait_for_selector("body[data-ready]")
        visit.until("true")
        other.wait_for_selector("main ch-bars")
        assert other.evaluate("[...document.querySelector('main ch-bars').values]") == after


# ---------------------------------------------------------------- compare and training
def test_the_difference_of_two_prompts_is_the_difference(page_on):
    model = encoder()
    with page_on(model) as visit:
        page = visit.go("#view=compare&text=a+cat+sat&second=a+dog+sat&layer=1&head=2").page
        first, second = (
            model.watch(t, "blocks.1.attn.pattern")["blocks.1.attn.pattern"][0, 2]
            for t in ("a cat sat", "a dog sat")
        )
        shown = maps(page, "Side by side")
        assert torch.allclose(matrix(shown[2]), second - first, atol=1e-6)
        assert shown[2]["rows"][2] == "c / d"
        assert not visit.complaints


def test_the_training_film_is_scrubbed_step_by_step(page_on, tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 30)
    options = {
        "steps": 6,
        "rows": 2,
        "length": 16,
        "report": 2,
        "check": 3,
        "save": 6,
        "probes": ["the cat sat"],
    }
    ch.train(
        "tiny-decoder",
        output=tmp_path / "run",
        device="cpu",
        record_activations=True,
        data__train=str(tmp_path / "text.txt"),
        data__tokenizer="characters",
        **{f"train__{name}": value for name, value in options.items()},
    )
    film = read_training_trace(tmp_path / "run")
    with page_on(
        ModelRegistry({"best": str(tmp_path / "run" / "best")}, 2**30, device="cpu")
    ) as visit:
        page = visit.go("#view=compare&pair=training&layer=1&head=3&moment=0").page
        for moment, step in ((0, film.steps[0]), (len(film.steps) - 1, film.steps[-1])):
            page.locator(".scrub input").fill(str(moment))
            visit.ready()
            assert f"step {step}" in page.locator(".scrub output").inner_text()
            large = maps(page, "Heads forming")[-1]
            assert torch.allclose(matrix(large), film.attention(step)[1, 3], atol=1e-6)
        assert page.locator("ch-curve path").count() == 2  # training and validation
        assert not visit.complaints


# ---------------------------------------------------------------- block
def test_the_block_shows_the_models_own_vectors(page_on):
    model = talker()
    with page_on(model) as visit:
        page = visit.go("#view=block&text=hello&layer=1&query=2").page
        seen = model.watch(
            "hello",
            [
                "blocks.1.resid_pre",
                "blocks.1.attn.out",
                "blocks.1.resid_mid",
                "blocks.1.ffn.out",
                "blocks.1.resid_post",
            ],
        )
        shown = maps(page, "The stream of")
        assert len(shown) == len(seen)
        for strip, value in zip(shown, seen.values(), strict=True):
            assert torch.allclose(matrix(strip).flatten(), value[0, 2], atol=1e-5)
        assert not visit.complaints


# ---------------------------------------------------------------- tour
def test_a_link_opens_the_tour_where_it_was_and_escape_ends_it(page_on):
    with page_on(talker()) as visit:
        page = visit.go("#view=block&tour=L4.3").page
        visit.until("document.querySelector('.tour-caption h2')?.textContent === 'Layer norm'")
        visit.until("document.querySelector('.toured')?.caption.startsWith('Norm')")
        page.keyboard.press("Escape")
        visit.ready()
        assert visit.state()["tour"] == ""
        visit.until(
            "document.querySelector('.tour-caption').hidden && !document.querySelector('.toured')"
        )


def test_the_end_of_the_tour_gives_everything_back(page_on):
    with page_on(talker()) as visit:
        page = visit.go("#view=block&text=my own&layer=1").page
        before = visit.state()
        visit.set(view="tour")
        page.get_by_role("button", name="Temperature").click()
        visit.ready()
        assert visit.state()["temp"] != before["temp"]
        page.keyboard.press("n")
        visit.ready()
        assert visit.state()["temp"] == before["temp"]  # each stop starts from what was there
        page.keyboard.press("Escape")
        assert visit.ready().state() == before


def test_the_tour_offers_the_model_that_can_show_a_stop(page_on):
    with page_on({"talker": talker(), "translator": translator()}) as visit:
        page = visit.go("#view=tour").page
        if page.get_by_role("button", name="See what translator can show").count():
            page.get_by_role("button", name="See what translator can show").click()
            visit.ready()
        page.get_by_role("button", name="With translator").first.click()
        visit.ready()
        assert visit.state()["model"] == "translator"
        assert visit.state()["view"] == "translate"
        page.keyboard.press("Escape")
        assert visit.ready().state()["model"] == ""
        assert not visit.complaints


def test_the_page_comes_back_after_a_reload_whose_modules_are_all_in_the_cache(page_on):
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
def test_at_400_pixels_nothing_hangs_out(page_on, make, views):
    with page_on(make(), viewport={"width": 400, "height": 800}) as visit:
        visit.go()
        for view in views:
            visit.set(view=view)
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= 400, view
        assert not visit.complaints
