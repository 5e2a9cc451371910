"""Examples of the lectures, on the bundled models."""

from functools import cache
from itertools import pairwise

import pytest
import torch
from mole_sentences import MOLE_SENTENCES
from plural_pairs import DIRECTION, HUNDRED

import clearhead as ch
from clearhead.cli.demo import HEAD, LAYER, SENTENCE
from clearhead.lens.attention import word_attention
from clearhead.lens.text_stack import TextStack
from clearhead.lens.word_in_context import find_word
from clearhead.serve.explorer.example_inputs import MOLE_SENTENCES as PAGE_SENTENCES
from clearhead.serve.explorer.example_inputs import MOLE_SUBSTITUTES, MOVIE_REVIEWS
from clearhead.weights.bundled import bundled_models

pytestmark = pytest.mark.slow


@cache
def load(name):
    """A bundled model or word vectors, on the CPU."""
    if name not in bundled_models():
        pytest.skip(f"the bundled model {name} is not here")
    return ch.vectors(name) if name == "words" else ch.load(name, device="cpu")


def vectors(name):
    return load(name) if name == "words" else ch.vectors(load(name))


# L1.4: directions carry meaning


@pytest.mark.parametrize("name", ["words", "story"])
def test_king_minus_man_plus_woman_is_queen(name):
    labels = vectors(name).solve("king - man + woman", top_k=5).axes[0].labels
    assert "queen" in [word.strip("· ").lower() for word in labels]


@pytest.mark.parametrize("name", ["words", "story"])
def test_plural_direction_ranks_plurals_above_singulars(name):
    """The AUC of separating plurals from singulars in 100 held-out pairs is at least 0.9."""
    assert len({word for pair in HUNDRED for word in pair}) == 200
    assert not {*DIRECTION} & {*HUNDRED}
    direction = vectors(name).direction(DIRECTION)
    singular, plural = (direction.scores(words).values for words in zip(*HUNDRED, strict=True))
    assert float((plural[:, None] > singular).float().mean()) >= 0.9


# L2.1: without positions, text is a bag of words

WORDS = ["the", "hungry", "dog", "chased", "the", "little", "cat", "and", "the"]


def shuffled(words, seed):
    """The same words in another order, the last one in place."""
    order = torch.randperm(len(words) - 1, generator=torch.Generator().manual_seed(seed)).tolist()
    return [*(words[i] for i in order), words[-1]]


def ids(model, words):
    """Each word with a space before it; in a masked language model the last one is masked."""
    inference = model.config.inference
    encoded = [model.tokenizer.encode(f" {word}") for word in words]
    if inference.mask_token:
        encoded[-1] = list(inference.mask_token)
    return [*inference.bos_tokens, *(token for word in encoded for token in word)]


def stream_without_positions(model, words, layer):
    """The residual stream of the last word after a layer, without position embeddings."""
    name = f"blocks.{layer}.resid_post"
    cache = model.watch([ids(model, words)], [name], edits={"pos_embed": torch.zeros_like})
    return cache[name][0, -1]


def relative_difference(a, b):
    return float((a - b).norm() / a.norm())


def total_variation(model, words, others):
    """The distance between the predictions at the last word of two texts."""
    p, q = (model.logits([ids(model, text)])[0, -1].softmax(dim=-1) for text in (words, others))
    return float((p - q).abs().sum()) / 2


@pytest.mark.parametrize("name", ["story", "fill"])
@pytest.mark.parametrize("seed", range(4))
def test_with_positions_shuffled_words_change_the_prediction(name, seed):
    assert total_variation(load(name), WORDS, shuffled(WORDS, seed)) > 0.05


@pytest.mark.parametrize("seed", range(4))
def test_without_positions_one_causal_layer_ignores_order_and_two_do_not(seed):
    """The second layer reads vectors that depend, through the mask, on the words before them."""
    story = load("story")
    other = shuffled(WORDS, seed)
    assert (
        relative_difference(
            stream_without_positions(story, WORDS, 0), stream_without_positions(story, other, 0)
        )
        < 1e-5
    )
    assert (
        relative_difference(
            stream_without_positions(story, WORDS, 1), stream_without_positions(story, other, 1)
        )
        > 0.05
    )


@pytest.mark.parametrize("seed", range(4))
def test_without_positions_an_encoder_ignores_order(seed):
    fill = load("fill")
    no_positions = ch.new(fill.config.replace(position="none"))
    no_positions.net.load_state_dict(fill.net.state_dict())
    no_positions.tokenizer = fill.tokenizer
    assert total_variation(no_positions, WORDS, shuffled(WORDS, seed)) < 1e-4


# L3.1: the same word differs in another context

TIRED, WIDE = (
    f"The chicken didn't cross the road because it was too {word}." for word in ("tired", "wide")
)


def test_what_is_too_wide_is_the_road():
    fill = load("fill")
    template = "the chicken didn't cross the road because the [MASK] was too {}."
    wide, tired = (
        {
            token.word.strip(): token.probability
            for token in fill.fill(template.format(end), 50).masks[0]
        }
        for end in ("wide", "tired")
    )
    assert max(wide, key=wide.get) == "road"
    assert wide["road"] > 5 * tired.get("road", 0.0)


def test_decoder_cannot_know_the_noun_at_it():
    story = load("story")
    tired, wide = (word_attention(story, "it", text) for text in (TIRED, WIDE))
    assert tired.values[..., :-1].equal(wide.values[..., :-1])


