"""Mask filling, classification, regression and scores agree with the logits."""

import math

import pytest
import torch

import clearhead as ch
from clearhead.data.batch import MAX_BATCH_TOKENS
from clearhead.generate import tasks
from clearhead.generate.tasks import Score, encode_masked_text

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
        "tiny-encoder",
        vocab_size=len(WORDS),
        tokenizer=WORDS,
        seed=4,
        head={"kind": "classification", "num_labels": 3},
        inference__labels=["bad", "fair", "good"],
    )


def test_masks_are_filled_with_the_most_likely_tokens(reader):
    ids = [*WORDS.encode("the"), MASK, *WORDS.encode(" sat")]
    expected = reader.logits(ids)[len(WORDS.encode("the"))].softmax(-1).topk(3)
    found = reader.fill("the [MASK] sat", 3)
    [candidates] = found.masks
    assert [c.token for c in candidates] == expected.indices.tolist()
    assert [c.probability for c in candidates] == pytest.approx(expected.values.tolist(), abs=1e-6)


def test_fill_applies_edits(reader):
    edits = {"blocks.0.attn.z": ch.ablate(head=1)}
    expected = reader.logits([*WORDS.encode("the"), MASK], edits=edits)[-1].softmax(-1).max()
    assert reader.fill("the [MASK]", 1, edits=edits).masks[0][0].probability == pytest.approx(
        float(expected), abs=1e-6
    )
    assert reader.fill("the [MASK]", edits=edits) != reader.fill("the [MASK]")
    with pytest.raises(ch.ClearheadError, match=r"blocks\.9"):
        reader.fill("the [MASK]", edits={"blocks.9.resid_post": ch.ablate()})


def test_several_masks_are_filled_and_the_tokenizers_own_mask_token_works(reader):
    assert reader.fill("the [MASK] sat") == reader.fill("the <|mask|> sat")
    two = reader.fill("[MASK] cat [MASK]", 2)
    assert [len(candidates) for candidates in two.masks] == [2, 2]
    assert reader.fill(["the [MASK] sat", "[MASK] cat [MASK]"], 2)[1] == two


def test_the_space_before_a_mask_belongs_to_the_word():
    assert encode_masked_text(
        WORDS, ch.Config().inference.__class__(mask_token=(MASK,)), "the [MASK] sat"
    ) == [
        *WORDS.encode("the"),
        MASK,
        *WORDS.encode(" sat"),
    ]


def test_classification_is_the_softmax_of_the_logits(judge):
    texts = ["the cat", "a dog ran on the mat"]
    expected = [judge.logits(text).softmax(-1).tolist() for text in texts]
    for result, softmax in zip(judge.classify(texts), expected, strict=True):
        assert list(result.probabilities) == ["bad", "fair", "good"]
        assert list(result.probabilities.values()) == pytest.approx(softmax, abs=1e-6)
        assert result.score == max(result.probabilities.values())
        assert result.score == result.probabilities[result.label]
    assert judge.classify(texts[0]) == judge.classify(texts[:1])[0]


def test_regression_gives_the_value_as_score():
    model = ch.new(
        "tiny-encoder", vocab_size=len(WORDS), tokenizer=WORDS, head={"kind": "regression"}
    )
    result = model.classify("the cat")
    assert result.score == pytest.approx(float(model.logits("the cat")))
    assert (result.label, result.probabilities) == ("", {})


def test_images_are_classified():
    model = ch.new("tiny-images")
    made = model.classify(images=torch.zeros(2, 1, 8, 8))
    assert [one.label for one in made] == [made[0].label] * 2


@pytest.mark.parametrize("texts", ["", ["a", " "]])
def test_empty_texts_are_not_scored(writer, texts):
    with pytest.raises(ch.ClearheadError, match="is empty"):
        writer.score(texts)


def test_score_is_the_sum_of_token_logprobs():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=3)
    ids = model.tokenizer.encode("abcab")
    rows = model.logits(ids).log_softmax(-1)
    expected = [float(rows[i, token]) for i, token in enumerate(ids[1:])]
    made = model.score("abcab")
    assert made.logprobs == pytest.approx(expected, abs=1e-5)
    assert made.perplexity == pytest.approx(math.exp(-sum(expected) / 4), rel=1e-5)
    assert model.score(["abcab", "ab"])[1].logprobs == pytest.approx(expected[:1], abs=1e-5)


def test_perplexity_overflows_to_infinity():
    assert Score([-800.0, -800.0]).perplexity == math.inf
    assert math.isnan(Score([]).perplexity)


@pytest.fixture(scope="module")
def writer():
    return ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=3)


