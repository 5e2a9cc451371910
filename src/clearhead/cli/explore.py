"""`clearhead explore`: the page on which a person sees a model think, and can interfere."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clearhead.cli.flags import DTYPE
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from socket import socket

    from fastapi import FastAPI


def explore(
    models: list[str] = typer.Argument(
        None, help="Models as in other commands, or NAME=MODEL; else what `clearhead demo` made.", show_default=False
    ),
    text: str = typer.Option(
        "", help="What the page reads at first; else a sentence of the lectures.", show_default=False
    ),
    source: str = typer.Option("", help="What an encoder-decoder reads at first.", show_default=False),
    port: int = typer.Option(8800, help="The port; the next free one if it is taken, 0 for any."),
    no_open: bool = typer.Option(False, "--no-open", help="Do not open a browser."),
    save: Path | None = typer.Option(
        None, help="Save the page with its numbers as one .html file, and stop.", show_default=False
    ),
    device: str = typer.Option("", help="cpu, or cuda; else a GPU where there is one.", show_default=False),
    dtype: str = DTYPE,
) -> None:
    """Look inside models on a page of this machine: tokens, heads, streams, predictions; switch parts off and see.

    Nobody else can come in; `clearhead serve --page` is for several people.
    """
    from clearhead.serve.app import build
    from clearhead.serve.limits import Limits
    from clearhead.serve.server import listening, run
    from clearhead.serve.shelf import Shelf, half_of, named

    if save is not None:
        _check_save(save)
    shelf = Shelf(named(models or _usual()), half_of(device), device, dtype)
    app = build(shelf, Limits(), page=True)
    if save is not None:
        _save(app, save, text, source)
        return
    at = _free(port, listening)
    url = f"http://127.0.0.1:{at.getsockname()[1]}/{_state(text, source)}"

    def ready() -> None:
        typer.echo(f"{', '.join(shelf.names)} at {url} (Ctrl-C ends it)")
        if not no_open:
            import webbrowser

            webbrowser.open(url)

    run(app, shelf, at, False, ready)


def _usual() -> list[str]:
    """What the demo leaves behind."""
    if not Path("demo/model").is_dir():
        raise ClearheadError("no model was named; clearhead explore PATH, or let clearhead demo make one first.")
    return ["demo/model"]


def _free(port: int, listening: Callable[[str, int], "socket"]) -> "socket":
    """The port, or one of the next ones."""
    for number in range(port, port + 10 if port else 1):
        try:
            return listening("127.0.0.1", number)
        except ClearheadError:
            if number == port + 9 or not port:
                raise
    raise AssertionError


def _state(text: str, source: str) -> str:
    from urllib.parse import urlencode

    given = {key: value for key, value in (("text", text), ("source", source)) if value}
    return f"#{urlencode(given)}" if given else ""


def _check_save(path: Path) -> None:
    from clearhead.lens.view import check_folder

    if path.suffix not in (".html", ".htm"):
        raise ClearheadError(f"{path} must end in .html.")
    check_folder(path)


def _save(app: "FastAPI", path: Path, text: str, source: str) -> None:
    import asyncio

    from clearhead.files import overwrite
    from clearhead.serve.pages.snapshot import page

    written = asyncio.run(page(app, text, source)).encode()
    overwrite(path, written)
    typer.echo(f"saved {path} ({len(written) / 1e6:.1f} MB)")
