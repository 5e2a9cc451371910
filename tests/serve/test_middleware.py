"""Access checks and limits: hosts, origins, API keys, request bodies, idle connections, quotas."""

import asyncio
import http.client
import json
import socket
from contextlib import suppress
from urllib.parse import quote

import prometheus_client
import pytest
from starlette.responses import Response

from clearhead.serve import server
from clearhead.serve.limits import Limits
from clearhead.serve.middleware import AccessMiddleware
from serving import (
    LONG_COMPLETION,
    NO_EOS,
    open_stream,
    pause_after,
    run_server,
    send_request,
    tiny_writer,
    wait_until,
)

BODY = {"model": "writer", "prompt": "Once", "max_tokens": 2}
LARGE = 1 << 16
RESIDENT_MEMORY = "process_resident_memory_bytes"


@pytest.fixture(scope="module")
def served():
    with run_server(
        {"writer": tiny_writer()},
        Limits(max_body_bytes=LARGE, body_timeout=0.5),
        hosts=["Lab.example"],
    ) as served:
        yield served


@pytest.fixture(scope="module")
def locked():
    with run_server({"writer": tiny_writer()}, api_key="open sesame+1") as served:
        yield served


def error_of(content):
    error = json.loads(content)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:{port}", 200),
        ("127.0.0.1:{port}", 200),
        ("[::1]:80", 200),
        ("LAB.example", 200),
        ("192.168.1.5", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("evil@localhost", 421),
        ("", 421),
        ("[::1", 421),
        ("localhost:x:y", 421),
        ("localhost/evil", 421),
        ("localhost?evil", 421),
        ("localhost:{port}#evil", 421),
    ],
)
def test_only_allowed_hosts_are_served(served, host, status):
    found, _, content = send_request(
        served.port, "GET", "/v1/models", headers={"Host": host.format(port=served.port)}
    )
    assert found == status
    if status != 200:
        assert "is not allowed" in error_of(content)["message"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:81", 200),
        ("https://localhost:81", 200),
        ("http://localhost:82", 403),
        ("null", 403),
        ("http://evil.example", 403),
        ("http://localhost:81.evil.example", 403),
        ("", 403),
        ("ftp://localhost:81", 403),
    ],
)
def test_only_own_origins_are_served(served, origin, status):
    found, headers, content = send_request(
        served.port, "POST", "/v1/completions", BODY, {"Host": "localhost:81", "Origin": origin}
    )
    assert found == status
    assert "access-control-allow-origin" not in headers
    if status != 200:
        assert "origin" in error_of(content)["message"]


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_cross_site_requests_are_rejected_except_navigation(served, site, mode, status):
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    assert send_request(served.port, "GET", "/v1/models", headers=headers)[0] == status


def test_duplicate_host_headers_are_rejected(served):
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 400 " in raw.recv(100)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic open sesame+1"},
        {"Authorization": "Bearer"},
        {"Host": "localhost", "Cookie": "clearhead_key=wrong"},
        {"Host": "localhost", "Cookie": "clearhead_key="},
        {"Authorization": "Bearer \xe9"},
    ],
)
def test_requests_without_key_are_rejected(locked, headers):
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing", "/v1/models?key=wrong"):
        status, answer, content = send_request(locked.port, "GET", path, headers=headers)
        assert status == 401
        assert answer["www-authenticate"] == "Bearer"
        assert error_of(content)["code"] == "invalid_api_key"
    assert send_request(locked.port, "GET", "/health")[0] == 200


def test_key_in_header_cookie_or_url(locked):
    assert (
        send_request(
            locked.port, "GET", "/v1/models", headers={"Authorization": "bearer open sesame+1"}
        )[0]
        == 200
    )
    status, headers, _ = send_request(locked.port, "GET", "/v1/models?a=b+c&key=open+sesame%2B1")
    assert (status, headers["location"]) == (303, "/v1/models?a=b+c")
    assert "HttpOnly" in headers["set-cookie"]
    cookie = headers["set-cookie"].split(";")[0]
    assert (
        send_request(locked.port, "GET", "/v1/models", headers={"Cookie": f"other=1; {cookie}"})[0]
        == 200
    )
    status, headers, _ = send_request(locked.port, "GET", "//evil.example/?key=open+sesame%2B1")
    assert (status, headers["location"]) == (303, "/evil.example/")  # no other host's


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FORM = {**BROWSER, "Content-Type": "application/x-www-form-urlencoded"}


