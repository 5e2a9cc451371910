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

from clearhead.api import Model, load
from clearhead.errors import ClearheadError, suggest
from clearhead.model.int8 import is_quantized
from clearhead.serve.metrics import Metrics
from clearhead.serve.middleware import APIError, Limits
from clearhead.serve.scheduler import BatchCapacity, ModelWorker, stopping_error
from clearhead.weights.checkpoint import Placement
from clearhead.word_vectors.vectors import Vectors

MAX_LISTED_NAMES = 8  # models, all of which are named where one is not there


class LoadedModel:
    """A model that is loaded. Its worker's thread computes for the API, the page in threads of its own."""

    def __init__(self, name: str, path: str, model: Model, shelf: "ModelRegistry") -> None:
        self.name = name
        self.path = path
        self.model = model
        self._shelf = shelf
        self.num_users = 0

    @cached_property
    def worker(self) -> ModelWorker:
        worker = ModelWorker(self.model, self._shelf.limits, self._shelf.metrics, self.name)
        if self._shelf.is_stopping:
            worker.close()  # it takes on nothing
        return worker

    @property
    def existing_worker(self) -> ModelWorker | None:
        """The worker, if anyone asked for it yet."""
        found: ModelWorker | None = self.__dict__.get("worker")
        return found

    @property
    def is_busy(self) -> bool:
        return bool(self.num_users) or (
            self.existing_worker is not None and self.existing_worker.is_busy
        )

    @property
    def num_bytes(self) -> int:
        """Of what it always has, and of vectors of words that the page keeps with it: as they are, and of length 1."""
        kept: dict[int | None, Vectors] = vars(self.model).get("_vectors", {})
        return self._own + sum(
            8 * len(one) * self.model.config.model.d_model for one in list(kept.values())
        )

    @cached_property
    def _own(self) -> int:
        """Of its weights, and of the rows of its texts, whether or not anyone has asked for one yet."""
        one = (
            1 if is_quantized(self.model.net) else next(self.model.net.parameters()).element_size()
        )
        return self.model.num_parameters() * one + self._rows

    @property
    def _rows(self) -> int:
        try:
            return BatchCapacity.from_model(self.model, self._shelf.limits).num_bytes
        except ClearheadError:  # it writes no texts
            return 0


