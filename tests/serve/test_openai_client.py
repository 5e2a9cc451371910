"""The official OpenAI client gets the same results as the library."""

import asyncio
import base64
import json

import openai
import pytest
import torch

import clearhead as ch
from clearhead.generate import teacher_forcing
from clearhead.serve import openai as openai_api
from serving import run_server, send_request, tiny_writer

SAMPLING = {"max_tokens": 24, "temperature": 0.9, "seed": 5}
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


def translator():
    options = {
        "inference__decoder_start_tokens": [256],
        "inference__eos_tokens": [256],
        "inference__sep_tokens": [256],
    }
    shape = {
        "vocab_size": 257,
        "head__tie_embeddings": False,
        "context_length": 64,
        "architecture__source_context_length": 64,
    }
    return ch.new(
        "tiny-encoder-decoder",
        tokenizer=ch.Tokenizer.bytes(("<|end|>",)),
        seed=2,
        **shape,
        **options,
    )


@pytest.fixture(scope="module")
def models():
    reader = ch.new(
        "tiny-encoder", vocab_size=256, context_length=64, tokenizer=ch.Tokenizer.bytes(), seed=3
    )
    return {
        "writer": tiny_writer(),
        "reader": reader,
        "translator": translator(),
        "mute": tiny_writer(inference__chat_template=""),
        "bos": tiny_writer(inference__bos_tokens=[256]),
    }


@pytest.fixture(scope="module")
def served(models):
    with run_server(models) as served:
        yield served


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed_and_retrieved(client, models):
    assert [model.id for model in client.models.list()] == list(models)
    assert client.models.retrieve("writer").id == "writer"
    with pytest.raises(openai.NotFoundError, match="did you mean 'writer'"):
        client.models.retrieve("writr")


def test_completion_equals_generate(client, models):
    made = client.completions.create(model="writer", prompt="Once", **SAMPLING)
    expected = models["writer"].generate("Once", **SAMPLING)
    assert made.choices[0].text == expected.text
    assert made.choices[0].finish_reason == expected.finish_reason
    assert made.usage.prompt_tokens == 4
    assert made.usage.completion_tokens == len(expected.tokens)
    assert made.usage.total_tokens == 4 + len(expected.tokens)


def test_prompts_ids_and_samples_keep_their_order(client, models):
    prompts = ["Once", "upon", "a time"]
    made = client.completions.create(model="writer", prompt=prompts, n=2, **SAMPLING)
    expected = [
        choice
        for result in models["writer"].generate(prompts, n=2, **SAMPLING)
        for choice in result.choices
    ]
    assert [choice.text for choice in made.choices] == [one.text for one in expected]
    assert [choice.index for choice in made.choices] == list(range(6))
    ids = [list(text.encode()) for text in prompts]
    assert [
        c.text
        for c in client.completions.create(model="writer", prompt=ids, n=2, **SAMPLING).choices
    ] == [one.text for one in expected]
    assert (
        client.completions.create(model="writer", prompt=ids[0], **SAMPLING).choices[0].text
        == expected[0].text
    )


@pytest.mark.parametrize("n", [1, 3])
def test_joined_stream_equals_generate(client, models, n):
    stream = client.completions.create(
        model="writer",
        prompt="Once",
        n=n,
        stream=True,
        stream_options={"include_usage": True},
        **SAMPLING,
    )
    texts = [""] * n
    reasons = [None] * n
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    expected = models["writer"].generate("Once", n=n, **SAMPLING).choices
    assert texts == [one.text for one in expected]
    assert reasons == [one.finish_reason for one in expected]
    assert usage.completion_tokens == sum(len(one.tokens) for one in expected)