@pytest.mark.parametrize(
    ("name", "separates"), [("fill", True), ("sentences", True), ("story", False)]
)
def test_contexts_separate_the_vectors_of_mole_and_of_any_word(name, separates):
    """Not because mole has several senses: "thing" in the same sentences separates as well."""
    senses = [sense for sense, texts in MOLE_SENTENCES.items() for _ in texts]
    texts = [text for texts in MOLE_SENTENCES.values() for text in texts]
    for word in ("mole", "thing"):
        sentences = [text.replace("mole", word) for text in texts]
        statistics = ch.context(load(name), word, sentences).by_sense(senses).values
        assert abs(float(statistics[0, 2])) < 0.01
        low = float(statistics[-1, 3])
        assert low > 0.03 if separates else low < 0


def test_substitutes_of_mole_suit_its_meanings():
    """In the three sentences of the page; the vector of the best one is the most similar."""
    sentences = load("sentences")
    text_stack = TextStack(sentences)
    name = f"blocks.{sentences.config.model.n_layers - 1}.resid_post"

    def vector(text, word):
        located = find_word(text_stack, word, text)
        return sentences.watch([located.ids], [name])[name][0, located.word_positions].mean(dim=0)

    best = []
    for text in PAGE_SENTENCES:
        words = ("mole", *MOLE_SUBSTITUTES)
        mole, *others = (vector(text.replace("mole", word), word) for word in words)
        cosines = torch.cosine_similarity(mole, torch.stack(others), dim=-1)
        best.append(MOLE_SUBSTITUTES[cosines.argmax()])
    assert best == ["rat", "gram", "tumor"]


def test_sentence_vectors_are_similar_if_the_meanings_are():
    texts = [
        "A man is playing the guitar.",
        "Somebody makes music.",
        "The stock market fell sharply.",
        "Share prices went down a lot.",
    ]
    vectors = load("sentences").embed(texts)
    cosines = (vectors @ vectors.mT).fill_diagonal_(-1)
    assert cosines.argmax(dim=1).tolist() == [1, 0, 3, 2]


# L3.6: queries and keys as a look-up


def test_demo_shows_the_head_that_finds_who_a_pronoun_means():
    """It is the best head of the contrast, and each pronoun of the sentence prefers its person."""
    story = load("story")
    assert ch.lens.find_heads(story, "pronouns", top_k=1).heads == ((LAYER, HEAD),)
    for pronoun, person, other in (
        ("her", "Lily", "Tim"),
        ("He", "Tim", "Lily"),
        ("she", "Lily", "Tim"),
    ):
        view = word_attention(story, pronoun, SENTENCE)
        weights = dict(zip(view.axes[-1].labels, view.values[LAYER, HEAD].tolist(), strict=True))
        assert weights[person] > 4 * weights[other]
        del weights[pronoun]
        assert max(weights, key=weights.get) == person


# L5.2: temperature flattens the distribution


@pytest.mark.parametrize("text", ["Once upon a time", "The little girl", "He was very"])
def test_entropy_rises_with_temperature(text):
    logits = load("story").logits(text)[-1]
    entropies = [
        float(torch.distributions.Categorical(logits=logits / t).entropy())
        for t in (0.1, 0.5, 1, 2, 5)
    ]
    assert all(low < high for low, high in pairwise(entropies))


def test_samples_are_more_diverse_at_higher_temperatures():
    story = load("story")
    counts = []
    for temperature in (0.0, 0.5, 1.0, 2.0):
        generation = story.generate(
            "The little girl saw a", max_tokens=1, temperature=temperature, seed=1, n=64
        )
        counts.append(len({choice.text for choice in generation.choices}))
    assert counts[0] == 1
    assert all(low < high for low, high in pairwise(counts))


# L6.3: an encoder, fine-tuned on a task

SENTIMENTS = {
    "A warm, funny film with a heart.": "positive",
    "One of the best films of the year.": "positive",
    "A quiet and moving story, beautifully told.": "positive",
    "It is far too long, and nobody in it is worth caring about.": "negative",
    "A dull and lifeless mess.": "negative",
    "The jokes are stale and the plot makes no sense.": "negative",
}


def test_sentiment_of_movie_reviews():
    results = load("mood").classify([*SENTIMENTS])
    assert [result.label for result in results] == [*SENTIMENTS.values()]
    assert min(result.score for result in results) > 0.8


def test_example_reviews_of_the_page_are_opposite_and_equally_long():
    model = load("mood")
    assert [result.label for result in model.classify([*MOVIE_REVIEWS])] == ["positive", "negative"]
    lengths = {len(model.tokenizer.encode(text)) for text in MOVIE_REVIEWS}
    assert len(lengths) == 1  # so that one can be patched into the other


# Heads with an effect, on sentences that did not choose them


@pytest.mark.parametrize(
    ("name", "contrast", "clear"),
    [
        ("story", "pronouns", True),  # the head of the page's first picture
        ("story", "adjectives", False),  # its heads attend to the words before, adjectives or not
        ("story", "described-noun", True),
        ("story", "it", False),  # a decoder has not read tired or wide at "it"
        ("fill", "adjectives", False),
        ("fill", "it", False),
        ("sentences", "adjectives", True),
        ("sentences", "it", True),
    ],
)
def test_heads_do_what_the_captions_say(name, contrast, clear):
    assert ch.lens.find_heads(load(name), contrast).has_clear_effect == clear
