"""Many at once: each gets what it would get alone, in turn, or a quick and orderly refusal."""

import asyncio
import json
import socket
import threading
from dataclasses import replace

import openai
import pytest

from clearhead.generate.sampling import sampling_config
from clearhead.serve import server
from clearhead.serve.metrics import Metrics
from clearhead.serve.middleware import APIError, Limits
from clearhead.serve.scheduler import ModelWorker, Scheduler
from serving import ENDLESS, LONG, ask, paused, running, slow, stream, until, writer


@pytest.fixture(scope="module")
def model():
    return writer(**ENDLESS)


def test_every_stream_equals_what_one_user_gets_alone(model):
    wishes = [
        {
            "prompt": f"Text {i}, which is {'long ' * (i % 5)}",
            "seed": i,
            "temperature": 0.5 + i % 3,
            "top_k": i % 4 * 8,
        }
        for i in range(12)
    ]

    async def all_of_them(url):
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0
        ) as client:

            async def one(wish):
                how = {name: value for name, value in wish.items() if name != "top_k"}
                pieces = await client.completions.create(
                    model="writer",
                    max_tokens=12,
                    stream=True,
                    extra_body={"top_k": wish["top_k"]},
                    **how,
                )
                return "".join([chunk.choices[0].text async for chunk in pieces])

            return await asyncio.gather(*map(one, wishes))

    with running({"writer": model}, Limits(max_batch_size=5)) as served:
        texts = asyncio.run(all_of_them(served.url))
    for wish, text in zip(wishes, texts, strict=True):
        how = dict(wish)
        assert text == model.generate(how.pop("prompt"), max_tokens=12, **how).text


def test_who_goes_away_frees_the_row_within_a_step():
    with running({"writer": slow(writer(**ENDLESS), 0.02)}, Limits(max_batch_size=2)) as served:
        worker = served.shelf.held["writer"].worker
        connections = [stream(served.port, LONG) for _ in range(2)]
        for connection in connections:
            assert b"200 OK" in connection.recv(4096)
        step = worker.made.engine.desk.step
        seen = []

        def counted(*given):
            seen.append((len(worker.jobs), len(worker.made.seated)))
            return step(*given)

        worker.made.engine.desk.step = counted
        connections[0].close()
        until(lambda: len(worker.made.seated) == 1)
        assert seen.count((1, 2)) <= 1  # steps for a client that was known to be gone
        connections[1].close()
        until(lambda: not worker.made.seated and not worker.busy)
        assert not worker.texts.under_way
        assert not worker.texts.count


def test_who_goes_away_while_waiting_is_forgotten():
    with running({"writer": slow(writer(**ENDLESS), 0.02)}, Limits(max_batch_size=1)) as served:
        worker = served.shelf.held["writer"].worker
        first = stream(served.port, LONG)
        assert b"200 OK" in first.recv(4096)
        second = stream(served.port, LONG)
        until(lambda: worker.texts.count == 1)
        second.close()
        until(lambda: worker.texts.count == 0)
        assert len(worker.jobs) == 1
        first.close()


def test_clients_take_turns_however_much_each_asks_for():
    model, go_on = paused(writer(**ENDLESS), after=0)
    with running({"writer": model}, Limits(max_batch_size=2)) as served:
        worker = served.shelf.held["writer"].worker
        order = []

        def one(source):
            body = {"model": "writer", "prompt": "Once", "max_tokens": 10, "seed": 1}
            order.append(
                (source, ask(served.port, "POST", "/v1/completions", body, source=source)[0])
            )

        greedy = [threading.Thread(target=one, args=("127.0.0.2",)) for _ in range(12)]
        for thread in greedy:
            thread.start()
        until(lambda: len(worker.jobs) == 12)
        modest = threading.Thread(target=one, args=("127.0.0.3",))
        modest.start()
        until(lambda: len(worker.jobs) == 13)
        go_on.set()
        for thread in [*greedy, modest]:
            thread.join()
        assert [status for _, status in order] == [200] * 13
        done = [source for source, _ in order]
        assert done.index("127.0.0.3") <= 8  # not after all who came before


