"""Request limits, API errors, client quotas, and the ASGI middleware that enforces them."""

import asyncio
import hmac
import ipaddress
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from prometheus_client import Counter as CounterMetric
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.errors import ClearheadError, NonFiniteError

log = logging.getLogger("clearhead.serve")

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
PUBLIC_PATHS = ("/health",)  # need no key and are never rate-limited
GRACE_SECONDS = 5.0  # after its timeout, a request may still report the timeout itself
MAX_NAME_CHARS = 80  # of names in error messages
CLIENT_CLOSED_REQUEST = 499  # status in the metrics if the client left before the response
KEY_COOKIE = "clearhead_key"
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

JSONDict = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """Limits of a server. Requests beyond them are rejected immediately."""

    max_batch_size: int = 0  # sequences per model decoded in one batch; 0: chosen by device
    max_context_length: int = 4096  # tokens of prompt and output, if the model allows more
    max_prompt_chars: int = 1 << 18  # characters of all texts of one request
    max_tokens: int = 2048  # output tokens per sequence
    max_texts: int = 64  # prompts × samples, inputs or sentences of one request
    max_queue: int = 256  # sequences waiting for one model
    max_requests: int = 1024  # concurrent requests
    max_body_bytes: int = 4 << 20  # of one request
    max_total_body_bytes: int = 64 << 20  # of all concurrent requests
    max_unread_tokens: int = 4096  # tokens buffered for a slow reader
    body_timeout: float = 30.0  # seconds to receive a request body
    queue_timeout: float = 60.0  # seconds to wait in the queue
    request_timeout: float = 600.0  # seconds for the whole request
    shutdown_timeout: float = 10.0  # seconds that running requests get at shutdown

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            minimum = 0 if field.name == "max_batch_size" or field.type is float else 1
            if value < minimum:
                raise ClearheadError(f"{field.name} must be at least {minimum}, got {value}.")


class APIError(ClearheadError):
    """An error with an HTTP status, serialized like the errors of OpenAI's API."""

    def __init__(
        self,
        message: str,
        status_code: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int = 0,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.param = param
        self.code = code
        self.retry_after = retry_after  # seconds

    @classmethod
    def from_error(cls, error: ClearheadError) -> "APIError":
        """Invalid input is a 400; NaN or infinite results are a 500."""
        if isinstance(error, APIError):
            return error
        return cls(str(error), 500 if isinstance(error, NonFiniteError) else 400)

    @property
    def payload(self) -> dict[str, Any]:
        default_type = "invalid_request_error" if self.status_code < 500 else "server_error"
        error = {
            "message": str(self),
            "type": ERROR_TYPES.get(self.status_code, default_type),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def to_response(self) -> Response:
        headers = {}
        if self.status_code == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after:
            headers["Retry-After"] = str(self.retry_after)
        content = json.dumps(self.payload, ensure_ascii=False).encode(errors="replace")
        return Response(content, self.status_code, headers, "application/json")


class Quota:
    """A limit shared by clients. No single client can use it up.

    A client may hold `MAX_SHARE_OF_REMAINING` times what would then be left, so one client alone
    gets 8/9 of the limit (a classroom behind one address is one client), and a new client still
    finds room.
    """

    MAX_SHARE_OF_REMAINING = 8

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.used_by_client: Counter[str] = Counter()

    def fits(self, client: str, amount: int) -> bool:
        left = self.limit - self.used - amount
        share = self.MAX_SHARE_OF_REMAINING * left
        return left >= 0 and self.used_by_client[client] + amount - 1 <= share

    def acquire(self, client: str, amount: int) -> None:
        self.used_by_client[client] += amount
        self.used += amount

    def release(self, client: str, amount: int) -> None:
        self.acquire(client, -amount)
        if not self.used_by_client[client]:
            del self.used_by_client[client]


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

    async def _run(self) -> None:
        request = Request(self.scope)
        redirect = self.middleware.authorize(request)
        if redirect is not None:
            await redirect(self.scope, self.receive, self._send)
            return
        self._acquire_request()
        await self._run_app(await self._read_body(request.headers))

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

    async def _read_body(self, headers: Headers) -> bytes:
        too_large = APIError(
            f"Request body is larger than {self.limits.max_body_bytes:,} bytes.", 413
        )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.limits.max_body_bytes:
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
                    if self.acquired_bytes + len(part) > self.limits.max_body_bytes:
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
        """Send a message of the app with security headers, unless the app sets its own."""
        if message["type"] == "http.response.start":
            self.status_code = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        elif not message.get("more_body", False):
            self.is_complete = True
        await self.send_to_client(message)

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

    def authorize(self, request: Request) -> RedirectResponse | None:
        """Reject unauthorized requests; redirect a valid `?key=` in the URL, to set a cookie."""
        headers = request.headers
        self._check_host_and_origin(headers)
        is_cross_site = headers.get("sec-fetch-site") == "cross-site"
        if is_cross_site and headers.get("sec-fetch-mode") != "navigate":
            raise APIError("Cross-site requests are not allowed.", 403)
        path = request.scope["path"]
        if not self.api_key or path in PUBLIC_PATHS:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_valid_key(token):
            return None
        if self._is_valid_key(unquote(request.cookies.get(KEY_COOKIE, ""))):
            return None
        parameters = dict(request.query_params)
        if not self._is_valid_key(parameters.pop("key", "")):
            raise APIError(
                "Missing or invalid API key. Send it as Authorization: Bearer KEY.",
                401,
                code="invalid_api_key",
            )
        url = "/" + quote(path.lstrip("/")) + (f"?{urlencode(parameters)}" if parameters else "")
        redirect = RedirectResponse(url, 303)
        cookie = quote(self.api_key, safe="")
        redirect.set_cookie(KEY_COOKIE, cookie, httponly=True, samesite="lax")
        return redirect

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
        return parts.username is None and is_known
