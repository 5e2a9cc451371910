"""A word in several sentences, and positions: what is told of them is what the model has."""

import math

import pytest
import torch
from torch.nn import functional as F

import clearhead as ch
from clearhead.lens.context import context
from clearhead.lens.positions import (
    position_shift,
    position_similarity,
    positional_encodings,
    relative_bias,
    rotary_angles,
)

TEXTS = ["American shrew mole", "one mole of carbon dioxide", "take a biopsy of the mole"]
TOKENIZER = ch.Tokenizer.train_bpe(TEXTS, 300)


def model(preset="tiny-decoder", **changes):
    made = ch.new(preset, vocab_size=len(TOKENIZER), tokenizer=TOKENIZER, seed=2, **changes)
    with torch.no_grad():  # so that biases count, too
        for parameter in made.net.parameters():
            parameter += 0.05 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(1)
            )
    return made


def of_word(made, text, name):
    """The word mole as the model has it: the mean over its tokens, found by cutting the text before and after it."""
    before = text.split("mole")[0]
    word = " mole"
    start = len(TOKENIZER.encode(before.rstrip()))
    count = len(TOKENIZER.encode(word))
    return made.watch([TOKENIZER.encode(text)], [name])[name][0, start : start + count].mean(dim=0)


def test_similarity_by_layer_is_the_cosine_of_the_words_streams():
    made = model()
    view = ch.context(made, "mole", TEXTS)
    for row, name in enumerate(["full_embed", "blocks.0.resid_post", "blocks.1.resid_post"]):
        a, b = (of_word(made, text, name) for text in (TEXTS[0], TEXTS[2]))
        assert float(view.values[row, 1]) == pytest.approx(
            float(F.cosine_similarity(a, b, dim=0)), abs=1e-5
        )
    assert view.axes[1].labels == ("0·1", "0·2", "1·2")
    assert view.by_head().values.shape == (2, made.config.model.attention.n_heads, 3)
    assert {row["layer"] for row in view.table()} == {"start", "layer 0", "layer 1"}


