"""Registry of served models: loads them on demand and evicts the least recently used."""

import asyncio
import hashlib
import os
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Self

import torch

from clearhead.api import Model, load
from clearhead.errors import ClearheadError, suggest
from clearhead.model.int8 import is_quantized
from clearhead.serve.errors import APIError
from clearhead.serve.limits import Limits
from clearhead.serve.metrics import Metrics, ModelCollector
from clearhead.serve.middleware import MAX_NAME_CHARS
from clearhead.serve.scheduler import BatchCapacity, FairThreads, ModelWorker, stopping_error
from clearhead.weights.tensors import Placement
from clearhead.word_vectors.vectors import Vectors, vectors

MAX_LISTED_NAMES = 8  # an error for an unknown name lists all names up to this many
MAX_ERROR_NAMES = 24
GENERIC_FOLDER_NAMES = ("model", "best")
NUM_TOKENIZER_THREADS = 2
MAX_QUEUED_TOKENIZATIONS = 1024
GIB = 2**30
MAX_LAYER_BYTES = GIB // 4  # of the word vectors of one model after its layers


class LoadedModel:
    """A loaded model with its worker (for the API) and its word vectors (for the page)."""

    def __init__(self, name: str, path: str, model: Model, registry: "ModelRegistry") -> None:
        self.name = name
        self.path = path
        self.model = model
        self.num_users = 0
        self._registry = registry
        self._word_vectors: dict[int | None, Vectors] = {}  # by layer
        self._word_vectors_lock = Lock()

    @cached_property
    def worker(self) -> ModelWorker:
        registry = self._registry
        worker = ModelWorker(self.model, registry.limits, registry.metrics, self.name)
        if registry.is_stopping:
            worker.close()
        return worker

    @property
    def existing_worker(self) -> ModelWorker | None:
        """The worker, if it was used before."""
        worker: ModelWorker | None = self.__dict__.get("worker")
        return worker

    @property
    def is_busy(self) -> bool:
        worker = self.existing_worker
        return bool(self.num_users) or (worker is not None and worker.is_busy)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the weights: stable until the files change; random for in-memory models."""
        path = Path(self.path).resolve()
        if not self.path or not path.exists():
            return secrets.token_hex(8)
        files = sorted(
            file for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()
        )
        stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        parameter = next(self.model.net.parameters())
        identity = (path, stats, parameter.device.type, parameter.dtype)
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]

    def word_vectors(self, layer: int | None = None) -> Vectors:
        """Vectors of all words: embeddings (None) or a layer.

        Caches embeddings and the last layers, as many as fit into `MAX_LAYER_BYTES`.
        """
        with self._word_vectors_lock:
            cached = self._word_vectors.pop(layer, None)
            if cached is None:
                cached = vectors(self.model, layer)
            self._word_vectors[layer] = cached  # most recently used last
            layers = [key for key in self._word_vectors if key is not None]
            max_layers = max(1, MAX_LAYER_BYTES // self._vectors_bytes(cached))
            for other_layer in layers[:-max_layers]:
                del self._word_vectors[other_layer]
        return cached

    def _vectors_bytes(self, vectors: Vectors) -> int:
        """Memory of vectors, raw and normalized."""
        return 2 * 4 * len(vectors) * self.model.config.model.d_model

    @property
    def num_bytes(self) -> int:
        """Memory of weights, KV cache (allocated or not) and word vectors (raw and normalized)."""
        return self._fixed_bytes + sum(map(self._vectors_bytes, list(self._word_vectors.values())))

    @cached_property
    def _fixed_bytes(self) -> int:
        net = self.model.net
        bytes_per_weight = 1 if is_quantized(net) else next(net.parameters()).element_size()
        try:
            cache_bytes = BatchCapacity.from_model(self.model, self._registry.limits).num_bytes
        except ClearheadError:  # not a generative model
            cache_bytes = 0
        return self.model.num_parameters() * bytes_per_weight + cache_bytes


class ModelRegistry:
    """Models by name. Loaded models use at most `max_bytes`; models in use are never evicted.

    The size of a model is known after loading it, so one model too many may be loaded briefly.
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
        self.loaded: dict[str, LoadedModel] = {}  # least recently used first
        self.tokenizer_threads = FairThreads(NUM_TOKENIZER_THREADS, MAX_QUEUED_TOKENIZATIONS)
        self.metrics = Metrics()
        self.metrics.register(ModelCollector(self.loaded))
        self.is_frozen = False  # no more models are loaded
        self.is_stopping = False
        self._load_tasks: dict[str, asyncio.Task[LoadedModel]] = {}

    @classmethod
    def from_models(cls, models: Mapping[str, Model]) -> Self:
        """Create a registry of models that are already loaded and stay loaded."""
        registry = cls({}, max_bytes=0)
        for name, model in models.items():
            registry.loaded[name] = LoadedModel(name, "", model, registry)
        registry.names = [*models]
        return registry

    @property
    def num_bytes(self) -> int:
        return sum(loaded_model.num_bytes for loaded_model in self.loaded.values())

    @property
    def default_name(self) -> str:
        """The only name, for requests without a model."""
        if len(self.names) > 1:
            names = ", ".join(self.names[:MAX_ERROR_NAMES])
            raise APIError(f"model is required; this server has {names}.", param="model")
        return self.names[0]

    def add(self, name: str, path: str) -> None:
        """Add a model, to be loaded on demand; keeps a model that has this name."""
        if name not in self.names:
            self.paths[name] = path
            self.names.append(name)

    def check_name(self, name: str) -> None:
        if name in self.names:
            return
        short_name = name[:MAX_NAME_CHARS]
        hint = suggest(short_name, self.names)
        if hint.endswith("?") and len(self.names) <= MAX_LISTED_NAMES:
            hint = f"{hint} Available: {', '.join(self.names)}."
        raise APIError(f"Model {short_name!r} not found; {hint}", 404, "model", "model_not_found")

    async def get(self, name: str) -> LoadedModel:
        """Get a model, loading it if needed. It stays loaded while its worker is busy."""
        self._check_not_stopping()
        loaded_model = self.loaded.pop(name, None) or await self._load(name)
        self.loaded[name] = loaded_model  # most recently used last
        self._check_not_stopping()  # loading takes time
        return loaded_model

    def _check_not_stopping(self) -> None:
        if self.is_stopping:
            raise stopping_error()

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[LoadedModel]:
        """Get a model, the only one if `name` is empty, that stays loaded until the block ends."""
        loaded_model = await self.get(name or self.default_name)
        loaded_model.num_users += 1
        try:
            yield loaded_model
        finally:
            loaded_model.num_users -= 1

    async def load_all(self) -> None:
        """Load all models now and never load or evict any later."""
        for name in self.names:
            await self.get(name)
        for name in self.names:
            if name not in self.loaded:
                raise ClearheadError(
                    f"Models do not fit into {self.max_bytes / GIB:.1f} GiB together: {name} does "
                    "not fit. Increase --max-memory or serve fewer models."
                )
        self.is_frozen = True

    async def _load(self, name: str) -> LoadedModel:
        """Load a model; concurrent requests share one load, which outlives a cancelled request."""
        self.check_name(name)
        if self.is_frozen:
            raise APIError(f"Model {name!r} is not loaded (--read-only).", 403, "model")
        if name not in self._load_tasks:
            task = asyncio.create_task(self._load_from_path(name))
            task.add_done_callback(self._forget_task)
            self._load_tasks[name] = task
        return await asyncio.shield(self._load_tasks[name])

    def _forget_task(self, finished: asyncio.Task[LoadedModel]) -> None:
        self._load_tasks = {
            name: task for name, task in self._load_tasks.items() if task is not finished
        }
        if not finished.cancelled():
            finished.exception()  # mark as retrieved, in case nobody waits

    async def _load_from_path(self, name: str) -> LoadedModel:
        path = self.paths[name]
        try:
            model = await asyncio.to_thread(load, path, device=self.device, dtype=self.dtype)
        except ClearheadError as error:
            raise APIError(f"Cannot load model {name!r}: {error}", 503) from None
        loaded_model = LoadedModel(name, path, model, self)
        if loaded_model.num_bytes > self.max_bytes:
            raise APIError(
                f"{name} needs {loaded_model.num_bytes / GIB:.1f} GiB including its KV cache; "
                f"--max-memory is {self.max_bytes / GIB:.1f} GiB. Increase it, or reduce "
                "--max-batch-size.",
                503,
            )
        self.loaded[name] = loaded_model
        self._evict(keep=name)
        return loaded_model

    def _evict(self, keep: str) -> None:
        for name, loaded_model in list(self.loaded.items()):
            if self.num_bytes <= self.max_bytes:
                return
            if name != keep and not loaded_model.is_busy:
                del self.loaded[name]
                if loaded_model.existing_worker:
                    loaded_model.existing_worker.close()

    async def stop(self, timeout: float) -> None:
        """Reject new work; let running work finish within the timeout."""
        self.is_frozen = True
        self.is_stopping = True
        workers = [loaded_model.existing_worker for loaded_model in self.loaded.values()]
        await asyncio.gather(*(worker.stop(timeout) for worker in workers if worker))