class ModelRegistry:
    """Models by name, at most so many bytes of them loaded; the one unused longest goes first, never one in use.

    What a model takes is known when it is there, so for a moment there may be one too many.
    """

    def __init__(
        self, paths: Mapping[str, str], max_bytes: int, device: str = "", dtype: str = ""
    ) -> None:
        self.paths = dict(paths)
        self.max_bytes = max_bytes
        self.device = device
        self.dtype = dtype
        self.names = [*paths]
        self.limits = Limits()
        self.metrics = Metrics()
        self.loaded: dict[str, LoadedModel] = {}  # in the order of their last use
        self.is_frozen = self.is_stopping = (
            False  # whether nothing is loaded any more; nothing is done any more
        )
        self._loading: dict[str, asyncio.Task[LoadedModel]] = {}

    @classmethod
    def from_models(cls, models: Mapping[str, Model]) -> Self:
        """A shelf of models that are loaded already, which stay."""
        shelf = cls({}, max_bytes=0)
        shelf.loaded = {name: LoadedModel(name, "", model, shelf) for name, model in models.items()}
        shelf.names = [*models]
        return shelf

    @property
    def num_bytes(self) -> int:
        return sum(held.num_bytes for held in self.loaded.values())

    @property
    def default_name(self) -> str:
        """The name that goes without saying."""
        if len(self.names) > 1:
            raise APIError(
                f"several models are served; say which: {', '.join(self.names[:24])}.",
                param="model",
            )
        return self.names[0]

    def check_name(self, name: str) -> None:
        if name not in self.names:
            known = suggest(name[:80], self.names)
            if known.endswith("?") and len(self.names) <= MAX_LISTED_NAMES:
                known = f"{known} Served are {', '.join(self.names)}."
            raise APIError(
                f"there is no model {name[:80]!r} here; {known}", 404, "model", "model_not_found"
            )

    async def get(self, name: str) -> LoadedModel:
        """The model of that name. It stays at least as long as its worker has work."""
        self._open()
        held = self.loaded.pop(name, None) or await self._loaded(name)
        self.loaded[name] = held  # the newest is the last
        self._open()  # loading takes its time
        return held

    def _open(self) -> None:
        if self.is_stopping:
            raise stopping_error()

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[LoadedModel]:
        """The same, and it stays until the block ends."""
        held = await self.get(name)
        held.num_users += 1
        try:
            yield held
        finally:
            held.num_users -= 1

    async def load_all(self) -> None:
        """Everything now; nothing is loaded or put away later."""
        for name in self.names:
            await self.get(name)
        if missing := [name for name in self.names if name not in self.loaded]:
            room = f"{self.max_bytes / 2**30:.1f} GiB hold not all models at once: {missing[0]} is one too many"
            raise ClearheadError(f"{room}; allow more memory, or serve fewer.")
        self.is_frozen = True

    async def _loaded(self, name: str) -> LoadedModel:
        """Those who come meanwhile wait for the same load; who goes away does not end it for the others."""
        self.check_name(name)
        if self.is_frozen:
            raise APIError(
                f"model {name!r} is not loaded, and this server loads none.", 403, "model"
            )
        if name not in self._loading:
            self._loading[name] = asyncio.create_task(self._load(name))
            self._loading[name].add_done_callback(self._seen)
        return await asyncio.shield(self._loading[name])

    def _seen(self, done: asyncio.Task[LoadedModel]) -> None:
        """Whatever came of a load, the next one begins anew; if nobody waited, its error is of no interest."""
        self._loading = {name: task for name, task in self._loading.items() if task is not done}
        if not done.cancelled():
            done.exception()

    async def _load(self, name: str) -> LoadedModel:
        try:
            model = await asyncio.to_thread(
                load, self.paths[name], device=self.device, dtype=self.dtype
            )
        except ClearheadError as error:
            raise APIError(f"model {name!r} cannot be loaded: {error}", 503) from None
        held = LoadedModel(name, self.paths[name], model, self)
        if held.num_bytes > self.max_bytes:
            sizes = (
                f"{held.num_bytes / 2**30:.1f} GiB, more than the {self.max_bytes / 2**30:.1f} GiB"
            )
            rows = "with the rows of its texts, which --slots makes fewer"
            raise APIError(
                f"{name} needs {sizes} that models may take here (--memory), {rows}.", 503
            )
        self.loaded[name] = held
        self._put_away(keep=name)
        return held

    def _put_away(self, keep: str) -> None:
        for name, held in list(self.loaded.items()):
            if self.num_bytes <= self.max_bytes:
                return
            if name != keep and not held.is_busy:
                del self.loaded[name]
                if held.existing_worker:
                    held.existing_worker.close()

    async def stop(self, seconds: float) -> None:
        """Nothing new is taken on; what runs may end within so many seconds, and is told to end after them."""
        self.is_frozen = self.is_stopping = True
        workers = [held.existing_worker for held in self.loaded.values() if held.existing_worker]
        await asyncio.gather(*(worker.stop(seconds) for worker in workers))


def parse_model_paths(words: Iterable[str]) -> dict[str, str]:
    """Paths by name: NAME=PATH, or a path alone, whose last part is the name.

    Of several folders that are all called model, or best, as in runs, it is the name of the folder above.
    """
    given: list[tuple[str, str, bool]] = []  # and whether it was called so
    for word in words:
        name, equals, path = word.partition("=")
        called = bool(equals) and not Path(word).exists()
        if not called:
            name = _spelled(word).name.removesuffix(".gguf")
            path = word
        if not name or not path:
            raise ClearheadError(f"{word!r} names no model; write a path, or NAME=PATH.")
        given.append((name, path, called))
    often = Counter(name for name, *_ in given)
    found = dict[str, str]()
    for own, path, called in given:
        above = often[own] > 1 and own in ("model", "best") and not called
        name = _spelled(path).parent.name if above else own
        if name in found:
            raise ClearheadError(f"two models are called {name!r}; tell them apart with NAME=PATH.")
        found[name] = path
    return found


def _spelled(path: str) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links, whose own names are meant


def default_memory_limit(device: str) -> int:
    """Half of the memory of a device, in bytes; where the system does not tell, no bound."""
    if (name := Placement.from_names(device, "").device).startswith("cuda"):
        return torch.cuda.mem_get_info(name)[1] // 2
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError):
        return sys.maxsize