def test_all_sampling_options_equal_generate(client, models):
    theirs = {"top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.2}
    ours = {"top_k": 9, "min_p": 0.01, "repetition_penalty": 1.3}
    made = client.completions.create(
        model="writer",
        prompt="Once",
        logit_bias={"101": 3.0},
        **theirs,
        **SAMPLING,
        extra_body=ours,
    )
    expected = models["writer"].generate(
        "Once", logit_bias={101: 3.0}, **theirs, **SAMPLING, **ours
    )
    assert made.choices[0].text == expected.text
    assert made.choices[0].text != models["writer"].generate("Once", **SAMPLING).text


def test_stop_strings_are_never_sent(client, models):
    whole = models["writer"].generate("Once", **SAMPLING).text
    stop = whole[8:11]
    expected = models["writer"].generate("Once", stop=stop, **SAMPLING)
    stream = client.completions.create(
        model="writer", prompt="Once", stop=stop, stream=True, **SAMPLING
    )
    pieces = [choice for chunk in stream for choice in chunk.choices]
    assert "".join(piece.text for piece in pieces) == expected.text == whole[: whole.index(stop)]
    assert pieces[-1].finish_reason == "stop"


def test_completion_logprobs(client, models):
    made = client.completions.create(
        model="writer", prompt="Once", logprobs=2, echo=True, **SAMPLING
    ).choices[0]
    expected = models["writer"].generate("Once", logprobs=2, echo=True, **SAMPLING)
    logprobs = made.logprobs
    assert made.text == expected.text
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[1:] == [
        one.logprob for one in (*expected.prompt_logprobs, *expected.token_logprobs)
    ]
    assert logprobs.tokens[:4] == list("Once")
    assert logprobs.text_offset[:5] == [0, 1, 2, 3, 4]
    for before, token, at in zip(
        logprobs.tokens, logprobs.tokens[1:], logprobs.text_offset[1:], strict=False
    ):
        assert "‹" in before + token or made.text[at:].startswith(token)
    assert [len(top) for top in logprobs.top_logprobs[1:]] == [2] * (len(logprobs.tokens) - 1)


def test_echo_omits_special_tokens(client, models):
    made = client.completions.create(
        model="bos", prompt="Öl", logprobs=0, echo=True, **SAMPLING
    ).choices[0]
    assert made.text == "Öl" + models["bos"].generate("Öl", **SAMPLING).text
    assert made.logprobs.tokens[0] == "<|end|>"
    assert made.logprobs.text_offset[:5] == [0, 0, 0, 1, 2]


def test_max_tokens_0_returns_the_prompt(client, models):
    made = client.completions.create(
        model="writer", prompt="Once", max_tokens=0, echo=True, logprobs=0
    )
    assert made.choices[0].text == "Once"
    assert made.choices[0].logprobs.token_logprobs[1:] == pytest.approx(
        models["writer"].score("Once").logprobs
    )
    assert made.usage.completion_tokens == 0


def test_prompts_are_scored_in_turns_and_once_each(models, monkeypatch):
    monkeypatch.setattr(teacher_forcing, "PROMPT_STEP_TOKENS", 4)
    calls = []
    lengths = []
    echoed_lengths = openai_api.ResponseBuilder._echoed_lengths
    monkeypatch.setattr(
        openai_api.ResponseBuilder,
        "_echoed_lengths",
        lambda builder, prompt: lengths.append(prompt) or echoed_lengths(builder, prompt),
    )
    how = {"model": "writer", "prompt": "Once upon a time", "n": 3, "max_tokens": 0}
    body = {**how, "echo": True, "logprobs": 1}
    with run_server(models) as served:
        worker = served.registry.loaded["writer"].worker
        call = worker.call
        monkeypatch.setattr(worker, "call", lambda *args: calls.append(1) or call(*args))
        status, _, content = send_request(served.port, "POST", "/v1/completions", body)
        assert status == 200
        assert len(calls) == 5  # 15 tokens after the first, and the end
        assert len(lengths) == 1
        found = json.loads(content)["choices"][2]["logprobs"]["token_logprobs"]
        expected = models["writer"].score("Once upon a time").logprobs
        assert found[1:] == pytest.approx(expected, abs=1e-5)
        monkeypatch.setattr(openai_api, "MAX_ECHOED_TOKENS", 47)
        status, _, content = send_request(served.port, "POST", "/v1/completions", body)
        assert status == 400
        assert "48 prompt tokens" in json.loads(content)["error"]["message"]


def test_max_tokens_0_can_be_streamed_and_counts_prompt_tokens(models):
    with (
        run_server(models) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client,
    ):
        how = {"model": "writer", "prompt": "Once", "max_tokens": 0, "echo": True, "logprobs": 0}
        whole = client.completions.create(**how).choices
        [chunk] = client.completions.create(**how, stream=True)
        assert chunk.choices == whole
        name = "clearhead_prompt_tokens_total"
        assert served.registry.metrics.get_sample_value(name, {"model": "writer"}) == 8


def test_chat_equals_the_library(client, models):
    made = client.chat.completions.create(
        model="writer", messages=MESSAGES, logprobs=True, top_logprobs=3, **SAMPLING
    )
    expected = models["writer"].chat(MESSAGES, logprobs=3, **SAMPLING)
    assert made.choices[0].message.content == expected.text
    assert made.choices[0].message.role == "assistant"
    logprobs = made.choices[0].logprobs.content
    assert [one.logprob for one in logprobs] == expected.logprobs
    assert [[t.logprob for t in one.top_logprobs] for one in logprobs] == [
        [p for _, p in c.top] for c in expected.token_logprobs
    ]
    assert all(bytes(one.bytes).decode() == one.token for one in logprobs if one.bytes is not None)


def test_chat_streams_and_continues_a_conversation(client, models):
    talk = [
        *MESSAGES[:1],
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}],
        },
    ]
    stream = client.chat.completions.create(
        model="writer",
        messages=talk,
        stream=True,
        temperature=0.9,
        seed=5,
        max_completion_tokens=24,
    )
    chunks = [choice for chunk in stream for choice in chunk.choices]
    assert chunks[0].delta.role == "assistant"
    streamed = "".join(choice.delta.content for choice in chunks)
    assert streamed == models["writer"].chat(MESSAGES, **SAMPLING).text
    answer = (
        client.chat.completions.create(model="writer", messages=MESSAGES, **SAMPLING)
        .choices[0]
        .message
    )
    longer = [*MESSAGES, answer, {"role": "user", "content": "And?"}]
    plain = [*MESSAGES, {"role": "assistant", "content": streamed}, longer[-1]]
    assert (
        client.chat.completions.create(model="writer", messages=longer, **SAMPLING)
        .choices[0]
        .message.content
        == models["writer"].chat(plain, **SAMPLING).text
    )


