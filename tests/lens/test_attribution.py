"""Attribution: a logit is the sum of what its parts have written."""

import re

import pytest
import torch
from hypothesis import assume, given, settings

import clearhead as ch
from clearhead import config as c
from clearhead.evaluate.invariants import ModelUnderTest
from clearhead.hooks import Recorder
from clearhead.lens.attribution import (
    LogitTarget,
    decompose_logit,
    path_from_logit,
    required_activations,
)
from clearhead.model.transformer import build_transformer
from strategies import models

IDS = [3, 1, 4, 1, 5, 9]
WORDS = {"vocabulary": 256, "tokenizer": ch.Tokenizer.bytes()}


@given(models())
@settings(max_examples=100, deadline=None)
def test_parts_and_heads_and_sources_add_up_to_the_logit_in_every_model(m):
    assume(not isinstance(m.head, c.NoHead))
    net = build_transformer(m, seed=1, dtype=torch.float64).eval()
    watch = Recorder(required_activations(m))
    draw = torch.Generator().manual_seed(5)
    for p in net.parameters():  # norms and biases that do something
        p.data += 0.3 * torch.randn(p.shape, generator=draw, dtype=p.dtype)
    with torch.no_grad():
        net.compute_logits(
            net(**ModelUnderTest(net).random_inputs(rows=1), hooks=watch), hooks=watch
        )
    logits = watch.values["logits"][0]
    row = logits if logits.dim() == 1 else logits[-1]
    for against in (None, 0):
        question = LogitTarget(
            len(row) - 1, against, 0 if logits.dim() == 1 else len(logits) - 1, ""
        )
        parts, layers = decompose_logit(
            net, watch.values, path_from_logit(net, watch.values["norm"][0], question)
        )
        want = question.select(row)
        torch.testing.assert_close(
            torch.stack(list(parts.values())).sum(), want, atol=1e-6, rtol=1e-6
        )
        for i, looks in enumerate(layers):
            for part, look in looks.items():
                torch.testing.assert_close(
                    look.keys.sum() + look.bias, parts[f"{i} {part}"], atol=1e-6, rtol=1e-6
                )


def test_a_part_that_is_taken_away_takes_its_share_of_the_stream_along():
    model = ch.new("tiny-decoder", seed=4)
    told = ch.lens.attribution(model, IDS, token=7, at=2)
    seen = model.watch(IDS, ["blocks.*.ffn.out", "blocks.1.resid_post"])
    x = seen["blocks.1.resid_post"][0, 2]
    without = (
        x - seen["blocks.1.ffn.out"][0, 2]
    )  # the last part changes nothing but the norm's input
    norm = model.net.final_norm
    scaled = (without - without.mean()) / (
        x.var(correction=0) + norm.eps
    ).sqrt() * norm.weight + norm.bias
    want = (model.logits(IDS)[2, 7] - scaled @ model.net.embed.tokens.weight[7]).detach()
    assert float(told.values[told.axes[0].labels.index("1 feed-forward")]) == pytest.approx(
        float(want), abs=1e-5
    )


@pytest.mark.parametrize(
    "name", ["tiny-decoder", "tiny-llama", "tiny-encoder", "tiny-encoder-decoder"]
)
def test_the_table_adds_up_and_the_views_agree(name):
    model = ch.new(name, seed=3)
    given = {"source": [2, 7, 1]} if "decoder" in name and "encoder" in name else {}
    told = ch.lens.attribution(model, IDS, token=5, against=8, **given)
    logits = model.logits(IDS, **given)[-1]
    want = float(logits[5] - logits[8])
    assert told.total == pytest.approx(want, abs=1e-4)
    assert sum(row["logit"] for row in told.table()) == pytest.approx(want, abs=1e-4)
    for part in ("attention", "cross") if given else ("attention",):
        torch.testing.assert_close(
            told.by_source_token(part).values.sum(dim=-1), told.by_head(part).values
        )


def test_without_a_token_the_likeliest_is_meant_and_texts_are_taken():
    model = ch.new("tiny-decoder", seed=3, **WORDS)
    best = int(model.logits("abc")[-1].argmax())
    assert ch.lens.attribution(model, "abc").target.answer == best
    assert ch.lens.attribution(model, "abc", token="d").target.answer == ord("d")


def test_classes_are_asked_for_by_name():
    model = ch.new("tiny-pictures", **{"use.labels": [f"class {i}" for i in range(10)]})
    told = ch.lens.attribution(
        model, pictures=torch.rand(1, 8, 8), token="class 3", against="class 4"
    )
    assert told.title == "logit of 'class 3' less that of 'class 4'"