def test_other_work_has_its_turn_between_steps_and_is_counted(model):
    with running({"writer": slow(writer(**ENDLESS), 0.1)}, Limits(max_batch_size=3)) as served:
        busy = stream(served.port, LONG)  # for twelve seconds, unless it is closed
        assert b"200 OK" in busy.recv(4096)
        status, _, content = ask(
            served.port, "POST", "/v1/embeddings", {"model": "writer", "input": "Once"}
        )
        assert status == 200
        assert json.loads(content)["data"][0]["embedding"] == model.embed("Once").tolist()
        told = ask(served.port, "GET", "/metrics")[2].decode()
        values = dict(line.rsplit(" ", 1) for line in told.splitlines() if not line.startswith("#"))
        assert values['clearhead_slots{model="writer"}'] == "3"
        assert values['clearhead_slots_used{model="writer"}'] == "1"  # it was not over yet
        assert values['clearhead_prompt_tokens_total{model="writer"}'] == "8"
        assert values['clearhead_requests_total{path="/v1/embeddings",status="200"}'] == "1"
        assert values['clearhead_first_token_seconds_count{model="writer"}'] == "1"
        assert int(values["process_resident_memory_bytes"]) > 1 << 20
        busy.close()


def test_a_full_line_refuses_and_service_goes_on(model):
    with running(
        {"writer": slow(writer(**ENDLESS), 0.01)}, Limits(max_batch_size=2, max_queue=8)
    ) as served:
        body = {"model": "writer", "prompt": "Once", "max_tokens": 20, "seed": 1}
        found = []

        def one():
            status, headers, content = ask(served.port, "POST", "/v1/completions", body)
            found.append((status, headers, json.loads(content)))

        threads = [threading.Thread(target=one) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {status for status, *_ in found} == {200, 429}
        expected = model.generate("Once", max_tokens=20, seed=1).text
        for status, headers, tree in found:
            if status == 200:
                assert tree["choices"][0]["text"] == expected
            else:
                assert headers["retry-after"] == "1"
                assert tree["error"]["code"] == "rate_limit_exceeded"
        assert sum(status == 200 for status, *_ in found) >= 4
        assert ask(served.port, "POST", "/v1/completions", body)[0] == 200


def test_a_broken_model_ends_its_request_and_nobody_elses(model):
    broken = writer(head__tie_embeddings=False, **ENDLESS)
    broken.net.embed.tokens.weight.data[ord("x")] = float("nan")  # whoever reads an x
    with running({"writer": broken, "other": model}) as served:
        body = {
            "model": "writer",
            "prompt": "abc",
            "max_tokens": 20,
            "temperature": 0,
            "logit_bias": {"120": -100},
        }
        found = []
        fine = threading.Thread(
            target=lambda: found.append(ask(served.port, "POST", "/v1/completions", body))
        )
        fine.start()
        status, _, content = ask(served.port, "POST", "/v1/completions", {**body, "prompt": "x"})
        fine.join()
        assert status == 500
        assert "hold no numbers" in json.loads(content)["error"]["message"]
        assert json.loads(content)["error"]["type"] == "server_error"
        assert found[0][0] == 200
        assert ask(served.port, "POST", "/v1/completions", body)[0] == 200


def test_whatever_breaks_in_a_step_the_next_client_is_served(model):
    own = writer(**ENDLESS)
    with running({"writer": own}) as served:
        forward = own.net.forward
        own.net.forward = None
        body = {"model": "writer", "prompt": "Once", "max_tokens": 20, "seed": 1}
        status, _, content = ask(served.port, "POST", "/v1/completions", body)
        assert status == 500
        assert b"something went wrong" in content
        own.net.forward = forward
        status, _, content = ask(served.port, "POST", "/v1/completions", body)
        assert (
            json.loads(content)["choices"][0]["text"]
            == model.generate("Once", max_tokens=20, seed=1).text
        )


def test_an_error_in_a_stream_is_told_in_the_stream():
    broken = writer(head__tie_embeddings=False, **ENDLESS)
    broken.net.embed.tokens.weight.data[ord("x")] = float("nan")
    force = {"120": 1000.0}
    with (
        running({"writer": broken}) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client,
    ):
        pieces = client.completions.create(
            model="writer", prompt="abc", max_tokens=9, logit_bias=force, stream=True
        )
        assert next(pieces).choices[0].text == "x"
        with pytest.raises(openai.APIError, match="hold no numbers"):
            next(pieces)


def test_a_slow_reader_holds_up_nobody_and_is_let_go(model):
    async def both():
        worker = ModelWorker(model, Limits(max_batch_size=2), Metrics(), "writer")
        how = sampling_config(max_tokens=40, seed=1)
        lazy, keen = (
            worker.submit(client, worker.scheduler.make_sequences([[1, 2]], how, 1, 0, False))
            for client in "ab"
        )
        lazy.limits = Limits(max_unread_tokens=10)
        text = ""
        while pieces := await keen.take_output():
            text += "".join(piece.text for piece in pieces)
        with pytest.raises(APIError, match="too slow"):
            await lazy.take_output()
        assert worker.jobs == {keen}
        keen.close()
        worker.close()
        worker.thread.join(5)
        return text

    assert asyncio.run(both()) == model.generate([1, 2], max_tokens=40, seed=1).text


def test_waiting_and_working_have_their_time():
    model, go_on = paused(writer(**ENDLESS), after=2)
    with running({"writer": model}, Limits(max_batch_size=1)) as served:
        worker = served.shelf.held["writer"].worker
        first = stream(served.port, LONG)
        rest = first.recv(4096)
        assert b"200 OK" in rest  # and so it has the row
        [job] = worker.jobs
        worker.limits = replace(worker.limits, queue_seconds=0.2)
        status, headers, content = ask(
            served.port, "POST", "/v1/completions", {**LONG, "stream": False}
        )
        assert status == 503
        assert headers["retry-after"] == "5"
        assert b"waited longer" in content
        job.limits = replace(worker.limits, seconds=0.2)
        served.loop.call_soon_threadsafe(job.news.set)
        while b"[DONE]" not in rest:
            rest += first.recv(4096)
        assert b"took longer than 0.2 seconds" in rest
        go_on.set()
        first.close()


def test_a_text_that_ends_where_another_breaks_is_told_its_last_token():
    model = writer(head__tie_embeddings=False, **ENDLESS)
    model.net.embed.tokens.weight.data[ord("x")] = float("nan")
    scribe = Scheduler(model, Limits(max_batch_size=3))
    for name, tokens, bias in (("ends", 2, -1000.0), ("breaks", 9, 1000.0), ("left", 9, -1000.0)):
        how = sampling_config(
            max_tokens=tokens, temperature=0, bias={ord("x"): bias}
        )  # an x, and then no numbers
        [text] = scribe.make_sequences([[97, 98]], how, 1, 0, False)
        scribe.admit(name, text)
    news, errors = scribe.step()
    assert {name: len(pieces) for name, pieces in news.items()} == {
        "ends": 1,
        "breaks": 1,
        "left": 1,
    }
    assert not errors
    text.request.finish("cancelled")
    news, errors = scribe.step()
    assert {name: [piece.finish_reason for piece in pieces] for name, pieces in news.items()} == {
        "ends": ["length"]
    }
    assert list(errors) == ["breaks"]


def test_who_does_not_read_a_stream_is_cut_off(monkeypatch):
    monkeypatch.setattr(server, "SILENT", 0.2)
    body = {**LONG, "n": 16, "logprobs": 20, "seed": 1}
    with running(
        {"writer": writer(**ENDLESS)}, Limits(max_batch_size=16, max_unread_tokens=200)
    ) as served:
        worker = served.shelf.held["writer"].worker
        connections = served.server.server_state.connections
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", served.port))
            until(lambda: connections)
            [connection] = connections
            connection.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
            )
            data = json.dumps(body).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
            lazy.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
            until(lambda: worker.jobs)
            until(
                lambda: not worker.jobs and not connections and not served.server.server_state.tasks
            )
