"""Who comes in, and with what: strangers, pages of others and bodies without end are refused, in a sentence."""

import asyncio
import http.client
import json
import socket
from contextlib import suppress

import pytest

from clearhead.serve import server
from clearhead.serve.metrics import resident_memory_bytes
from clearhead.serve.middleware import AccessMiddleware, Limits
from serving import ENDLESS, LONG, ask, paused, running, stream, until, writer

BODY = {"model": "writer", "prompt": "Once", "max_tokens": 2}
LARGE = 1 << 16


@pytest.fixture(scope="module")
def served():
    with running(
        {"writer": writer()}, Limits(max_body_bytes=LARGE, body_timeout=0.5), hosts=["Lab.example"]
    ) as served:
        yield served


@pytest.fixture(scope="module")
def locked():
    with running({"writer": writer()}, key="open sesame+1") as served:
        yield served


def told(content):
    error = json.loads(content)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:{port}", 200), ("127.0.0.1:{port}", 200), ("[::1]:80", 200),
        ("LAB.example", 200),
        ("192.168.1.5", 200), ("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421),
        ("evil@localhost", 421), ("", 421), ("[::1", 421), ("localhost:x:y", 421),
    ],
)  # fmt: skip
def test_it_answers_only_to_its_own_names(served, host, status):
    found, _, content = ask(
        served.port, "GET", "/v1/models", headers={"Host": host.format(port=served.port)}
    )
    assert found == status
    if status != 200:
        assert "does not answer to the name" in told(content)["message"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:81", 200), ("https://localhost:81", 200), ("http://localhost:82", 403), ("null", 403),
        ("http://evil.example", 403), ("http://localhost:81.evil.example", 403), ("", 403), ("ftp://localhost:81", 403),
    ],
)  # fmt: skip
def test_pages_of_others_may_not_use_it(served, origin, status):
    found, headers, content = ask(
        served.port, "POST", "/v1/completions", BODY, {"Host": "localhost:81", "Origin": origin}
    )
    assert found == status
    assert "access-control-allow-origin" not in headers
    if status != 200:
        assert "may not use this server" in told(content)["message"]


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_pictures_and_scripts_of_others_start_nothing(served, site, mode, status):
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    assert ask(served.port, "GET", "/v1/models", headers=headers)[0] == status


def test_two_hosts_are_one_too_many(served):
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 400 " in raw.recv(100)


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic open sesame+1"}, {"Authorization": "Bearer"},
        {"Cookie": "clearhead_key=wrong"}, {"Cookie": "clearhead_key="}, {"Authorization": "Bearer \xe9"},
    ],
)  # fmt: skip
def test_without_the_key_nobody_comes_in(locked, headers):
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing", "/v1/models?key=wrong"):
        status, answer, content = ask(locked.port, "GET", path, headers=headers)
        assert status == 401
        assert answer["www-authenticate"] == "Bearer"
        assert told(content)["code"] == "invalid_api_key"
    assert ask(locked.port, "GET", "/health")[0] == 200


def test_the_key_opens_in_a_header_or_in_an_address_that_becomes_a_cookie(locked):
    assert (
        ask(locked.port, "GET", "/v1/models", headers={"Authorization": "bearer open sesame+1"})[0]
        == 200
    )
    status, headers, _ = ask(locked.port, "GET", "/v1/models?a=b+c&key=open+sesame%2B1")
    assert (status, headers["location"]) == (303, "/v1/models?a=b+c")
    assert "HttpOnly" in headers["set-cookie"]
    kept = headers["set-cookie"].split(";")[0]
    assert ask(locked.port, "GET", "/v1/models", headers={"Cookie": f"other=1; {kept}"})[0] == 200
    status, headers, _ = ask(locked.port, "GET", "//evil.example/?key=open+sesame%2B1")
    assert (status, headers["location"]) == (303, "/evil.example/")  # no other host's


def test_browsers_are_told_to_trust_nothing_else(served):
    for path in ("/health", "/nothing", "/v1/models"):
        _, headers, _ = ask(served.port, "GET", path)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert "server" not in headers


def test_a_body_that_says_it_is_too_large_is_not_read(served):
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
        )
        assert b" 413 " in raw.recv(1000)


def test_a_body_without_end_is_counted_while_it_comes(served):
    before = resident_memory_bytes()
    sent = 0
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        raw.settimeout(0.001)
        answer = b""
        while not answer and sent < 200 << 20:
            try:
                raw.settimeout(5)
                raw.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
                sent += 0x4000
                raw.settimeout(0.001)
                answer = raw.recv(1000)
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert sent < 8 * LARGE + (4 << 20)  # what lay in the sockets counts too
    assert resident_memory_bytes() - before < 16 << 20


def test_a_body_that_does_not_come_is_not_waited_for(served):
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )
        raw.settimeout(5)
        assert b" 408 " in raw.recv(1000)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: loc",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /",
    ],
)
def test_who_keeps_silent_is_cut_off_and_who_is_answered_is_not(monkeypatch, said):
    model, go_on = paused(writer(**ENDLESS), after=2)
    with running({"writer": model}) as served:
        busy = stream(served.port, {**LONG, "max_tokens": 60})
        rest = busy.recv(4096)
        [connection] = served.server.server_state.connections
        monkeypatch.setattr(server, "SILENT", 0.15)
        served.loop.call_soon_threadsafe(connection._look_later)
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
            raw.sendall(said)
            with suppress(ConnectionResetError):
                while raw.recv(4096):
                    pass  # until the other end closes
        go_on.set()
        while b"[DONE]" not in rest:
            rest += busy.recv(65536)
        busy.close()