def test_classes_without_names_go_by_their_numbers():
    told = ch.lens.attribution(ch.new("tiny-pictures"), pictures=torch.rand(1, 8, 8), token="3")
    assert (told.target.answer, told.title) == (3, "logit of '3'")


def test_an_edited_head_gives_what_is_left_of_it():
    model = ch.new("tiny-decoder", seed=3)
    cut = {"blocks.0.attn.z": ch.ablate(head=1)}
    told = ch.lens.attribution(model, IDS, token=5, edits=cut)
    assert float(told.by_head().values[0, 1]) == 0
    assert told.by_head().values[0].count_nonzero() == 3
    want = float(model.logits(IDS, edits=cut)[-1, 5])
    assert told.total == pytest.approx(want, abs=1e-4)
    assert sum(row["logit"] for row in told.table()) == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "full_embed",
        "blocks.0.resid_mid",
        "blocks.1.resid_post",
        "blocks.0.attn.out",
        "norm",
        "logits",
    ],
)
def test_whatever_is_edited_the_parts_add_up_and_what_no_part_wrote_is_the_rest(name):
    model = ch.new("tiny-decoder", seed=3)
    doubled = {name: ch.scale(2.0)}
    told = ch.lens.attribution(model, IDS, token=5, edits=doubled)
    want = float(model.logits(IDS, edits=doubled)[-1, 5])
    assert told.total == pytest.approx(want, abs=1e-3)
    assert sum(row["logit"] for row in told.table()) == pytest.approx(want, abs=1e-3)
    rests = [row["part"] for row in told.table() if "rest" in (row["part"], row["head"])]
    assert rests == ["0 attention" if name.endswith("out") else "rest"]
    assert "rest" not in ch.lens.attribution(model, IDS, token=5).axes[0].labels


def test_the_parts_add_up_in_int8_too(tmp_path):
    ch.save(ch.new("tiny-decoder", seed=3, d_model=128), tmp_path / "model")
    model = ch.load(tmp_path / "model", dtype="int8")
    assert ch.lens.attribution(model, IDS, token=5).total == pytest.approx(
        float(model.logits(IDS)[-1, 5]), abs=1e-3
    )


def test_where_words_are_hidden_the_first_hidden_one_is_asked_about():
    model = ch.new("tiny-encoder", seed=3, inference__mask_token=[9])
    told = ch.lens.attribution(model, [3, 1, 9, 1, 9])
    assert (told.target.position, told.title.split(" at ")[1]) == (2, "'9'")
    assert ch.lens.attribution(model, [3, 1, 4]).target.position == 2
    assert ch.lens.attribution(model, [3, 1, 9, 1, 9], at=0).target.position == 0
    swept = ch.lens.ablation(model, [3, 1, 9, 1, 9])
    assert swept.baseline == pytest.approx(float(model.logits([3, 1, 9, 1, 9])[2].max()))


MISTAKES = [
    (lambda m: ch.lens.attribution(m, "abc", at="1"), "at = '1' must be the number of a token"),
    (
        lambda m: ch.lens.attribution(
            ch.new("tiny-pictures"), pictures=torch.rand(1, 8, 8), token="cat"
        ),
        "known: 0, 1",
    ),
    (
        lambda m: ch.lens.attribution(m, "abc", token="xyz"),
        "'xyz' is 3 tokens here ('x', 'y', 'z')",
    ),
    (
        lambda m: ch.lens.attribution(m, "abc", token=256),
        "there is no answer 256; they go from 0 to 255.",
    ),
    (
        lambda m: ch.lens.attribution(m, "abc", at=3),
        "there is no token 3; the text has tokens 0 to 2.",
    ),
    (lambda m: ch.lens.attribution(m, ["abc", "def"]), "one text at a time, not at 2"),
    (lambda m: ch.lens.attribution(m, "abc").by_head("cross"), "has no 'cross' to split up"),
    (lambda m: ch.lens.attribution(ch.new("tiny-encoder", head="none"), IDS), "no head"),
    (lambda m: ch.lens.attribution(ch.new("tiny-decoder"), IDS, token="a"), "has no tokenizer"),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_gets_a_sentence(mistake, words):
    with pytest.raises(ch.ClearheadError, match=re.escape(words)):
        mistake(ch.new("tiny-decoder", **WORDS))
