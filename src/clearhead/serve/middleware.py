"""How much a server takes on."""

import asyncio
import hmac
import ipaddress
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.errors import ClearheadError, NonFiniteError
from clearhead.serve.metrics import CounterMetric

# ---- limits: How much a server takes on.


@dataclass(frozen=True)
class Limits:
    """What is more than this is refused at once, in a sentence."""

    max_batch_size: int = 0  # texts that a model writes side by side; 0 = as suits the device
    max_context_length: int = (
        4096  # tokens of a prompt and what follows it, where the model itself would take more
    )
    max_prompt_chars: int = 1 << 18  # characters of all texts of one request
    max_tokens: int = 2048  # that one text may ask for
    max_texts: int = 64  # of one request: prompts × samples, inputs, sentences
    max_queue: int = 256  # texts that wait for one model
    max_requests: int = 1024  # under way at once
    max_body_bytes: int = 4 << 20  # bytes of one request
    max_total_body_bytes: int = 64 << 20  # bytes of all requests that are being read or answered
    max_unread_tokens: int = 4096  # tokens that may lie ready for a reader that does not take them
    body_timeout: float = 30.0  # for a request to arrive
    queue_timeout: float = 60.0  # for its turn to come
    request_timeout: float = 600.0  # for all of it
    shutdown_timeout: float = 10.0  # what runs may still take when the server is to stop

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "slots" or field.type is float else 1
            if value < least:
                raise ClearheadError(
                    f"{field.name} = {value} is too small a limit; it must be at least {least}."
                )


