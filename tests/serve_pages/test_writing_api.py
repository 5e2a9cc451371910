"""Texts written before one's eyes: the same as the library writes, token by token; who leaves stops it."""

import asyncio
import json

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

import clearhead as ch
from clearhead.serve.explorer.routes.tasks import GenerateRequest, _events, generation_routes
from clearhead.serve.explorer.service import ExplorerService
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry

MODEL = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=4)
OUT = {"name": "blocks.1.attn.out"}
HOW = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 7}


@pytest.fixture(scope="module")
def client():
    broken = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=4)
    broken.net.blocks[0].ffn.up.weight.data.fill_(float("nan"))
    models = {
        "model": MODEL,
        "broken": broken,
        "reader": ch.new("tiny-encoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes()),
    }
    app = FastAPI()
    desk = ExplorerService(ModelRegistry.from_models(models), Limits(max_tokens=64))
    app.include_router(generation_routes(desk))

    @app.exception_handler(ch.ClearheadError)
    async def mistaken(request, error):
        return JSONResponse({"error": {"message": str(error)}}, 400)

    with TestClient(app) as client:
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


def test_the_page_writes_what_the_library_writes(client):
    written = MODEL.generate("Once", max_tokens=20, logprobs=3, **HOW)
    found = events(client, text="Once", max_tokens=20, top=3, **HOW)
    assert tokens(found) == written.tokens
    kind, done = found[-1]
    assert (kind, done["text"], done["finish_reason"]) == (
        "done",
        written.text,
        written.finish_reason,
    )
    for (_, told), chosen in zip(found, written.chosen, strict=False):
        assert told["logprob"] == pytest.approx(chosen.logprob, abs=1e-5)
        assert [(i, pytest.approx(p, abs=1e-5)) for i, _, p in told["top"]] == list(chosen.top)
    assert "".join(data["piece"] for kind, data in found if kind == "token") == written.text


def test_step_by_step_it_is_the_same_text(client):
    whole = tokens(events(client, text="Once", max_tokens=8, **HOW))
    written = []
    for count in range(1, 9):
        written = tokens(events(client, text="Once", forced=written, max_tokens=count, **HOW))
    assert written == whole


def test_a_token_that_is_forced_comes_with_what_else_could_have_come(client):
    found = events(client, text="Once", forced=[65, 66], max_tokens=4, top=2, **HOW)
    assert tokens(found)[:2] == [65, 66]
    assert all(len(data["top"]) == 2 for kind, data in found if kind == "token")
    again = MODEL.generate("Once", max_tokens=4, forced=[65, 66], **HOW)
    assert tokens(found) == again.tokens


def test_ids_are_read_as_they_are(client):
    ids = MODEL.tokenizer.encode("Once")
    assert tokens(events(client, ids=ids, max_tokens=5, **HOW)) == tokens(
        events(client, text="Once", max_tokens=5, **HOW)
    )


def test_an_edit_changes_what_is_written(client):
    edit = {"name": "blocks.0.ffn.out", "op": "scale", "by": 4.0}
    found = tokens(events(client, text="Once", max_tokens=12, edits=[edit], **HOW))
    edits = {"blocks.0.ffn.out": ch.scale(4.0)}
    assert found == MODEL.generate("Once", max_tokens=12, edits=edits, **HOW).tokens
    assert found != tokens(events(client, text="Once", max_tokens=12, **HOW))
    half = [{**edit, "by": 2.0}, {**edit, "by": 2.0}]  # one after the other
    assert found == tokens(events(client, text="Once", max_tokens=12, edits=half, **HOW))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"text": ""}, "empty"),
        ({"text": "a", "temperature": -1}, "temperature = -1"),
        ({"text": "a", "top_p": 0}, "top_p = 0"),
        ({"text": "a", "max_tokens": 65}, "more than the 64"),
        ({"text": "a", "forced": [999]}, "no token 999"),
        ({"text": "a", "model": "reader"}, "does not write"),
        ({"text": "a", "edits": [{"name": "blocks.9.resid_post"}]}, "names no value"),
        ({"text": "a", "edits": [{**OUT, "op": "mean"}]}, "one at a time"),
        (
            {"text": "a", "edits": [{**OUT, "op": "mean"}, {**OUT, "op": "scale", "by": 3}]},
            "one at a time",
        ),
        (
            {"text": "a", "edits": [{**OUT, "token": 0}, {**OUT, "op": "scale", "by": 3}]},
            "one at a time",
        ),
    ],
)
def test_what_cannot_be_written_is_one_sentence_before_anything_is_sent(client, body, said):
    answer = client.post("/api/generate", json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_a_broken_model_ends_the_stream_with_a_sentence(client):
    [(kind, data)] = events(client, model="broken", text="Once", max_tokens=8)
    assert kind == "error"
    assert "broken" in data["message"]


def test_the_page_learns_which_tokens_can_be_drawn(client):
    told = client.get("/api/models/model/drawing").json()
    assert told == {"known": 256, "never": [], "never_first": [], "stop": []}


def test_who_leaves_ends_it_with_the_step_under_way_and_the_model_is_in_use_until_then(monkeypatch):
    steps = 0
    generate = MODEL.generate

    def slow(*given, **how):
        nonlocal steps
        for piece in generate(*given, **how):
            steps += 1
            yield piece

    async def leave_after(count):
        shelf = ModelRegistry.from_models({"model": MODEL})
        stream = _events(
            ExplorerService(shelf, Limits()), GenerateRequest(text="Once", max_tokens=20)
        )
        assert await anext(stream) == ""
        for _ in range(count):
            await anext(stream)
        assert shelf.loaded["model"].is_busy
        await stream.aclose()
        await asyncio.sleep(0.05)
        assert not shelf.loaded["model"].is_busy

    monkeypatch.setattr(MODEL, "generate", slow)
    asyncio.run(leave_after(3))
    assert steps == 3
