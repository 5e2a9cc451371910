"""Executes the page's requests: models by name, cached runs, and a fair thread pool."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from fastapi import Request

from clearhead.serve.errors import APIError, GoneError
from clearhead.serve.explorer.forward_passes import Run, RunStore
from clearhead.serve.explorer.requests import ExplorerRequest, RunRequest
from clearhead.serve.limits import Limits, Quota
from clearhead.serve.openai import client_address
from clearhead.serve.registry import LoadedModel, ModelRegistry
from clearhead.serve.scheduler import ComputeThread, FairQueue, PendingCall

MAX_THREADS = 2  # more would only compete for the same cores
MAX_CLIENT_THREADS = MAX_THREADS - 1  # so that one client never keeps all others waiting
MAX_CACHE_BYTES = 1 << 30  # KV caches of all texts that are being generated for the page
FINGERPRINT_HEADER = "x-model-fingerprint"

T = TypeVar("T")

_client: ContextVar[str] = ContextVar("client", default="")
_expected_fingerprint: ContextVar[str] = ContextVar("expected_fingerprint", default="")


async def set_client(request: Request) -> None:
    """FastAPI dependency: remember the client, and the weights its cached responses are of."""
    _client.set(client_address(request))
    _expected_fingerprint.set(request.headers.get(FINGERPRINT_HEADER, ""))


class ExplorerExecutor:
    """Runs the page's requests on models of the registry, in threads."""

    def __init__(self, registry: ModelRegistry, limits: Limits) -> None:
        self.registry = registry
        self.limits = limits
        self.runs = RunStore(limits.max_context_length)
        self.default_model = registry.names[0]
        self.queue = FairQueue[PendingCall[Any]](limits.max_queue, MAX_CLIENT_THREADS)
        self.cache_quota = Quota(MAX_CACHE_BYTES)
        self._lock = threading.Lock()  # guards the queue and the number of threads
        self._num_threads = 0

    @asynccontextmanager
    async def use_model(self, name: str) -> AsyncIterator[LoadedModel]:
        """A model (by default the first) that stays loaded until the block ends."""
        async with self.registry.using(name or self.default_model) as loaded_model:
            if _expected_fingerprint.get() not in ("", loaded_model.fingerprint):
                raise GoneError(
                    f"Model {loaded_model.name!r} was reloaded with other weights; reload its card."
                )
            yield loaded_model

    def model_for(self, request: ExplorerRequest) -> AbstractAsyncContextManager[LoadedModel]:
        """The model of a request, after checking the size of the request."""
        max_chars = self.limits.max_prompt_chars
        if request.num_chars > max_chars:
            raise APIError(
                f"Request has {request.num_chars:,} characters; the limit is {max_chars:,}."
            )
        return self.use_model(request.model)

    async def call(self, request: ExplorerRequest, function: Callable[..., T], *args: object) -> T:
        """Run `function(model, *args)` with the model of a request, in a thread."""
        async with self.model_for(request) as loaded_model:
            return await self.submit(function, loaded_model.model, *args)

    async def submit(self, function: Callable[..., T], *args: object) -> T:
        """Run a function in a thread; cancelled if the client leaves before its turn."""
        call = PendingCall(_client.get(), partial(function, *args))
        with self._lock:
            self.queue.put(call.client, call)
            if self._num_threads < MAX_THREADS:
                self._num_threads += 1
                ComputeThread(self._run_calls, "page").start()
        return await call.future

    def _run_calls(self) -> None:
        while call := self._next_call():
            call.run()
            with self._lock:
                self.queue.task_done(call.client)

    def _next_call(self) -> PendingCall[Any] | None:
        with self._lock:
            if self.queue.has_next:
                return self.queue.pop()
            self._num_threads -= 1
            return None

    @contextmanager
    def reserve_cache(self, num_bytes: int) -> Iterator[None]:
        """Count a KV cache for the client; a text that needs more than half of all gets that."""
        client = _client.get()
        quota = self.cache_quota
        num_bytes = min(num_bytes, quota.limit // 2)
        if not quota.fits(client, num_bytes):
            raise APIError(
                "Too many texts are being generated. Try again when one of them has ended.",
                429,
                code="rate_limit_exceeded",
                retry_after=1,
            )
        quota.acquire(client, num_bytes)
        try:
            yield
        finally:
            quota.release(client, num_bytes)

    async def run_steps(self, steps: Iterator[T | None]) -> T:
        """Run a generator until its first result; yields to other requests between steps."""
        while True:
            result = await self.submit(next, steps)
            if result is not None:
                return result

    async def run(self, request: RunRequest) -> Run:
        """The run of a request, cached or new."""
        async with self.model_for(request) as loaded_model:
            return await self.submit(self.runs.get_or_create, loaded_model, request)
