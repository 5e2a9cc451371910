"""Models by name: loaded when someone asks, and put away when others need the room."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

import torch

from clearhead import api
from clearhead.errors import ClearheadError, nearest
from clearhead.lens.vectors import Vectors
from clearhead.model.int8 import quantised
from clearhead.serve.limits import Limits
from clearhead.serve.metrics import Metrics
from clearhead.serve.refused import Refused
from clearhead.serve.scribe import Rows
from clearhead.serve.worker import Worker, stopping
from clearhead.weights.checkpoint import Home

FEW = 8  # models, all of which are named where one is not there


class Held:
    """A model that is loaded. Its worker's thread computes for the API, the page in threads of its own."""

    def __init__(self, name: str, path: str, model: api.Model, shelf: "Shelf") -> None:
        self.name, self.path, self.model, self._shelf = name, path, model, shelf
        self.users = 0

    @cached_property
    def worker(self) -> Worker:
        worker = Worker(self.model, self._shelf.limits, self._shelf.metrics, self.name)
        if self._shelf.stopping:
            worker.close()  # it takes on nothing
        return worker

    @property
    def started(self) -> Worker | None:
        """The worker, if anyone asked for it yet."""
        found: Worker | None = self.__dict__.get("worker")
        return found

    @property
    def busy(self) -> bool:
        return bool(self.users) or (self.started is not None and self.started.busy)

    @property
    def bytes(self) -> int:
        """Of what it always has, and of vectors of words that the page keeps with it: as they are, and of length 1."""
        kept: dict[int | None, Vectors] = vars(self.model).get("_vectors", {})
        return self._own + sum(8 * len(one) * self.model.config.model.width for one in list(kept.values()))

    @cached_property
    def _own(self) -> int:
        """Of its weights, and of the rows of its texts, whether or not anyone has asked for one yet."""
        one = 1 if quantised(self.model.net) else next(self.model.net.parameters()).element_size()
        return self.model.parameters * one + self._rows

    @property
    def _rows(self) -> int:
        try:
            return Rows.of(self.model, self._shelf.limits).bytes
        except ClearheadError:  # it writes no texts
            return 0