def test_random_seed_is_reported(client):
    first, second = (
        client.completions.create(model="writer", prompt="Once", max_tokens=24) for _ in range(2)
    )
    assert first.choices[0].text != second.choices[0].text
    again = client.completions.create(model="writer", prompt="Once", max_tokens=24, seed=first.seed)
    assert again.choices[0].text == first.choices[0].text


@pytest.mark.parametrize("kind", ["float", "base64"])
def test_embeddings_equal_the_library(client, models, kind):
    texts = ["one text", "another"]
    made = client.embeddings.create(model="reader", input=texts, encoding_format=kind)
    expected = models["reader"].embed(texts)
    vectors = [
        torch.frombuffer(bytearray(base64.b64decode(one.embedding)), dtype=torch.float32)
        if isinstance(one.embedding, str)
        else torch.tensor(one.embedding)
        for one in made.data
    ]
    assert torch.equal(torch.stack(vectors), expected)
    assert made.usage.prompt_tokens == len("one text") + len("another")


def test_async_client_gets_the_same_text(served, models):
    async def both():
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            whole = client.completions.create(model="writer", prompt="Once", **SAMPLING)
            stream = client.completions.create(
                model="writer", prompt="Once", stream=True, **SAMPLING
            )
            made, pieces = await asyncio.gather(whole, stream)
            return made.choices[0].text, "".join([c.choices[0].text async for c in pieces])

    text = models["writer"].generate("Once", **SAMPLING).text
    assert asyncio.run(both()) == (text, text)


def test_translations_equal_the_library(served, models):
    texts = ["A dog runs.", "Two men."]
    how = {"num_beams": 3, "n_best": 2, "align": -1, "max_tokens": 8}
    status, _, body = send_request(
        served.port, "POST", "/translate", {"model": "translator", "text": texts, **how}
    )
    assert status == 200
    expected = models["translator"].translate(texts, **how)
    for translation, best in zip(json.loads(body)["translations"], expected, strict=True):
        assert [one["text"] for one in translation["best"]] == [one.text for one in best.choices]
        assert [one["alignment"] for one in translation["best"]] == [
            one.alignment for one in best.choices
        ]
        assert len(translation["source_pieces"]) == len(translation["source"]) + 1


