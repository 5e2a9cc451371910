"""Heads found by sentences with an effect and their controls."""

import pytest
import torch
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app
from clearhead.lens import find_heads, head_contrast, read_contrast
from clearhead.lens.head_contrast import AttentionExample, attention_to_words, contrast_names

HEADER = "kind\tword\ttext\tattended\n"
BYTES = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes(), "context_length": 64}
PAIRS = [
    (
        AttentionExample("cat", f"{a} {b} cat", f"{a} {b}"),
        AttentionExample("cat", "it is a cat", "a"),
    )
    for a in ("big", "red", "old", "wet")
    for b in ("thin", "sad", "shy", "odd", "hot")
]


@pytest.fixture(scope="module")
def model():
    return ch.new("tiny-decoder", **BYTES)


def weights(num_pairs, effects, base=0.2):
    """pair·kind × 2 layers × 3 heads of noise around a base; some heads have an effect in pairs."""
    values = base + base / 10 * torch.randn(num_pairs, 2, 2, 3, generator=torch.manual_seed(0))
    for (layer, head), (pairs, size) in effects.items():
        values[pairs, 0, layer, head] += size
    return values.flatten(0, 1)


def test_weights_equal_the_attention_between_words(model):
    """Also in a batch with a longer text, for several words, and in an encoder."""
    examples = [
        AttentionExample("CAT", "a big cat, a cat", "big a"),
        AttentionExample("dog", "it is a red, old and very tired dog", "red tired"),
    ]
    for net in (model, ch.new("tiny-encoder", **BYTES)):
        found = attention_to_words(net, examples)
        for values, example in zip(found, examples, strict=True):
            view = ch.lens.word_attention(net, example.word, example.text)
            attended = [label in example.attended.split() for label in view.axes[-1].labels]
            torch.testing.assert_close(values, view.values[..., attended].sum(dim=-1))


def test_the_second_half_exposes_a_head_that_was_chosen_by_chance(model, monkeypatch):
    first_half = slice(0, 10)
    effects = {(0, 1): (first_half, 0.5), (1, 2): (slice(None), 0.3)}
    monkeypatch.setattr(head_contrast, "attention_to_words", lambda *_: weights(20, effects))
    found = find_heads(model, PAIRS, top_k=3)
    assert found.heads[:2] == ((0, 1), (1, 2))
    assert found.num_pairs == 10
    _, _, difference, low, high = found.values[0].tolist()
    assert low < 0.02
    assert abs(difference) < 0.03 < 0.3
    assert not found.has_clear_effect
    effect, control, difference, low, high = found.values[1].tolist()
    assert low < difference < high
    assert difference == pytest.approx(effect - control, abs=1e-6)
    assert 0.27 < low < 0.3 < high < 0.33


@pytest.mark.parametrize(
    ("base", "size", "clear"),
    [(0.2, 0.3, True), (0.2, 0.05, False), (0.02, 0.03, False), (0.02, 0.06, True)],
)
def test_a_clear_effect_is_large_and_its_interval_above_zero(model, monkeypatch, base, size, clear):
    """0.25 is not 1.5 times 0.2, and 0.05 hardly more than 0.02."""
    effects = {(1, 2): (slice(None), size)}
    monkeypatch.setattr(head_contrast, "attention_to_words", lambda *_: weights(20, effects, base))
    found = find_heads(model, PAIRS)
    assert found.heads[0] == (1, 2)
    assert found.values[0, 3] > 0
    assert found.has_clear_effect == clear


def test_intervals_cover_the_true_mean():
    """The 95% interval of 400 samples contains the mean in about 95% of them."""
    samples = torch.randn(40, 400, generator=torch.manual_seed(1))
    low, high = head_contrast.bootstrap_interval(samples)
    assert 0.9 < float(((low < 0) & (high > 0)).float().mean()) < 0.98


@pytest.mark.parametrize("name", contrast_names())
def test_bundled_contrasts_hold_out_their_words(name):
    """The measured half has other sentences, and 20 pairs; a control differs from its effect."""
    pairs = read_contrast(name)
    assert len(pairs) == 40
    assert all(effect != control for effect, control in pairs)
    first, second = (
        {example.attended for pair in half for example in pair} for half in (pairs[:20], pairs[20:])
    )
    assert not first & second
    assert len({effect.text for effect, _ in pairs}) == 40


