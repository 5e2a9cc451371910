"""A server that is told to stop lets its texts end, or says so; one that was killed begins anew."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead import api
from clearhead.cli.main import app
from clearhead.serve.metrics import Metrics
from clearhead.serve.middleware import APIError, Limits
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import ModelWorker
from serving import ENDLESS, LONG, ask, paused, running, slow, stream, until, writer


def test_what_runs_may_end_and_what_waits_is_told():
    model, go_on = paused(writer(**ENDLESS), after=2)
    with running({"writer": model}, Limits(max_batch_size=1, shutdown_timeout=20)) as served:
        worker = served.shelf.held["writer"].worker
        first = stream(served.port, {**LONG, "max_tokens": 40, "seed": 1})
        rest = first.recv(4096)
        assert b"200 OK" in rest
        found = []
        body = {**LONG, "stream": False}
        waiting = threading.Thread(
            target=lambda: found.append(ask(served.port, "POST", "/v1/completions", body))
        )
        waiting.start()
        until(lambda: worker.texts.count == 1)
        served.server.should_exit = True
        waiting.join(10)
        assert found[0][0] == 503
        assert b"stopping" in found[0][2]
        go_on.set()
        while piece := first.recv(65536):
            rest += piece
        assert rest.count(b"data: {") == 40
        assert b'"finish_reason":"length"' in rest
        assert b"[DONE]" in rest
        served.thread.join(10)
        assert not served.thread.is_alive()
        assert not worker.thread.is_alive()


def test_what_does_not_end_in_time_is_told():
    with running(
        {"writer": slow(writer(**ENDLESS), 0.05)}, Limits(max_batch_size=1, shutdown_timeout=0.2)
    ) as served:
        first = stream(served.port, LONG)
        assert b"200 OK" in first.recv(4096)
        served.server.should_exit = True
        rest = b""
        while piece := first.recv(65536):
            rest += piece
        assert b"this server is stopping" in rest
        assert b"[DONE]" in rest


def test_nothing_is_taken_on_by_models_and_workers_that_come_later(saved, monkeypatch):
    async def stopped():
        shelf = ModelRegistry({"a": str(saved), "b": str(saved)}, 1 << 40)
        load = api.load
        go_on = threading.Event()
        async with shelf.using("a") as held:
            monkeypatch.setattr(
                api, "load", lambda *given, **named: go_on.wait(20) and load(*given, **named)
            )
            loading = asyncio.create_task(shelf.get("b"))
            await asyncio.sleep(0)
            await shelf.stop(0.1)
            go_on.set()
            for late in (
                loading,
                shelf.get("a"),
                shelf.get("b"),
                held.worker.call("me", lambda: 5),
            ):
                with pytest.raises(APIError, match="stopping") as refused:
                    await late
                assert refused.value.status_code == 503
            assert held.worker.thread is None

    asyncio.run(stopped())


def test_calls_are_told_too():
    async def stopped():
        worker = ModelWorker(writer(), Limits(), Metrics(), "writer")
        calls = [asyncio.create_task(worker.call("me", lambda: time.sleep(0.5))) for _ in range(2)]
        await asyncio.sleep(0.05)
        await worker.stop(0.1)
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [str(error) for error in asyncio.run(stopped())] == ["this server is stopping."] * 2


BUSY = """
import asyncio, os, signal, time, torch
from clearhead.serve import server
from clearhead.serve.app import build
from clearhead.serve.limits import Limits
from clearhead.serve.pages import desk
from clearhead.serve.shelf import Shelf
from serving import writer

desk._prepare = lambda: None
shelf = Shelf.of({"writer": writer()})
app = build(shelf, Limits(stop_seconds=0.1), page=True)

def long():
    x, until = torch.randn(300, 300), time.monotonic() + 60
    while time.monotonic() < until:
        x = (x @ x).softmax(-1)

def ready():
    asyncio.ensure_future(app.state.desk.work(long))
    asyncio.get_running_loop().call_later(0.3, end)