def test_who_was_answered_a_moment_ago_is_not_cut_off(monkeypatch):
    monkeypatch.setattr(server, "SILENT", 3600.0)
    with running({"writer": writer()}) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        for _ in range(2):
            [*before] = served.server.server_state.connections
            seen = before[0]._now() if before else (None, True, 0)
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
            [one] = served.server.server_state.connections
            asyncio.run_coroutine_threadsafe(_looked(one, seen), served.loop).result(20)
            assert not one.transport.is_closing()
        asyncio.run_coroutine_threadsafe(_looked(one, one._now()), served.loop).result(20)
        assert one.transport.is_closing()  # nothing more since that look
        connection.close()


async def _looked(connection, before):
    connection.looking.cancel()
    connection._look(before)


def unfinished(served, source, size=1):
    """A request whose body does not end."""
    raw = socket.create_connection(("127.0.0.1", served.port), source_address=(source, 0))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (
        size + 1
    )
    raw.sendall(head + b" " * size)
    return raw


def test_of_requests_and_bodies_one_address_may_have_as_much_as_is_left():
    with running(
        {"writer": writer()},
        Limits(max_requests=6, max_body_bytes=2000, max_total_body_bytes=6000, body_timeout=20),
    ) as served:
        assert ask(served.port, "GET", "/health")[0] == 200
        guard = served.app.middleware_stack
        while not isinstance(guard, AccessMiddleware):
            guard = guard.app
        traffic = guard.quotas
        waiting = [unfinished(served, "127.0.0.2", 1000) for _ in range(3)]
        until(lambda: (traffic.requests.used, traffic.bytes.used) == (3, 3000))
        status, _, content = ask(served.port, "GET", "/v1/models", source="127.0.0.2")
        assert status == 429
        assert "3 requests of yours" in told(content)["message"]
        assert ask(served.port, "GET", "/health", source="127.0.0.2")[0] == 200
        assert ask(served.port, "GET", "/v1/models", source="127.0.0.3")[0] == 200
        assert ask(served.port, "POST", "/v1/completions", BODY, source="127.0.0.3")[0] == 200
        waiting.append(unfinished(served, "127.0.0.3", 1500))
        until(lambda: traffic.bytes.used == 4500)
        large = {**BODY, "metadata": {"a": "x" * 500}}
        status, _, content = ask(served.port, "POST", "/v1/completions", large, source="127.0.0.3")
        assert status == 503
        assert "too much is being read" in told(content)["message"]
        for raw in waiting:
            raw.close()
        until(lambda: not (traffic.requests.used or traffic.bytes.used))
        assert not traffic.requests.used_by_client
        assert not traffic.bytes.used_by_client


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/v1/models/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/..%2f..%2fetc",
     "/v1/models/%00", "/page/%2e%2e/%2e%2e/app.py", "//etc/passwd", "/v1/models//etc/passwd"],
)  # fmt: skip
def test_no_path_leads_out(served, path):
    status, _, content = ask(served.port, "GET", path)
    assert status == 404
    assert b"root:" not in content
    told(content)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"", "required"),
        (b"[1]", "body"),
        (b"\xff\xfe", "body"),
        (b"[" * 60_000, "body"),
        (b'{"model": "writer", "prompt": "a", "seed": 1' + b"0" * 5000 + b"}", "body"),
        (b'{"model": "writer", "prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"model": "writer", "prompt": "a", "temperature": 1e999}', "temperature"),
        (b'{"model": "writer", "prompt": "\\ud800"}', "no token"),
        (b'{"model": "\\ud800", "prompt": "a"}', "no model"),
        (b'{"model": "writer", "prompt": [' + b"true," * 9000 + b"1]}", "prompt"),
        (b'{"model": "writer", "prompt": "a", "logit_bias": {"99999999999999999999": 1}}', "bias"),
        (b'{"model": "writer", "prompt": [99999999999999999999999]}', ""),
        (b'{"model": "writer", "prompt": "a", "stop": [""]}', "empty"),
        (b'{"model": "writer", "prompt": "a", "seed": -1}', "seed"),
    ],
)
def test_garbage_is_answered_with_a_sentence(served, body, words):
    status, _, content = ask(
        served.port, "POST", "/v1/completions", body, {"Content-Type": "application/json"}
    )
    assert status in (400, 404)
    assert words in told(content)["message"]


def test_what_is_no_http_hurts_nobody(served):
    for junk in (
        b"\x00\xff" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"A" * 200_000,
        b"GET /health HTTP/1.1\r\nX: " + b"y" * 200_000,
    ):
        with socket.create_connection(("127.0.0.1", served.port)) as raw:
            try:
                raw.sendall(junk)
                raw.recv(1000)
            except ConnectionError:
                pass
    assert ask(served.port, "GET", "/health")[0] == 200
