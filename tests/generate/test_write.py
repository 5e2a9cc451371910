"""Writing on from prompts: what ends a text, what is streamed and echoed, what is refused."""

import pytest
import torch

import clearhead as ch
from clearhead.config.model import InferenceConfig
from clearhead.generate.engine import BatchEngine, Request
from clearhead.generate.generation import GenerationStream
from clearhead.generate.sampling import SamplingConfig


def test_a_stop_text_ends_it_and_is_not_shown():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    whole = model.generate("ab", 20, seed=4, temperature=3.0)
    stop = whole.text[6:8]
    cut = model.generate("ab", 20, seed=4, temperature=3.0, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"


def test_streamed_pieces_are_the_texts_of_the_batch():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    prompts = ["ab", "c", "déjà"]
    whole = model.generate(prompts, 10, seed=4, n=2)
    texts = [""] * 6
    for piece in model.generate(prompts, 10, seed=4, n=2, stream=True):
        texts[piece.index] += piece.text
    assert texts == [made.text for group in whole for made in group]
    assert whole[1][0].text == model.generate("c", 10, seed=4).text
    assert whole[0][0].text != whole[0][1].text


def test_who_stops_listening_frees_the_row():
    model = ch.new("tiny-llama", seed=3)
    engine = BatchEngine(model.net, InferenceConfig(), 1, 32)
    pieces = iter(GenerationStream(engine, None, [[1, 2]], SamplingConfig(max_tokens=20)))
    next(pieces)
    pieces.close()
    assert engine.is_idle
    engine.add_request(Request([3], SamplingConfig(max_tokens=1)))
    assert [request.prompt for request in engine.step()] == [[3]]


def test_echo_tells_the_prompt_and_how_likely_it_was():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    plain, echoed = (
        model.generate("abc", 4, seed=1, echo=echo, logprobs=2) for echo in (False, True)
    )
    assert echoed.text == "abc" + plain.text
    assert [chosen.logprob for chosen in echoed.prompt] == pytest.approx(
        model.score("abc").logprobs, abs=1e-5
    )
    assert [chosen.token for chosen in echoed.prompt] == [98, 99]
    assert all(len(chosen.top) == 2 for chosen in echoed.prompt)
    assert plain.prompt == []
    streamed = "".join(
        piece.text for piece in model.generate("abc", 4, seed=1, echo=True, stream=True)
    )
    assert streamed == echoed.text


def test_of_a_prompt_of_one_token_echo_tells_nothing_before_it():
    echoed = ch.new("tiny-decoder").generate(torch.tensor([5]), 2, echo=True)
    assert not echoed.prompt


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ([], {}, "empty"),
        ([1] * 20, {}, "exceed the context of 32"),
        ([1], {"overflow": "wrap"}, "overflow .wrap. is unknown"),
        ([1], {"logprobs": -1}, "logprobs = -1 must be a whole number of at least 0"),
        ([1], {"n": 0}, "n = 0 must be a whole number from 1 to 1,000"),
        ([1], {"tempreature": 1}, "temperature"),
        ([1], {"top_p": 1e-300}, "top_p = 1e-300 would leave nothing"),
        ([1], {"presence_penalty": 1e39}, r"from -1e\+38 to 1e\+38"),
        ([1], {"bias": {3: 1e39}}, "finite numbers"),
        ([1], {"temperature": "warm"}, "must be a number"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_sentence(prompt, options, sentence):
    with pytest.raises(ch.ClearheadError, match=sentence):
        ch.new("tiny-llama").generate(prompt, 20, **options)


@pytest.mark.parametrize(
    "option", ["inference__suppress_tokens", "inference__begin_suppress_tokens"]
)
def test_tokens_that_only_the_model_knows_may_be_forbidden_too(option):
    made = {"vocabulary": 300, "tokenizer": ch.Tokenizer.bytes(), option: [97, 299]}
    model = ch.new("tiny-decoder", seed=2, **made)
    firsts = {text.tokens[0] for text in model.generate("ab", 1, n=1000, temperature=3.0)}
    assert len(firsts) > 100
    assert 97 not in firsts


def test_tokens_of_ones_own_end_a_text():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    whole = model.generate("ab", 10, seed=4)
    cut = model.generate("ab", 10, seed=4, stop_tokens=(whole.tokens[3],))
    assert cut.tokens == whole.tokens[: whole.tokens.index(whole.tokens[3]) + 1]
    assert cut.finish_reason == "stop"
    assert whole.text.startswith(cut.text)


@pytest.mark.parametrize(
    "options", [{"banned": (999,)}, {"bias": {999: 1.0}}, {"forced": (-5,)}, {"banned": 5}, {"bias": [1]}, {"n": -1},
                {"bias": {5: float("nan")}}, {"banned": tuple(range(64))}, {"n": 2.0}, {"stop_tokens": ("a",)},
                {"stop": None}]
)  # fmt: skip
def test_ids_that_are_none_are_refused_with_a_sentence(options):
    with pytest.raises(ch.ClearheadError):
        ch.new("tiny-llama").generate([1], 4, **options)
