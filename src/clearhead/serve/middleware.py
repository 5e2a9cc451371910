"""ASGI middleware that checks access and enforces the limits of a server."""

import asyncio
import hmac
import ipaddress
import json
import logging
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from prometheus_client import Counter as CounterMetric
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.serve.errors import APIError
from clearhead.serve.key_form import (
    INVALID_KEY,
    KEY_PATH,
    MAX_FORM_BYTES,
    key_cookie,
    local_url,
    parse_key_form,
    redirect_with_cookie,
    render_key_form,
    wants_key_form,
)
from clearhead.serve.limits import Limits, Quota

log = logging.getLogger("clearhead.serve")

PUBLIC_PATHS = ("/health",)  # need no key, are never rate-limited and read no body
JSON_NODES = (b"[", b"{", b":")
GRACE_SECONDS = 5.0  # after its timeout, a request may still report the timeout itself
MAX_SENT_BYTES = 1 << 16  # in one part of a response
MAX_NAME_CHARS = 80  # of names in error messages
CLIENT_CLOSED_REQUEST = 499  # status in the metrics if the client left before the response
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def _count_json_nodes(body: bytes) -> int:
    """The number of lists, objects and keys, in time linear in the size."""
    # The parts between quotes are strings and structure in turn, apart from escaped quotes.
    structure = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    return sum(map(structure.count, JSON_NODES))


class ClientDisconnected(Exception):
    """The client closed the connection before its request was complete."""


