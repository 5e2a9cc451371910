"""The page and its API: /, /page/… and /api/…"""

from fastapi import Depends, FastAPI

from clearhead.serve.limits import Limits
from clearhead.serve.pages import (
    blocks,
    cards,
    chats,
    meanings,
    media,
    places,
    shapes,
    shell,
    snapshot,
    tensors,
    training,
    words,
    writing,
)
from clearhead.serve.pages.desk import Desk, whose
from clearhead.serve.shelf import Shelf


def add(app: FastAPI, shelf: Shelf, limits: Limits) -> None:
    """Give a server the page; `app.state.desk` is where its work is done."""
    desk = Desk(shelf, limits)
    app.state.desk, app.state.shell = desk, shell.Shell()
    app.include_router(shell.routes(app.state.shell))
    app.include_router(snapshot.routes())
    for module in (cards, tensors, blocks, chats, media, shapes, training, words, places, meanings, writing):
        app.include_router(module.routes(desk), dependencies=[Depends(whose)])