class Shelf:
    """Models by name, at most so many bytes of them loaded; the one unused longest goes first, never one in use.

    What a model takes is known when it is there, so for a moment there may be one too many.
    """

    def __init__(self, paths: Mapping[str, str], most_bytes: int, device: str = "", dtype: str = "") -> None:
        self.paths, self.most_bytes, self.device, self.dtype = dict(paths), most_bytes, device, dtype
        self.names = [*paths]
        self.limits, self.metrics = Limits(), Metrics()
        self.held: dict[str, Held] = {}  # in the order of their last use
        self.fixed = self.stopping = False  # whether nothing is loaded any more; nothing is done any more
        self._loading: dict[str, asyncio.Task[Held]] = {}

    @classmethod
    def of(cls, models: Mapping[str, api.Model]) -> Self:
        """A shelf of models that are loaded already, which stay."""
        shelf = cls({}, most_bytes=0)
        shelf.held = {name: Held(name, "", model, shelf) for name, model in models.items()}
        shelf.names = [*models]
        return shelf

    @property
    def bytes(self) -> int:
        return sum(held.bytes for held in self.held.values())

    @property
    def only(self) -> str:
        """The name that goes without saying."""
        if len(self.names) > 1:
            raise Refused(f"several models are served; say which: {', '.join(self.names[:24])}.", param="model")
        return self.names[0]

    def check(self, name: str) -> None:
        if name not in self.names:
            known = nearest(name[:80], self.names)
            if known.endswith("?") and len(self.names) <= FEW:
                known = f"{known} Served are {', '.join(self.names)}."
            raise Refused(f"there is no model {name[:80]!r} here; {known}", 404, "model", "model_not_found")

    async def get(self, name: str) -> Held:
        """The model of that name. It stays at least as long as its worker has work."""
        self._open()
        held = self.held.pop(name, None) or await self._loaded(name)
        self.held[name] = held  # the newest is the last
        self._open()  # loading takes its time
        return held

    def _open(self) -> None:
        if self.stopping:
            raise stopping()

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Held]:
        """The same, and it stays until the block ends."""
        held = await self.get(name)
        held.users += 1
        try:
            yield held
        finally:
            held.users -= 1

    async def load_all(self) -> None:
        """Everything now; nothing is loaded or put away later."""
        for name in self.names:
            await self.get(name)
        if missing := [name for name in self.names if name not in self.held]:
            room = f"{self.most_bytes / 2**30:.1f} GiB hold not all models at once: {missing[0]} is one too many"
            raise ClearheadError(f"{room}; allow more memory, or serve fewer.")
        self.fixed = True

    async def _loaded(self, name: str) -> Held:
        """Those who come meanwhile wait for the same load; who goes away does not end it for the others."""
        self.check(name)
        if self.fixed:
            raise Refused(f"model {name!r} is not loaded, and this server loads none.", 403, "model")
        if name not in self._loading:
            self._loading[name] = asyncio.create_task(self._load(name))
            self._loading[name].add_done_callback(self._seen)
        return await asyncio.shield(self._loading[name])

    def _seen(self, done: asyncio.Task[Held]) -> None:
        """Whatever came of a load, the next one begins anew; if nobody waited, its error is of no interest."""
        self._loading = {name: task for name, task in self._loading.items() if task is not done}
        if not done.cancelled():
            done.exception()

    async def _load(self, name: str) -> Held:
        try:
            model = await asyncio.to_thread(api.load, self.paths[name], device=self.device, dtype=self.dtype)
        except ClearheadError as error:
            raise Refused(f"model {name!r} cannot be loaded: {error}", 503) from None
        held = Held(name, self.paths[name], model, self)
        if held.bytes > self.most_bytes:
            sizes = f"{held.bytes / 2**30:.1f} GiB, more than the {self.most_bytes / 2**30:.1f} GiB"
            rows = "with the rows of its texts, which --slots makes fewer"
            raise Refused(f"{name} needs {sizes} that models may take here (--memory), {rows}.", 503)
        self.held[name] = held
        self._put_away(keep=name)
        return held

    def _put_away(self, keep: str) -> None:
        for name, held in list(self.held.items()):
            if self.bytes <= self.most_bytes:
                return
            if name != keep and not held.busy:
                del self.held[name]
                if held.started:
                    held.started.close()

    async def stop(self, seconds: float) -> None:
        """Nothing new is taken on; what runs may end within so many seconds, and is told to end after them."""
        self.fixed = self.stopping = True
        workers = [held.started for held in self.held.values() if held.started]
        await asyncio.gather(*(worker.stop(seconds) for worker in workers))


def named(words: Iterable[str]) -> dict[str, str]:
    """Paths by name: NAME=PATH, or a path alone, whose last part is the name.

    Of several folders that are all called model, or best, as in runs, it is the name of the folder above.
    """
    given: list[tuple[str, str, bool]] = []  # and whether it was called so
    for word in words:
        name, equals, path = word.partition("=")
        called = bool(equals) and not Path(word).exists()
        if not called:
            name, path = _spelled(word).name.removesuffix(".gguf"), word
        if not name or not path:
            raise ClearheadError(f"{word!r} names no model; write a path, or NAME=PATH.")
        given.append((name, path, called))
    often, found = Counter(name for name, *_ in given), dict[str, str]()
    for own, path, called in given:
        above = often[own] > 1 and own in ("model", "best") and not called
        name = _spelled(path).parent.name if above else own
        if name in found:
            raise ClearheadError(f"two models are called {name!r}; tell them apart with NAME=PATH.")
        found[name] = path
    return found


def _spelled(path: str) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links, whose own names are meant


def half_of(device: str) -> int:
    """Half of the memory of a device, in bytes; where the system does not tell, no bound."""
    if (name := Home.of(device, "").device).startswith("cuda"):
        return torch.cuda.mem_get_info(name)[1] // 2
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError):
        return sys.maxsize
