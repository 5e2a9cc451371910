"""Translations come in order, whole and aligned, whatever is translated beside them."""

import re
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.data.batch import MAX_BATCH_TOKENS, batches_by_length
from clearhead.errors import ClearheadError
from clearhead.generate import translation as module
from clearhead.generate.translation import split_sentences

WORDS = ch.Tokenizer.bytes(("<|end|>",))
END = 256
TEXTS = ["A dog runs.", "", "Two men.", "A very long sentence about a dog and a man", "One.", "   "]


def translator(seed=2, **changes):
    shape = {
        "vocabulary": 257,
        "head__tie_embeddings": False,
        "context": 64,
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
    with torch.no_grad():  # sure of itself, so that rounding decides nothing
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
        ("", [""]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text, parts):
    assert [sentence for sentence, _ in split_sentences(text)] == parts


@given(st.text(alphabet="aB.!?… \n\"'(。3", max_size=60))
def test_sentences_and_the_space_between_them_are_the_text(text):
    found = split_sentences(text)
    assert "".join(sentence + gap for sentence, gap in found) == text
    assert all(not gap.strip() for _, gap in found)
    assert all("\n" not in sentence.strip() for sentence, _ in found)


# ---------------------------------------------------------------- texts
def test_texts_come_in_order_as_each_alone_and_nothing_stays_nothing(model):
    options = {"beam": 3, "max_tokens": 9, "no_repeat": 1}
    together = model.translate(TEXTS, **options)
    assert len({tuple(found.tokens) for found in together}) == 5
    for text, found in zip(TEXTS, together, strict=True):
        [alone] = model.translate(text, **options)
        assert (found.text, found.tokens) == (alone.text, alone.tokens)
        assert bool(found.tokens) == bool(text.strip())
        assert found.logprob == pytest.approx(alone.logprob, abs=1e-5)
    ids = [[*WORDS.encode(text), END] for text in TEXTS if text.strip()]
    of_ids = model.translate(ids, **options)
    assert [one.tokens for one in of_ids] == [one.tokens for one in together if one.tokens]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 60), st.integers(1, 9))
def test_every_row_is_searched_once_beside_rows_of_its_length_within_the_bounds(
    lengths, tokens, most
):
    with patch.dict(MAX_BATCH_TOKENS, cpu=tokens):
        groups = list(batches_by_length(lengths, torch.device("cpu"), most))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    ordered = [lengths[i] for group in groups for i in group]
    assert ordered == sorted(ordered, reverse=True)
    for group in groups:
        assert len(group) == 1 or (
            len(group) * max(lengths[i] for i in group) <= tokens and len(group) <= most
        )


def test_what_beams_remember_is_bounded(model, monkeypatch):
    rows = []
    remember = model.net.remember
    monkeypatch.setattr(
        model.net, "remember", lambda n, room: rows.append(n * room) or remember(n, room)
    )
    bytes_of_a_token = 2 * 2 * 32 * 8
    monkeypatch.setattr(module, "MEMORY", 100 * bytes_of_a_token)
    bounded = model.translate(["abc", "de", "f"] * 4, beam=2, max_tokens=10)
    assert max(rows) <= 100
    assert len(rows) == 3
    monkeypatch.undo()
    assert [one.tokens for one in bounded] == [
        one.tokens for one in model.translate(["abc", "de", "f"] * 4, beam=2, max_tokens=10)
    ]


def test_n_best_are_ranked_and_the_first_is_the_best(model):
    found = model.translate(["A dog.", "Cat"], beam=4, n_best=3, max_tokens=8, length_penalty=0.5)
    best = model.translate(["A dog.", "Cat"], beam=4, max_tokens=8, length_penalty=0.5)
    for ranked, one in zip(found, best, strict=True):
        assert len({tuple(other.tokens) for other in ranked}) == 3
        assert ranked[0] == one
        scores = [other.score for other in ranked]
        assert scores == sorted(scores, reverse=True)
        assert scores == pytest.approx(
            [other.logprob / len(other.tokens) ** 0.5 for other in ranked]
        )


