"""A server in a thread, on a free port, and clients for it."""

import asyncio
import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import clearhead as ch
from clearhead.serve.app import create_app
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.server import Server, bind_socket

TIMEOUT = 20  # seconds
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
LONG_COMPLETION = {
    "model": "writer",
    "prompt": "Once",
    "max_tokens": 120,
    "temperature": 1.0,
    "stream": True,
}
NO_EOS = {"inference__eos_tokens": []}  # texts end at max_tokens only
BYTES = ch.Tokenizer.bytes(("<|end|>",))


def tiny_writer(seed=1, **changes):
    """A tiny decoder with a byte tokenizer."""
    options = {
        "vocab_size": 257,
        "context_length": 128,
        "inference__chat_template": CHAT_TEMPLATE,
        "inference__eos_tokens": [256],
    }
    return ch.new("tiny-decoder", tokenizer=BYTES, seed=seed, **{**options, **changes})


@contextmanager
def run_server(
    models: dict[str, ch.Model] | ModelRegistry, limits: Limits = Limits(), **options
) -> Iterator[SimpleNamespace]:
    """A running server with its `port`, `url`, `registry` and `loop`."""
    registry = models if isinstance(models, ModelRegistry) else ModelRegistry.from_models(models)
    app = create_app(registry, limits, **options)
    server_socket = bind_socket("127.0.0.1", 0)
    server = Server(app, registry)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve([server_socket])))
    thread.start()
    port = server_socket.getsockname()[1]
    wait_until(lambda: server.started)
    try:
        yield SimpleNamespace(
            port=port,
            url=f"http://127.0.0.1:{port}",
            registry=registry,
            loop=loop,
            server=server,
            thread=thread,
            app=app,
        )
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        loop.close()


def send_request(port, method, path, body=None, headers=None, source=None):
    """Status, headers and body of a response; a body that is not bytes is sent as JSON."""
    source_address = (source, 0) if source else None
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=TIMEOUT, source_address=source_address
    )
    request_headers = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        request_headers = {"Content-Type": "application/json", **request_headers}
    connection.request(method, path, body, request_headers)
    response = connection.getresponse()
    response_headers = {name.lower(): value for name, value in response.getheaders()}
    content = response.read()
    connection.close()
    return response.status, response_headers, content


def open_stream(port, body, source="127.0.0.1", path="/v1/completions"):
    """A connection on which a request was sent."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(
        ("127.0.0.1", port), timeout=TIMEOUT, source_address=(source, 0)
    )
    head = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + data)
    return connection


def slow_down(model, seconds):
    """Make every forward pass of a model take at least this long."""
    forward = model.net.forward

    def slow_forward(*args, **kwargs):
        time.sleep(seconds)
        return forward(*args, **kwargs)

    model.net.forward = slow_forward
    return model


def pause_after(model, num_passes):
    """Block a model after some forward passes; also returns the event that resumes it."""
    forward = model.net.forward
    passes = itertools.count()
    resume = threading.Event()

    def pausing_forward(*args, **kwargs):
        if next(passes) >= num_passes:
            assert resume.wait(TIMEOUT)
        return forward(*args, **kwargs)

    model.net.forward = pausing_forward
    return model, resume


def wait_until(condition, seconds=10.0):
    """Wait for a condition and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)
    return value
