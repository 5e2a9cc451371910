"""The server process: socket, event loop, idle timeouts and graceful shutdown."""

import asyncio
import errno
import ipaddress
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from clearhead.errors import ClearheadError
from clearhead.serve.limits import Quota
from clearhead.serve.middleware import GRACE_SECONDS
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import exit_process

IDLE_TIMEOUT = 30.0  # seconds
SOCKET_BACKLOG = 2048
MAX_PORT = 65535
MAX_OPEN_FILES = 16384
RESERVED_FILES = 128  # for models, sockets and libraries
ANY_ADDRESS = ("0.0.0.0", "::")


class PortInUseError(ClearheadError):
    """The port is used by another process."""


def is_loopback(host: str) -> bool:
    """Whether a host is reachable from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def server_url(host: str, port: int) -> str:
    """The URL of a server; for one that listens on all addresses, that in the local network."""
    host = _network_address(host) if host in ANY_ADDRESS else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _network_address(host: str) -> str:
    is_ipv6 = ":" in host
    family, probe = (socket.AF_INET6, "2001:db8::1") if is_ipv6 else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as udp:
        try:
            udp.connect((probe, 9))  # chooses a network interface; nothing is sent
        except OSError:  # no network
            return "::1" if is_ipv6 else "127.0.0.1"
        return str(udp.getsockname()[0])


def bind_socket(host: str, port: int) -> socket.socket:
    """Listen on a host and port."""
    if not 0 <= port <= MAX_PORT:
        raise ClearheadError(
            f"--port must be between 1 and {MAX_PORT}, or 0 for any free port, got {port}."
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=SOCKET_BACKLOG)
    except OSError as error:
        code = error.errno or 0
        # codes of getaddrinfo are negative
        reason = os.strerror(code) if code > 0 else (error.strerror or str(error))
        error_type = PortInUseError if error.errno == errno.EADDRINUSE else ClearheadError
        raise error_type(
            f"cannot listen on {host}:{port}: {reason}. Choose another --port or --host."
        ) from None


ConnectionState = tuple[RequestResponseCycle | None, bool, int]


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 for a limited number of connections.

    Connections of clients that are idle, or send or read nothing, are closed after some time. If a
    client has too many, or all together, its longest idle one is closed.
    """

    quota: Quota  # of open connections, set by `Server`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address: str = self.client[0] if self.client else ""
        self.idle_since = self.loop.time()
        is_full = not self.quota.fits(self.address, 1)
        self.quota.acquire(self.address, 1)
        self._schedule_check()
        if is_full:
            self._close_longest_idle()

    def _close_longest_idle(self) -> None:
        """Close the longest idle connection of this client; if none is idle, this one."""
        connections = [
            connection
            for connection in self.connections
            if isinstance(connection, LimitedProtocol)
            and connection.address == self.address
            and connection.is_idle
        ]
        min(connections, key=lambda connection: connection.idle_since).transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether the connection waits for the next request of its client."""
        is_waiting = self.cycle is None or self.cycle.response_complete
        return is_waiting and not self.transport.is_closing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.idle_since = self.loop.time()

    def _state(self) -> ConnectionState:
        """Current request, whether the client is expected to act, and unsent response bytes."""
        is_client_turn = (
            self.cycle is None
            or self.cycle.response_complete
            or self.flow.write_paused
            or self.transport.is_closing()
        )
        return self.cycle, is_client_turn, self.transport.get_write_buffer_size()

    def _schedule_check(self) -> None:
        self.idle_timer = self.loop.call_later(IDLE_TIMEOUT, self._check, self._state())

    def _check(self, last_state: ConnectionState) -> None:
        _, is_client_turn, _ = last_state
        if is_client_turn and self._state() == last_state:
            self.transport.abort()  # close() would wait until the buffer is sent
        else:
            self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle_timer.cancel()
        self.quota.release(self.address, 1)
        super().connection_lost(exc)


def _max_open_files() -> int:
    """The number of files and connections that this process may open, raised if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_OPEN_FILES
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a lower limit than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


class Server(uvicorn.Server):
    """A uvicorn server that lets running requests finish before it exits."""

    def __init__(
        self,
        app: ASGIApp,
        registry: ModelRegistry,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.registry = registry
        self.on_ready = on_ready
        num_files = max(1, _max_open_files() - RESERVED_FILES)
        quota = Quota(min(registry.limits.max_connections, num_files))
        config = uvicorn.Config(
            app,
            timeout_graceful_shutdown=int(registry.limits.shutdown_timeout + GRACE_SECONDS),
            http=type("ServerProtocol", (LimitedProtocol,), {"quota": quota}),
            ws="none",
            loop="asyncio",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="critical",
            server_header=False,
            proxy_headers=False,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_ready()  # signals are handled from here on

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stop_models = asyncio.create_task(self.registry.stop(self.registry.limits.shutdown_timeout))
        await super().shutdown(sockets)
        if self.force_exit:
            stop_models.cancel()
        await asyncio.gather(stop_models, return_exceptions=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal, at once at a second SIGINT. uvicorn would raise it again."""
        self.force_exit |= self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def run_server(
    app: ASGIApp,
    registry: ModelRegistry,
    server_socket: socket.socket,
    load_all: bool,
    on_ready: Callable[[], None],
) -> None:
    """Load the first model (or all), then serve until a signal."""

    async def serve() -> None:
        await (registry.load_all() if load_all else registry.get(registry.names[0]))
        await Server(app, registry, on_ready).serve(sockets=[server_socket])

    asyncio.run(serve())
    exit_process()
