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

from clearhead.serve.asking import client_of
from clearhead.serve.computing import Computing
from clearhead.serve.limits import Limits
from clearhead.serve.line import Line
from clearhead.serve.pages.asked import Asked
from clearhead.serve.pages.loaded import loaded
from clearhead.serve.pages.runs import Run, RunRequest, Runs
from clearhead.serve.pages.trace import Gone
from clearhead.serve.refused import Refused
from clearhead.serve.shelf import Held, Shelf

AT_ONCE = 2  # more would only take each other's cores

T = TypeVar("T")
Job = tuple[str, "Future[Any]", Callable[[], Any]]  # whose it is, its answer, what to do

_client: ContextVar[str] = ContextVar("client", default="")  # who asks
_believed: ContextVar[str] = ContextVar("believed", default="")  # the weights of which they have answers


async def whose(request: Request) -> None:
    """Every question of the page begins with who asks it, and of which weights they know."""
    _client.set(client_of(request))
    _believed.set(request.headers.get("x-loaded", ""))


class Desk:
    def __init__(self, shelf: Shelf, limits: Limits) -> None:
        self.shelf, self.limits, self.runs = shelf, limits, Runs(limits.context)
        self.first = shelf.names[0]
        self._line: Line[Job] = Line(limits.queue)
        self._lock, self._at_work = threading.Lock(), 0
        threading.Thread(target=_prepare, name="prepare").start()

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Held]:
        """A model, loaded if need be, which stays until the block ends; the first one where the name is empty."""
        async with self.shelf.using(name or self.first) as held:
            if _believed.get() not in ("", loaded(held)):  # no answer may stand beside those of other weights
                raise Gone(f"model {held.name!r} was loaded anew, with other weights; ask for its card again.")
            yield held

    def asked(self, question: Asked) -> AbstractAsyncContextManager[Held]:
        """The model that a question is for; one that is too long is not even read."""
        if (size := question.size) > (most := self.limits.prompt):
            raise Refused(f"{size:,} characters are more than the {most:,} of one request here.")
        return self.using(question.model)

    async def answer(self, question: Asked, function: Callable[..., T], *args: object) -> T:
        """What a function says of the model that a question is for."""
        async with self.asked(question) as held:
            return await self.work(function, held.model, *args)

    async def work(self, function: Callable[..., T], *args: object) -> T:
        """Never on the event loop, which has others to listen to. Who leaves before their turn gives it up."""
        job: Job = _client.get(), Future(), partial(function, *args)
        with self._lock:
            self._line.add(job[0], job)
            if self._at_work < AT_ONCE:
                self._at_work += 1
                Computing(self._work, "page").start()
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
                    self._line.done(client)

    def _next(self) -> Job | None:
        with self._lock:
            if self._line.count:
                return self._line.next()
            self._at_work -= 1
            return None

    async def steps(self, steps: Iterator[T | None]) -> T:
        """The first that is something, a step at a time: others have turns between, and who leaves ends it."""
        while (found := await self.work(next, steps)) is None:
            pass
        return found

    async def run(self, request: RunRequest) -> Run:
        """What a model makes of a text, kept or computed now."""
        async with self.asked(request) as held:
            return await self.work(self.runs.make, held, request)


def _prepare() -> None:
    """What watching needs of torch takes seconds to import: better now than when the first person waits."""
    importlib.import_module("torch._dynamo")