def test_browsers_without_key_get_a_form(locked):
    for path in ("/", "/a%20b?c=d%26", "/?key=wrong&c=d"):
        status, headers, content = send_request(locked.port, "GET", path, headers=BROWSER)
        page = content.decode()
        assert status == 401
        assert headers["content-type"].startswith("text/html")
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"  # else the Origin of the form is null
        assert '<form method="post" action="/key">' in page
        assert ("not valid" in page) == ("wrong" in path)
        assert 'value="/' in page
    _, _, content = send_request(locked.port, "GET", '/"><b>?"><i>=', headers=BROWSER)
    assert b"<b>" not in content
    assert b"<i>" not in content
    assert send_request(locked.port, "POST", "/v1/completions", BODY, headers=BROWSER)[0] == 401


def test_the_form_moves_the_key_into_a_cookie(locked):
    origin = {"Host": "localhost", "Origin": "http://localhost"}
    body = b"key=open+sesame%2B1&next=%2Fv1%2Fmodels%3Fa%3Db"
    status, headers, _ = send_request(locked.port, "POST", "/key", body, {**FORM, **origin})
    assert (status, headers["location"]) == (303, "/v1/models?a=b")
    assert "HttpOnly" in headers["set-cookie"]
    cookie = headers["set-cookie"].split(";")[0]
    headers = {"Host": "localhost", "Cookie": cookie}
    assert send_request(locked.port, "GET", "/v1/models", headers=headers)[0] == 200


@pytest.mark.parametrize("url", ["//evil.example", "/\\evil.example", "https://evil.example", ""])
def test_the_form_leads_to_this_server_only(locked, url):
    body = f"key=open+sesame%2B1&next={quote(url)}".encode()
    status, headers, _ = send_request(locked.port, "POST", "/key", body, FORM)
    assert (status, headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"key=wrong&next=%2Fv1", 401),
        (b"", 401),
        (b"\xff=%", 401),
        (b"&".join([b"a=b"] * 99), 400),
        (b"key=" + b"x" * (1 << 15), 413),
    ],
)
def test_invalid_forms_set_no_cookie(locked, body, status):
    found, headers, content = send_request(locked.port, "POST", "/key", body, FORM)
    assert found == status
    assert "set-cookie" not in headers
    if status == 401:
        assert b"not valid" in content
    cross = {**FORM, "Host": "localhost", "Origin": "http://evil.example"}
    assert send_request(locked.port, "POST", "/key", body, cross)[0] == 403


def test_without_a_key_there_is_no_form(served):
    assert send_request(served.port, "POST", "/key", b"key=a", FORM)[0] == 404


def test_responses_have_security_headers(served):
    for path in ("/health", "/nothing", "/v1/models"):
        _, headers, _ = send_request(served.port, "GET", path)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert "server" not in headers


def test_large_content_length_is_rejected(served):
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        assert b" 413 " in raw.recv(1000)


def test_large_chunked_body_is_rejected(served):
    before = served.registry.metrics.get_sample_value(RESIDENT_MEMORY)
    sent = 0
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
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
    assert served.registry.metrics.get_sample_value(RESIDENT_MEMORY) - before < 16 << 20


LIST = b'{"model": "writer", "prompt": [%s]}'
JSON_TYPE = {"Content-Type": "Application/JSON"}


@pytest.mark.parametrize(
    "prompt",
    [
        b"[]," * 100_000 + b"[]",
        b'"\\\\",[' * 70_000 + b"]" * 70_000,
        b'{"\\"":1},' * 40_000 + b"{}",
        b"1," * 600_000 + b"1",
        b'"\xc3\xbf",' * 600_000 + b'""',
    ],
    ids=["lists", "lists and strings", "keys", "numbers", "texts"],
)
def test_json_of_too_many_values_is_not_parsed(monkeypatch, prompt):
    def fail(*args, **options):
        raise AssertionError("parsed")

    with run_server({"writer": tiny_writer()}) as served, monkeypatch.context() as patch:
        patch.setattr("starlette.requests.json.loads", fail)
        status, _, content = send_request(
            served.port, "POST", "/v1/completions", LIST % prompt, JSON_TYPE
        )
    assert status == 413
    assert "values" in error_of(content)["message"]