@pytest.mark.parametrize("wiring", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
def test_what_changed_a_word_adds_up_to_the_distance(preset, wiring, norm):
    made = model(preset, norm_position=wiring, norm=norm, attention__bias=["q", "k", "v"])
    change = context(made, "mole", TEXTS).difference(0, 2)
    ends = [of_word(made, text, "norm") for text in (TEXTS[0], TEXTS[2])]
    assert float(change.values.sum()) == pytest.approx(float((ends[1] - ends[0]).norm()), rel=1e-4)
    parts = dict(zip(change.axes[0].labels, change.values.tolist(), strict=True))
    attention = torch.tensor([parts[f"{i} attention"] for i in range(2)])
    torch.testing.assert_close(change.by_head().values.sum(dim=1), attention, atol=1e-5, rtol=1e-4)
    assert attention.abs().min() > 1e-3


def test_the_last_of_several_is_meant_and_case_does_not_count():
    made = model()
    a = context(made, "mole", ["Mole of the mole", "the mole"])
    alone = context(made, "MOLE", ["of the mole", "the mole"])
    assert a.sentences[0].word_positions[-1] == len(a.sentences[0].ids) - 1
    assert alone.values.shape == a.values.shape


def test_an_encoder_decoder_is_looked_at_in_its_encoder():
    made = model("tiny-encoder-decoder")
    view = context(made, "mole", TEXTS[:2])
    assert view.axes[0].labels[0] == "start"
    with pytest.raises(ch.ClearheadError, match="not of an encoder-decoder"):
        view.difference()


def test_a_decoder_does_not_read_what_follows_a_word_and_an_encoder_does():
    sentences = ["the mole of carbon", "the mole dioxide"]
    before = context(model(), "mole", sentences)
    torch.testing.assert_close(before.values, torch.ones_like(before.values))
    assert "does not read what follows" in before.note
    with pytest.raises(ch.ClearheadError, match="does not read what follows"):
        before.difference()
    both = context(model("tiny-encoder"), "mole", sentences)
    assert both.values[-1, 0] < 0.9999
    assert "does not read" not in both.note


def test_mistakes_about_words_and_sentences_are_told():
    made = model()
    for ask, words in [
        (lambda: context(made, "mole", ["a mole"]), "two sentences or more"),
        (lambda: context(made, "mole", "a mole"), "two sentences or more"),
        (lambda: context(made, "molle", TEXTS), "did you mean 'mole'"),
        (lambda: context(made, " ", TEXTS), "has a letter"),
        (
            lambda: context(made, "mole", TEXTS).difference(0, 3),
            "there is no sentence 3; there are sentences 0 to 2",
        ),
        (lambda: context(made, "mole", TEXTS).difference(1, 1), "does not differ from itself"),
        (lambda: context(ch.new("tiny-decoder"), "mole", TEXTS), "no tokenizer"),
    ]:
        with pytest.raises(ch.ClearheadError, match=words):
            ask()


def test_sinusoidal_positions_are_the_equation_and_beside_them_bits_count():
    view = positional_encodings(model(position="sinusoidal"), 16)
    waves, counting = view.values
    width = waves.shape[1]
    for at, i in [(0, 0), (3, 1), (9, 4)]:
        assert float(waves[at, 2 * i]) == pytest.approx(
            math.sin(at / 10000 ** (2 * i / width)), abs=1e-5
        )
        assert float(waves[at, 2 * i + 1]) == pytest.approx(
            math.cos(at / 10000 ** (2 * i / width)), abs=1e-5
        )
    columns = counting.T.tolist()
    bits = [[float(at >> bit & 1) for at in range(16)] for bit in range(4)]
    assert columns[0] == bits[0]
    assert [bit for bit in bits if bit in columns] == bits
    assert len(positional_encodings(model(position="rotary"), 16).values) == 1


def test_words_and_their_vectors_are_views_too():
    assert (ch.lens.context, ch.lens.vectors) == (ch.context, ch.vectors)


def test_some_dimensions_are_spread_evenly_and_keep_their_numbers():
    made = model(position="sinusoidal")
    some = positional_encodings(made, 8, dimensions=4)
    all_ = positional_encodings(made, 8)
    places = [int(label) for label in some.axes[2].labels]
    assert places == [i * made.config.model.d_model // 4 for i in range(4)]
    assert torch.equal(some.values, all_.values[..., places])


def test_learned_positions_are_the_table():
    made = model(position="learned")
    torch.testing.assert_close(
        positional_encodings(made, 8).values[0], made.net.position.table[:8].detach()
    )
    torch.testing.assert_close(position_similarity(made, 8).values.diagonal(), torch.ones(8))


def test_rotary_angles_grow_evenly_and_similarity_falls_off_by_distance():
    made = model(position="rotary")
    turns = rotary_angles(made, 8).values
    torch.testing.assert_close(turns[1:] - turns[:-1], turns[1].expand(7, -1))
    alike = position_similarity(made, 8).values
    torch.testing.assert_close(alike[0, 3], alike[4, 7])
    assert alike[0, 0] == 1 > alike[0, 1]


@pytest.mark.parametrize("kind", ["relative", "alibi"])
def test_the_bias_by_distance_is_what_attention_adds(kind):
    made = model(position=kind)
    bias = relative_bias(made, 6).values
    at = torch.arange(6)[None]
    grid = made.net.position.layer_positions(at, at, 1)[0].bias(
        torch.zeros(1, made.config.model.attention.n_heads, 6, 1), 1.0
    )
    torch.testing.assert_close(bias[:, 2], grid[0, :, 5, 3].detach())


@pytest.mark.parametrize(
    ("kind", "same"),
    [
        ("none", True), ("relative", True), ("shaw", True), ("alibi", True), ("rotary", True),
        ("learned", False), ("sinusoidal", False),
    ],
)  # fmt: skip
def test_a_shift_changes_nothing_where_only_distances_count(kind, same):
    moved = position_shift(model(position=kind), "one mole of carbon", by=5)
    assert (float(moved.values.max()) < 1e-4) is same
    assert (float(moved.patterns.values.max()) < 1e-4) is same


def test_mistakes_about_positions_are_told():
    learned = model(position="learned")
    rotary = model(position="rotary")
    for ask, words in [
        (lambda: positional_encodings(learned, 1), "must be from 2 to"),
        (lambda: positional_encodings(learned, 10**6), "must be from 2 to"),
        (
            lambda: positional_encodings(model(position="none")),
            "positions of the kind 'none' are no vectors; shifted shows",
        ),
        (
            lambda: rotary_angles(learned),
            "only rotary positions turn; those of this model are 'learned'",
        ),
        (lambda: relative_bias(rotary), "those of this model are 'rotary'"),
        (lambda: position_shift(rotary, "a mole", by=0), "at least 1"),
        (lambda: position_shift(learned, "a mole", by=10**6), "learned positions, so"),
        (lambda: position_shift(rotary, ["a mole", "a"]), "one text at a time"),
        (
            lambda: position_shift(model("tiny-encoder-decoder"), "a mole"),
            "decoders and encoders of text",
        ),
    ]:
        with pytest.raises(ch.ClearheadError, match=words):
            ask()
