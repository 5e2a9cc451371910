"""Translations do not depend on the batch; sentences, options and alignments."""

import re
import time
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from beams import beam_search
from clearhead.data.batch import MAX_BATCH_TOKENS, batches_by_length
from clearhead.errors import ClearheadError
from clearhead.generate import translation as module
from clearhead.generate.translation import split_sentences

WORDS = ch.Tokenizer.bytes(("<|end|>",))
END = 256
TEXTS = ["A dog runs.", "", "Two men.", "A very long sentence about a dog and a man", "One.", "   "]


def translator(seed=2, **changes):
    shape = {
        "vocab_size": 257,
        "head__tie_embeddings": False,
        "context_length": 64,
        "architecture__source_context_length": 64,
    }
    use = {
        "inference__decoder_start_tokens": [END],
        "inference__eos_tokens": [END],
        "inference__sep_tokens": [END],
    }
    model = ch.new(
        "tiny-encoder-decoder", tokenizer=WORDS, seed=seed, **{**shape, **use, **changes}
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # peaked distributions, so that rounding decides nothing
        for p in model.net.double().parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


@pytest.fixture(scope="module")
def model():
    return translator()


# ---------------------------------------------------------------- sentences
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        (
            "Dr. Smith met J. Doe at 3 p.m. Then they left.",
            ["Dr. Smith met J. Doe at 3 p.m. Then they left."],
        ),
        ("Am 3. Mai kam er. Er blieb.", ["Am 3. Mai kam er.", "Er blieb."]),
        ('"Stop!" He ran. "Why?" she said.', ['"Stop!"', "He ran.", '"Why?" she said.']),
        (
            "It is 3.5 m. long, e.g. here. (Yes.) No.",
            ["It is 3.5 m. long, e.g. here.", "(Yes.)", "No."],
        ),
        ("私は行く。君は？はい！", ["私は行く。", "君は？", "はい！"]),
        ("A line\n\nAnother. One", ["A line", "Another.", "One"]),
        ("wait... what", ["wait... what"]),
        ("..)..) A", ["..)..)", "A"]),
        ("", [""]),
    ],
)
def test_sentences_end_at_punctuation(text, parts):
    assert [sentence for sentence, _ in split_sentences(text)] == parts


@given(st.text(alphabet="aB.!?… \n\"'(。3", max_size=60))
def test_sentences_and_gaps_join_to_the_text(text):
    found = split_sentences(text)
    assert "".join(sentence + gap for sentence, gap in found) == text
    assert all(not gap.strip() for _, gap in found)
    assert all("\n" not in sentence.strip() for sentence, _ in found)


@pytest.mark.parametrize("text", ["." * 40_000, " " * 40_000, "A. " * 13_333, ".)" * 20_000])
def test_sentences_are_found_in_linear_time(text):
    start = time.perf_counter()
    assert "".join(sentence + gap for sentence, gap in split_sentences(text)) == text
    assert time.perf_counter() - start < 2  # takes 0.03 s; quadratic, 5 to 40 s


# ---------------------------------------------------------------- texts
def test_batched_translations_equal_single_ones_in_order(model):
    options = {"num_beams": 3, "max_tokens": 9, "no_repeat_ngram_size": 1}
    together = model.translate(TEXTS, **options)
    assert len({tuple(found.tokens) for found in together}) == 5
    for text, found in zip(TEXTS, together, strict=True):
        alone = model.translate(text, **options)
        assert (found.text, found.tokens) == (alone.text, alone.tokens)
        assert bool(found.tokens) == bool(text.strip())
        assert found.logprob == pytest.approx(alone.logprob, abs=1e-5)
    ids = [[*WORDS.encode(text), END] for text in TEXTS if text.strip()]
    of_ids = model.translate(ids, **options)
    assert [one.tokens for one in of_ids] == [one.tokens for one in together if one.tokens]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 60), st.integers(1, 9))
def test_batches_by_length_cover_every_row_once(lengths, tokens, most):
    with patch.dict(MAX_BATCH_TOKENS, cpu=tokens):
        groups = list(batches_by_length(lengths, torch.device("cpu"), most))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    ordered = [lengths[i] for group in groups for i in group]
    assert ordered == sorted(ordered, reverse=True)
    for group in groups:
        assert len(group) == 1 or (
            len(group) * max(lengths[i] for i in group) <= tokens and len(group) <= most
        )


def test_beam_cache_memory_is_bounded(model, monkeypatch):
    rows = []
    init_cache = model.net.init_cache
    monkeypatch.setattr(
        model.net, "init_cache", lambda n, size: rows.append(n * size) or init_cache(n, size)
    )
    bytes_of_a_token = 2 * 2 * 32 * 8
    monkeypatch.setattr(module, "MAX_CACHE_BYTES", 100 * bytes_of_a_token)
    bounded = model.translate(["abc", "de", "f"] * 4, num_beams=2, max_tokens=10)
    assert max(rows) <= 100
    assert len(rows) == 3
    monkeypatch.undo()
    assert [one.tokens for one in bounded] == [
        one.tokens for one in model.translate(["abc", "de", "f"] * 4, num_beams=2, max_tokens=10)
    ]