def test_brackets_and_commas_in_texts_do_not_count():
    text = json.dumps('[{":\\' * 10_000)
    with run_server({"writer": tiny_writer()}, Limits(max_json_nodes=10)) as served:
        body = b'{"model": "writer", "prompt": %s}' % text.encode()
        _, _, content = send_request(served.port, "POST", "/v1/completions", body, JSON_TYPE)
    assert "context" in error_of(content)["message"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_json_must_be_utf8(served, encoding):
    body = json.dumps(BODY).encode(encoding)
    status, _, content = send_request(served.port, "POST", "/v1/completions", body, JSON_TYPE)
    assert (status, "UTF-8" in error_of(content)["message"]) == (400, True)


def test_idle_connections_of_a_client_do_not_shut_others_out():
    model, resume = pause_after(tiny_writer(**NO_EOS), 2)
    with run_server({"writer": model}, Limits(max_connections=18)) as served:
        stream = open_stream(served.port, {**LONG_COMPLETION, "max_tokens": 60})
        assert b"200 OK" in stream.recv(4096)
        flood = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(60)]
        for source in ("127.0.0.1", "127.0.0.2"):
            assert send_request(served.port, "GET", "/health", source=source)[0] == 200
        wait_until(lambda: len(served.server.server_state.connections) <= 18)
        flood[0].settimeout(5)
        with suppress(ConnectionResetError):
            assert flood[0].recv(1) == b""  # the longest idle one was closed
        resume.set()
        received = b""
        while b"[DONE]" not in received:
            received += stream.recv(1 << 16)
            assert received
        for connection in flood:
            connection.close()


def test_public_paths_read_no_body(locked, monkeypatch):
    monkeypatch.setattr("clearhead.serve.middleware._count_json_nodes", pytest.fail)
    nodes = b"[" * 70_000
    assert send_request(locked.port, "POST", "/health", nodes, JSON_TYPE)[0] == 405
    assert send_request(locked.port, "GET", "/health", nodes, JSON_TYPE)[0] == 413
    assert send_request(locked.port, "GET", "/health")[0] == 200


def test_slow_body_times_out(served):
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )
        raw.settimeout(5)
        assert b" 408 " in raw.recv(1000)


@pytest.mark.parametrize(
    "request_start",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: loc",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /",
    ],
)
def test_idle_connections_are_closed_and_streams_are_not(monkeypatch, request_start):
    model, resume = pause_after(tiny_writer(**NO_EOS), 2)
    with run_server({"writer": model}) as served:
        busy = open_stream(served.port, {**LONG_COMPLETION, "max_tokens": 60})
        rest = busy.recv(4096)
        [connection] = served.server.server_state.connections
        monkeypatch.setattr(server, "IDLE_TIMEOUT", 0.15)
        served.loop.call_soon_threadsafe(connection._schedule_check)
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
            raw.sendall(request_start)
            with suppress(ConnectionResetError):
                while raw.recv(4096):
                    pass  # until the other end closes
        resume.set()
        while b"[DONE]" not in rest:
            rest += busy.recv(65536)
        busy.close()


def test_recently_used_connections_stay_open(monkeypatch):
    monkeypatch.setattr(server, "IDLE_TIMEOUT", 3600.0)
    with run_server({"writer": tiny_writer()}) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        for _ in range(2):
            [*before] = served.server.server_state.connections
            state = before[0]._state() if before else (None, True, 0)
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
            [one] = served.server.server_state.connections
            asyncio.run_coroutine_threadsafe(_check(one, state), served.loop).result(20)
            assert not one.transport.is_closing()
        asyncio.run_coroutine_threadsafe(_check(one, one._state()), served.loop).result(20)
        assert one.transport.is_closing()  # nothing more since that look
        connection.close()


async def _check(connection, before):
    connection.idle_timer.cancel()
    connection._check(before)


def start_request(served, source, size=1):
    """A request whose body does not end."""
    raw = socket.create_connection(("127.0.0.1", served.port), source_address=(source, 0))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (
        size + 1
    )
    raw.sendall(head + b" " * size)
    return raw


