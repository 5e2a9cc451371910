"""What is read and computed besides writing: piece by piece, in turns, and only while somebody waits for it."""

import asyncio
import json
import threading

import pytest
import torch

import clearhead as ch
from clearhead.data.batch import Batch
from clearhead.generate.translation import Translator
from clearhead.serve.metrics import Metrics
from clearhead.serve.middleware import Limits
from clearhead.serve.openai import CompletionRequest, make_completion_sequences
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import ModelWorker
from serving import BYTES, ENDLESS, ask, running, stream, until, writer


def test_texts_are_read_one_by_one_up_to_one_that_is_too_long(monkeypatch):
    model = writer(**ENDLESS)
    seen = []
    encode = ch.Tokenizer.encode
    monkeypatch.setattr(
        ch.Tokenizer, "encode", lambda self, text: seen.append(text) or encode(self, text)
    )
    monkeypatch.setattr(Batch, "of", None)  # nothing is padded to the longest
    [held] = ModelRegistry.from_models({"writer": model}).loaded.values()
    asked = CompletionRequest(model="writer", prompt=[])
    assert [
        len(text.request.prompt)
        for text in make_completion_sequences(held, asked, ["Once", "a"], Limits())
    ] == [4, 1]
    with pytest.raises(ch.ClearheadError, match="1000 tokens of prompt leave no room"):
        make_completion_sequences(held, asked, ["b", "x" * 1000, "c"], Limits())
    assert seen == ["Once", "a", "b", "x" * 1000]


def test_embeddings_are_made_some_at_a_time_and_leaving_ends_them():
    model = writer(**ENDLESS)
    embed = model.embed
    seen = []
    leave = threading.Event()

    def counted(rows):
        seen.append([len(row) for row in rows])
        if leave.is_set():
            left.close()
            until(lambda: not worker.asked)
        return embed(rows)

    model.embed = counted
    texts = ["x" * 100] * 12 + ["y" * 3] * 10
    with running({"writer": model}) as served:
        worker = served.shelf.held["writer"].worker
        body = {"model": "writer", "input": texts}
        status, _, content = ask(served.port, "POST", "/v1/embeddings", body)
        assert status == 200
        assert seen == [[100] * 8, [100] * 4 + [3] * 4, [3] * 6]
        found = torch.tensor([one["embedding"] for one in json.loads(content)["data"]])
        torch.testing.assert_close(found, embed(texts))
        leave.set()
        left = stream(served.port, body, path="/v1/embeddings")
        until(lambda: len(seen) == 4 and not worker.asked and not worker.calls.count)
        until(lambda: not served.server.server_state.tasks)
    assert len(seen) == 4


def translator():
    use = {
        "inference__decoder_start_tokens": [256],
        "inference__eos_tokens": [],
        "inference__sep_tokens": [256],
        "architecture__source_context_length": 64,
        "context": 64,
    }
    return ch.new("tiny-encoder-decoder", tokenizer=BYTES, vocab_size=257, seed=2, **use)


def translated(served, text, **how):
    status, _, content = ask(served.port, "POST", "/translate", {"text": text, **how})
    assert status == 200, content
    return [one["best"][0] for one in json.loads(content)["translations"]]


def test_a_long_text_is_translated_in_turns_and_leaving_ends_it(monkeypatch):
    model = translator()
    seen = []
    leave = threading.Event()
    rows = Translator.translate_ids

    def counted(self, some, begins):
        seen.append(len(some))
        if leave.is_set():
            left.close()
            until(lambda: not worker.asked)
        return rows(self, some, begins)

    texts = ["One sentence. " * 20 + "\n\nThe last one", "", "Short."]
    expected = model.translate(texts, num_beams=2, max_tokens=5)
    monkeypatch.setattr(Translator, "rows", counted)
    with running({"model": model}) as served:
        worker = served.shelf.held["model"].worker
        found = translated(served, texts, beam=2, max_tokens=5)
        assert [one["text"] for one in found] == [one.text for one in expected]
        assert [one["score"] for one in found] == pytest.approx(
            [one.score for one in expected], abs=1e-4
        )
        assert sum(seen) == 22
        assert max(seen) == 8
        seen.clear()
        translated(served, texts[:1], beam=32, max_tokens=2)
        assert seen == [1] * 21  # of wide searches fewer at once
        leave.set()
        left = stream(served.port, {"text": texts, "beam": 2}, path="/translate")
        until(lambda: len(seen) == 22 and not worker.asked and not worker.calls.count)
        until(lambda: not served.server.server_state.tasks)
    assert len(seen) == 22


def test_a_translation_that_asks_for_no_length_gets_no_more_than_is_allowed():
    model = translator()
    with running({"model": model}, Limits(max_tokens=7)) as served:
        (short,) = translated(served, "A dog runs.", beam=1)
        assert (
            short["tokens"] == model.translate(["A dog runs."], num_beams=1, max_tokens=7)[0].tokens
        )
        assert len(short["tokens"]) == 7
    with running({"model": model}) as served:
        (long,) = translated(served, "A dog runs.", beam=1, prefix="x")
        assert long["tokens"] == model.translate(["A dog runs."], num_beams=1, prefix="x")[0].tokens
        assert len(long["tokens"]) == 63


def test_a_call_that_nobody_waits_for_costs_no_step():
    async def some():
        worker = ModelWorker(writer(), Limits(), Metrics(), "writer")
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
