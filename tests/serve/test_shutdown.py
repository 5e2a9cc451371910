"""Graceful shutdown of threads and processes, and restart after SIGKILL."""

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
from clearhead.cli.main import app
from clearhead.serve import registry as registry_module
from clearhead.serve.errors import APIError
from clearhead.serve.limits import Limits
from clearhead.serve.metrics import Metrics
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import ModelWorker
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


def test_running_requests_finish_and_waiting_ones_are_rejected():
    model, resume = pause_after(tiny_writer(**NO_EOS), 2)
    with run_server({"writer": model}, Limits(max_batch_size=1, shutdown_timeout=20)) as served:
        worker = served.registry.loaded["writer"].worker
        first = open_stream(served.port, {**LONG_COMPLETION, "max_tokens": 40, "seed": 1})
        rest = first.recv(4096)
        assert b"200 OK" in rest
        found = []
        body = {**LONG_COMPLETION, "stream": False}
        waiting = threading.Thread(
            target=lambda: found.append(send_request(served.port, "POST", "/v1/completions", body))
        )
        waiting.start()
        wait_until(lambda: worker.text_queue.num_waiting == 1)
        served.server.should_exit = True
        waiting.join(10)
        assert found[0][0] == 503
        assert b"shutting down" in found[0][2]
        resume.set()
        while piece := first.recv(65536):
            rest += piece
        assert rest.count(b"data: {") == 40
        assert b'"finish_reason":"length"' in rest
        assert b"[DONE]" in rest
        served.thread.join(10)
        assert not served.thread.is_alive()
        assert not worker.thread.is_alive()


def test_requests_that_exceed_the_shutdown_timeout_get_an_error():
    with run_server(
        {"writer": slow_down(tiny_writer(**NO_EOS), 0.05)},
        Limits(max_batch_size=1, shutdown_timeout=0.2),
    ) as served:
        first = open_stream(served.port, LONG_COMPLETION)
        assert b"200 OK" in first.recv(4096)
        served.server.should_exit = True
        rest = b""
        while piece := first.recv(65536):
            rest += piece
        assert b"shutting down" in rest
        assert b"[DONE]" in rest


def test_a_stopped_registry_rejects_new_work(saved, monkeypatch):
    async def stopped():
        registry = ModelRegistry({"a": str(saved), "b": str(saved)}, 1 << 40)
        load = registry_module.load
        resume = threading.Event()
        async with registry.using("a") as loaded_model:
            monkeypatch.setattr(
                registry_module,
                "load",
                lambda *args, **options: resume.wait(20) and load(*args, **options),
            )
            loading = asyncio.create_task(registry.get("b"))
            await asyncio.sleep(0)
            await registry.stop(0.1)
            resume.set()
            for late in (
                loading,
                registry.get("a"),
                registry.get("b"),
                loaded_model.worker.call("me", lambda: 5),
            ):
                with pytest.raises(APIError, match="shutting down") as error:
                    await late
                assert error.value.status_code == 503
            assert loaded_model.worker.thread is None

    asyncio.run(stopped())


def test_stopping_a_worker_fails_its_calls():
    async def stopped():
        worker = ModelWorker(tiny_writer(), Limits(), Metrics(), "writer")
        calls = [asyncio.create_task(worker.call("me", lambda: time.sleep(0.5))) for _ in range(2)]
        await asyncio.sleep(0.05)
        await worker.stop(0.1)
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [str(error) for error in asyncio.run(stopped())] == ["The server is shutting down."] * 2


BUSY_PROCESS = """
import asyncio, os, signal, time, torch
from clearhead.serve import server
from clearhead.serve.app import create_app
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry
from serving import tiny_writer

registry = ModelRegistry.from_models({"writer": tiny_writer()})
app = create_app(registry, Limits(shutdown_timeout=0.1), page=True)

def compute():
    x = torch.randn(300, 300)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        x = (x @ x).softmax(-1)

def on_ready():
    asyncio.ensure_future(app.state.explorer.submit(compute))
    asyncio.get_running_loop().call_later(0.3, stop)

def stop():
    print("stopping", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

server.run_server(app, registry, server.bind_socket("127.0.0.1", 0), False, on_ready)
"""