class RequestHandler:
    """Runs the app for one request within the limits and cancels it if the client disconnects."""

    def __init__(
        self, middleware: "AccessMiddleware", scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.middleware = middleware
        self.limits = middleware.limits
        self.scope = scope
        self.receive = receive
        self.send_to_client = send
        self.client: str = scope["client"][0] if scope.get("client") else ""
        self.status_code = 0  # of the response; 0 until it starts
        self.is_complete = False
        self.acquired_requests = 0
        self.acquired_bytes = 0
        self.acquired_response_bytes = 0
        self.start_message: Message | None = None  # sent with the first part of the body
        self.is_refused = False  # an error was sent instead of the response

    async def run(self) -> None:
        """Always respond to the client; log internal errors."""
        try:
            await self._run()
        except ClientDisconnected:
            pass
        except APIError as error:
            await self._send_error(error)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # Rust panics are not even an Exception
            method = self.scope["method"]
            path = self.scope["path"]
            log.error("%s %r: %s: %s", method, path, type(error).__name__, error, exc_info=error)
            await self._send_error(APIError("Internal server error; see the server log.", 500))
        finally:
            self.middleware.request_quota.release(self.client, self.acquired_requests)
            self.middleware.byte_quota.release(self.client, self.acquired_bytes)
            self.middleware.response_quota.release(self.client, self.acquired_response_bytes)

    async def _run(self) -> None:
        request = Request(self.scope)
        middleware = self.middleware
        response = middleware.authorize(request)
        if response is None:
            if request.scope["path"] in PUBLIC_PATHS and request.method not in ("GET", "HEAD"):
                raise APIError(f"Method {request.method} is not allowed for this path.", 405)
            self._acquire_request()
            if middleware.is_key_form(request):
                body = await self._read_body(request.headers, MAX_FORM_BYTES)
                response = middleware.check_key_form(body, request.headers)
        if response is not None:
            await response(self.scope, self.receive, self._send)
            return
        is_public = request.scope["path"] in PUBLIC_PATHS
        max_bytes = 0 if is_public else self.limits.max_body_bytes
        body = await self._read_body(request.headers, max_bytes)
        if "json" in request.headers.get("content-type", "").lower():
            await self._check_json(body)
        await self._run_app(body)

    def _acquire_request(self) -> None:
        if self.scope["path"] in PUBLIC_PATHS:
            return
        requests = self.middleware.request_quota
        if not requests.fits(self.client, 1):
            own = requests.used_by_client[self.client]
            raise APIError(
                f"Too many concurrent requests ({own} from your address, {requests.used} in "
                "total). Try again later.",
                429,
                retry_after=1,
            )
        self.acquired_requests = 1
        requests.acquire(self.client, 1)

    async def _read_body(self, headers: Headers, max_bytes: int) -> bytes:
        too_large = APIError(f"Request body is larger than {max_bytes:,} bytes.", 413)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > max_bytes:
            raise too_large
        byte_quota = self.middleware.byte_quota
        parts = list[bytes]()
        try:
            async with asyncio.timeout(self.limits.body_timeout):
                has_more = True
                while has_more:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    part = message.get("body", b"")
                    has_more = message.get("more_body", False)
                    if self.acquired_bytes + len(part) > max_bytes:
                        raise too_large
                    if part and not byte_quota.fits(self.client, len(part)):
                        raise APIError(
                            "The server is receiving too much data. Try again later.",
                            503,
                            retry_after=1,
                        )
                    parts.append(part)
                    self.acquired_bytes += len(part)
                    byte_quota.acquire(self.client, len(part))
        except TimeoutError:
            raise APIError(
                f"Request body was not received within {self.limits.body_timeout:g} seconds.", 408
            ) from None
        return b"".join(parts)

    async def _check_json(self, body: bytes) -> None:
        """Reject JSON with too many values, which would block the event loop while it is parsed."""
        if not json.detect_encoding(body).startswith("utf-8"):
            raise APIError("Request body must be UTF-8.")
        max_nodes = self.limits.max_json_nodes
        max_values = 2 * self.limits.max_prompt_chars  # token ids, and as many commas in texts
        num_nodes = sum(map(body.count, JSON_NODES))
        if num_nodes > max_nodes:  # perhaps in strings
            num_nodes = await asyncio.to_thread(_count_json_nodes, body)
        if num_nodes > max_nodes or body.count(b",") > max_values:
            raise APIError(
                f"Request body has more than {max_nodes:,} JSON lists, objects and keys, or more "
                f"than {max_values:,} values.",
                413,
            )

    async def _run_app(self, body: bytes) -> None:
        """Run the app until it responds, its time is up, or the client disconnects."""
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return messages.pop() if messages else await asyncio.Future()

        async def wait_for_disconnect() -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass

        response = asyncio.ensure_future(self.middleware.app(self.scope, receive_body, self._send))
        disconnect = asyncio.ensure_future(wait_for_disconnect())
        try:
            finished, _ = await asyncio.wait(
                [response, disconnect],
                timeout=self.limits.request_timeout + GRACE_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self.is_complete:  # servers report a completed response as a disconnect, too
                await response
        finally:
            response.cancel()
            disconnect.cancel()
            await asyncio.gather(response, disconnect, return_exceptions=True)
        if not finished:
            raise APIError(f"Request timed out after {self.limits.request_timeout:g} seconds.", 504)
        if not response.cancelled():
            response.result()

    async def _send(self, message: Message) -> None:
        """Send a message of the app with security headers, unless the app sets its own.

        A client gets the next part of a large body when it has read the previous one.
        """
        if self.is_refused:
            return
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            if "content-length" in headers:
                self.start_message = message
            else:  # a stream
                await self._send_start(message)
            return
        body = message.get("body", b"")
        more_body = message.get("more_body", False)
        if len(body) > MAX_SENT_BYTES and not self._acquire_response(len(body)):
            await self._refuse_response()
            return
        if self.start_message is not None:
            await self._send_start(self.start_message)
            self.start_message = None
        for start in range(0, max(1, len(body)), MAX_SENT_BYTES):
            end = start + MAX_SENT_BYTES
            part = body[start:end] if len(body) > MAX_SENT_BYTES else body
            has_more = more_body or end < len(body)
            self.is_complete = not has_more
            await self.send_to_client({**message, "body": part, "more_body": has_more})
        self.middleware.response_quota.release(self.client, self.acquired_response_bytes)
        self.acquired_response_bytes = 0

    async def _send_start(self, message: Message) -> None:
        self.status_code = message["status"]
        await self.send_to_client(message)

    def _acquire_response(self, num_bytes: int) -> bool:
        """Count a body that is about to be sent, if there is room for it."""
        quota = self.middleware.response_quota
        if not quota.fits(self.client, num_bytes):
            return False
        self.acquired_response_bytes = num_bytes
        quota.acquire(self.client, num_bytes)
        return True

    async def _refuse_response(self) -> None:
        """Send an error instead of a response; the rest of a stream is left out."""
        error = APIError(
            "Too many large responses wait to be read. Read them, or try again later.",
            503,
            retry_after=1,
        )
        if not self.status_code:
            self.start_message = None
            await self._send_error(error)
        self.is_refused = True

    async def _send_error(self, error: APIError) -> None:
        """Send an error unless the response has started; an unread body is not waited for."""
        if not self.status_code:
            response = error.to_response()
            response.headers["connection"] = "close"
            await response(self.scope, self.receive, self._send)


class AccessMiddleware:
    """ASGI middleware that checks host, origin, API key and quotas before reading a body."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        api_key: str,
        hosts: Sequence[str],
        request_counter: CounterMetric,
    ) -> None:
        self.app = app
        self.api_key = api_key.encode()
        self.hosts = {"localhost", *(host.lower() for host in hosts)}
        self.limits = limits
        self.request_quota = Quota(limits.max_requests)
        self.byte_quota = Quota(limits.max_total_body_bytes)
        self.response_quota = Quota(limits.max_total_response_bytes)
        self.request_counter = request_counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            handler = RequestHandler(self, scope, receive, send)
            await handler.run()
            route = getattr(scope.get("route"), "path", "other")
            status_code = handler.status_code or CLIENT_CLOSED_REQUEST
            self.request_counter.labels(route, status_code).inc()
        else:  # WebSocket
            await send({"type": "websocket.close", "code": 1008})

    def authorize(self, request: Request) -> Response | None:
        """Reject unauthorized requests; browsers get a form for the key.

        A valid `?key=` in the URL is answered by a redirect that sets a cookie.
        """
        headers = request.headers
        self._check_host_and_origin(headers)
        host = headers["host"]
        is_cross_site = headers.get("sec-fetch-site") == "cross-site"
        if is_cross_site and headers.get("sec-fetch-mode") != "navigate":
            raise APIError("Cross-site requests are not allowed.", 403)
        path = request.scope["path"]
        if not self.api_key or path in PUBLIC_PATHS or self.is_key_form(request):
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_valid_key(token):
            return None
        if self._is_valid_key(unquote(request.cookies.get(key_cookie(host), ""))):
            return None
        parameters = dict(request.query_params)
        key = parameters.pop("key", "")
        url = local_url(path, parameters)
        if self._is_valid_key(key):
            return redirect_with_cookie(url, self.api_key, host)
        if wants_key_form(request):
            return render_key_form(url, INVALID_KEY if key else "")
        raise APIError(
            "Missing or invalid API key. Send it as Authorization: Bearer KEY.",
            401,
            code="invalid_api_key",
        )

    def is_key_form(self, request: Request) -> bool:
        """Whether a browser sends the form with the key."""
        is_post = request.method == "POST" and request.scope["path"] == KEY_PATH
        return bool(self.api_key) and is_post

    def check_key_form(self, body: bytes, headers: Headers) -> Response:
        """Move a valid key into a cookie, or show the form again."""
        key, url = parse_key_form(body)
        if self._is_valid_key(key):
            return redirect_with_cookie(url, self.api_key, headers["host"])
        return render_key_form(url, INVALID_KEY)

    def _is_valid_key(self, key: str) -> bool:
        return hmac.compare_digest(key.encode(errors="replace"), self.api_key)

    def _check_host_and_origin(self, headers: Headers) -> None:
        """Prevent DNS rebinding: a foreign page's name may resolve to this machine."""
        for name in ("host", "origin"):
            if len(headers.getlist(name)) > 1:
                raise APIError(f"Duplicate {name.capitalize()} header.")
        host = headers.get("host", "")
        if not self._is_allowed_host(host):
            raise APIError(
                f"Host {host[:80]!r} is not allowed; start the server with --allow-host HOST.",
                421,
            )
        origin = headers.get("origin")
        allowed_origins = (f"http://{host.lower()}", f"https://{host.lower()}")
        if origin is not None and origin.lower() not in allowed_origins:
            raise APIError(f"Requests from origin {origin[:80]!r} are not allowed.", 403)

    def _is_allowed_host(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            _ = parts.port  # raises if the port is not a number
            name = parts.hostname or ""
            is_known = name in self.hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False
        return parts.netloc == host and parts.username is None and is_known
