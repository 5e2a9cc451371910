"""Attribution: a logit is the sum of what its parts have written."""

import re

import pytest
import torch
from hypothesis import assume, given, settings

import clearhead as ch
from clearhead import config as c
from clearhead.evaluate.subject import Subject
from clearhead.lens.ask import Question
from clearhead.lens.frozen import from_answer
from clearhead.lens.walk import split, watched
from clearhead.model.transformer import build
from clearhead.tap import Watch
from strategies import models

IDS = [3, 1, 4, 1, 5, 9]
WORDS = {"vocabulary": 256, "tokenizer": ch.Tokenizer.bytes()}


@given(models())
@settings(max_examples=100, deadline=None)
def test_parts_and_heads_and_sources_add_up_to_the_logit_in_every_model(m):
    assume(not isinstance(m.head, c.Hidden))
    net, watch = build(m, seed=1, dtype=torch.float64).eval(), Watch(watched(m))
    draw = torch.Generator().manual_seed(5)
    for p in net.parameters():  # norms and biases that do something
        p.data += 0.3 * torch.randn(p.shape, generator=draw, dtype=p.dtype)
    with torch.no_grad():
        net.predict(net(**Subject(net).inputs(rows=1), tap=watch), tap=watch)
    logits = watch.values["logits"][0]
    row = logits if logits.dim() == 1 else logits[-1]
    for against in (None, 0):
        question = Question(len(row) - 1, against, 0 if logits.dim() == 1 else len(logits) - 1, "")
        parts, layers = split(net, watch.values, from_answer(net, watch.values["norm"][0], question))
        want = question.of(row)
        torch.testing.assert_close(torch.stack(list(parts.values())).sum(), want, atol=1e-6, rtol=1e-6)
        for i, looks in enumerate(layers):
            for part, look in looks.items():
                torch.testing.assert_close(look.keys.sum() + look.bias, parts[f"{i} {part}"], atol=1e-6, rtol=1e-6)


def test_a_part_that_is_taken_away_takes_its_share_of_the_stream_along():
    model = ch.new("tiny-decoder", seed=4)
    told = ch.lens.attribution(model, IDS, token=7, at=2)
    seen = model.watch(IDS, ["blocks.*.ffn.out", "blocks.1.post"])
    x = seen["blocks.1.post"][0, 2]
    without = x - seen["blocks.1.ffn.out"][0, 2]  # the last part changes nothing but the norm's input
    norm = model.net.norm
    scaled = (without - without.mean()) / (x.var(correction=0) + norm.eps).sqrt() * norm.weight + norm.bias
    want = (model.logits(IDS)[2, 7] - scaled @ model.net.embed.tokens.weight[7]).detach()
    assert float(told.values[told.axes[0].labels.index("1 feed-forward")]) == pytest.approx(float(want), abs=1e-5)


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-llama", "tiny-encoder", "tiny-encoder-decoder"])
def test_the_table_adds_up_and_the_views_agree(name):
    model, given = ch.new(name, seed=3), {"source": [2, 7, 1]} if "decoder" in name and "encoder" in name else {}
    told = ch.lens.attribution(model, IDS, token=5, against=8, **given)
    logits = model.logits(IDS, **given)[-1]
    want = float(logits[5] - logits[8])
    assert told.total == pytest.approx(want, abs=1e-4)
    assert sum(row["logit"] for row in told.table()) == pytest.approx(want, abs=1e-4)
    for part in ("attention", "cross") if given else ("attention",):
        torch.testing.assert_close(told.sources(part).values.sum(dim=-1), told.heads(part).values)


def test_without_a_token_the_likeliest_is_meant_and_texts_are_taken():
    model = ch.new("tiny-decoder", seed=3, **WORDS)
    best = int(model.logits("abc")[-1].argmax())
    assert ch.lens.attribution(model, "abc").question.answer == best
    assert ch.lens.attribution(model, "abc", token="d").question.answer == ord("d")


def test_classes_are_asked_for_by_name():
    model = ch.new("tiny-pictures", **{"use.labels": [f"class {i}" for i in range(10)]})
    told = ch.lens.attribution(model, pictures=torch.rand(1, 8, 8), token="class 3", against="class 4")
    assert told.title == "logit of 'class 3' less that of 'class 4'"


MISTAKES = [
    (lambda m: ch.lens.attribution(m, "abc", token="xyz"), "'xyz' is 3 tokens here ('x', 'y', 'z')"),
    (lambda m: ch.lens.attribution(m, "abc", token=256), "there is no answer 256; they go from 0 to 255."),
    (lambda m: ch.lens.attribution(m, "abc", at=3), "there is no token 3; the text has tokens 0 to 2."),
    (lambda m: ch.lens.attribution(m, ["abc", "def"]), "one text at a time, not at 2"),
    (lambda m: ch.lens.attribution(m, "abc").heads("cross"), "has no 'cross' to split up"),
    (lambda m: ch.lens.attribution(ch.new("tiny-encoder", head="hidden"), IDS), "no head"),
    (lambda m: ch.lens.attribution(ch.new("tiny-decoder"), IDS, token="a"), "has no tokenizer"),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_gets_a_sentence(mistake, words):
    with pytest.raises(ch.ClearheadError, match=re.escape(words)):
        mistake(ch.new("tiny-decoder", **WORDS))
