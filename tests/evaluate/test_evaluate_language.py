"""Metrics of language models and masked language models, computed by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.data.batch import MAX_BATCH_TOKENS
from clearhead.errors import ClearheadError
from clearhead.generate.tasks import sliding_windows

WORDS = ch.Tokenizer.train_bpe(["the cat sat on the mat"], 300, ("<|end|>", "<|mask|>"))
END = WORDS.special_tokens["<|end|>"]
MASK = WORDS.special_tokens["<|mask|>"]
TEXTS = ["the cat sat\non the mat", "ä dog", "the mat " * 40]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "texts.txt").write_text("\n<|endoftext|>\n".join(TEXTS) + "\n")
    return tmp_path / "texts.txt"


def language_model(tokenizer=WORDS, **changes):
    return ch.new(
        "tiny-decoder",
        vocab_size=len(tokenizer),
        tokenizer=tokenizer,
        context_length=32,
        seed=1,
        **changes,
    )


def documents(file):
    return [text.removeprefix("\n") for text in file.read_text().split("<|endoftext|>\n")]


def expected_losses(model, ids, stride):
    """−log p of each token after the first, in the first window that contains it."""
    losses = {}
    for start in range(0, len(ids) - 1, stride):
        window = ids[start : start + 32]
        log_probs = model.logits(window).log_softmax(-1)
        for position, row in enumerate(log_probs, start + 1):
            if position < len(ids):
                losses.setdefault(position, -row[ids[position]].item())
    return [losses[position] for position in range(1, len(ids))]


@pytest.mark.parametrize("stride", [0, 1, 5, 32])
def test_loss_perplexity_and_bits_per_byte_by_hand(file, stride):
    model = language_model(inference__eos_tokens=[END])
    losses = [
        expected_losses(model, [END, *WORDS.encode(text)], stride or 16) for text in documents(file)
    ]
    total = sum(map(sum, losses))
    tokens = sum(map(len, losses))
    text = "".join(documents(file))
    result = ch.evaluate(model, file, stride=stride)
    assert result.value("loss") == pytest.approx(total / tokens, rel=1e-5)
    assert result.value("perplexity") == pytest.approx(math.exp(total / tokens), rel=1e-4)
    assert result.value("word_perplexity") == pytest.approx(
        math.exp(total / len(text.split())), rel=1e-3
    )
    assert result.value("bits_per_byte") == pytest.approx(
        total / math.log(2) / len(text.encode()), rel=1e-5
    )
    assert [example["tokens"] for example in result.examples] == [
        len(document) for document in losses
    ]
    assert [example["loss"] for example in result.examples] == pytest.approx(
        [np.mean(document) for document in losses], rel=1e-5
    )


@given(st.integers(0, 200), st.integers(1, 40), st.data())
def test_windows_cover_every_token_once(tokens, context, data):
    stride = data.draw(st.integers(1, context))
    covered = []
    for start, new, end in sliding_windows(tokens, context, stride):
        assert end - start <= context
        assert start == 0 or new - start >= context - stride
        covered += range(new, end)
    assert covered == list(range(tokens))


def test_metrics_do_not_depend_on_batching(file, monkeypatch):
    first = ch.evaluate(language_model(inference__eos_tokens=[END]), file)
    monkeypatch.setitem(MAX_BATCH_TOKENS, "cpu", 1)
    second = ch.evaluate(language_model(inference__eos_tokens=[END]), file)
    for a, b in zip(first.metrics, second.metrics, strict=True):
        assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), rel=1e-5)


@pytest.mark.parametrize("tokenizer", [WORDS, ch.Tokenizer.bytes(("<|end|>",))])
def test_bits_per_byte_count_bytes_of_the_text(file, tokenizer):
    """A uniform model needs log₂(vocabulary) bits per token."""
    model = language_model(tokenizer)
    torch.nn.init.zeros_(model.net.head.unembed.weight)
    tokens = sum(len(tokenizer.encode(text)) for text in documents(file))
    expected = (
        tokens * math.log2(len(tokenizer)) / sum(len(text.encode()) for text in documents(file))
    )
    assert ch.evaluate(model, file).value("bits_per_byte") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("tokenizer", "tokens", "size"),
    [(ch.Tokenizer.characters("äabc"), 3, 3), (ch.Tokenizer.bytes(), 4, 4)],
)
def test_first_token_without_bos_is_not_scored(tmp_path, tokenizer, tokens, size):
    (tmp_path / "a.txt").write_text("äabc")
    result = ch.evaluate(language_model(tokenizer), tmp_path / "a.txt")
    assert (result.examples[0]["tokens"], result.examples[0]["bytes"]) == (tokens, size)
    assert "start token" in result.notes[0]


@pytest.mark.parametrize(
    ("text", "words"), [("a bc\ncab", 2), ("ab c", 2), (" a b", 2), ("a b", 1)]
)
def test_first_word_without_bos_is_not_counted(tmp_path, text, words):
    (tmp_path / "a.txt").write_text(text)
    result = ch.evaluate(language_model(ch.Tokenizer.characters("abc \n")), tmp_path / "a.txt")
    loss = result.value("loss") * (len(text) - 1)
    assert result.value("word_perplexity") == pytest.approx(math.exp(loss / words), rel=1e-5)


def test_bootstrap_units_are_documents_or_segments(tmp_path):
    (tmp_path / "many.txt").write_text("\n<|endoftext|>\n".join(["the cat", "a mat on"] * 20))
    (tmp_path / "one.txt").write_text("the cat sat on a mat\n" * 50)
    many, one = (
        ch.evaluate(language_model(), tmp_path / name).metrics[0]
        for name in ("many.txt", "one.txt")
    )
    assert (many.n, many.unit, one.unit) == (40, "documents", "segments of up to 128 tokens")
    assert one.low < one.value < one.high
    assert ch.evaluate(language_model(), tmp_path / "one.txt", stride=3).metrics[0].n == one.n


def test_a_single_masked_word_suffices(tmp_path):
    (tmp_path / "short.txt").write_text("hi")
    model = ch.new(
        "tiny-encoder", vocab_size=len(WORDS), tokenizer=WORDS, inference__mask_token=[MASK]
    )
    assert ch.evaluate(model, tmp_path / "short.txt").examples[0]["masked"] == 1


def test_masked_lm_metrics_by_hand(file):
    model = ch.new(
        "tiny-encoder",
        vocab_size=len(WORDS),
        tokenizer=WORDS,
        context_length=32,
        inference__mask_token=[MASK],
        inference__bos_tokens=[END],
        seed=1,
    )
    result = ch.evaluate(model, file, seed=3)
    rng = np.random.default_rng(3)
    masked_losses = []
    is_correct = []
    for text in documents(file):
        ids = WORDS.encode(text)
        for row in ([END, *ids[start : start + 31]] for start in range(0, len(ids), 31)):
            masked = rng.choice(
                range(1, len(row)), max(1, round(0.15 * (len(row) - 1))), replace=False
            )
            log_probs = model.logits(
                [MASK if i in masked else token for i, token in enumerate(row)]
            ).log_softmax(-1)
            masked_losses += [-log_probs[i, row[i]].item() for i in masked]
            is_correct += [log_probs[i].argmax().item() == row[i] for i in masked]
    assert result.value("loss") == pytest.approx(np.mean(masked_losses), rel=1e-5)
    assert result.value("accuracy") == pytest.approx(np.mean(is_correct))
    assert sum(example["masked"] for example in result.examples) == len(masked_losses)
    assert ch.evaluate(model, file, seed=4).value("loss") != result.value("loss")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"stride": 33}, "stride must be"),
        ({}, {"num_beams": 0}, "num_beams must be"),
        ({}, {"seed": -1}, "seed must be"),
        ({}, {"label_column": "x"}, "label_column does not apply"),
        ({}, {"on_error": "x"}, "on_error"),
        ({"head": "none"}, {}, "without a head"),
    ],
)
def test_invalid_evaluation_options_are_refused(file, change, options, message):
    with pytest.raises(ClearheadError, match=message):
        ch.evaluate(language_model(**change), file, **options)


def test_empty_files_are_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ClearheadError, match="text"):
        ch.evaluate(language_model(), tmp_path / "empty.txt")
    with pytest.raises(ClearheadError, match="no such file"):
        ch.evaluate(language_model(), tmp_path / "none.txt")
    with pytest.raises(ClearheadError, match="at least one file"):
        ch.evaluate(language_model(), [])
    with pytest.raises(ClearheadError, match="model"):
        ch.evaluate("story", tmp_path / "empty.txt")
    with pytest.raises(ClearheadError, match="no tokenizer"):
        ch.evaluate(ch.new("tiny-decoder"), tmp_path / "empty.txt")
