"""Many clients at once: everyone gets the same output as alone, in turn, or a quick error."""

import asyncio
import json
import socket
import threading
from dataclasses import replace

import openai
import pytest

from clearhead.generate.sampling import SamplingConfig
from clearhead.serve import server
from clearhead.serve.errors import APIError
from clearhead.serve.limits import Limits
from clearhead.serve.metrics import Metrics
from clearhead.serve.openai import ResponseBuilder
from clearhead.serve.scheduler import ModelWorker, Scheduler
from serving import (
    LONG_COMPLETION,
    NO_EOS,
    open_stream,
    pause_after,
    run_server,
    send_request,
    slow_down,
    tiny_writer,
    wait_until,
)

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def model():
    return tiny_writer(**NO_EOS)


def model_with_nan(token):
    """A model whose logits are NaN after a token."""
    model = tiny_writer(head__tie_embeddings=False, **NO_EOS)
    model.net.embed.tokens.weight.data[ord(token)] = float("nan")
    return model


def test_concurrent_streams_equal_single_generations(model):
    requests = [
        {
            "prompt": f"Text {i}, which is {'long ' * (i % 5)}",
            "seed": i,
            "temperature": 0.5 + i % 3,
            "top_k": i % 4 * 8,
        }
        for i in range(12)
    ]

    async def stream_text(client, request):
        options = dict(request)
        top_k = options.pop("top_k")
        chunks = await client.completions.create(
            model="writer", max_tokens=12, stream=True, extra_body={"top_k": top_k}, **options
        )
        return "".join([chunk.choices[0].text async for chunk in chunks])

    async def stream_all(url):
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0
        ) as client:
            return await asyncio.gather(*(stream_text(client, request) for request in requests))

    with run_server({"writer": model}, Limits(max_batch_size=5)) as served:
        texts = asyncio.run(stream_all(served.url))
    for request, text in zip(requests, texts, strict=True):
        options = dict(request)
        assert text == model.generate(options.pop("prompt"), max_tokens=12, **options).text


def test_a_disconnected_client_frees_its_slot_within_a_step():
    model = slow_down(tiny_writer(**NO_EOS), 0.02)
    with run_server({"writer": model}, Limits(max_batch_size=2)) as served:
        worker = served.registry.loaded["writer"].worker
        connections = [open_stream(served.port, LONG_COMPLETION) for _ in range(2)]
        for connection in connections:
            assert b"200 OK" in connection.recv(4096)
        scheduler = worker.existing_scheduler
        step = scheduler.engine.runner.step
        steps = []

        def recording_step(*args):
            steps.append((len(worker.jobs), len(scheduler.running)))
            return step(*args)

        scheduler.engine.runner.step = recording_step
        connections[0].close()
        wait_until(lambda: len(scheduler.running) == 1)
        assert steps.count((1, 2)) <= 1  # steps for a client that was known to be gone
        connections[1].close()
        wait_until(lambda: not scheduler.running and not worker.is_busy)
        assert not worker.text_queue.running
        assert not worker.text_queue.num_waiting


def test_a_disconnected_client_leaves_the_queue():
    model = slow_down(tiny_writer(**NO_EOS), 0.02)
    with run_server({"writer": model}, Limits(max_batch_size=1)) as served:
        worker = served.registry.loaded["writer"].worker
        running = open_stream(served.port, LONG_COMPLETION)
        assert b"200 OK" in running.recv(4096)
        waiting = open_stream(served.port, LONG_COMPLETION)
        wait_until(lambda: worker.text_queue.num_waiting == 1)
        waiting.close()
        wait_until(lambda: worker.text_queue.num_waiting == 0)
        assert len(worker.jobs) == 1
        running.close()


def test_clients_take_turns():
    model, resume = pause_after(tiny_writer(**NO_EOS), 0)
    body = {"model": "writer", "prompt": "Once", "max_tokens": 10, "seed": 1}
    with run_server({"writer": model}, Limits(max_batch_size=2)) as served:
        worker = served.registry.loaded["writer"].worker
        finished = []

        def complete(source):
            status, _, _ = send_request(served.port, "POST", COMPLETIONS, body, source=source)
            finished.append((source, status))

        threads = [threading.Thread(target=complete, args=("127.0.0.2",)) for _ in range(12)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(worker.jobs) == 12)
        threads.append(threading.Thread(target=complete, args=("127.0.0.3",)))
        threads[-1].start()
        wait_until(lambda: len(worker.jobs) == 13)
        resume.set()
        for thread in threads:
            thread.join()
        assert [status for _, status in finished] == [200] * 13
        sources = [source for source, _ in finished]
        assert sources.index("127.0.0.3") <= 8  # not last


