"""The web page and its API: /, /page/… and /api/…"""

from fastapi import Depends, FastAPI

from clearhead.serve.explorer.assets import PageAssets, asset_routes
from clearhead.serve.explorer.routes import media, models, positions, tasks, tensors, words
from clearhead.serve.explorer.service import ExplorerService, set_client
from clearhead.serve.explorer.snapshot import snapshot_routes
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry


def add_explorer(app: FastAPI, registry: ModelRegistry, limits: Limits) -> None:
    """Add the page to an app; `app.state.explorer` runs its requests."""
    service = ExplorerService(registry, limits)
    app.state.explorer = service
    app.state.assets = PageAssets()
    app.include_router(asset_routes(app.state.assets))
    app.include_router(snapshot_routes())
    for router in (
        models.model_routes(service),
        models.training_routes(service),
        tensors.run_routes(service),
        words.word_routes(service),
        positions.position_routes(service),
        media.media_routes(service),
        tasks.task_routes(service),
    ):
        app.include_router(router, dependencies=[Depends(set_client)])