def test_file_equals_the_pairs(model, tmp_path):
    path = tmp_path / "mine.tsv"
    rows = [
        f"{kind}\t{example.word}\t{example.text}\t{example.attended}\n"
        for pair in PAIRS
        for kind, example in zip(("effect", "control"), pair, strict=True)
    ]
    path.write_text(HEADER + "".join(rows))
    assert read_contrast(path) == PAIRS
    found = find_heads(model, PAIRS, top_k=2)
    assert find_heads(model, path, top_k=2).values.equal(found.values)
    ch.save(model, tmp_path / "model")
    command = ["see", str(tmp_path / "model"), "--find-head", str(path)]
    shown = CliRunner().invoke(app, command, catch_exceptions=False).stdout
    assert found.axes[0].labels[0] in shown
    assert f"{float(found.values[0, 0]):.2f}" in shown


@pytest.mark.parametrize(
    ("rows", "keyword"),
    [
        ([], "got 0"),
        ([("effect", "a", "a b", "b")], "each effect needs its control"),
        ([("Effect", "a", "a b", "b")], "effect or control"),
        ([("effect", "a", "a b", " ")], "not empty"),
        ([("effect", "a", "a b")], "columns"),
        ([("effect", "b", "a b", "a"), ("control", "b", "a b", "c")] * 8, "'c' is not in"),
        ([("effect", "b", "a b", "a"), ("control", "c", "a b", "a")] * 8, "'c' is not in"),
    ],
)
def test_unusable_tables_are_refused(model, tmp_path, rows, keyword):
    path = tmp_path / "mine.tsv"
    path.write_text(HEADER + "".join("\t".join(row) + "\n" for row in rows))
    with pytest.raises(ch.ClearheadError, match=keyword):
        find_heads(model, path)


def test_unknown_names_are_refused(model):
    with pytest.raises(ch.ClearheadError, match="adjectives"):
        find_heads(model, "adjectivs")


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        (["--find-head", "adjectives", "a cat"], "WORD:WORD"),
        (["--find-head", "cat:big"], "needs a text"),
        ([], "give the model a text"),
    ],
)
def test_the_text_must_fit_the_option(tmp_path, words, keyword):
    with pytest.raises(ch.ClearheadError, match=keyword):
        CliRunner().invoke(app, ["see", str(tmp_path), *words], catch_exceptions=False)


@pytest.mark.parametrize("pairs", [[("a", "b")] * 8, ["ab"] * 8, [PAIRS[0][0]] * 8])
def test_pairs_must_be_of_examples(model, pairs):
    with pytest.raises(ch.ClearheadError, match="AttentionExample"):
        find_heads(model, pairs)


def test_texts_are_tokenized_once_and_not_longer_than_the_context(model, monkeypatch):
    encode = ch.Tokenizer.encode
    texts = []
    monkeypatch.setattr(
        ch.Tokenizer, "encode", lambda self, text: texts.append(text) or encode(self, text)
    )
    attention_to_words(model, [PAIRS[0][0]])
    assert texts == [PAIRS[0][0].text]
    monkeypatch.setattr(model.net, "forward", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(ch.ClearheadError, match="context of 64"):
        attention_to_words(model, [PAIRS[0][0], AttentionExample("a", "a b " * 20, "b")])


def test_tables_are_read_up_to_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(head_contrast, "MAX_PAIRS", 10)
    path = tmp_path / "mine.tsv"
    path.write_text(HEADER + "effect\ta\ta b\tb\n" * 11 + "Effect\n")
    with pytest.raises(ch.ClearheadError, match=r"mine.tsv:12.*at most 10 pairs"):
        read_contrast(path)


def test_a_decoder_cannot_attend_to_later_words(model):
    later = AttentionExample("cat", "the cat sat, big", "big")
    with pytest.raises(ch.ClearheadError, match="comes later"):
        attention_to_words(model, [later])
    encoder = ch.new("tiny-encoder", **BYTES)
    assert attention_to_words(encoder, [later]).min() > 0


def test_the_number_of_heads_is_checked_before_any_work(model, monkeypatch):
    monkeypatch.setattr(head_contrast, "attention_to_words", None)
    with pytest.raises(ch.ClearheadError, match="top_k"):
        find_heads(model, PAIRS, top_k=0)
