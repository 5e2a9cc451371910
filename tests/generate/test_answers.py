"""Gaps, classes, numbers and scores are what the logits say."""

import math

import pytest
import torch

import clearhead as ch
from clearhead.data.batch import MAX_BATCH_TOKENS
from clearhead.generate import tasks
from clearhead.generate.tasks import ScoreResult, encode_masked_text

WORDS = ch.Tokenizer.train_bpe(
    ["the cat sat on the mat", "a dog ran"], 300, ("<|end|>", "<|mask|>")
)
MASK = WORDS.special_tokens["<|mask|>"]


@pytest.fixture(scope="module")
def reader():
    return ch.new(
        "tiny-encoder", vocab_size=len(WORDS), tokenizer=WORDS, seed=4, inference__mask_token=[MASK]
    )


@pytest.fixture(scope="module")
def judge():
    return ch.new(
        "tiny-encoder", vocab_size=len(WORDS), tokenizer=WORDS, seed=4, head={"kind": "classification", "classes": 3},
        use__labels=["bad", "fair", "good"],
    )  # fmt: skip


def test_gaps_are_filled_with_the_likeliest_tokens(reader):
    ids = [*WORDS.encode("the"), MASK, *WORDS.encode(" sat")]
    expected = reader.logits(ids)[len(WORDS.encode("the"))].softmax(-1).topk(3)
    found = reader.fill("the [MASK] sat", 3)
    assert [word.token for word in found] == expected.indices.tolist()
    assert [word.probability for word in found] == pytest.approx(expected.values.tolist(), abs=1e-6)


def test_gaps_are_filled_by_the_edited_model(reader):
    edits = {"blocks.0.attn.z": ch.ablate(head=1)}
    expected = reader.logits([*WORDS.encode("the"), MASK], edits=edits)[-1].softmax(-1).max()
    assert reader.fill("the [MASK]", 1, edits=edits)[0].probability == pytest.approx(
        float(expected), abs=1e-6
    )
    assert reader.fill("the [MASK]", edits=edits) != reader.fill("the [MASK]")
    with pytest.raises(ch.ClearheadError, match=r"blocks\.9"):
        reader.fill("the [MASK]", edits={"blocks.9.resid_post": ch.ablate()})


def test_a_gap_may_be_called_as_the_tokenizer_calls_it_and_there_may_be_several(reader):
    assert reader.fill("the [MASK] sat") == reader.fill("the <|mask|> sat")
    two = reader.fill("[MASK] cat [MASK]", 2)
    assert [len(gap) for gap in two] == [2, 2]


def test_a_word_brings_its_own_space():
    assert encode_masked_text(WORDS, ch.Config().inference.__class__(mask_token=(MASK,)), "the [MASK] sat") == [
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
    model = ch.new(
        "tiny-encoder", vocab_size=len(WORDS), tokenizer=WORDS, head={"kind": "regression"}
    )
    assert model.classify("the cat") == pytest.approx(float(model.logits("the cat")))


def test_pictures_are_classified():
    model = ch.new("tiny-pictures")
    made = model.classify(images=torch.zeros(2, 1, 8, 8))
    assert [one.label for one in made] == [made[0].label] * 2


def test_a_score_is_the_sum_of_what_the_model_gives_each_token():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=3)
    ids = model.tokenizer.encode("abcab")
    rows = model.logits(ids).log_softmax(-1)
    expected = [float(rows[i, token]) for i, token in enumerate(ids[1:])]
    made = model.score("abcab")
    assert made.logprobs == pytest.approx(expected, abs=1e-5)
    assert made.perplexity == pytest.approx(math.exp(-sum(expected) / 4), rel=1e-5)
    assert model.score(["abcab", "ab"])[1].logprobs == pytest.approx(expected[:1], abs=1e-5)


def test_a_text_beyond_all_likelihood_has_an_infinite_perplexity():
    assert ScoreResult([-800.0, -800.0]).perplexity == math.inf
    assert math.isnan(ScoreResult([]).perplexity)


@pytest.fixture(scope="module")
def writer():
    return ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=3)