# ---------------------------------------------------------------- long texts
def test_a_text_is_split_when_it_is_too_long_or_when_asked(model):
    short = "One dog.  Two men.\n\nA cat."
    long = "A dog and a cat. " * 5
    whole, split = (
        model.translate(short, beam=2, max_tokens=6, split=split)[0] for split in (False, True)
    )
    parts = model.translate(["One dog.", "Two men.", "A cat."], beam=2, max_tokens=6)
    assert split.text == f"{parts[0].text}  {parts[1].text}\n\n{parts[2].text}"
    assert split.tokens == [token for part in parts for token in part.tokens] != whole.tokens
    assert split.logprob == pytest.approx(sum(part.logprob for part in parts))
    assert split.score == pytest.approx(split.logprob / len(split.tokens))
    [of_long] = model.translate(long, beam=2, max_tokens=6)
    [part] = model.translate("A dog and a cat.", beam=2, max_tokens=6)
    assert of_long.text == f"{part.text} " * 5


# ---------------------------------------------------------------- options
def test_outputs_begin_as_they_are_told(model):
    options = {"beam": 3, "max_tokens": 6}
    one, two = model.translate(["A dog.", "Cat"], prefix="Ein", **options)
    assert one.text.startswith("Ein")
    assert two.text.startswith("Ein")
    assert model.translate(["A dog.", "Cat"], prefix=["Ein", ""], **options) == [
        one,
        model.translate("Cat", **options)[0],
    ]
    assert model.translate("A dog.", prefix=WORDS.encode("Ein"), **options) == [one]


def test_alternatives_begin_as_the_best_and_differ_next(model):
    [best] = model.translate("A dog.", beam=3, max_tokens=6)
    [found] = model.translate("A dog.", beam=3, max_tokens=6, n_best=4, alternatives=2)
    assert {tuple(one.tokens[:2]) for one in found} == {tuple(best.tokens[:2])}
    assert len({one.tokens[2] for one in found}) == 4


def test_early_is_sooner_content(model):
    steps = []
    forward = model.net.forward
    model.net.forward = lambda ids, **more: steps.append(len(ids)) or forward(ids, **more)
    try:
        for early in (False, True):
            steps.append(0)
            for seed in "abcdef":
                model.translate(seed, beam=2, max_tokens=40, early=early, length_penalty=3.0)
    finally:
        del model.net.forward
    again = steps.index(0, 1)
    assert len(steps) - again <= again


@pytest.mark.parametrize("align", [-2, 1, "all"])
def test_alignment_is_what_cross_attention_attends_to_most(model, align):
    found = model.translate(["A dog.", "Cats and men"], beam=3, n_best=2, max_tokens=9, align=align)
    for text, ranked in zip(["A dog.", "Cats and men"], found, strict=True):
        for one in ranked:
            seen = model.watch([END, *one.tokens], "blocks.*.cross_attn.pattern", source=text)
            layers = [seen[f"blocks.{i}.cross_attn.pattern"][0].mean(0) for i in range(2)]
            pattern = (layers[0] + layers[1]) if align == "all" else layers[align]
            assert one.alignment == pattern[:-1].argmax(-1).tolist()
            assert len(one.alignment) == len(one.tokens)
    assert model.translate("A dog.", max_tokens=3)[0].alignment is None


def test_log_probabilities_of_the_tokens_sum_to_that_of_the_translation(model):
    for found in model.translate(
        ["A dog.", "Two old men run"], beam=3, n_best=2, max_tokens=9, logprobs=3
    ):
        for one in found:
            assert [c.token for c in one.chosen] == one.tokens
            assert sum(c.logprob for c in one.chosen) == pytest.approx(one.logprob, abs=1e-4)
            assert all(len(c.top) == 3 and c.top[0][1] >= c.logprob - 1e-6 for c in one.chosen)
    assert model.translate(["A dog."], max_tokens=3)[0].chosen is None
    split = model.translate(["A dog. Two men."], split=True, max_tokens=4, logprobs=0)[0]
    assert [c.token for c in split.chosen] == split.tokens


@pytest.mark.parametrize("more", [{}, {"no_repeat": 2}])
def test_a_text_has_one_log_probability_where_forbidden_tokens_leave_theirs_to_others(model, more):
    forbidden = list(dict.fromkeys(model.translate("A dog runs.", max_tokens=9)[0].tokens))
    use = {
        "inference__suppress_tokens": forbidden[:2],
        "inference__begin_suppress_tokens": forbidden[2:3],
        "inference__renormalize_logits": True,
    }
    strict = ch.Model(model.net, model.config.change(**use), WORDS)
    [whole] = strict.translate("A dog runs.", max_tokens=9, logprobs=2, **more)
    [begun] = strict.translate("A dog runs.", max_tokens=5, prefix=whole.tokens[:4], **more)
    assert begun.tokens == whole.tokens
    assert begun.logprob == pytest.approx(whole.logprob)
    assert sum(chosen.logprob for chosen in whole.chosen) == pytest.approx(whole.logprob)
    assert all(token not in forbidden[:2] for chosen in whole.chosen for token, _ in chosen.top)
    [forced] = strict.translate("A dog runs.", max_tokens=5, prefix=forbidden[:1] * 3, **more)
    assert forced.tokens[:3] == forbidden[:1] * 3


