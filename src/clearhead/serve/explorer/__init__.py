"""The page and its API: /, /page/… and /api/…"""

from fastapi import Depends, FastAPI

from clearhead.serve.explorer.assets import PageAssets, asset_routes
from clearhead.serve.explorer.routes import media, models, positions, tasks, tensors, words
from clearhead.serve.explorer.routes import tensors as blocks
from clearhead.serve.explorer.routes import words as meanings
from clearhead.serve.explorer.service import ExplorerService, set_client
from clearhead.serve.explorer.snapshot import snapshot_routes
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry


def add_explorer(app: FastAPI, shelf: ModelRegistry, limits: Limits) -> None:
    """Give a server the page; `app.state.desk` is where its work is done."""
    desk = ExplorerService(shelf, limits)
    app.state.desk = desk
    app.state.shell = PageAssets()
    app.include_router(asset_routes(app.state.shell))
    app.include_router(snapshot_routes())
    for module in (
        models,
        tensors,
        blocks,
        tasks,
        media,
        tasks,
        models,
        words,
        positions,
        meanings,
        tasks,
    ):
        app.include_router(module.routes(desk), dependencies=[Depends(set_client)])
