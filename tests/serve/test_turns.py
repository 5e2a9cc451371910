"""Large requests are processed in turns, and stop when the client disconnects."""

import asyncio
import json
import threading

import pytest
import torch

import clearhead as ch
from clearhead.data.batch import Batch
from clearhead.generate.translation import Translator
from clearhead.serve.limits import Limits
from clearhead.serve.metrics import Metrics
from clearhead.serve.openai import CompletionRequest, make_completion_sequences
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import ModelWorker
from serving import BYTES, NO_EOS, open_stream, run_server, send_request, tiny_writer, wait_until


def test_prompts_are_encoded_lazily_up_to_one_that_is_too_long(monkeypatch):
    model = tiny_writer(**NO_EOS)
    encoded = []
    encode = ch.Tokenizer.encode
    monkeypatch.setattr(
        ch.Tokenizer, "encode", lambda self, text: encoded.append(text) or encode(self, text)
    )
    monkeypatch.setattr(Batch, "from_rows", None)  # nothing is padded to the longest
    [loaded_model] = ModelRegistry.from_models({"writer": model}).loaded.values()
    request = CompletionRequest(model="writer", prompt=[])
    assert [
        len(text.request.prompt)
        for text in make_completion_sequences(loaded_model, request, ["Once", "a"], Limits())
    ] == [4, 1]
    with pytest.raises(ch.ClearheadError, match="1000 tokens"):
        make_completion_sequences(loaded_model, request, ["b", "x" * 1000, "c"], Limits())
    assert encoded == ["Once", "a", "b", "x" * 1000]


def test_embeddings_take_turns_and_stop_on_disconnect():
    model = tiny_writer(**NO_EOS)
    embed = model.embed
    calls = []
    leave = threading.Event()

    def counted(rows):
        calls.append([len(row) for row in rows])
        if leave.is_set():
            left.close()
            wait_until(lambda: not worker.pending_calls)
        return embed(rows)

    model.embed = counted
    texts = ["x" * 100] * 12 + ["y" * 3] * 10
    with run_server({"writer": model}) as served:
        worker = served.registry.loaded["writer"].worker
        body = {"model": "writer", "input": texts}
        status, _, content = send_request(served.port, "POST", "/v1/embeddings", body)
        assert status == 200
        assert calls == [[100] * 8, [100] * 4 + [3] * 4, [3] * 6]
        found = torch.tensor([one["embedding"] for one in json.loads(content)["data"]])
        torch.testing.assert_close(found, embed(texts))
        leave.set()
        left = open_stream(served.port, body, path="/v1/embeddings")
        wait_until(
            lambda: (
                len(calls) == 4 and not worker.pending_calls and not worker.call_queue.num_waiting
            )
        )
        wait_until(lambda: not served.server.server_state.tasks)
    assert len(calls) == 4


def translator():
    options = {
        "inference__decoder_start_tokens": [256],
        "inference__eos_tokens": [],
        "inference__sep_tokens": [256],
        "architecture__source_context_length": 64,
        "context_length": 64,
    }
    return ch.new("tiny-encoder-decoder", tokenizer=BYTES, vocab_size=257, seed=2, **options)


def translate(served, text, **options):
    status, _, content = send_request(served.port, "POST", "/translate", {"text": text, **options})
    assert status == 200, content
    return [one["best"][0] for one in json.loads(content)["translations"]]


def test_translations_take_turns_and_stop_on_disconnect(monkeypatch):
    model = translator()
    calls = []
    leave = threading.Event()
    rows = Translator.translate_ids

    def counted(self, some, begins):
        calls.append(len(some))
        if leave.is_set():
            left.close()
            wait_until(lambda: not worker.pending_calls)
        return rows(self, some, begins)

    texts = ["One sentence. " * 20 + "\n\nThe last one", "", "Short."]
    expected = model.translate(texts, num_beams=2, max_tokens=5)
    monkeypatch.setattr(Translator, "translate_ids", counted)
    with run_server({"model": model}) as served:
        worker = served.registry.loaded["model"].worker
        found = translate(served, texts, num_beams=2, max_tokens=5)
        assert [one["text"] for one in found] == [one.text for one in expected]
        assert [one["score"] for one in found] == pytest.approx(
            [one.score for one in expected], abs=1e-4
        )
        assert sum(calls) == 22
        assert max(calls) == 8
        calls.clear()
        translate(served, texts[:1], num_beams=32, max_tokens=2)
        assert calls == [1] * 21  # of wide searches fewer at once
        leave.set()
        left = open_stream(served.port, {"text": texts, "num_beams": 2}, path="/translate")
        wait_until(
            lambda: (
                len(calls) == 22 and not worker.pending_calls and not worker.call_queue.num_waiting
            )
        )
        wait_until(lambda: not served.server.server_state.tasks)
    assert len(calls) == 22


def test_default_max_tokens_of_a_translation():
    model = translator()
    with run_server({"model": model}, Limits(max_tokens=7)) as served:
        (short,) = translate(served, "A dog runs.", num_beams=1)
        assert (
            short["tokens"] == model.translate(["A dog runs."], num_beams=1, max_tokens=7)[0].tokens
        )
        assert len(short["tokens"]) == 7
    with run_server({"model": model}) as served:
        (long,) = translate(served, "A dog runs.", num_beams=1, prefix="x")
        assert long["tokens"] == model.translate(["A dog runs."], num_beams=1, prefix="x")[0].tokens
        assert len(long["tokens"]) == 63


def test_cancelled_calls_are_skipped():
    async def some():
        worker = ModelWorker(tiny_writer(), Limits(), Metrics(), "writer")
        done = []
        go_on = threading.Event()
        worker._step = lambda: done.append("step")
        first = asyncio.create_task(
            worker.call("a", lambda: done.append("first") or go_on.wait(20))
        )
        left = [
            asyncio.create_task(worker.call("a", lambda: done.append("left"))) for _ in range(3)
        ]
        last = asyncio.create_task(worker.call("a", lambda: done.append("last")))
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, last)
        worker.close()
        worker.thread.join(5)
        return done

    assert asyncio.run(some()) == ["first", "step", "last", "step"]
