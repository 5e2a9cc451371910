"""One request and its answer: how much of it is read, how long it may take, and that it ends with its client."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.serve.limits import Limits
from clearhead.serve.refused import Refused
from clearhead.serve.share import Share

log = logging.getLogger("clearhead.serve")
OPEN = ("/health",)  # what needs no key, and is always answered
GRACE = 5.0  # seconds after its time in which a request may still say so itself
SAFE = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

Check = Callable[[Mapping[str, str], str, str], dict[str, str]]


class Traffic:
    """What is under way in all, and whose it is."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.requests, self.bytes = limits, Share(limits.requests), Share(limits.bodies)


class Gone(Exception):
    """The client is."""


class Exchange:
    """One request and its answer, between a server and an app."""

    def __init__(self, traffic: Traffic, scope: Scope, receive: Receive, send: Send) -> None:
        self.traffic, self.limits, self.scope = traffic, traffic.limits, scope
        self.receive, self.to_client = receive, send
        self.client = scope["client"][0] if scope.get("client") else ""
        self.status, self.complete, self.counted, self.held = 0, False, 0, 0

    async def run(self, check: Check, app: ASGIApp) -> None:
        """Whatever happens, the client hears a sentence; of a mistake of ours, the log has a line."""
        try:
            await self._run(check, app)
        except Gone:
            pass
        except Refused as error:
            await self._refuse(error)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a mistake of ours; panics of libraries are not even an Exception
            log.error("%s %r: %s: %s", self.scope["method"], self.scope["path"], type(error).__name__, error)
            await self._refuse(Refused("something went wrong here; it was written down.", 500))
        finally:
            self.traffic.requests.give(self.client, self.counted)
            self.traffic.bytes.give(self.client, self.held)

    async def _run(self, check: Check, app: ASGIApp) -> None:
        headers: dict[str, str] = {}
        for name, value in self.scope["headers"]:
            if name in (b"host", b"origin") and name.decode() in headers:
                raise Refused("Host and Origin stand only once in a request.")
            headers[name.decode("latin-1")] = value.decode("latin-1")
        elsewhere = check(headers, self.scope["path"], self.scope["query_string"].decode("latin-1"))
        if elsewhere:
            await self._reply(303, elsewhere, b"")
            return
        self._count()
        await self._answered(app, await self._body(headers))

    def _count(self) -> None:
        """As one more that is under way; whether all is well can be asked at any time."""
        if self.scope["path"] in OPEN:
            return
        if not self.traffic.requests.fits(self.client, 1):
            under_way = f"{self.traffic.requests.own[self.client]} requests of yours are under way here already"
            raise Refused(f"{under_way}, of {self.traffic.requests.count} in all; try again.", 429, again=1)
        self.counted = 1
        self.traffic.requests.take(self.client, 1)

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        """All of it, counted while it comes."""
        large = Refused(f"a request has at most {self.limits.body:,} bytes here.", 413)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.limits.body:
            raise large
        parts, more = list[bytes](), True
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while more:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    part, more = message.get("body", b""), message.get("more_body", False)
                    if self.held + len(part) > self.limits.body:
                        raise large
                    if part and not self.traffic.bytes.fits(self.client, len(part)):
                        raise Refused("too much is being read already; try again.", 503, again=1)
                    parts.append(part)
                    self.held += len(part)
                    self.traffic.bytes.take(self.client, len(part))
        except TimeoutError:
            raise Refused(f"a request must arrive within {self.limits.body_seconds:g} seconds.", 408) from None
        return b"".join(parts)

    async def _answered(self, app: ASGIApp, body: bytes) -> None:
        """The app answers as long as the client is there; when it goes, the answer is cancelled."""
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return waiting.pop() if waiting else await asyncio.Future()

        async def gone() -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.ensure_future(app(self.scope, receive, self._send)), asyncio.ensure_future(gone())]
        try:
            await asyncio.wait(tasks, timeout=self.limits.seconds + GRACE, return_when=asyncio.FIRST_COMPLETED)
            late = not any(task.done() for task in tasks)
            if self.complete:  # which a server also tells as a client that is gone
                await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if late:
            raise Refused(f"this request took longer than {self.limits.seconds:g} seconds.", 504)
        if not tasks[0].cancelled():
            tasks[0].result()

    async def _send(self, message: Message) -> None:
        """What goes out tells browsers to trust nothing else, where the app says nothing of that."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            told = {name.lower() for name, _ in message["headers"]}
            new = [(name.encode(), value.encode()) for name, value in SAFE.items() if name.encode() not in told]
            message = {**message, "headers": [*message["headers"], *new]}
        elif not message.get("more_body", False):
            self.complete = True
        await self.to_client(message)

    async def _reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        plain = {"content-length": str(len(body)), **headers}
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in plain.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": body})

    async def _refuse(self, error: Refused) -> None:
        """Unless an answer has begun; the rest of a body that was not read is not waited for."""
        if not self.status:
            kind = {"content-type": "application/json", "connection": "close"}
            await self._reply(error.status, kind | error.headers, error.body)
