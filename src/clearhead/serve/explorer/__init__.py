"""The web page and its API: /, /page/… and /api/…"""

from fastapi import Depends, FastAPI

from clearhead.serve.explorer.assets import PageAssets, asset_routes
from clearhead.serve.explorer.executor import ExplorerExecutor, set_client
from clearhead.serve.explorer.routes import (
    activations,
    downloads,
    measurements,
    media,
    models,
    positions,
    tasks,
    training,
    words,
)
from clearhead.serve.explorer.saved_page import snapshot_routes
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry


def add_explorer(
    app: FastAPI, registry: ModelRegistry, limits: Limits, *, allow_downloads: bool
) -> None:
    """Add the page to an app; `app.state.explorer` runs its requests."""
    executor = ExplorerExecutor(registry, limits)
    app.state.explorer = executor
    app.state.assets = PageAssets()
    app.include_router(asset_routes(app.state.assets))
    app.include_router(snapshot_routes())
    for router in (
        models.model_routes(executor),
        training.training_routes(executor),
        activations.activation_routes(executor),
        words.word_routes(executor),
        positions.position_routes(executor),
        measurements.measurement_routes(executor),
        media.media_routes(executor),
        tasks.task_routes(executor),
        downloads.download_routes(executor, is_allowed=allow_downloads),
    ):
        app.include_router(router, dependencies=[Depends(set_client)])
