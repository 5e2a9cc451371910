"""Streaming generation on the page equals the library, and stops when the client leaves."""

import asyncio
import json

import pytest

import clearhead as ch
from clearhead.serve.errors import APIError
from clearhead.serve.explorer.executor import ExplorerExecutor, _client
from clearhead.serve.explorer.routes.tasks import GenerateRequest, _generation_events
from clearhead.serve.limits import Limits, Quota
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import cache_bytes_per_token
from page_site import page_client

MODEL = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=4)
OUT = {"name": "blocks.1.attn.out"}
SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 7}


@pytest.fixture(scope="module")
def client():
    broken = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=4)
    broken.net.blocks[0].ffn.up.weight.data.fill_(float("nan"))
    models = {
        "model": MODEL,
        "broken": broken,
        "reader": ch.new("tiny-encoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes()),
    }
    with page_client(models, Limits(max_tokens=64)) as client:
        yield client


def events(client, **body):
    answer = client.post("/api/generate", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    return [
        (kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for kind, data in blocks
    ]


def tokens(found):
    return [data["id"] for kind, data in found if kind == "token"]


def test_events_equal_generate(client):
    written = MODEL.generate("Once", max_tokens=20, logprobs=3, **SAMPLING)
    found = events(client, text="Once", max_tokens=20, logprobs=3, **SAMPLING)
    assert tokens(found) == written.tokens
    kind, done = found[-1]
    assert (kind, done["text"], done["finish_reason"]) == (
        "done",
        written.text,
        written.finish_reason,
    )
    for (_, event), chosen in zip(found, written.token_logprobs, strict=False):
        assert event["logprob"] == pytest.approx(chosen.logprob, abs=1e-5)
        assert [(i, pytest.approx(p, abs=1e-5)) for i, _, p in event["top"]] == list(chosen.top)
    assert "".join(data["piece"] for kind, data in found if kind == "token") == written.text


def test_single_steps_give_the_same_text(client):
    whole = tokens(events(client, text="Once", max_tokens=8, **SAMPLING))
    written = []
    for count in range(1, 9):
        written = tokens(
            events(client, text="Once", forced_tokens=written, max_tokens=count, **SAMPLING)
        )
    assert written == whole


def test_forced_tokens_have_alternatives(client):
    found = events(
        client, text="Once", forced_tokens=[65, 66], max_tokens=4, logprobs=2, **SAMPLING
    )
    assert tokens(found)[:2] == [65, 66]
    assert all(len(data["top"]) == 2 for kind, data in found if kind == "token")
    again = MODEL.generate("Once", max_tokens=4, prefix_tokens=[65, 66], **SAMPLING)
    assert tokens(found) == again.tokens


def test_ids_and_text_give_the_same_tokens(client):
    ids = MODEL.tokenizer.encode("Once")
    assert tokens(events(client, ids=ids, max_tokens=5, **SAMPLING)) == tokens(
        events(client, text="Once", max_tokens=5, **SAMPLING)
    )


def test_edits_change_the_text(client):
    edit = {"name": "blocks.0.ffn.out", "op": "scale", "factor": 4.0}
    found = tokens(events(client, text="Once", max_tokens=12, edits=[edit], **SAMPLING))
    edits = {"blocks.0.ffn.out": ch.scale(4.0)}
    assert found == MODEL.generate("Once", max_tokens=12, edits=edits, **SAMPLING).tokens
    assert found != tokens(events(client, text="Once", max_tokens=12, **SAMPLING))
    half = [{**edit, "factor": 2.0}, {**edit, "factor": 2.0}]  # one after the other
    assert found == tokens(events(client, text="Once", max_tokens=12, edits=half, **SAMPLING))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": ""}, "empty"),
        ({"text": "a", "temperature": -1}, "temperature must be"),
        ({"text": "a", "top_p": 0}, "top_p must be"),
        ({"text": "a", "max_tokens": 65}, "at most 64"),
        ({"text": "a", "forced_tokens": [999]}, "999"),
        ({"text": "a", "model": "reader"}, "not a language model"),
        ({"text": "a", "edits": [{"name": "blocks.9.resid_post"}]}, "matches no activation"),
        ({"text": "a", "edits": [{**OUT, "op": "mean_ablate"}]}, "one token at a time"),
        (
            {
                "text": "a",
                "edits": [{**OUT, "op": "mean_ablate"}, {**OUT, "op": "scale", "factor": 3}],
            },
            "one token at a time",
        ),
        (
            {"text": "a", "edits": [{**OUT, "token": 0}, {**OUT, "op": "scale", "factor": 3}]},
            "one token at a time",
        ),
    ],
)
def test_invalid_requests_fail_before_the_stream(client, body, message):
    answer = client.post("/api/generate", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_nan_logits_are_an_error_event(client):
    [(kind, data)] = events(client, model="broken", text="Once", max_tokens=8)
    assert kind == "error"
    assert "NaN" in data["message"]


def test_sampling_rules_are_those_of_the_model(client):
    rules = client.get("/api/models/model/sampling").json()
    assert rules == {
        "vocab_size": 256,
        "suppress_tokens": [],
        "begin_suppress_tokens": [],
        "eos_tokens": [],
    }


def test_leaving_stops_the_stream_and_releases_the_model(monkeypatch):
    steps = 0
    stream = MODEL.stream

    def counting_stream(*args, **options):
        nonlocal steps
        for piece in stream(*args, **options):
            steps += 1
            yield piece

    async def leave_after(count):
        registry = ModelRegistry.from_models({"model": MODEL})
        events = _generation_events(
            ExplorerExecutor(registry, Limits()), GenerateRequest(text="Once", max_tokens=20)
        )
        assert await anext(events) == ""
        for _ in range(count):
            await anext(events)
        assert registry.loaded["model"].is_busy
        await events.aclose()
        await asyncio.sleep(0.05)
        assert not registry.loaded["model"].is_busy

    monkeypatch.setattr(MODEL, "stream", counting_stream)
    asyncio.run(leave_after(3))
    assert steps == 3


def test_caches_of_a_client_are_limited_and_given_back():
    executor = ExplorerExecutor(ModelRegistry.from_models({"m": MODEL}), Limits())
    per_token = cache_bytes_per_token(MODEL)
    executor.cache_quota = Quota(110 * per_token)
    request = GenerateRequest(model="m", text="abcd", max_tokens=16)

    async def start(client):
        _client.set(client)
        events = _generation_events(executor, request)
        assert await anext(events) == ""
        return events

    async def run():
        streams = [await start("10.0.0.1") for _ in range(4)]
        assert executor.cache_quota.used == 4 * 20 * per_token
        with pytest.raises(APIError, match="Too many texts") as refused:
            await start("10.0.0.1")
        assert refused.value.status_code == 429
        streams.append(await start("10.0.0.2"))
        for stream in streams:
            await stream.aclose()
        assert not executor.cache_quota.used

    asyncio.run(run())