def end():
    print("ends", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

server.run(app, shelf, server.listening("127.0.0.1", 0), False, ready)
"""


def test_a_process_ends_though_work_for_the_page_does_not():
    here = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=-1, stderr=-2, text=True, env=here
    ) as process:
        assert process.stdout.readline() == "ends\n"
        began = time.monotonic()
        assert (process.wait(50), process.stdout.read()) == (0, "")
        assert time.monotonic() - began < 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    ch.save(writer(**ENDLESS), folder)
    return folder


class Process:
    """`clearhead serve` in a process of its own."""

    def __init__(self, *words, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clearhead", "serve", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self.line = self.process.stdout.readline()
        found = re.search(r":(\d+)/", self.line)
        self.port = int(found[1]) if found else 0

    def end(self, sig):
        self.process.send_signal(sig)
        status = self.process.wait(20)
        return status, self.process.stdout.read()


def test_after_kill_9_a_server_begins_anew_on_the_same_port(saved):
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 20, "seed": 1}
    first = Process(saved, "--port", 0)
    assert first.line == f"tiny at http://127.0.0.1:{first.port}/v1 (Ctrl-C ends it)\n"
    held = stream(first.port, {**LONG, "model": "tiny"})
    assert b"200 OK" in held.recv(4096)
    before = json.loads(ask(first.port, "POST", "/v1/completions", body)[2])["choices"]
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    second = Process(saved, "--port", first.port)
    after = json.loads(ask(second.port, "POST", "/v1/completions", body)[2])["choices"]
    assert before == after
    assert second.end(signal.SIGTERM) == (0, "")


def test_ctrl_c_ends_it_with_nothing_more_to_say(saved):
    server = Process(f"mine={saved}", "--port", 0, "--host", "0.0.0.0", CLEARHEAD_API_KEY="k")
    assert server.line.startswith("mine at http://0.0.0.0:")
    assert ask(server.port, "GET", "/v1/models")[0] == 401
    status, _, content = ask(
        server.port, "GET", "/v1/models", headers={"Authorization": "Bearer k"}
    )
    assert (status, json.loads(content)["data"][0]["id"]) == (200, "mine")
    idle = socket.create_connection(("127.0.0.1", server.port))
    assert server.end(signal.SIGINT) == (0, "")
    idle.close()


def test_the_link_to_the_page_holds_the_key_unless_it_was_kept_in_the_environment(saved):
    for words, kept, shown in (
        (["--api-key", "a&b #+%"], {}, "a%26b%20%23%2B%25"),
        ([], {"CLEARHEAD_API_KEY": "k"}, "…"),
    ):
        server = Process(saved, "--port", 0, "--page", "--read-only", *words, **kept)
        assert (
            server.line == f"tiny at http://127.0.0.1:{server.port}/?key={shown} (Ctrl-C ends it)\n"
        )
        assert (
            ask(server.port, "GET", f"/v1/models?key={kept.get('CLEARHEAD_API_KEY', shown)}")[0]
            == 303
        )
        assert server.end(signal.SIGTERM) == (0, "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--host", "0.0.0.0"], "others can come in; set CLEARHEAD_API_KEY"),
        (["--port", "70000"], "no port"),
        (["--host", "nowhere.invalid", "--api-key", "k"], "cannot be served on"),
        (["--memory", "0.000001"], "more than the 0.0 GiB"),
        (["--memory", "nan"], "--memory nan is no amount"),
        (["--memory", "inf"], "--memory inf is no amount"),
        (["--port", "-5"], "no port"),
        (["--max-queue", "0"], "too small a limit"),
        (["--api-key", "schlüssel"], "must be of ASCII characters"),
        (["--api-key", " k"], "no space around"),
        (["no/such/model"], "no/such/model is no clearhead model"),
    ],
)
def test_mistakes_are_told_before_anyone_is_let_in(saved, words, sentence):
    found = CliRunner().invoke(app, ["serve", str(saved), "--port", "0", *words])
    assert sentence in str(found.exception)
    assert isinstance(found.exception, ch.ClearheadError)


def test_a_port_that_is_taken_is_told(saved):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = CliRunner().invoke(
            app, ["serve", str(saved), "--port", str(taken.getsockname()[1])]
        )
    assert "address already in use; choose another --port" in str(found.exception)