@pytest.mark.parametrize("length", [33, 47, 48, 49, 80, 200])
def test_long_texts_are_scored_in_sliding_windows(writer, length):
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


def test_sliding_equals_plain_scoring_for_short_texts(writer):
    assert writer.score("a text", "slide") == writer.score("a text")
    assert writer.score("a") == writer.score(["a", "bc"])[0]
    assert writer.score("a").logprobs == []


def test_many_texts_are_batched_and_returned_in_order(writer, judge, monkeypatch):
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
        assert judged.score == pytest.approx(judged_alone.score, abs=1e-6)
        assert torch.allclose(vector, vector_alone, atol=1e-5)
        assert scored.logprobs == pytest.approx(scored_alone.logprobs, abs=1e-5)
    assert max(widths) <= 50
    assert len(widths) > 20


def test_score_computes_few_logits_at_a_time(writer, monkeypatch):
    expected = writer.score("abcabcabcab").logprobs
    monkeypatch.setattr(tasks, "MAX_LOGITS", 256 * 3)
    assert writer.score("abcabcabcab").logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda r, j: r.fill("no gap"), "has no mask"),
        (lambda r, j: j.fill("a [MASK]"), "mlm head"),
        (lambda r, j: r.fill("a [MASK]", 0), "top_k must be a positive integer"),
        (lambda r, j: r.fill("a [MASK] " * 40), "context"),
        (lambda r, j: r.classify("a"), "classification"),
        (lambda r, j: r.embed(7), "int"),
        (lambda r, j: r.score("a"), "not a language model"),
        (lambda r, j: r.fill(""), "has no mask"),
        (lambda r, j: r.fill(["a [MASK]", "no mask"]), "text 2 has no mask"),
        (lambda r, j: r.fill(7), "got int"),
        (lambda r, j: r.fill("a [MASK]", 2.5), "top_k must be"),
        (lambda r, j: r.fill("a [MASK]", True), "top_k must be"),
        (lambda r, j: j.classify(), "missing"),
        (lambda r, j: j.classify([]), "empty"),
        (lambda r, j: j.classify(["a", ""]), "text 2 is empty"),
        (lambda r, j: j.classify([None]), "a text or a list of token ids"),
        (lambda r, j: j.classify(images="a.png"), "images"),
        (lambda r, j: j.classify([[1.5]]), "a text or a list of token ids"),
        (lambda r, j: j.classify({"a": 1}), "dict"),
        (lambda r, j: j.classify([[10**6]]), "out of range"),
        (lambda r, j: r.embed([]), "empty"),
        (lambda r, j: r.embed("a", pooling="max"), "pooling must be"),
        (lambda r, j: r.embed("x" * 99), "99 tokens"),
        (lambda r, j: r.embed(["a", "x" * 99]), "text 2 is too long: 99 tokens"),
        (lambda r, j: r.embed("half \ud83d"), "vocabulary"),
        (lambda r, j: ch.new("tiny-encoder-decoder").embed([1]), "no text embeddings"),
        (lambda r, j: ch.new("tiny-images").embed("a"), "images"),
        (lambda r, j: ch.new("tiny-decoder").score("a"), "has no tokenizer"),
        (lambda r, j: ch.new("tiny-decoder").score([1, 2], "skip"), "overflow must be"),
        (lambda r, j: ch.new("tiny-decoder").score([1] * 99), "99 tokens"),
        (lambda r, j: ch.new("tiny-decoder").score([[1], []]), "text 2 is empty"),
    ],
)
def test_unsupported_tasks_are_refused(reader, judge, wrong, sentence):
    with pytest.raises(ch.ClearheadError, match=sentence):
        wrong(reader, judge)


@pytest.mark.parametrize("head", ["classification", "regression"])
def test_non_finite_logits_are_refused(head):
    model = ch.new("tiny-images", head=head)
    blank = torch.zeros(2, 1, 8, 8)
    assert len(model.classify(images=blank)) == 2
    model.net.final_norm.weight.data[0] = torch.nan
    with pytest.raises(ch.ClearheadError, match="NaN"):
        model.classify(images=blank)


def test_mask_placeholder_is_one_token_for_an_mlm(reader, judge):
    text = "the [MASK] sat"
    ids = [*WORDS.encode("the"), MASK, *WORDS.encode(" sat")]
    assert torch.equal(reader.logits(text), reader.logits(ids))
    assert reader.watch(text, "embed").tokens == reader.watch(ids, "embed").tokens
    assert list(reader.encode_texts([text])) == [ids]
    assert not torch.equal(
        judge.logits(text), judge.logits(ids)
    )  # other models read the placeholder as text