@pytest.mark.parametrize("length", [33, 47, 48, 49, 80, 200])
def test_a_long_text_is_scored_piece_by_piece_each_token_from_at_least_half_a_context(
    writer, length
):
    ids = torch.randint(256, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    made = writer.score(ids, "slide").logprobs
    assert len(made) == length - 1
    begins = [0] * 32 + [
        16 * ((i - 16) // 16) for i in range(32, length)
    ]  # where the piece begins that tells token i + 1
    for i in (0, 5, 31, length // 2, length - 2):
        piece = ids[begins[i] : i + 1]
        assert i < 32 or len(piece) > 16
        expected = writer.logits(piece)[-1].log_softmax(-1)[ids[i + 1]]
        assert made[i] == pytest.approx(float(expected), abs=1e-4)


def test_sliding_changes_nothing_for_what_fits(writer):
    assert writer.score("a text", "slide") == writer.score("a text")
    assert writer.score("a") == writer.score(["a", "bc"])[0]
    assert writer.score("a").logprobs == []


def test_many_texts_are_read_in_parts_and_come_back_in_order(writer, judge, monkeypatch):
    texts = ["the cat"[: 1 + i % 7] + "x" * (i * 7 % 13) for i in range(60)]
    alone = [(judge.classify(t), judge.embed(t), writer.score(t)) for t in texts]
    widths = []
    for model in (judge, writer):
        forward = model.net.forward
        monkeypatch.setattr(
            model.net,
            "forward",
            lambda ids, forward=forward, **k: widths.append(ids.numel()) or forward(ids, **k),
        )
    monkeypatch.setitem(MAX_BATCH_TOKENS, "cpu", 50)
    made = zip(judge.classify(texts), judge.embed(texts), writer.score(texts), strict=True)
    for (judged, vector, scored), (judged_alone, vector_alone, scored_alone) in zip(
        made, alone, strict=True
    ):
        assert judged.probability == pytest.approx(judged_alone.probability, abs=1e-6)
        assert torch.allclose(vector, vector_alone, atol=1e-5)
        assert scored.logprobs == pytest.approx(scored_alone.logprobs, abs=1e-5)
    assert max(widths) <= 50
    assert len(widths) > 20


def test_logits_are_made_for_a_few_tokens_at_a_time(writer, monkeypatch):
    expected = writer.score("abcabcabcab").logprobs
    monkeypatch.setattr(tasks, "LOGITS", 256 * 3)
    assert writer.score("abcabcabcab").logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda r, j: r.fill("no gap"), "the text has no gap"),
        (lambda r, j: j.fill("a [MASK]"), "fills no gaps"),
        (lambda r, j: r.fill("a [MASK]", 0), "top = 0 must be a whole number of at least 1"),
        (lambda r, j: r.fill("a [MASK] " * 40), "more than this model's context"),
        (lambda r, j: r.classify("a"), "tells no classes"),
        (lambda r, j: r.score("a"), "does not write text"),
        (lambda r, j: r.fill(""), "the text has no gap"),
        (lambda r, j: r.fill(["a [MASK]"]), "one text with"),
        (lambda r, j: r.fill(7), "one text with"),
        (lambda r, j: r.fill("a [MASK]", 2.5), "top = 2.5"),
        (lambda r, j: r.fill("a [MASK]", True), "top = True"),
        (lambda r, j: j.classify(), "none was given"),
        (lambda r, j: j.classify([]), "the text is empty"),
        (lambda r, j: j.classify(["a", ""]), "text 2 is empty"),
        (lambda r, j: j.classify([None]), "a text or a list of token ids"),
        (lambda r, j: j.classify(pictures="a.png"), "reads text, not pictures"),
        (lambda r, j: j.classify([[1.5]]), "a text or a list of token ids"),
        (lambda r, j: j.classify({"a": 1}), "not dict"),
        (lambda r, j: j.classify([[10**6]]), "out of range"),
        (lambda r, j: r.embed([]), "the text is empty"),
        (lambda r, j: r.embed("a", pooling="max"), "it is mean or first"),
        (lambda r, j: r.embed("x" * 99), "99 tokens are more than this model's context"),
        (lambda r, j: r.embed(["a", "x" * 99]), "text 2 is too long: 99 tokens"),
        (lambda r, j: r.embed("half \ud83d"), "no token"),
        (lambda r, j: ch.new("tiny-encoder-decoder").embed([1]), "gives no vector"),
        (lambda r, j: ch.new("tiny-pictures").embed("a"), "reads pictures"),
        (lambda r, j: ch.new("tiny-decoder").score("a"), "has no tokenizer"),
        (lambda r, j: ch.new("tiny-decoder").score([1, 2], "skip"), "overflow 'skip' is unknown"),
        (lambda r, j: ch.new("tiny-decoder").score([1] * 99), "99 tokens are more than"),
        (lambda r, j: ch.new("tiny-decoder").score([[1], []]), "text 2 is empty"),
    ],
)
def test_what_a_model_cannot_answer_is_refused_with_a_sentence(reader, judge, wrong, sentence):
    with pytest.raises(ch.ClearheadError, match=sentence):
        wrong(reader, judge)


@pytest.mark.parametrize("head", ["classes", "number"])
def test_what_is_no_number_has_no_class_and_is_none(head):
    model = ch.new("tiny-pictures", head=head)
    blank = torch.zeros(2, 1, 8, 8)
    assert len(model.classify(images=blank)) == 2
    model.net.final_norm.weight.data[0] = torch.nan
    with pytest.raises(ch.ClearheadError, match="the logits hold no numbers"):
        model.classify(images=blank)


def test_a_gap_is_read_as_one_wherever_a_masked_word_model_reads_text(reader, judge):
    text = "the [MASK] sat"
    ids = [*WORDS.encode("the"), MASK, *WORDS.encode(" sat")]
    assert torch.equal(reader.logits(text), reader.logits(ids))
    assert reader.watch(text, "embed").tokens == reader.watch(ids, "embed").tokens
    assert list(reader._rows([text])) == [ids]
    assert not torch.equal(judge.logits(text), judge.logits(ids))  # others read what is written
