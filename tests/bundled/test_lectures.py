"""The lectures' own examples, on the models that come with clearhead."""

from functools import cache
from itertools import pairwise

import pytest
import torch
from bundled_plurals import DIRECTION, HUNDRED, pairs

import clearhead as ch
from clearhead.cli.demo import SENTENCE, find_adjective_head
from clearhead.lens.attention import word_attention
from clearhead.serve.explorer.routes.models import MOVIE_REVIEWS
from clearhead.weights.model_cards import bundled_models


@cache
def load(name):
    """A model or vectors; what is not there is skipped and told."""
    if name not in bundled_models():
        pytest.skip(f"the bundled model {name} is not here")
    return ch.vectors(name) if name == "words" else ch.load(name, device="cpu")


def vectors(name):
    return load(name) if name == "words" else ch.vectors(load(name))


# L1.4: directions carry meaning


@pytest.mark.parametrize("name", ["words", "story"])
def test_king_less_man_and_woman_is_queen(name):
    first_five = vectors(name).solve("king - man + woman", top=5).axes[0].labels
    assert "queen" in [word.strip("· ").lower() for word in first_five]


@pytest.mark.parametrize("name", ["words", "story"])
def test_the_plural_direction_ranks_plurals_above_singulars(name):
    """The chance that a plural lies further along it than a singular, of 100 pairs that are not in it."""
    known = vectors(name)
    hundred = pairs(HUNDRED)
    assert len({word for pair in hundred for word in pair}) == 200
    assert not {*pairs(DIRECTION)} & {*hundred}
    one, many = (
        known.direction(pairs(DIRECTION)).scores(words).values
        for words in zip(*hundred, strict=True)
    )
    assert float((many[:, None] > one).float().mean()) >= 0.9


# L2.1: without positions, words are a heap

HEAP = ["the", "hungry", "dog", "chased", "the", "little", "cat", "and", "the"]


def shuffled(words, seed):
    """The same words in another order, the last in its place."""
    order = torch.randperm(len(words) - 1, generator=torch.Generator().manual_seed(seed)).tolist()
    return [*(words[i] for i in order), words[-1]]


def ids(model, words):
    """Each word as it is in the middle of a text, whichever is the first."""
    use = model.config.inference
    spaced = [model.tokenizer.encode(f" {word}") for word in words[:-1]]
    last = [*use.mask_token] or model.tokenizer.encode(
        f" {words[-1]}"
    )  # for those who fill gaps, a gap
    return [*use.bos_tokens, *(token for word in spaced for token in word), *last]


def nowhere(model, words, layer):
    """The stream of the last word after a layer, no token told where it stands."""
    name = f"blocks.{layer}.resid_post"
    return model.watch([ids(model, words)], [name], edits={"pos_embed": torch.zeros_like})[name][
        0, -1
    ]


def apart(one, other):
    return float((one - other).norm() / one.norm())


def gone(model, words, others):
    """How much probability goes to other tokens, at the end of the words."""
    one, other = (
        model.logits([ids(model, some)])[0, -1].softmax(dim=-1) for some in (words, others)
    )
    return float((one - other).abs().sum()) / 2


@pytest.mark.parametrize("name", ["story", "fill"])
@pytest.mark.parametrize("seed", range(4))
def test_with_positions_shuffled_words_change_the_prediction(name, seed):
    assert gone(load(name), HEAP, shuffled(HEAP, seed)) > 0.05


@pytest.mark.parametrize("seed", range(4))
def test_without_positions_one_causal_layer_sees_a_heap_and_two_do_not(seed):
    """In the first layer a word reads bare words, in whatever order; in the next, words that have read what stood
    before them, and the mask decides what that was."""
    story = load("story")
    other = shuffled(HEAP, seed)
    assert apart(nowhere(story, HEAP, 0), nowhere(story, other, 0)) < 1e-5
    assert apart(nowhere(story, HEAP, 1), nowhere(story, other, 1)) > 0.05


@pytest.mark.parametrize("seed", range(4))
def test_without_positions_an_encoder_of_any_depth_sees_a_heap(seed):
    """Every word reads every other, so that nothing is left of their order."""
    fill = load("fill")
    blind = ch.new(fill.config.replace(position="none"))
    blind.net.load_state_dict(fill.net.state_dict())
    blind.tokenizer = fill.tokenizer
    assert gone(blind, HEAP, shuffled(HEAP, seed)) < 1e-4


# L3.1: the same word is another in another context

TIRED, WIDE = (
    f"The chicken didn't cross the road because it was too {word}." for word in ("tired", "wide")
)


def leaning(model, word, text):
    """layer × head: how much more a word looks at the chicken than at the road."""
    seen = word_attention(model, word, text)
    chicken, road = (seen.axes[-1].labels.index(noun) for noun in ("chicken", "road"))
    return seen.values[..., chicken] - seen.values[..., road]


