"""Generation: stop strings, streaming, echo, invalid options."""

import pytest
import torch

import clearhead as ch
from clearhead.config.model import InferenceConfig
from clearhead.generate import teacher_forcing
from clearhead.generate.engine import BatchEngine, Request, TokenLogprob
from clearhead.generate.sampling import SamplingConfig
from clearhead.generate.text_generation import GenerationStream, OutputSequence


def test_stop_string_ends_the_text():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    whole = model.generate("ab", 20, seed=4, temperature=3.0)
    stop = whole.text[6:8]
    cut = model.generate("ab", 20, seed=4, temperature=3.0, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"


def test_tokens_of_steps_that_had_started_before_a_stop_string_are_not_output():
    tokenizer = ch.Tokenizer.bytes()
    config = SamplingConfig(max_tokens=20, stop=("STOP",))
    request = Request(tokenizer.encode("a"), config)
    sequence = OutputSequence(request, 0, tokenizer, ())

    def generate(text):
        request.output += [TokenLogprob(token, -1.0) for token in tokenizer.encode(text)]
        return sequence.new_chunks()

    chunks = [*generate("b ST"), *generate("OPx"), *generate("y")]
    assert "".join(chunk.text for chunk in chunks) == "b "
    assert [chunk.finish_reason for chunk in chunks] == [""] * 5 + ["stop"]
    result = sequence.result()
    assert (result.text, tokenizer.decode(result.tokens)) == ("b ", "b STOP")
    assert len(result.token_logprobs) == len(result.tokens)


def test_streamed_chunks_join_to_the_texts():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    prompts = ["ab", "c", "déjà"]
    whole = model.generate(prompts, 10, seed=4, n=2)
    texts = [""] * 6
    for piece in model.stream(prompts, 10, seed=4, n=2):
        texts[piece.index] += piece.text
    assert texts == [choice.text for result in whole for choice in result.choices]
    assert whole[1].text == model.generate("c", 10, seed=4).text
    assert whole[0].choices[0].text != whole[0].choices[1].text


def test_closing_a_stream_frees_its_rows():
    model = ch.new("tiny-llama", seed=3)
    engine = BatchEngine(model.net, InferenceConfig(), 1, 32)
    pieces = iter(GenerationStream(engine, None, [[1, 2]], SamplingConfig(max_tokens=20)))
    next(pieces)
    pieces.close()
    assert engine.is_idle
    engine.add_request(Request([3], SamplingConfig(max_tokens=1)))
    assert [request.prompt for request in engine.step()] == [[3]]


def test_echo_includes_the_prompt_and_its_logprobs():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    plain, echoed = (
        model.generate("abc", 4, seed=1, echo=echo, logprobs=2) for echo in (False, True)
    )
    assert echoed.text == "abc" + plain.text
    assert [chosen.logprob for chosen in echoed.prompt_logprobs] == pytest.approx(
        model.score("abc").logprobs, abs=1e-5
    )
    assert [chosen.token for chosen in echoed.prompt_logprobs] == [98, 99]
    assert all(len(chosen.top) == 2 for chosen in echoed.prompt_logprobs)
    assert plain.prompt_logprobs == []
    streamed = "".join(piece.text for piece in model.stream("abc", 4, seed=1, echo=True))
    assert streamed == echoed.text


@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-llama"])
def test_prompt_logprobs_are_computed_in_steps(preset, monkeypatch):
    model = ch.new(preset, vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    monkeypatch.setattr(teacher_forcing, "PROMPT_STEP_TOKENS", 4)
    text = "abcdefghijk"
    compute_logits = model.net.compute_logits
    sizes = []
    monkeypatch.setattr(
        model.net,
        "compute_logits",
        lambda hidden: sizes.append(hidden.shape[1]) or compute_logits(hidden),
    )
    steps = list(teacher_forcing.prompt_logprobs_in_steps(model.net, [*text.encode()], 3, 256))
    assert [len(step) for step in steps] == [4, 4, 2]
    assert sizes == [4, 4, 2]
    tokens = [token for step in steps for token in step]
    assert "".join(chr(token.token) for token in tokens) == text[1:]
    assert [token.logprob for token in tokens] == pytest.approx(
        model.score(text).logprobs, abs=1e-5
    )
    assert all(len(token.top) == 3 for token in tokens)


def test_echo_omits_the_special_tokens_of_the_prompt():
    tokenizer = ch.Tokenizer.bytes(("<|end|>",))
    model = ch.new("tiny-decoder", vocab_size=257, tokenizer=tokenizer, inference__bos_tokens=[256])
    plain = model.generate("a<|end|>", 4, seed=1)
    assert model.generate("a<|end|>", 4, seed=1, echo=True).text == "a<|end|>" + plain.text
    streamed = "".join(chunk.text for chunk in model.stream("a<|end|>", 4, seed=1, echo=True))
    assert streamed == "a<|end|>" + plain.text


def test_echo_of_a_single_token_has_no_logprobs():
    echoed = ch.new("tiny-decoder").generate(torch.tensor([5]), 2, echo=True)
    assert not echoed.prompt_logprobs


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ([], {}, "empty"),
        ([1] * 20, {}, "context of 32"),
        ([1], {"overflow": "wrap"}, "overflow must be"),
        ([1], {"logprobs": -1}, "logprobs must be"),
        ([1], {"n": 0}, "n must be"),
        ([1], {"top_p": 1e-300}, "top_p must be"),
        ([1], {"presence_penalty": 1e39}, "presence_penalty must be"),
        ([1], {"logit_bias": {3: 1e39}}, "finite numbers"),
        ([1], {"temperature": "warm"}, "temperature must be"),
    ],
)
def test_invalid_generation_options_are_refused(prompt, options, sentence):
    with pytest.raises(ch.ClearheadError, match=sentence):
        ch.new("tiny-llama").generate(prompt, 20, **options)


@pytest.mark.parametrize(
    "option", ["inference__suppress_tokens", "inference__begin_suppress_tokens"]
)
@pytest.mark.slow
def test_suppress_tokens_outside_the_tokenizer(option):
    made = {"vocab_size": 300, "tokenizer": ch.Tokenizer.bytes(), option: [97, 299]}
    model = ch.new("tiny-decoder", seed=2, **made)
    firsts = {text.tokens[0] for text in model.generate("ab", 1, n=1000, temperature=3.0).choices}
    assert len(firsts) > 100
    assert 97 not in firsts


def test_stop_tokens_end_the_text():
    model = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    whole = model.generate("ab", 10, seed=4)
    cut = model.generate("ab", 10, seed=4, stop_tokens=(whole.tokens[3],))
    assert cut.tokens == whole.tokens[: whole.tokens.index(whole.tokens[3]) + 1]
    assert cut.finish_reason == "stop"
    assert whole.text.startswith(cut.text)


@pytest.mark.parametrize(
    "options",
    [
        {"suppress_tokens": (999,)},
        {"suppress_tokens": 5},
        {"suppress_tokens": tuple(range(64))},
        {"logit_bias": {999: 1.0}},
        {"logit_bias": [1]},
        {"logit_bias": {5: float("nan")}},
        {"prefix_tokens": (-5,)},
        {"stop_tokens": ("a",)},
        {"stop": 3},
        {"n": -1},
        {"n": 2.0},
    ],
)
def test_invalid_token_ids_are_refused(options):
    with pytest.raises(ch.ClearheadError):
        ch.new("tiny-llama").generate([1], 4, **options)
