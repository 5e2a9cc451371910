"""A word in several sentences: similarities and differences of the activations."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import clearhead as ch
from clearhead.lens.word_in_context import context

TEXTS = ["American shrew mole", "one mole of carbon dioxide", "take a biopsy of the mole"]
TOKENIZER = ch.Tokenizer.train_bpe(TEXTS, 300)


def make_model(preset="tiny-decoder", **changes):
    model = ch.new(preset, vocab_size=len(TOKENIZER), tokenizer=TOKENIZER, seed=2, **changes)
    with torch.no_grad():  # so that biases count, too
        for parameter in model.net.parameters():
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
            parameter += 0.05 * noise
    return model


def word_vector(model, text, name):
    """The mean over the tokens of " mole", located by the text before it."""
    start = len(TOKENIZER.encode(text.split("mole")[0].rstrip()))
    end = start + len(TOKENIZER.encode(" mole"))
    return model.watch([TOKENIZER.encode(text)], [name])[name][0, start:end].mean(dim=0)


def test_similarity_is_the_cosine_of_the_words_activations():
    model = make_model()
    view = ch.context(model, "mole", TEXTS)
    for layer, name in enumerate(["full_embed", "blocks.0.resid_post", "blocks.1.resid_post"]):
        a, b = (word_vector(model, text, name) for text in (TEXTS[0], TEXTS[2]))
        cosine = float(F.cosine_similarity(a, b, dim=0))
        assert float(view.values[layer, 1]) == pytest.approx(cosine, abs=1e-5)
    assert view.axes[1].labels == ("0·1", "0·2", "1·2")
    assert view.by_head().values.shape == (2, model.config.model.attention.n_heads, 3)
    assert {row["layer"] for row in view.table()} == {"start", "layer 0", "layer 1"}


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
def test_contributions_sum_to_the_distance(preset, norm_position, norm):
    model = make_model(
        preset, norm_position=norm_position, norm=norm, attention__bias=["q", "k", "v"]
    )
    difference = context(model, "mole", TEXTS).difference(0, 2)
    a, b = (word_vector(model, text, "final_norm") for text in (TEXTS[0], TEXTS[2]))
    assert float(difference.values.sum()) == pytest.approx(float((b - a).norm()), rel=1e-4)
    components = dict(zip(difference.axes[0].labels, difference.values.tolist(), strict=True))
    attention = torch.tensor([components[f"{i} attention"] for i in range(2)])
    by_layer = difference.by_head().values.sum(dim=1)
    torch.testing.assert_close(by_layer, attention, atol=1e-5, rtol=1e-4)
    assert attention.abs().min() > 1e-3


def test_the_last_occurrence_counts_and_case_does_not():
    model = make_model()
    twice = context(model, "mole", ["Mole of the mole", "the mole"])
    upper_case = context(model, "MOLE", ["of the mole", "the mole"])
    sentence = twice.sentences[0]
    assert sentence.word_positions[-1] == len(sentence.ids) - 1
    assert upper_case.values.shape == twice.values.shape


def test_encoder_decoder_reads_with_its_encoder():
    view = context(make_model("tiny-encoder-decoder"), "mole", TEXTS[:2])
    assert view.axes[0].labels[0] == "start"
    with pytest.raises(ch.ClearheadError, match="encoder-decoder"):
        view.difference()


def test_only_an_encoder_reads_what_follows_a_word():
    sentences = ["the mole of carbon", "the mole dioxide"]
    decoder = context(make_model(), "mole", sentences)
    torch.testing.assert_close(decoder.values, torch.ones_like(decoder.values))
    assert "does not read what follows" in decoder.note
    with pytest.raises(ch.ClearheadError, match="does not read what follows"):
        decoder.difference()
    encoder = context(make_model("tiny-encoder"), "mole", sentences)
    assert encoder.values[-1, 0] < 0.9999
    assert "does not read" not in encoder.note


def test_senses_compare_pairs_within_and_between():
    sentences = ["a mole", "the mole", "one mole", "mole of carbon", "of the mole", "carbon mole"]
    senses = ["animal"] * 3 + ["unit"] * 3
    view = context(make_model("tiny-encoder"), "mole", sentences)
    statistics = view.by_sense(senses)
    for layer, cosines in enumerate(view.values):
        by_pair = dict(zip(view.axes[1].labels, cosines.tolist(), strict=True))
        same = [by_pair[pair] for pair in ("0·1", "0·2", "1·2", "3·4", "3·5", "4·5")]
        within, between, difference, low, high = statistics.values[layer].tolist()
        assert within == pytest.approx(sum(same) / 6, abs=1e-6)
        assert between == pytest.approx((sum(by_pair.values()) - sum(same)) / 9, abs=1e-6)
        assert difference == pytest.approx(within - between, abs=1e-6)
        assert low <= difference <= high


def test_the_interval_of_senses_tells_an_effect_from_chance():
    """Planted vectors: the interval is above 0 if senses differ, and usually not by chance."""
    view = context(make_model("tiny-encoder"), "mole", ["a mole"] * 12)
    above = {True: 0, False: 0}
    for seed in range(30):
        for has_effect in above:
            generator = torch.Generator().manual_seed(seed)
            vectors = torch.randn(12, 16, generator=generator)
            vectors += torch.randn(2, 16, generator=generator).repeat_interleave(6, 0) * has_effect
            cosines = F.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
            planted = replace(view, values=cosines[*torch.triu_indices(12, 12, 1)].expand(3, -1))
            above[has_effect] += float(planted.by_sense(["a"] * 6 + ["b"] * 6).values[0, 3]) > 0
    assert above[True] == 30
    assert above[False] <= 3


ERRORS = [
    (lambda m: context(m, "mole", ["a mole"]), "at least two sentences"),
    (lambda m: context(m, "mole", "a mole"), "at least two sentences"),
    (lambda m: context(m, "mole", TEXTS).by_sense(["a"]), "one a sentence"),
    (lambda m: context(m, "mole", TEXTS).by_sense(["a", "b", "a"]), "3 sentences or more"),
    (lambda m: context(m, "mole", TEXTS).by_sense(["a", "a", "a"]), "must differ"),
    (lambda m: context(m, "molle", TEXTS), "did you mean 'mole'"),
    (lambda m: context(m, " ", TEXTS), "not empty"),
    (lambda m: context(m, "mole", TEXTS).difference(0, 3), "there is no sentence 3"),
    (lambda m: context(m, "mole", TEXTS).difference(1, 1), "two sentences, got 1 twice"),
    (lambda m: context(ch.new("tiny-decoder"), "mole", TEXTS), "no tokenizer"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=message):
        call(make_model())