def test_calls_run_between_steps_and_metrics_count(model):
    slow_model = slow_down(tiny_writer(**NO_EOS), 0.1)
    with run_server({"writer": slow_model}, Limits(max_batch_size=3)) as served:
        connection = open_stream(served.port, LONG_COMPLETION)  # takes twelve seconds
        assert b"200 OK" in connection.recv(4096)
        body = {"model": "writer", "input": "Once"}
        status, _, content = send_request(served.port, "POST", "/v1/embeddings", body)
        assert status == 200
        assert json.loads(content)["data"][0]["embedding"] == model.embed("Once").tolist()
        text = send_request(served.port, "GET", "/metrics")[2].decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        labels = '{model="writer"}'
        assert values[f"clearhead_max_num_sequences{labels}"] == "3.0"
        assert values[f"clearhead_num_sequences_running{labels}"] == "1.0"
        assert values[f"clearhead_num_sequences_waiting{labels}"] == "0.0"
        assert values[f"clearhead_prompt_tokens_total{labels}"] == "8.0"
        assert values[f"clearhead_time_to_first_token_seconds_count{labels}"] == "1.0"
        assert float(values[f"clearhead_generation_tokens_total{labels}"]) >= 1
        requests = 'clearhead_requests_total{path="/v1/embeddings",status="200"}'
        assert values[requests] == "1.0"
        assert float(values["process_resident_memory_bytes"]) > 1 << 20
        connection.close()


