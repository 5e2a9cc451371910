"""Gaps, classes, numbers and scores are what the logits say."""

import math

import pytest
import torch

import clearhead as ch
from clearhead.generate.answers import gapped

WORDS = ch.Tokenizer.train_bpe(["the cat sat on the mat", "a dog ran"], 300, ("<|end|>", "<|mask|>"))
MASK = WORDS.special["<|mask|>"]


@pytest.fixture(scope="module")
def reader():
    return ch.new("tiny-encoder", vocabulary=len(WORDS), tokenizer=WORDS, seed=4, use__mask=[MASK])


@pytest.fixture(scope="module")
def judge():
    return ch.new(
        "tiny-encoder", vocabulary=len(WORDS), tokenizer=WORDS, seed=4, head={"kind": "classes", "classes": 3},
        use__labels=["bad", "fair", "good"],
    )  # fmt: skip


def test_gaps_are_filled_with_the_likeliest_tokens(reader):
    ids = [*WORDS.encode("the"), MASK, *WORDS.encode(" sat")]
    expected = reader.logits(ids)[len(WORDS.encode("the"))].softmax(-1).topk(3)
    found = reader.fill("the [MASK] sat", 3)
    assert [word.token for word in found] == expected.indices.tolist()
    assert [word.probability for word in found] == pytest.approx(expected.values.tolist(), abs=1e-6)


def test_a_gap_may_be_called_as_the_tokenizer_calls_it_and_there_may_be_several(reader):
    assert reader.fill("the [MASK] sat") == reader.fill("the <|mask|> sat")
    two = reader.fill("[MASK] cat [MASK]", 2)
    assert [len(gap) for gap in two] == [2, 2]


def test_a_word_brings_its_own_space():
    assert gapped(WORDS, ch.Config().use.__class__(mask=(MASK,)), "the [MASK] sat") == [
        *WORDS.encode("the"), MASK, *WORDS.encode(" sat"),
    ]  # fmt: skip


def test_classes_have_the_probabilities_of_their_logits(judge):
    texts = ["the cat", "a dog ran on the mat"]
    expected = [judge.logits(text).softmax(-1).tolist() for text in texts]
    for made, shares in zip(judge.classify(texts), expected, strict=True):
        assert list(made.all) == ["bad", "fair", "good"]
        assert list(made.all.values()) == pytest.approx(shares, abs=1e-6)
        assert made.probability == max(made.all.values()) == made.all[made.label]
    assert judge.classify(texts[0]) == judge.classify(texts[:1])[0]


def test_numbers_are_given_as_they_are():
    model = ch.new("tiny-encoder", vocabulary=len(WORDS), tokenizer=WORDS, head={"kind": "number"})
    assert model.classify("the cat") == pytest.approx(float(model.logits("the cat")))


def test_pictures_are_classified():
    model = ch.new("tiny-pictures")
    made = model.classify(pictures=torch.zeros(2, 1, 8, 8))
    assert [one.label for one in made] == [made[0].label] * 2


def test_a_score_is_the_sum_of_what_the_model_gives_each_token():
    model = ch.new("tiny-decoder", vocabulary=256, tokenizer=ch.Tokenizer.bytes(), seed=3)
    ids = model.tokenizer.encode("abcab")
    rows = model.logits(ids).log_softmax(-1)
    expected = [float(rows[i, token]) for i, token in enumerate(ids[1:])]
    made = model.score("abcab")
    assert made.logprobs == pytest.approx(expected, abs=1e-5)
    assert made.perplexity == pytest.approx(math.exp(-sum(expected) / 4), rel=1e-5)
    assert model.score(["abcab", "ab"])[1].logprobs == pytest.approx(expected[:1], abs=1e-5)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda r, j: r.fill("no gap"), "the text has no gap"),
        (lambda r, j: j.fill("a [MASK]"), "fills no gaps"),
        (lambda r, j: r.fill("a [MASK]", 0), "ask for at least 1"),
        (lambda r, j: r.fill("a [MASK] " * 40), "more than this model's context"),
        (lambda r, j: r.classify("a"), "tells no classes"),
        (lambda r, j: r.score("a"), "does not write text"),
    ],
)
def test_what_a_model_cannot_answer_is_refused_with_a_sentence(reader, judge, wrong, sentence):
    with pytest.raises(ch.ClearheadError, match=sentence):
        wrong(reader, judge)