# ---- refused: What a server answers instead: a sentence, in the form that clients of OpenAI's API expect.

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class APIError(ClearheadError):
    """A sentence with the HTTP status that goes with it; `again` is after how many seconds it may be tried again."""

    def __init__(
        self,
        sentence: str,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int = 0,
    ) -> None:
        super().__init__(sentence)
        self.status_code = status
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @classmethod
    def from_error(cls, error: ClearheadError) -> "APIError":
        """Any mistake in what was given is the client's; that a model is broken is not."""
        return (
            error
            if isinstance(error, APIError)
            else cls(str(error), 500 if isinstance(error, NonFiniteError) else 400)
        )

    @property
    def payload(self) -> dict[str, Any]:
        kind = ERROR_TYPES.get(
            self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error"
        )
        return {
            "error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        }

    @property
    def body(self) -> bytes:
        return json.dumps(self.payload, ensure_ascii=False).encode(errors="replace")

    @property
    def headers(self) -> dict[str, str]:
        wanted = {"WWW-Authenticate": "Bearer"} if self.status_code == 401 else {}
        return wanted | ({"Retry-After": str(self.retry_after)} if self.retry_after else {})


# ---- share: What clients have to share: places in a line, requests under way, bytes of them.


class Quota:
    """At most so much in all. A client may have as much as is left: one alone gets half of it piece by piece, two a
    third each, and so there is some for someone new."""

    def __init__(self, most: int) -> None:
        self.limit = most
        self.used = 0
        self.used_by_client: Counter[str] = Counter()

    def fits(self, client: str, more: int) -> bool:
        return self.used_by_client[client] + more <= self.limit - self.used

    def acquire(self, client: str, more: int) -> None:
        self.used_by_client[client] += more
        self.used += more

    def release(self, client: str, back: int) -> None:
        self.acquire(client, -back)
        if not self.used_by_client[client]:
            del self.used_by_client[client]


# ---- exchange: One request and its answer: how much of it is read, how long it may take, and that it ends with its client.

log = logging.getLogger("clearhead.serve")
PUBLIC_PATHS = ("/health",)  # what needs no key, and is always answered
GRACE_SECONDS = 5.0  # seconds after its time in which a request may still say so itself
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

RequestCheck = Callable[[Mapping[str, str], str, str], dict[str, str]]


class RequestQuotas:
    """What is under way in all, and whose it is."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = Quota(limits.max_requests)
        self.bytes = Quota(limits.max_total_body_bytes)


class ClientDisconnected(Exception):
    """The client is."""


class RequestHandler:
    """One request and its answer, between a server and an app."""

    def __init__(self, traffic: RequestQuotas, scope: Scope, receive: Receive, send: Send) -> None:
        self.traffic = traffic
        self.limits = traffic.limits
        self.scope = scope
        self.receive = receive
        self.to_client = send
        self.client = scope["client"][0] if scope.get("client") else ""
        self.status = 0
        self.complete = False
        self.counted = 0
        self.held = 0

    async def run(self, check: RequestCheck, app: ASGIApp) -> None:
        """Whatever happens, the client hears a sentence; of a mistake of ours, the log has a line."""
        try:
            await self._run(check, app)
        except ClientDisconnected:
            pass
        except APIError as error:
            await self._refuse(error)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except (
            BaseException
        ) as error:  # a mistake of ours; panics of libraries are not even an Exception
            log.error(
                "%s %r: %s: %s",
                self.scope["method"],
                self.scope["path"],
                type(error).__name__,
                error,
            )
            await self._refuse(APIError("something went wrong here; it was written down.", 500))
        finally:
            self.traffic.requests.release(self.client, self.counted)
            self.traffic.bytes.release(self.client, self.held)

    async def _run(self, check: RequestCheck, app: ASGIApp) -> None:
        headers: dict[str, str] = {}
        for name, value in self.scope["headers"]:
            if name in (b"host", b"origin") and name.decode() in headers:
                raise APIError("Host and Origin stand only once in a request.")
            headers[name.decode("latin-1")] = value.decode("latin-1")
        elsewhere = check(headers, self.scope["path"], self.scope["query_string"].decode("latin-1"))
        if elsewhere:
            await self._reply(303, elsewhere, b"")
            return
        self._count()
        await self._answered(app, await self._body(headers))

    def _count(self) -> None:
        """As one more that is under way; whether all is well can be asked at any time."""
        if self.scope["path"] in PUBLIC_PATHS:
            return
        if not self.traffic.requests.fits(self.client, 1):
            under_way = f"{self.traffic.requests.used_by_client[self.client]} requests of yours are under way here already"
            raise APIError(
                f"{under_way}, of {self.traffic.requests.used} in all; try again.",
                429,
                retry_after=1,
            )
        self.counted = 1
        self.traffic.requests.acquire(self.client, 1)

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        """All of it, counted while it comes."""
        large = APIError(f"a request has at most {self.limits.max_body_bytes:,} bytes here.", 413)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.limits.max_body_bytes:
            raise large
        parts = list[bytes]()
        more = True
        try:
            async with asyncio.timeout(self.limits.body_timeout):
                while more:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    part = message.get("body", b"")
                    more = message.get("more_body", False)
                    if self.held + len(part) > self.limits.max_body_bytes:
                        raise large
                    if part and not self.traffic.bytes.fits(self.client, len(part)):
                        raise APIError(
                            "too much is being read already; try again.", 503, retry_after=1
                        )
                    parts.append(part)
                    self.held += len(part)
                    self.traffic.bytes.acquire(self.client, len(part))
        except TimeoutError:
            raise APIError(
                f"a request must arrive within {self.limits.body_timeout:g} seconds.", 408
            ) from None
        return b"".join(parts)

    async def _answered(self, app: ASGIApp, body: bytes) -> None:
        """The app answers as long as the client is there; when it goes, the answer is cancelled."""
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return waiting.pop() if waiting else await asyncio.Future()

        async def gone() -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass

        tasks = [
            asyncio.ensure_future(app(self.scope, receive, self._send)),
            asyncio.ensure_future(gone()),
        ]
        try:
            await asyncio.wait(
                tasks,
                timeout=self.limits.request_timeout + GRACE_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            late = not any(task.done() for task in tasks)
            if self.complete:  # which a server also tells as a client that is gone
                await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if late:
            raise APIError(
                f"this request took longer than {self.limits.request_timeout:g} seconds.", 504
            )
        if not tasks[0].cancelled():
            tasks[0].result()

    async def _send(self, message: Message) -> None:
        """What goes out tells browsers to trust nothing else, where the app says nothing of that."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            told = {name.lower() for name, _ in message["headers"]}
            new = [
                (name.encode(), value.encode())
                for name, value in SECURITY_HEADERS.items()
                if name.encode() not in told
            ]
            message = {**message, "headers": [*message["headers"], *new]}
        elif not message.get("more_body", False):
            self.complete = True
        await self.to_client(message)

    async def _reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        plain = {"content-length": str(len(body)), **headers}
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in plain.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": body})

    async def _refuse(self, error: APIError) -> None:
        """Unless an answer has begun; the rest of a body that was not read is not waited for."""
        if not self.status:
            kind = {"content-type": "application/json", "connection": "close"}
            await self._reply(error.status_code, kind | error.headers, error.body)


# ---- guard: Who may come in: the first thing that a request meets, before a byte of its body is read.

KEY_COOKIE = "clearhead_key"


class AccessMiddleware:
    """Around an app, as plain ASGI: the name it is called by, the page that calls, the key, how much is under way."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        key: str,
        hosts: Sequence[str],
        request_counter: CounterMetric,
    ) -> None:
        self.app = app
        self.key = key.encode()
        self.request_counter = request_counter
        self.hosts = {"localhost", *(host.lower() for host in hosts)}
        self.quotas = RequestQuotas(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            exchange = RequestHandler(self.quotas, scope, receive, send)
            await exchange.run(self.authorize, self.app)
            route = getattr(scope.get("route"), "path", "other")
            self.request_counter.inc(
                path=route, status=str(exchange.status or 499)
            )  # 499: nobody waited for the answer
        else:  # nothing here speaks WebSocket
            await send({"type": "websocket.close", "code": 1008})

    def authorize(self, headers: Mapping[str, str], path: str, query: str) -> dict[str, str]:
        """Refuses whom it must. Who brings the key in an address is sent on, with a cookie: the headers of that."""
        self._check_names(headers.get("host", ""), headers.get("origin"))
        if (
            headers.get("sec-fetch-site") == "cross-site"
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            raise APIError("pages of others may not use this server; a link to it is fine.", 403)
        if not self.key or path in PUBLIC_PATHS:
            return {}
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if (scheme.lower() == "bearer" and self._opens(token)) or self._opens(
            _cookie(headers.get("cookie", ""))
        ):
            return {}
        asked = dict(parse_qsl(query)) if len(query) < 4096 else {}
        if not self._opens(asked.pop("key", "")):
            raise APIError(
                "this server wants its key: Authorization: Bearer KEY.", 401, code="invalid_api_key"
            )
        there = "/" + quote(path.lstrip("/")) + (f"?{urlencode(asked)}" if asked else "")
        kept = f"{KEY_COOKIE}={quote(self.key, safe='')}; HttpOnly; SameSite=Lax; Path=/"
        return {"location": there, "set-cookie": kept}

    def _opens(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.key)

    def _check_names(self, host: str, origin: str | None) -> None:
        """A page elsewhere can let its own name point to this machine, but then Host holds that name, and no number."""
        if not self._known(host):
            allow = "--allow-host, where it was started, allows more"
            raise APIError(f"this server does not answer to the name {host[:80]!r}; {allow}.", 421)
        if origin is not None and origin.lower() not in (
            f"http://{host.lower()}",
            f"https://{host.lower()}",
        ):
            raise APIError(f"pages of {origin[:80]!r} may not use this server.", 403)

    def _known(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            # a port that is no number is an error too
            name = parts.hostname or ""
            _ = parts.port
            return parts.username is None and (
                name in self.hosts or bool(ipaddress.ip_address(name))
            )
        except ValueError:
            return False


def _cookie(header: str) -> str:
    """The key that a browser kept."""
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == KEY_COOKIE:
            return unquote(value)
    return ""
