"""A server for a test: in a thread of its own, on a port that is free."""

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
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.server import Server, bind_socket

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
LONG = {"model": "writer", "prompt": "Once", "max_tokens": 120, "temperature": 1.0, "stream": True}
ENDLESS = {"inference__eos_tokens": []}  # texts that end only where they must
BYTES = ch.Tokenizer.bytes(("<|end|>",))


def writer(seed=1, **changes):
    """A tiny decoder that reads and writes bytes."""
    shape = {
        "vocabulary": 257,
        "context": 128,
        "inference__chat_template": TEMPLATE,
        "inference__eos_tokens": [256],
    }
    return ch.new("tiny-decoder", tokenizer=BYTES, seed=seed, **{**shape, **changes})


@contextmanager
def running(
    models: dict[str, ch.api.Model] | ModelRegistry, limits: Limits = Limits(), **options
) -> Iterator[SimpleNamespace]:
    """A server with its `port`, `url`, `shelf` and `loop`."""
    shelf = models if isinstance(models, ModelRegistry) else ModelRegistry.from_models(models)
    app = create_app(shelf, limits, **options)
    at = bind_socket("127.0.0.1", 0)
    server = Server(app, shelf)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve([at])))
    thread.start()
    port = at.getsockname()[1]
    until(lambda: server.started)
    try:
        url = f"http://127.0.0.1:{port}"
        yield SimpleNamespace(
            port=port, url=url, shelf=shelf, loop=loop, server=server, thread=thread, app=app
        )
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
        loop.close()


def ask(port, method, path, body=None, headers=None, source=None):
    """Status, headers and body of one request; a body that is no bytes is sent as JSON."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=20, source_address=source and (source, 0)
    )
    given = {} if body is None or isinstance(body, bytes) else {"Content-Type": "application/json"}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, {**given, **(headers or {})})
    answer = connection.getresponse()
    status = answer.status
    told = dict(answer.getheaders())
    content = answer.read()
    connection.close()
    return status, {name.lower(): value for name, value in told.items()}, content


def stream(port, body, source="127.0.0.1", path="/v1/completions"):
    """A connection on which an answer has begun."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(
        ("127.0.0.1", port), timeout=20, source_address=(source, 0)
    )
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    connection.sendall("\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data)
    return connection


def slow(model, seconds):
    """Each step of its network takes at least so long."""
    forward = model.net.forward

    def later(*args, **named):
        time.sleep(seconds)
        return forward(*args, **named)

    model.net.forward = later
    return model


def paused(model, after):
    """The model, whose network stands still after so many passes, and the event that lets it go on."""
    forward = model.net.forward
    passes = itertools.count()
    go_on = threading.Event()

    def later(*args, **named):
        if next(passes) >= after:
            assert go_on.wait(20)
        return forward(*args, **named)

    model.net.forward = later
    return model, go_on


def until(true, seconds=10.0):
    """Waits for something to become true."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "this took too long"
        time.sleep(0.005)
    return found