def test_a_full_queue_rejects_requests_and_recovers(model):
    slow_model = slow_down(tiny_writer(**NO_EOS), 0.01)
    body = {"model": "writer", "prompt": "Once", "max_tokens": 20, "seed": 1}
    limits = Limits(max_batch_size=2, max_queue=8)
    with run_server({"writer": slow_model}, limits) as served:
        responses = []

        def complete():
            status, headers, content = send_request(served.port, "POST", COMPLETIONS, body)
            responses.append((status, headers, json.loads(content)))

        threads = [threading.Thread(target=complete) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {status for status, _, _ in responses} == {200, 429}
        expected = model.generate("Once", max_tokens=20, seed=1).text
        for status, headers, response in responses:
            if status == 200:
                assert response["choices"][0]["text"] == expected
            else:
                assert headers["retry-after"] == "1"
                assert response["error"]["code"] == "rate_limit_exceeded"
        assert sum(status == 200 for status, _, _ in responses) >= 7
        assert send_request(served.port, "POST", COMPLETIONS, body)[0] == 200


def test_nan_logits_fail_one_request_only(model):
    body = {
        "model": "writer",
        "prompt": "abc",
        "max_tokens": 20,
        "temperature": 0,
        "logit_bias": {"120": -100},
    }
    with run_server({"writer": model_with_nan("x"), "other": model}) as served:
        responses = []
        thread = threading.Thread(
            target=lambda: responses.append(send_request(served.port, "POST", COMPLETIONS, body))
        )
        thread.start()
        status, _, content = send_request(served.port, "POST", COMPLETIONS, {**body, "prompt": "x"})
        thread.join()
        assert status == 500
        error = json.loads(content)["error"]
        assert "NaN" in error["message"]
        assert error["type"] == "server_error"
        assert responses[0][0] == 200
        assert send_request(served.port, "POST", COMPLETIONS, body)[0] == 200


def test_the_worker_survives_a_crash_in_a_step(model):
    crashing = tiny_writer(**NO_EOS)
    body = {"model": "writer", "prompt": "Once", "max_tokens": 20, "seed": 1}
    with run_server({"writer": crashing}) as served:
        forward = crashing.net.forward
        crashing.net.forward = None
        status, _, content = send_request(served.port, "POST", COMPLETIONS, body)
        assert status == 500
        assert b"Internal server error" in content
        crashing.net.forward = forward
        status, _, content = send_request(served.port, "POST", COMPLETIONS, body)
        text = json.loads(content)["choices"][0]["text"]
        assert text == model.generate("Once", max_tokens=20, seed=1).text


def test_an_error_in_a_stream_is_an_event():
    with (
        run_server({"writer": model_with_nan("x")}) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client,
    ):
        chunks = client.completions.create(
            model="writer", prompt="abc", max_tokens=9, logit_bias={"120": 1000.0}, stream=True
        )
        assert next(chunks).choices[0].text == "x"
        with pytest.raises(openai.APIError, match="NaN"):
            next(chunks)


def test_a_slow_reader_is_disconnected_and_blocks_nobody(model):
    async def read_one_of_two():
        worker = ModelWorker(model, Limits(max_batch_size=2), Metrics(), "writer")
        sampling = SamplingConfig(max_tokens=40, seed=1)

        def submit(client):
            sequences = worker.scheduler.make_sequences([[1, 2]], sampling, 1, 0, False)
            return worker.submit(client, sequences)

        unread = submit("a")
        read = submit("b")
        unread.limits = Limits(max_unread_tokens=10)
        text = ""
        while chunks := await read.take_output():
            text += "".join(chunk.text for chunk in chunks)
        with pytest.raises(APIError, match="too slow"):
            await unread.take_output()
        assert worker.jobs == {read}
        read.close()
        worker.close()
        worker.thread.join(5)
        return text

    text = asyncio.run(read_one_of_two())
    assert text == model.generate([1, 2], max_tokens=40, seed=1).text


def test_queue_and_request_timeouts():
    model, resume = pause_after(tiny_writer(**NO_EOS), 2)
    with run_server({"writer": model}, Limits(max_batch_size=1)) as served:
        worker = served.registry.loaded["writer"].worker
        connection = open_stream(served.port, LONG_COMPLETION)
        received = connection.recv(4096)
        assert b"200 OK" in received  # it has the only slot
        [job] = worker.jobs
        worker.limits = replace(worker.limits, queue_timeout=0.2)
        body = {**LONG_COMPLETION, "stream": False}
        status, headers, content = send_request(served.port, "POST", COMPLETIONS, body)
        assert status == 503
        assert headers["retry-after"] == "5"
        assert b"queue" in content
        job.limits = replace(worker.limits, request_timeout=0.2)
        served.loop.call_soon_threadsafe(job.changed.set)
        while b"[DONE]" not in received:
            received += connection.recv(4096)
        assert b"timed out after 0.2 seconds" in received
        resume.set()
        connection.close()


def test_a_last_token_is_sent_even_if_another_sequence_fails():
    scheduler = Scheduler(model_with_nan("x"), Limits(max_batch_size=3))
    for name, max_tokens, bias in (
        ("ends", 2, -1000.0),
        ("breaks", 9, 1000.0),  # an x, and then NaN
        ("left", 9, -1000.0),
    ):
        sampling = SamplingConfig(max_tokens=max_tokens, temperature=0, logit_bias={ord("x"): bias})
        [sequence] = scheduler.make_sequences([[97, 98]], sampling, 1, 0, False)
        scheduler.admit(name, sequence)
    outputs, errors = scheduler.step()
    counts = {name: len(chunks) for name, chunks in outputs.items()}
    assert counts == {"ends": 1, "breaks": 1, "left": 1}
    assert not errors
    sequence.request.finish("cancelled")
    outputs, errors = scheduler.step()
    reasons = {name: [chunk.finish_reason for chunk in c] for name, c in outputs.items()}
    assert reasons == {"ends": ["length"]}
    assert list(errors) == ["breaks"]


def test_a_client_that_does_not_read_is_disconnected(monkeypatch):
    monkeypatch.setattr(server, "IDLE_TIMEOUT", 0.2)
    body = json.dumps({**LONG_COMPLETION, "n": 16, "logprobs": 20, "seed": 1}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
    )
    limits = Limits(max_batch_size=16, max_unread_tokens=200)
    with (
        run_server({"writer": tiny_writer(**NO_EOS)}, limits) as served,
        socket.socket() as client,
    ):
        worker = served.registry.loaded["writer"].worker
        state = served.server.server_state
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        wait_until(lambda: state.connections)
        [connection] = state.connections
        server_socket = connection.transport.get_extra_info("socket")
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.sendall(head.encode() + body)
        wait_until(lambda: worker.jobs)
        wait_until(lambda: not worker.jobs and not state.connections and not state.tasks)


@pytest.mark.parametrize(
    "options",
    [{"n": 2, "max_tokens": 50}, {"echo": True, "max_tokens": 0}, {"echo": True, "stream": True}],
)
def test_large_responses_are_encoded_outside_the_event_loop(model, monkeypatch, options):
    encoders = []
    choice = ResponseBuilder._choice

    def record(*args):
        encoders.append(threading.current_thread())
        return choice(*args)

    monkeypatch.setattr(ResponseBuilder, "_choice", record)
    body = {"model": "writer", "prompt": "Once upon", "logprobs": 20, "temperature": 0, **options}
    with run_server({"writer": model}) as running:
        status, _, content = send_request(running.port, "POST", COMPLETIONS, body)
        assert status == 200
        assert encoders
        assert running.thread not in encoders[:1]  # the first: a stream's later chunks are small
    if not options.get("stream"):
        assert running.thread not in encoders
        response = json.loads(content)
        assert [choice["index"] for choice in response["choices"]] == list(range(len(encoders)))
        assert response["usage"]["completion_tokens"] == len(encoders) * options["max_tokens"]