def test_n_best_choices_are_ranked(model):
    found = model.translate(
        ["A dog.", "Cat"], num_beams=4, n_best=3, max_tokens=8, length_penalty=0.5
    )
    best = model.translate(["A dog.", "Cat"], num_beams=4, max_tokens=8, length_penalty=0.5)
    for ranked, one in zip(found, best, strict=True):
        assert len({tuple(other.tokens) for other in ranked.choices}) == 3
        assert ranked.choices[0] == one
        scores = [other.score for other in ranked.choices]
        assert scores == sorted(scores, reverse=True)
        assert scores == pytest.approx(
            [other.logprob / len(other.tokens) ** 0.5 for other in ranked.choices]
        )


# ---------------------------------------------------------------- long texts
def test_long_texts_are_split_into_sentences(model):
    short = "One dog.  Two men.\n\nA cat."
    long = "A dog and a cat. " * 5
    whole, split = (
        model.translate(short, num_beams=2, max_tokens=6, split_sentences=split)
        for split in (False, True)
    )
    parts = model.translate(["One dog.", "Two men.", "A cat."], num_beams=2, max_tokens=6)
    assert split.text == f"{parts[0].text}  {parts[1].text}\n\n{parts[2].text}"
    assert split.tokens == [token for part in parts for token in part.tokens] != whole.tokens
    assert split.logprob == pytest.approx(sum(part.logprob for part in parts))
    assert split.score == pytest.approx(split.logprob / len(split.tokens))
    of_long = model.translate(long, num_beams=2, max_tokens=6)
    part = model.translate("A dog and a cat.", num_beams=2, max_tokens=6)
    assert of_long.text == f"{part.text} " * 5


# ---------------------------------------------------------------- options
def test_outputs_start_with_their_prefix(model):
    options = {"num_beams": 3, "max_tokens": 6}
    one, two = model.translate(["A dog.", "Cat"], prefix="Ein", **options)
    assert one.text.startswith("Ein")
    assert two.text.startswith("Ein")
    assert model.translate(["A dog.", "Cat"], prefix=["Ein", ""], **options) == [
        one,
        model.translate("Cat", **options),
    ]
    assert model.translate("A dog.", prefix=WORDS.encode("Ein"), **options) == one


def test_alternatives_share_a_beginning(model):
    best = model.translate("A dog.", num_beams=3, max_tokens=6)
    found = model.translate("A dog.", num_beams=3, max_tokens=6, n_best=4, alternatives=2)
    assert {tuple(one.tokens[:2]) for one in found.choices} == {tuple(best.tokens[:2])}
    assert len({one.tokens[2] for one in found.choices}) == 4


def test_early_stopping_stops_earlier(model):
    steps = []
    forward = model.net.forward
    model.net.forward = lambda ids, **more: steps.append(len(ids)) or forward(ids, **more)
    try:
        for early in (False, True):
            steps.append(0)
            for text in "abc":
                model.translate(
                    text, num_beams=2, max_tokens=40, early_stopping=early, length_penalty=3.0
                )
    finally:
        del model.net.forward
    again = steps.index(0, 1)
    assert len(steps) - again <= again


@pytest.mark.parametrize("align", [-2, 1, "all"])
def test_alignment_is_the_argmax_of_cross_attention(model, align):
    found = model.translate(
        ["A dog.", "Cats and men"], num_beams=3, n_best=2, max_tokens=9, align=align
    )
    for text, ranked in zip(["A dog.", "Cats and men"], found, strict=True):
        for one in ranked.choices:
            cache = model.watch([END, *one.tokens], "blocks.*.cross_attn.pattern", source=text)
            layers = [cache[f"blocks.{i}.cross_attn.pattern"][0].mean(0) for i in range(2)]
            pattern = (layers[0] + layers[1]) if align == "all" else layers[align]
            assert one.alignment == pattern[:-1].argmax(-1).tolist()
            assert len(one.alignment) == len(one.tokens)
    assert model.translate("A dog.", max_tokens=3).alignment is None


def test_token_logprobs_sum_to_the_logprob(model):
    for found in model.translate(
        ["A dog.", "Two old men run"], num_beams=3, n_best=2, max_tokens=9, logprobs=3
    ):
        for one in found.choices:
            assert [c.token for c in one.token_logprobs] == one.tokens
            assert sum(c.logprob for c in one.token_logprobs) == pytest.approx(
                one.logprob, abs=1e-4
            )
            assert all(
                len(c.top) == 3 and c.top[0][1] >= c.logprob - 1e-6 for c in one.token_logprobs
            )
    for options in ({}, {"logprobs": 0}):
        assert model.translate(["A dog."], max_tokens=3, **options)[0].token_logprobs is None
    split = model.translate(["A dog. Two men."], split_sentences=True, max_tokens=4, logprobs=1)[0]
    assert [c.token for c in split.token_logprobs] == split.tokens


