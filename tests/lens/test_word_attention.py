"""Attention between words, however they are split into tokens."""

import pytest
import torch

import clearhead as ch

TEXT = "It isn't a big cat, it is a dog"
WORDS = ("It", "isn't", "a", "big", "cat", "it", "is", "a", "dog")
BYTES = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes(), "context_length": 64}


@pytest.fixture(scope="module")
def model():
    return ch.new("tiny-decoder", **BYTES)


def test_attends_from_its_last_token_to_all_tokens_of_a_word(model):
    view = ch.lens.word_attention(model, "cat", TEXT)
    assert view.axes[-1].labels == WORDS
    pattern = ch.lens.attention(model, TEXT).values
    query = TEXT.index("cat") + 2
    big = TEXT.index("big")
    torch.testing.assert_close(view.values[..., 3], pattern[:, :, query, big : big + 3].sum(dim=-1))


def test_the_rest_of_a_row_goes_to_tokens_outside_words(model):
    view = ch.lens.word_attention(model, "dog", TEXT)
    pattern = ch.lens.attention(model, TEXT).values
    outside = [i for i, letter in enumerate(TEXT) if letter in " ,"]
    rest = pattern[:, :, -1, outside].sum(dim=-1)
    torch.testing.assert_close(1 - view.values.sum(dim=-1), rest)


def test_the_last_occurrence_is_the_query_ignoring_case(model):
    view = ch.lens.word_attention(model, "it", TEXT)
    assert ch.lens.word_attention(model, "IT", TEXT).values.equal(view.values)
    assert float(view.values[..., 4].min()) > 0  # the first "It" cannot attend to "cat"


def test_a_mask_is_one_word():
    tokenizer = ch.Tokenizer.bytes(("<|mask|>",))
    changes = {"vocab_size": 257, "tokenizer": tokenizer, "context_length": 64}
    model = ch.new("tiny-encoder", **changes, inference__mask_token=[256])
    text = "a [MASK] cat"  # tokens: a, mask with its space, space, c, a, t
    pattern = ch.lens.attention(model, text).values
    view = ch.lens.word_attention(model, "cat", text)
    assert view.axes[-1].labels == ("a", "[MASK]", "cat")
    torch.testing.assert_close(view.values[..., 1], pattern[:, :, 5, 1])
    view = ch.lens.word_attention(model, "[mask]", text)
    torch.testing.assert_close(view.values[..., 2], pattern[:, :, 1, 3:].sum(dim=-1))


def test_a_decoder_does_not_attend_to_later_words(model):
    view = ch.lens.word_attention(model, "cat", TEXT)
    assert not view.values[..., 5:].any()
    with pytest.raises(ch.ClearheadError, match="'cat' cannot attend to 'dog', which comes later"):
        view.find_heads("dog")
    assert view.find_heads("it").values[:, 0].all()  # the first "It" comes before "cat"
    assert ch.lens.word_attention(model, "dog", TEXT).find_heads("cat").values[:, 0].all()
    encoder = ch.new("tiny-encoder", **BYTES)
    assert ch.lens.word_attention(encoder, "cat", TEXT).find_heads("dog").values[:, 0].all()


def test_encoder_decoder_uses_its_encoder():
    model = ch.new(
        "tiny-encoder-decoder",
        **BYTES,
        architecture__source_context_length=64,
        inference__decoder_start_tokens=[0],
    )
    view = ch.lens.word_attention(model, "cat", TEXT)
    pattern = ch.lens.attention(model, "", source=TEXT, kind="encoder").values
    query = TEXT.index("cat") + 2
    dog = TEXT.index("dog")
    weights = pattern[:, :, query, dog : dog + 3].sum(dim=-1)
    torch.testing.assert_close(view.values[..., -1], weights)


def test_find_heads_ranks_heads_and_shows_other_words(model):
    view = ch.lens.word_attention(model, "dog", TEXT)
    heads = view.find_heads("a", top_k=5)  # which occurs twice
    weights = view.values[..., [2, 7]].sum(dim=-1).flatten()
    best = weights.sort(descending=True).values[:5]
    torch.testing.assert_close(heads.values[:, 0], best)
    layer, head = map(int, heads.axes[0].labels[0].split("."))
    row = zip(view.values[layer, head].tolist(), WORDS, strict=True)
    weight, word = max((weight, word) for weight, word in row if word != "a")
    assert heads.words[0][:2] == ("a", word)
    assert heads.cell_texts[0][0].startswith("a: ")
    assert heads.cells[0][0] == f"a: {float(heads.values[0, 0]):.2f}"
    assert float(heads.values[0, 1]) == pytest.approx(weight)


def test_unknown_words_get_a_suggestion(model):
    with pytest.raises(ch.ClearheadError, match=r"'dogs' is not in .*; did you mean 'dog'"):
        ch.lens.word_attention(model, "dogs", TEXT)
    view = ch.lens.word_attention(model, "dog", TEXT)
    with pytest.raises(ch.ClearheadError, match="'dgo' is not in the text; did you mean 'dog'"):
        view.find_heads("dgo")