@pytest.mark.slow
def test_the_process_exits_while_the_page_still_computes():
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_PROCESS], stdout=-1, stderr=-2, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "stopping\n"
        start = time.monotonic()
        assert (process.wait(50), process.stdout.read()) == (0, "")
        assert time.monotonic() - start < 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    ch.save(tiny_writer(**NO_EOS), folder)
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


@pytest.mark.slow
def test_restart_on_the_same_port_after_sigkill(saved):
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 20, "seed": 1}
    first = Process(saved, "--port", 0)
    assert first.line == f"tiny at http://127.0.0.1:{first.port}/v1 (Ctrl-C to stop)\n"
    held = open_stream(first.port, {**LONG_COMPLETION, "model": "tiny"})
    assert b"200 OK" in held.recv(4096)
    before = json.loads(send_request(first.port, "POST", "/v1/completions", body)[2])["choices"]
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    second = Process(saved, "--port", first.port)
    after = json.loads(send_request(second.port, "POST", "/v1/completions", body)[2])["choices"]
    assert before == after
    assert second.end(signal.SIGTERM) == (0, "")


@pytest.mark.slow
def test_sigint_exits_silently(saved):
    server = Process(f"mine={saved}", "--port", 0, "--host", "0.0.0.0", CLEARHEAD_API_KEY="k")
    assert server.line.startswith("mine at http://")
    assert "0.0.0.0" not in server.line
    assert send_request(server.port, "GET", "/v1/models")[0] == 401
    status, _, content = send_request(
        server.port, "GET", "/v1/models", headers={"Authorization": "Bearer k"}
    )
    assert (status, json.loads(content)["data"][0]["id"]) == (200, "mine")
    idle = socket.create_connection(("127.0.0.1", server.port))
    assert server.end(signal.SIGINT) == (0, "")
    idle.close()


@pytest.mark.slow
def test_the_printed_url_contains_the_key_unless_it_is_in_the_environment(saved):
    for words, kept, shown in (
        (["--api-key", "a&b #+%"], {}, "a%26b%20%23%2B%25"),
        ([], {"CLEARHEAD_API_KEY": "k"}, "…"),
    ):
        server = Process(saved, "--port", 0, "--page", "--read-only", *words, **kept)
        assert (
            server.line == f"tiny at http://127.0.0.1:{server.port}/?key={shown} (Ctrl-C to stop)\n"
        )
        assert (
            send_request(
                server.port, "GET", f"/v1/models?key={kept.get('CLEARHEAD_API_KEY', shown)}"
            )[0]
            == 303
        )
        assert server.end(signal.SIGTERM) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        (["--host", "0.0.0.0"], "CLEARHEAD_API_KEY"),
        (["--port", "70000"], "--port"),
        (["--host", "nowhere.invalid", "--api-key", "k"], "cannot listen on"),
        (["--max-memory", "0.000001"], "--max-memory"),
        (["--max-memory", "nan"], "--max-memory"),
        (["--max-memory", "inf"], "--max-memory"),
        (["--port", "-5"], "--port"),
        (["--max-queue", "0"], "max_queue"),
        (["--api-key", "schlüssel"], "ASCII"),
        (["--api-key", " k"], "spaces"),
        (["no/such/model"], "no/such/model"),
    ],
)
def test_invalid_options_fail_at_startup(saved, arguments, keyword):
    result = CliRunner().invoke(app, ["serve", str(saved), "--port", "0", *arguments])
    assert keyword in str(result.exception)
    assert isinstance(result.exception, ch.ClearheadError)


def test_a_port_in_use_is_an_error(saved):
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        result = CliRunner().invoke(
            app, ["serve", str(saved), "--port", str(server_socket.getsockname()[1])]
        )
    assert "Address already in use" in str(result.exception)