@pytest.mark.parametrize("more", [{}, {"no_repeat_ngram_size": 2}])
def test_token_logprobs_with_renormalized_logits(model, more):
    forbidden = list(dict.fromkeys(model.translate("A dog runs.", max_tokens=9).tokens))
    use = {
        "inference__suppress_tokens": forbidden[:2],
        "inference__begin_suppress_tokens": forbidden[2:3],
        "inference__renormalize_logits": True,
    }
    strict = ch.Model(model.net, model.config.replace(**use), WORDS)
    whole = strict.translate("A dog runs.", max_tokens=9, logprobs=2, **more)
    begun = strict.translate("A dog runs.", max_tokens=5, prefix=whole.tokens[:4], **more)
    assert begun.tokens == whole.tokens
    assert begun.logprob == pytest.approx(whole.logprob)
    assert sum(chosen.logprob for chosen in whole.token_logprobs) == pytest.approx(whole.logprob)
    assert all(
        token not in forbidden[:2] for chosen in whole.token_logprobs for token, _ in chosen.top
    )
    forced = strict.translate("A dog runs.", max_tokens=5, prefix=forbidden[:1] * 3, **more)
    assert forced.tokens[:3] == forbidden[:1] * 3


def test_alignment_of_an_output_that_fills_the_context(model):
    full = {"num_beams": 1, "max_tokens": model.net.context_length, "align": -1, "logprobs": 1}
    for one in model.translate(["A dog."], **full):
        assert len(one.token_logprobs) == len(one.alignment) == len(one.tokens)


def test_beam_search_of_a_decoder():
    model = ch.new("tiny-decoder", vocab_size=257, tokenizer=WORDS, inference__eos_tokens=[END])
    ranked = model.beam_search("the", num_beams=4, n_best=3, max_tokens=5)
    [bare] = beam_search(
        model.net, [WORDS.encode("the")], num_beams=4, n_best=3, max_tokens=5, eos_tokens=(END,)
    )
    assert [one.tokens for one in ranked.choices] == [one.tokens for one in bare]
    assert ranked.text == WORDS.decode([token for token in ranked.tokens if token != END])
    assert model.beam_search("the", num_beams=4, max_tokens=5) == ranked.choices[0]
    assert model.beam_search(["the", "a"], num_beams=4, max_tokens=5)[0].tokens == ranked.tokens
    assert model.beam_search("the", num_beams=2, max_tokens=5, return_tree=True).tree.table()
    result = model.beam_search("the", num_beams=1, max_tokens=5)
    assert result.tokens == model.generate("the", 5, temperature=0).tokens


# ---------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("texts", "options", "sentence"),
    [
        ("a", {"num_beams": 0}, "num_beams must be"),
        ("a", {"n_best": 0}, "n_best must be"),
        ("a", {"n_best": 6}, "n_best must be at most num_beams"),
        ("a", {"no_repeat_ngram_size": -2}, "no_repeat_ngram_size must be"),
        ("a", {"max_tokens": -1}, "max_tokens must be"),
        (["a", "b"], {"prefix": ["x"]}, "got 1"),
        ("a", {"prefix": [300]}, "token 300"),
        ("a", {"align": 2}, "align must be"),
        ("a", {"length_penalty": True}, "length_penalty must be"),
        ("b" * 70, {}, "the text has a sentence of 71 tokens"),
        ("a", {"align": "last"}, "align must be"),
        ("a", {"alternatives": 1, "return_tree": True}, "return_tree"),
        (
            ["a", "b" * 70],
            {},
            "text 2 has a sentence of 71 tokens",
        ),
        (
            ["A dog. A cat."],
            {"split_sentences": True, "n_best": 2},
            "the text has 2 sentences",
        ),
        ([[1] * 70], {}, "70 tokens"),
    ],
)
def test_invalid_translation_options_are_refused(model, texts, options, sentence):
    with pytest.raises(ClearheadError, match=re.escape(sentence)):
        model.translate(texts, **{"max_tokens": 3, **options})


def test_prefix_tokens_outside_the_vocabulary_are_refused():
    letters = ch.Tokenizer.characters("abc", ("<|end|>",))
    model = ch.new(
        "tiny-encoder-decoder", vocab_size=4, tokenizer=letters, inference__decoder_start_tokens=[3]
    )
    with pytest.raises(ClearheadError, match="not in the vocabulary"):
        model.translate("abc", prefix="az", max_tokens=2)


def test_translation_needs_start_tokens_and_an_encoder_decoder():
    with pytest.raises(ClearheadError, match="decoder_start_tokens"):
        translator(inference__decoder_start_tokens=[]).translate("a")
    with pytest.raises(ClearheadError, match="encoder-decoder"):
        ch.new("tiny-decoder", vocab_size=257, tokenizer=WORDS).translate("a")
    with pytest.raises(ClearheadError, match="not a language model"):
        translator().beam_search("a")


@pytest.mark.parametrize("is_training", [True, False])
def test_translate_restores_training_mode(is_training):
    model = translator()
    model.net.train(is_training)
    model.translate("A dog.", max_tokens=3, align=-1, logprobs=1)
    assert {module.training for module in model.net.modules()} == {is_training}
