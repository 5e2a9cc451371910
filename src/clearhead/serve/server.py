"""The process that serves: a port, a loop, and an end that keeps its word."""

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from clearhead.errors import ClearheadError
from clearhead.serve.middleware import GRACE_SECONDS
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import exit_process

IDLE_TIMEOUT = 30.0  # seconds
MAX_PORT = 65535  # port


def is_loopback(host: str) -> bool:
    """Whether only this machine itself can come in there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PortInUseError(ClearheadError):
    """The port is another's."""


def bind_socket(host: str, port: int) -> socket.socket:
    """A port that is ours, or a sentence why not."""
    if not 0 <= port <= MAX_PORT:
        raise ClearheadError(
            f"--port {port} is no port; it is 0 to {MAX_PORT}, and 0 is any that is free."
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = (
            os.strerror(error.errno).lower()
            if error.errno and error.errno > 0
            else str(error.strerror or error)
        )
        kind = PortInUseError if error.errno == errno.EADDRINUSE else ClearheadError
        raise kind(
            f"{host}:{port} cannot be served on: {reason}; choose another --port or --host."
        ) from None


class IdleTimeoutProtocol(H11Protocol):
    """One that asks for something now and then, and reads the answers; who keeps silent, never ends a header, or does
    not fetch what is left of an answer, is cut off."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_later()

    def _now(self) -> tuple[RequestResponseCycle | None, bool, int]:
        """The request, whether the next would be its client's turn, and how much of answers was not fetched."""
        over = self.cycle is None or self.cycle.response_complete or self.transport.is_closing()
        return self.cycle, over, self.transport.get_write_buffer_size()

    def _look_later(self) -> None:
        self.looking = self.loop.call_later(IDLE_TIMEOUT, self._look, self._now())

    def _look(self, before: tuple[RequestResponseCycle | None, bool, int]) -> None:
        """A client whose turn it is, and who has done nothing since the last look, has gone."""
        if before[1] and self._now() == before:
            self.transport.abort()  # not close, which would wait until the rest was fetched
        else:
            self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self.looking.cancel()
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """uvicorn, which lets the models finish or tell their readers before it ends."""

    def __init__(
        self, app: ASGIApp, shelf: ModelRegistry, ready: Callable[[], None] = lambda: None
    ) -> None:
        self.shelf = shelf
        self.ready = ready
        options = {
            "http": IdleTimeoutProtocol,
            "ws": "none",
            "loop": "asyncio",
            "lifespan": "off",
            "access_log": False,
        }
        quiet = {
            "log_config": None,
            "log_level": "critical",
            "server_header": False,
            "proxy_headers": False,
        }
        seconds = int(shelf.limits.shutdown_timeout + GRACE_SECONDS)
        super().__init__(uvicorn.Config(app, timeout_graceful_shutdown=seconds, **options, **quiet))  # type: ignore[arg-type]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()  # from here on a signal is heeded

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = asyncio.create_task(self.shelf.stop(self.shelf.limits.shutdown_timeout))
        await super().shutdown(sockets)
        if self.force_exit:
            stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        self._captured_signals.clear()  # which were heeded, and need not end the process once more


def run_server(
    app: ASGIApp,
    shelf: ModelRegistry,
    at: socket.socket,
    all_at_once: bool,
    ready: Callable[[], None],
) -> None:
    """Until a signal; the first model is there before anyone is let in, or all of them."""

    async def serve() -> None:
        await (shelf.load_all() if all_at_once else shelf.get(shelf.names[0]))
        await Server(app, shelf, ready).serve(sockets=[at])

    asyncio.run(serve())
    exit_process()