def parse_model_paths(arguments: Iterable[str]) -> dict[str, str]:
    """Parse NAME=PATH or PATH arguments into paths by name.

    Without NAME, the name is the last part of the path; if several paths end in the same generic
    folder name (model, best), it is the name of the parent folder.
    """
    entries: list[tuple[str, str, bool]] = []  # name, path, whether the name was given
    for argument in arguments:
        name, equals, path = argument.partition("=")
        has_name = bool(equals) and not Path(argument).exists()
        if not has_name:
            name = _absolute(argument).name.removesuffix(".gguf")
            path = argument
        if not name or not path:
            raise ClearheadError(f"models must be MODEL or NAME=MODEL, got {argument!r}.")
        entries.append((name, path, has_name))
    counts = Counter(name for name, _, _ in entries)
    paths: dict[str, str] = {}
    for name, path, has_name in entries:
        use_parent = counts[name] > 1 and name in GENERIC_FOLDER_NAMES and not has_name
        unique_name = _absolute(path).parent.name if use_parent else name
        if unique_name in paths:
            raise ClearheadError(
                f"two models are named {unique_name!r}; rename one with NAME=MODEL."
            )
        paths[unique_name] = path
    return paths


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow symlinks


def default_memory_limit(device: str) -> int:
    """Half of the device's memory in bytes; unlimited if the system does not report it."""
    device_name = Placement.from_names(device, "").device
    if device_name.startswith("cuda"):
        return torch.cuda.mem_get_info(device_name)[1] // 2
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError):
        return sys.maxsize
