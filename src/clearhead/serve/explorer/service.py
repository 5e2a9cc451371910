"""Where the page's work is done: models by name, runs by id, computation in threads, a few at once, in turns."""

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from fastapi import Request

from clearhead.serve.explorer.runs import (
    ExplorerRequest,
    GoneError,
    Run,
    RunRequest,
    RunStore,
    fingerprint,
)
from clearhead.serve.middleware import APIError, Limits
from clearhead.serve.openai import client_address
from clearhead.serve.registry import LoadedModel, ModelRegistry
from clearhead.serve.scheduler import ComputeThread, FairQueue

MAX_THREADS = 2  # more would only take each other's cores

T = TypeVar("T")
PendingTask = tuple[str, "Future[Any]", Callable[[], Any]]  # whose it is, its answer, what to do

_client: ContextVar[str] = ContextVar("client", default="")  # who asks
_believed: ContextVar[str] = ContextVar(
    "believed", default=""
)  # the weights of which they have answers


async def set_client(request: Request) -> None:
    """Every question of the page begins with who asks it, and of which weights they know."""
    _client.set(client_address(request))
    _believed.set(request.headers.get("x-loaded", ""))


class ExplorerService:
    def __init__(self, shelf: ModelRegistry, limits: Limits) -> None:
        self.registry = shelf
        self.limits = limits
        self.runs = RunStore(limits.max_context_length)
        self.default_model = shelf.names[0]
        self._line: FairQueue[PendingTask] = FairQueue(limits.max_queue)
        self._lock = threading.Lock()
        self._at_work = 0
        threading.Thread(target=_prepare, name="prepare").start()

    @asynccontextmanager
    async def use_model(self, name: str) -> AsyncIterator[LoadedModel]:
        """A model, loaded if need be, which stays until the block ends; the first one where the name is empty."""
        async with self.registry.using(name or self.default_model) as held:
            if _believed.get() not in (
                "",
                fingerprint(held),
            ):  # no answer may stand beside those of other weights
                raise GoneError(
                    f"model {held.name!r} was loaded anew, with other weights; ask for its card again."
                )
            yield held

    def model_for(self, question: ExplorerRequest) -> AbstractAsyncContextManager[LoadedModel]:
        """The model that a question is for; one that is too long is not even read."""
        if (size := question.num_chars) > (most := self.limits.max_prompt_chars):
            raise APIError(f"{size:,} characters are more than the {most:,} of one request here.")
        return self.use_model(question.model)

    async def call(self, question: ExplorerRequest, function: Callable[..., T], *args: object) -> T:
        """What a function says of the model that a question is for."""
        async with self.model_for(question) as held:
            return await self.submit(function, held.model, *args)

    async def submit(self, function: Callable[..., T], *args: object) -> T:
        """Never on the event loop, which has others to listen to. Who leaves before their turn gives it up."""
        job: PendingTask = _client.get(), Future(), partial(function, *args)
        with self._lock:
            self._line.put(job[0], job)
            if self._at_work < MAX_THREADS:
                self._at_work += 1
                ComputeThread(self._work, "page").start()
        found: T = await asyncio.wrap_future(job[1])
        return found

    def _work(self) -> None:
        """Whoever's turn it is by then, until nobody waits."""
        while job := self._next():
            client, answer, do = job
            try:
                if answer.set_running_or_notify_cancel():
                    answer.set_result(do())
            except BaseException as error:  # panics of libraries are not even an Exception
                answer.set_exception(error)
            finally:
                with self._lock:
                    self._line.task_done(client)

    def _next(self) -> PendingTask | None:
        with self._lock:
            if self._line.num_waiting:
                return self._line.pop()
            self._at_work -= 1
            return None

    async def run_steps(self, steps: Iterator[T | None]) -> T:
        """The first that is something, a step at a time: others have turns between, and who leaves ends it."""
        while (found := await self.submit(next, steps)) is None:
            pass
        return found

    async def run(self, request: RunRequest) -> Run:
        """What a model makes of a text, kept or computed now."""
        async with self.model_for(request) as held:
            return await self.submit(self.runs.get_or_create, held, request)


def _prepare() -> None:
    """What watching needs of torch takes seconds to import: better now than when the first person waits."""
    importlib.import_module("torch._dynamo")
