"""Changing text, model or weights: which state is kept, reset or restored by Back."""

import pytest
import torch

from clearhead.serve.registry import LoadedModel
from page_models import byte_model

pytestmark = pytest.mark.slow

TEXT = "the cat, the cat"


def test_back_undoes_typing_in_one_step(page_on):
    with page_on(byte_model()) as visit:
        page = visit.go(f"#text={TEXT}&view=attention").page
        page.locator("form.prompt textarea").fill("one")
        visit.wait_until("clearhead.state.text === 'one'")
        page.locator("form.prompt textarea").type(" and two")
        visit.wait_until("clearhead.state.text === 'one and two'")
        page.go_back()
        visit.wait_until(f"clearhead.state.text === {TEXT!r}")
        visit.ready()
        assert page.locator("form.prompt textarea").input_value() == TEXT
        page.go_forward()
        visit.wait_until("clearhead.state.text === 'one and two'")


def test_run_on_the_same_text_keeps_the_state(page_on):
    with page_on(byte_model()) as visit:
        page = visit.go("#view=attention&query=2").page
        page.get_by_role("button", name="Run").click()
        assert (visit.ready().state()["query"], visit.state()["text"]) == (2, None)


def test_source_and_target_have_fields(page_on):
    with page_on(byte_model("tiny-encoder-decoder")) as visit:
        page = visit.go("#view=attention").page
        page.locator("textarea[name=source]").fill("abc")
        page.locator("textarea[name=text]").fill("de")
        visit.wait_until("clearhead.state.source === 'abc' && clearhead.state.text === 'de'")


def test_typing_is_discarded_with_the_model(page_on):
    with page_on({"first": byte_model(), "second": byte_model(seed=4)}) as visit:
        page = visit.go("#view=attention").page
        example = page.locator("form.prompt textarea").input_value()
        page.locator("form.prompt textarea").fill("half a sen")
        page.locator("select[aria-label=model]").select_option("second")
        visit.ready()
        page.wait_for_timeout(400)  # longer than typing rests before it is read
        assert visit.state()["text"] is None
        assert page.locator("form.prompt textarea").input_value() == example


def test_a_new_text_resets_its_selections(page_on):
    chosen = {
        "open_token": 1,
        "answer": 3,
        "contrast": 4,
        "mask_positions": [1],
        "beam_node": 2,
        "beam_step": 1,
        "query": 2,
        "key": 1,
    }
    with page_on(byte_model()) as visit:
        visit.go("#view=lens")
        visit.set(**chosen, generated={"after": "x", "ids": [1]}, head=2, word="cat")
        visit.set(text="quite another")
        now = visit.state()
        assert {key: now[key] for key in chosen} == {
            **dict.fromkeys(("open_token", "answer", "contrast", "beam_node", "query", "key"), -1),
            "mask_positions": [],
            "beam_step": 0,
        }
        assert now["generated"] == {"after": "", "ids": []}
        assert (now["head"], now["word"]) == (2, "cat")  # which are not of the text
        visit.set(text="a third", query=3)
        assert visit.state()["query"] == 3


def test_reloaded_weights_replace_all_numbers(page_on):
    first = byte_model(seed=3)
    second = byte_model(seed=4)
    with page_on(first) as visit:
        visit.go(f"#text={TEXT}&view=attention&layer=1")
        registry = visit.server.registry
        registry.loaded["model"] = LoadedModel("model", "", second, registry)
        visit.page.locator(
            "nav.rail button", has_text="Vector lab"
        ).click()  # which asks about the model alone
        visit.ready()
        visit.set(view="attention")
        drawn = visit.page.evaluate(
            "() => Array.from(document.querySelector('ch-heatmap').values.data)"
        )
        real = second.watch(TEXT, "blocks.1.attn.pattern")["blocks.1.attn.pattern"][0, 0]
        assert torch.allclose(torch.tensor(drawn).view_as(real), real, atol=1e-6)
        assert visit.state()["text"] == TEXT
        assert visit.page.locator(".problem").count() == 0