def test_translations_keep_their_order(served, models):
    texts = [f"Text {i}." for i in range(10)]
    how = {"num_beams": 1, "max_tokens": 3}
    body = {"model": "translator", "text": texts, **how}
    found = json.loads(send_request(served.port, "POST", "/translate", body)[2])["translations"]
    assert [one["source"] for one in found] == texts
    assert [one["best"][0]["text"] for one in found] == [
        t.text for t in models["translator"].translate(texts, **how)
    ]
    long = {**body, "text": [*texts[:9], "x" * 70]}
    status, _, content = send_request(served.port, "POST", "/translate", long)
    assert status == 400
    assert "text 10 has a sentence of 71 tokens" in json.loads(content)["error"]["message"]


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"model": "writr"}, "model", "did you mean 'writer'"),
        ({"extra_body": {"max_token": 3}}, "max_token", "did you mean 'max_tokens'"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"temperature": -1.0}, "temperature", "temperature must be"),
        ({"top_p": 2.0}, "top_p", "top_p must be"),
        ({"stop": [""]}, "stop", "stop must be"),
        ({"max_tokens": 5000}, "max_tokens", "at most 2048"),
        ({"max_tokens": 200}, "max_tokens", "at most 124"),
        ({"prompt": "x" * 200}, None, "200 tokens"),
        ({"n": 65}, None, "the limit is 64"),
        ({"prompt": ["a", "b"], "extra_body": {"n": 9 * 10**4299}}, "n", "should be less than"),
        ({"extra_body": {"top_k": 10**400}}, "top_k", "should be less than"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "must map token ids to numbers"),
        ({"logit_bias": {"05": 1}}, "logit_bias", "must map token ids to numbers"),
        ({"logit_bias": {" 5 ": 1}}, "logit_bias", "must map token ids to numbers"),
        ({"logit_bias": {"5": True}}, "logit_bias", "must map token ids to numbers"),
        ({"logit_bias": {"5": "1e2"}}, "logit_bias", "must map token ids to numbers"),
        ({"extra_body": {"best_of": True}}, "best_of", "not supported"),
        ({"prompt": [[300]]}, None, "out of range"),
        ({"prompt": ""}, None, "empty"),
        ({"prompt": "x" * 300_000}, None, "300000 characters"),
        ({"extra_body": {"prompt": {"a": 1}}}, "prompt", "should be a valid string"),
        ({"model": "reader"}, "model", "does not generate text"),
        ({"model": "translator"}, "model", "use POST /translate"),
    ],
)
def test_invalid_requests_are_errors(client, given, param, words):
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**{"model": "writer", "prompt": "Once", **given})
    assert caught.value.status_code in (400, 404)
    error = caught.value.body
    assert words in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_content_type_must_be_json(served, kind):
    body = b'{"model": "writer", "prompt": "Once"}'
    status, _, content = send_request(
        served.port, "POST", "/v1/completions", body, {"Content-Type": kind}
    )
    assert status == 400
    assert "Content-Type: application/json" in json.loads(content)["error"]["message"]


def test_two_limits_of_an_answer_must_be_equal(client):
    how = {"model": "writer", "messages": MESSAGES, "max_completion_tokens": 3}
    with pytest.raises(openai.BadRequestError, match="differ"):
        client.chat.completions.create(**how, max_tokens=4)
    assert client.chat.completions.create(**how, max_tokens=3).usage.completion_tokens <= 3


def test_ignored_fields_are_accepted(client, models):
    idle = {
        "user": "someone",
        "metadata": {"a": "b"},
        "store": False,
        "tools": [],
        "response_format": {"type": "text"},
    }
    made = client.chat.completions.create(
        model="writer", messages=MESSAGES, **SAMPLING, extra_body={**idle, "top_p": None}
    )
    assert made.choices[0].message.content == models["writer"].chat(MESSAGES, **SAMPLING).text
    with pytest.raises(openai.BadRequestError, match="response_format is not supported"):
        client.chat.completions.create(
            model="writer", messages=MESSAGES, response_format={"type": "json_object"}
        )


def test_chat_without_a_template_continues_the_messages(client, models):
    made = client.chat.completions.create(model="mute", messages=MESSAGES, **SAMPLING)
    assert (
        made.choices[0].message.content
        == models["mute"].generate("Be kind. Hello", **SAMPLING).text
    )
