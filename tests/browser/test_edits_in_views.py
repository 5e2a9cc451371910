"""Edits in all views; sorting heads; omitted lines."""

import json
from urllib.parse import quote

import pytest
import torch

import clearhead as ch
from page_models import byte_model

pytestmark = pytest.mark.slow

ABLATE = [{"name": "blocks.0.ffn.out", "op": "ablate"}]
PATCH = [{"name": "blocks.0.attn.z", "op": "patch"}]
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def edited(view, edits, **more):
    state = {"view": view, "edits": json.dumps(edits), **more}
    return "#" + "&".join(f"{key}={quote(str(value))}" for key, value in state.items())


def test_edits_change_the_chat(page_on):
    model = byte_model(context_length=192, inference__chat_template=CHAT_TEMPLATE)
    with page_on(model) as visit:
        page = visit.go(edited("chat", ABLATE, system="Be kind.", temperature=0)).page
        messages = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello! What are you?"},
        ]
        shares = model.logits(model.chat_prompt(messages), edits={ABLATE[0]["name"]: ch.ablate()})[
            -1
        ].softmax(-1)
        drawn = page.evaluate(
            "() => Array.from(document.querySelector('main ch-bar-chart').values)"
        )
        assert drawn == pytest.approx(shares.topk(10).values.tolist(), abs=1e-5)
        assert page.evaluate(
            "() => document.querySelector('main ch-bar-chart').baseline.some((v) => v > 0)"
        )
        asked = []
        page.on(
            "request",
            lambda request: (
                request.url.endswith("/api/generate") and asked.append(request.post_data_json)
            ),
        )
        page.get_by_role("button", name="Answer").click()
        visit.wait_until("clearhead.state.messages.length === 2")
        assert asked[0]["edits"] == ABLATE


def test_changed_conversations_get_no_old_answer(page_on):
    with page_on(byte_model(context_length=512, inference__chat_template=CHAT_TEMPLATE)) as visit:
        page = visit.go("#view=chat").page
        page.get_by_role("button", name="Answer").click()
        visit.set(messages=[{"role": "user", "content": "Quite another thing"}])
        visit.wait_until("!document.querySelector('.writing')")
        assert [turn["content"] for turn in visit.state()["messages"]] == ["Quite another thing"]


def test_patches_change_predictions_but_cannot_generate(page_on):
    model = byte_model()
    with page_on(model) as visit:
        page = visit.go(edited("predict", PATCH, text="hello", patch_from="jelly")).page
        other = model.watch("jelly", "blocks.0.attn.z")
        shares = model.logits("hello", edits={"blocks.0.attn.z": ch.replace(with_=other)})[
            -1
        ].softmax(-1)
        row = page.locator(".candidates tbody tr").first
        share = float(shares[int(row.get_attribute("data-id"))])
        assert float(row.locator(".after").inner_text().removesuffix("%")) == pytest.approx(
            100 * share, abs=0.051
        )
        page.get_by_role("button", name="Step").click()
        page.get_by_text("one token at a time").wait_for()
        visit.set(patch_from="")  # a swap that waits for its text changes nothing
        assert page.locator(".candidates .after").count() == 0


def test_ablated_tokens_change_the_classification(page_on):
    model = ch.new(
        "tiny-encoder",
        tokenizer=ch.Tokenizer.bytes(),
        vocab_size=256,
        head="classification",
        head__num_labels=3,
        seed=1,
    )
    with page_on(model) as visit:
        page = visit.go("#view=classify&text=so glad").page
        page.locator("main ch-tokens button").nth(3).click()
        visit.ready()
        real = model.logits("so glad", edits={"embed": ch.ablate(position=3)}).softmax(-1)
        drawn = page.evaluate("() => document.querySelector('main ch-bar-chart').values")
        assert drawn == pytest.approx(real.sort(descending=True).values.tolist(), abs=1e-5)
        page.locator("main ch-tokens button").nth(3).click()
        assert visit.ready().state()["edits"] == []
        visit.set(view="lens")  # one prediction for all tokens
        captions = page.locator("main ch-figure > header h2").all_inner_texts()
        assert "Prediction, layer by layer" in captions


def test_heads_are_sorted_by_the_selected_cell(page_on):
    model = byte_model()
    with page_on(model) as visit:
        page = visit.go("#view=attention&text=abcdef&query=4&key=2&sort=weight").page
        cache = model.watch("abcdef", "blocks.*.attn.pattern")
        weights = torch.cat(
            [cache[f"blocks.{layer}.attn.pattern"][0, :, 4, 2] for layer in range(2)]
        )
        order = page.evaluate("() => document.querySelector('ch-head-grid').order")
        assert float(weights[order[0]]) == pytest.approx(float(weights.max()), abs=1 / 255)
        assert (
            page.locator("label.select", has_text="Sort by")
            .locator("option", has_text="e → c")
            .count()
            == 1
        )


def test_omitted_lines_are_counted(page_on):
    model = byte_model(context_length=64)
    text = "abcdefghij" * 6
    pattern = model.watch(text, "blocks.0.attn.pattern")["blocks.0.attn.pattern"][0, 0]
    left = pattern[(pattern > 0) & (pattern < 0.02)]
    with page_on(model) as visit:
        page = visit.go(f"#view=attention&lines=true&text={text}").page
        drawn = page.locator("ch-attention-lines .edges path").count()
        assert drawn + len(left) == int((pattern > 0).sum())
        assert f"{len(left)} weights of at most" in page.locator("ch-attention-lines").inner_text()