def test_request_and_body_quotas_leave_room_for_other_addresses():
    limits = Limits(max_requests=6, max_body_bytes=2000, max_total_body_bytes=6000, body_timeout=20)
    with run_server({"writer": tiny_writer()}, limits) as served:
        assert send_request(served.port, "GET", "/health")[0] == 200
        middleware = served.app.middleware_stack
        while not isinstance(middleware, AccessMiddleware):
            middleware = middleware.app
        requests = middleware.request_quota
        num_bytes = middleware.byte_quota
        pending = [start_request(served, "127.0.0.2", 1000) for _ in range(5)]
        wait_until(lambda: (requests.used, num_bytes.used) == (5, 5000))
        status, _, content = send_request(served.port, "GET", "/v1/models", source="127.0.0.2")
        assert status == 429
        assert "5 from your address" in error_of(content)["message"]
        assert send_request(served.port, "GET", "/health", source="127.0.0.2")[0] == 200
        other = {"source": "127.0.0.3"}
        assert send_request(served.port, "GET", "/v1/models", **other)[0] == 200
        assert send_request(served.port, "POST", "/v1/completions", BODY, **other)[0] == 200
        large = {**BODY, "metadata": {"a": "x" * 1500}}
        status, _, content = send_request(served.port, "POST", "/v1/completions", large, **other)
        assert status == 503
        assert "too much data" in error_of(content)["message"]
        for connection in pending:
            connection.close()
        wait_until(lambda: not (requests.used or num_bytes.used))
        assert not requests.used_by_client
        assert not num_bytes.used_by_client


def test_large_responses_wait_for_their_readers_within_a_quota():
    size = 200_000
    parts = []
    statuses = []

    async def run():
        response = Response(b"x" * size, media_type="text/plain")
        limits = Limits(max_total_response_bytes=5 * size + size // 2)
        counter = prometheus_client.Counter("r", "", ("a", "b"), registry=None)
        middleware = AccessMiddleware(response, limits, "", [], counter)
        can_read = asyncio.Event()

        def request(client):
            async def send(message):
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])
                else:
                    parts.append(len(message["body"]))
                    await can_read.wait()

            scope = {"type": "http", "method": "GET", "path": "/", "query_string": b""}
            scope |= {"client": (client, 1), "headers": [(b"host", b"localhost")]}
            return asyncio.ensure_future(middleware(scope, receive, send))

        requests = [request("10.0.0.1") for _ in range(5)]
        requests.append(request("10.0.0.2"))
        await asyncio.sleep(0.1)
        assert middleware.response_quota.used == 5 * size
        assert sum(parts) < 5 * (1 << 16) + 1000
        can_read.set()
        await asyncio.gather(*requests)
        assert not middleware.response_quota.used

    received = []

    async def receive():
        if len(received) < 6:
            received.append(1)
            return {"type": "http.request"}
        return await asyncio.Future()

    asyncio.run(run())
    assert sorted(statuses) == [200] * 5 + [503]
    assert max(parts) <= 1 << 16
    assert sum(parts) > 5 * size


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/v1/models/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/v1/models/..%2f..%2fetc",
        "/v1/models/%00",
        "/page/%2e%2e/%2e%2e/app.py",
        "//etc/passwd",
        "/v1/models//etc/passwd",
    ],
)
def test_path_traversal_is_not_found(served, path):
    status, _, content = send_request(served.port, "GET", path)
    assert status == 404
    assert b"root:" not in content
    error_of(content)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not valid JSON"),
        (b"", "required"),
        (b"[1]", "body"),
        (b"\xff\xfe", "body"),
        (b"[" * 60_000, "body"),
        (b'{"model": "writer", "prompt": "a", "seed": 1' + b"0" * 5000 + b"}", "body"),
        (b'{"model": "writer", "prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"model": "writer", "prompt": "a", "temperature": 1e999}', "temperature"),
        (b'{"model": "writer", "prompt": "\\ud800"}', "not in the vocabulary"),
        (b'{"model": "\\ud800", "prompt": "a"}', "not found"),
        (b'{"model": "writer", "prompt": [' + b"true," * 9000 + b"1]}", "prompt"),
        (b'{"model": "writer", "prompt": "a", "logit_bias": {"99999999999999999999": 1}}', "bias"),
        (b'{"model": "writer", "prompt": [99999999999999999999999]}', ""),
        (b'{"model": "writer", "prompt": "a", "stop": [""]}', "empty"),
        (b'{"model": "writer", "prompt": "a", "seed": -1}', "seed"),
    ],
)
def test_invalid_bodies_are_errors(served, body, words):
    status, _, content = send_request(
        served.port, "POST", "/v1/completions", body, {"Content-Type": "application/json"}
    )
    assert status in (400, 404)
    assert words in error_of(content)["message"]


def test_invalid_http_is_harmless(served):
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
    assert send_request(served.port, "GET", "/health")[0] == 200
