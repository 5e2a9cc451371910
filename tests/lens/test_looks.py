"""Where a word looks: attention between words, whatever tokens they are cut into."""

import pytest
import torch

import clearhead as ch

TEXT = "It isn't a big cat, it is a dog"
WORDS = ("It", "isn't", "a", "big", "cat", "it", "is", "a", "dog")


@pytest.fixture(scope="module")
def model():
    return ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), context_length=64)


def test_it_looks_from_its_last_token_at_all_tokens_of_a_word(model):
    seen = ch.lens.word_attention(model, "cat", TEXT)
    assert seen.axes[-1].labels == WORDS
    pattern = ch.lens.attention(model, TEXT).values
    end = TEXT.index("cat") + 2
    big = TEXT.index("big")
    torch.testing.assert_close(seen.values[..., 3], pattern[:, :, end, big : big + 3].sum(dim=-1))


def test_what_is_missing_from_1_goes_to_no_word(model):
    seen = ch.lens.word_attention(model, "dog", TEXT)
    pattern = ch.lens.attention(model, TEXT).values
    blank = [i for i, letter in enumerate(TEXT) if letter in " ,"]
    torch.testing.assert_close(1 - seen.values.sum(dim=-1), pattern[:, :, -1, blank].sum(dim=-1))


def test_the_last_of_several_is_meant_and_case_is_not_heard(model):
    assert ch.lens.word_attention(model, "IT", TEXT).values.equal(
        ch.lens.word_attention(model, "it", TEXT).values
    )
    assert (
        float(ch.lens.word_attention(model, "it", TEXT).values[..., 4].min()) > 0
    )  # the first could not see the cat


def test_a_gap_is_one_word_and_words_behind_it_are_where_they_are():
    words = ch.Tokenizer.bytes(("<|mask|>",))
    model = ch.new(
        "tiny-encoder",
        vocab_size=257,
        tokenizer=words,
        context_length=64,
        inference__mask_token=[256],
    )
    pattern = ch.lens.attention(
        model, "a [MASK] cat"
    ).values  # a, gap with its space, space, c, a, t
    seen = ch.lens.word_attention(model, "cat", "a [MASK] cat")
    assert seen.axes[-1].labels == ("a", "[MASK]", "cat")
    torch.testing.assert_close(seen.values[..., 1], pattern[:, :, 5, 1])
    gap = ch.lens.word_attention(model, "[mask]", "a [MASK] cat")
    torch.testing.assert_close(gap.values[..., 2], pattern[:, :, 1, 3:].sum(dim=-1))


def test_a_decoder_does_not_look_ahead(model):
    assert not ch.lens.word_attention(model, "cat", TEXT).values[..., 5:].any()


def test_a_look_ahead_in_a_decoder_is_refused_with_the_order_that_works(model):
    with pytest.raises(
        ch.ClearheadError,
        match=r"'cat' cannot look at 'dog'.*only look back.*how 'dog' looks at 'cat'",
    ):
        ch.lens.word_attention(model, "cat", TEXT).find_heads("dog")
    assert ch.lens.word_attention(model, "dog", TEXT).find_heads("cat").values[:, 0].all()
    assert (
        ch.lens.word_attention(model, "cat", TEXT).find_heads("it").values[:, 0].all()
    )  # which stands before it, too
    reader = ch.new(
        "tiny-encoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), context_length=64
    )
    assert ch.lens.word_attention(reader, "cat", TEXT).find_heads("dog").values[:, 0].all()


def test_pictures_tell_how_much_each_word_is_looked_at(model):
    found = ch.lens.word_attention(model, "dog", TEXT).find_heads("cat")
    assert found.cells[0][0] == f"cat: {float(found.values[0, 0]):.2f}"


def test_a_translator_is_looked_at_where_it_reads():
    made = ch.new(
        "tiny-encoder-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), context_length=64, architecture__source_context_length=64,
        inference__decoder_start_tokens=[0],
    )  # fmt: skip
    seen = ch.lens.word_attention(made, "cat", TEXT)
    pattern = ch.lens.attention(made, "", source=TEXT, part="encoder").values
    place = TEXT.index("dog")
    torch.testing.assert_close(
        seen.values[..., -1], pattern[:, :, TEXT.index("cat") + 2, place : place + 3].sum(dim=-1)
    )


def test_heads_are_found_by_what_they_give_a_word_and_told_with_what_they_give_others(model):
    seen = ch.lens.word_attention(model, "dog", TEXT)
    found = seen.find_heads("a", top=5)  # which stands there twice
    both = seen.values[..., [2, 7]].sum(dim=-1).flatten()
    torch.testing.assert_close(found.values[:, 0], both.sort(descending=True).values[:5])
    layer, head = map(int, found.axes[0].labels[0].split("."))
    most, word = max(
        zip(seen.values[layer, head].tolist(), WORDS, strict=True),
        key=lambda one: one[0] * (one[1] != "a"),
    )
    assert found.words[0][:2] == ("a:", f"{word}:")
    assert float(found.values[0, 1]) == pytest.approx(most)
    with pytest.raises(ch.ClearheadError, match="'dgo' is not in the text; did you mean 'dog'"):
        seen.find_heads("dgo")


def test_a_word_that_is_not_there_is_told_with_the_nearest(model):
    with pytest.raises(ch.ClearheadError, match=r"'dogs' is not in .*; did you mean 'dog'"):
        ch.lens.word_attention(model, "dogs", TEXT)
