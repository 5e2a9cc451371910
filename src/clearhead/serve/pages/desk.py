"""Where the page's work is done: models by name, runs by id, computation in threads, a few at once."""

import asyncio
import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from clearhead.serve.limits import Limits
from clearhead.serve.pages.runs import Run, RunRequest, Runs
from clearhead.serve.shelf import Held, Shelf

AT_ONCE = 2  # more would only take each other's cores

T = TypeVar("T")


class Desk:
    def __init__(self, shelf: Shelf, limits: Limits) -> None:
        self.shelf, self.limits, self.runs = shelf, limits, Runs()
        self.first = shelf.names[0]
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="page")
        self._threads.submit(_prepare)

    async def held(self, name: str = "") -> Held:
        """A model, loaded if need be; the first one where no name is given."""
        return await self.shelf.get(name or self.first)

    async def work(self, function: Callable[..., T], *args: object) -> T:
        """Never on the event loop, which has others to listen to."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def run(self, request: RunRequest) -> Run:
        """What a model makes of a text, kept or computed now."""
        async with self.shelf.using(request.model or self.first) as held:
            return await self.work(self.runs.make, held, request)


def _prepare() -> None:
    """What watching needs of torch takes seconds to import: better now than when the first person waits."""
    importlib.import_module("torch._dynamo")