def test_it_leans_more_to_the_chicken_where_that_is_tired():
    """In the head in which it shifts most and in the mean of all; but in no head from the one to the other."""
    tired, wide = (leaning(load("fill"), "it", text).flatten() for text in (TIRED, WIDE))
    shift = tired - wide
    assert shift.abs().max() == shift.max() > 0.05
    assert shift.mean() > 0
    assert not ((tired > 0) & (wide < 0)).any()


def test_what_was_too_wide_is_the_road():
    fill = load("fill")
    gap = "the chicken didn't cross the road because the [MASK] was too {}."
    wide, tired = (
        {w.word.strip(): w.probability for w in fill.fill(gap.format(end), 50)}
        for end in ("wide", "tired")
    )
    assert max(wide, key=wide.get) == "road"
    assert wide["road"] > 5 * tired.get("road", 0.0)


def test_a_decoder_cannot_tell_at_it_and_can_at_the_end():
    """What follows is not seen; *tired* itself leans towards the chicken, *wide* towards the road."""
    story = load("story")
    assert leaning(story, "it", TIRED).equal(leaning(story, "it", WIDE))
    assert (
        float(leaning(story, "tired", TIRED).mean())
        > 0
        > float(leaning(story, "wide", WIDE).mean())
    )


MOLES = {
    "fill": [
        "the mole dug a tunnel under the garden",
        "a mole is a small animal that lives under the ground",
        "one mole of carbon dioxide has a mass of 44 grams",
        "the reaction gives one mole of oxygen for each mole of water",
    ],
    "story": [  # a decoder reads what stands before the word, and this one knows no chemistry
        "In the garden there lived a little mole",
        "Under the ground in his tunnel sat a mole",
        "The doctor looked at her skin and saw a mole",
        "On his cheek he had a small brown mole",
    ],
}


@pytest.mark.parametrize("name", MOLES)
def test_the_senses_of_mole_separate_by_layer(name):
    """How much nearer it is in two sentences of the same sense than in two of different ones."""
    found = ch.context(load(name), "mole", MOLES[name])
    same = torch.tensor([pair in ("0·1", "2·3") for pair in found.axes[1].labels])
    nearer = found.values[:, same].mean(dim=-1) - found.values[:, ~same].mean(dim=-1)
    assert float(nearer[0]) < 0.01
    assert float(nearer[-1]) > 0.05


# L3.6: are there adjectives before me?


def test_creature_looks_at_fluffy_and_blue_above_every_other_word():
    seen, (layer, head) = word_attention(load("story"), "creature", SENTENCE), find_adjective_head()
    weight = dict(zip(seen.axes[-1].labels, seen.values[layer, head].tolist(), strict=True))
    adjectives = [weight.pop(word) for word in ("fluffy", "blue")]
    assert min(adjectives) > max(weight.values())
    assert sum(adjectives) > 0.5


# L5.2: temperature spreads the chance


@pytest.mark.parametrize("text", ["Once upon a time", "The little girl", "He was very"])
def test_entropy_rises_with_temperature(text):
    logits = load("story").logits(text)[-1]
    entropies = [
        float(torch.distributions.Categorical(logits=logits / t).entropy())
        for t in (0.1, 0.5, 1, 2, 5)
    ]
    assert all(low < high for low, high in pairwise(entropies))


def test_more_different_words_are_drawn_when_it_is_hot():
    story = load("story")
    drawn = [
        len({made.text for made in story.generate("The little girl saw a", 1, heat, seed=1, n=64)})
        for heat in (0.0, 0.5, 1.0, 2.0)
    ]
    assert drawn[0] == 1
    assert all(few < many for few, many in pairwise(drawn))


# L6.3: an encoder, fine-tuned on a task

SAID = {
    "A warm, funny film with a heart.": "positive",
    "One of the best films of the year.": "positive",
    "A quiet and moving story, beautifully told.": "positive",
    "It is far too long, and nobody in it is worth caring about.": "negative",
    "A dull and lifeless mess.": "negative",
    "The jokes are stale and the plot makes no sense.": "negative",
}


def test_mood_tells_what_a_sentence_thinks_of_a_film():
    told = load("mood").classify([*SAID])
    assert [each.label for each in told] == [*SAID.values()]
    assert min(each.probability for each in told) > 0.8


def test_the_two_sentences_that_its_page_opens_on_are_as_long_and_opposed():
    model = load("mood")
    assert [each.label for each in model.classify([*MOVIE_REVIEWS])] == ["positive", "negative"]
    assert (
        len({len(model.tokenizer.encode(text)) for text in MOVIE_REVIEWS}) == 1
    )  # so one can be patched into the other