def test_an_output_that_fills_the_context_can_be_aligned_and_told(model):
    full = {"beam": 1, "max_tokens": model.net.context, "align": -1, "logprobs": 1}
    for one in model.translate(["A dog."], **full):
        assert len(one.chosen) == len(one.alignment) == len(one.tokens)


def test_a_decoder_searches_with_beams_too():
    from clearhead.generate.beam_search import beam_search

    model = ch.new("tiny-decoder", vocab_size=257, tokenizer=WORDS, inference__eos_tokens=[END])
    ranked = model.beam_search("the", num_beams=4, n_best=3, max_tokens=5)
    [bare] = beam_search(
        model.net, [WORDS.encode("the")], beams=4, n_best=3, max_tokens=5, stop=(END,)
    )
    assert [one.tokens for one in ranked] == [one.tokens for one in bare]
    assert ranked[0].text == WORDS.decode([token for token in ranked[0].tokens if token != END])
    assert model.beam_search("the", num_beams=4, max_tokens=5) == ranked[0]
    assert model.beam_search(["the", "a"], num_beams=4, max_tokens=5)[0].tokens == ranked[0].tokens
    assert model.beam_search("the", num_beams=2, max_tokens=5, tree=True).tree.table()
    told = model.beam_search("the", num_beams=1, max_tokens=5)
    assert told.tokens == model.generate("the", 5, temperature=0).tokens


# ---------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("texts", "options", "sentence"),
    [
        ("a", {"beam": 0}, "beams = 0 is too few"),
        ("a", {"n_best": 6}, "n_best = 6 is more than the 5 beams can give"),
        ("a", {"no_repeat": -2}, "no_repeat = -2 is too few"),
        ("a", {"max_tokens": -1}, "max_tokens = -1 is too few"),
        ("a", {"beams": 3}, "beams is no option of beam search; did you mean 'beam'?"),
        (["a", "b"], {"prefix": ["x"]}, "1 prefixes for 2 texts"),
        ("a", {"prefix": [300]}, "the prefix holds token 300; the vocabulary has ids 0 to 256"),
        ("a", {"align": 2}, "align = 2 is no layer of this decoder; there are 0 to 1"),
        ("a", {"align": "last"}, "align = 'last' is no layer"),
        ("a", {"alternatives": 1, "tree": True}, "not one tree"),
        (
            ["a", "b" * 70],
            {},
            "text 2 has a sentence of 71 tokens; this model reads at most 64 at once",
        ),
        (
            ["A dog. A cat."],
            {"split": True, "n_best": 2},
            "text 1 is 2 sentences, translated one by one",
        ),
        ([[1] * 70], {}, "70 tokens are more than this model's context of 64"),
    ],
)
def test_what_cannot_be_translated_is_told_in_a_sentence(model, texts, options, sentence):
    with pytest.raises(ClearheadError, match=re.escape(sentence)):
        model.translate(texts, **{"max_tokens": 3, **options})


def test_a_prefix_that_the_vocabulary_does_not_know_is_told():
    letters = ch.Tokenizer.characters("abc", ("<|end|>",))
    model = ch.new(
        "tiny-encoder-decoder", vocab_size=4, tokenizer=letters, inference__decoder_start_tokens=[3]
    )
    with pytest.raises(ClearheadError, match="for which there is no token"):
        model.translate("abc", prefix="az", max_tokens=2)


def test_a_translator_must_know_where_to_start_and_a_decoder_is_none():
    with pytest.raises(ClearheadError, match="which token an output starts with"):
        translator(inference__decoder_start_tokens=[]).translate("a")
    with pytest.raises(ClearheadError, match="no source to read"):
        ch.new("tiny-decoder", vocab_size=257, tokenizer=WORDS).translate("a")
    with pytest.raises(ClearheadError, match="does not write text"):
        translator().beam_search("a")
