"""`clearhead explore`: the page on which a person sees a model think, and can interfere."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import typer

from clearhead.cli.common import DTYPE_OPTION
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from socket import socket

    from fastapi import FastAPI

NEXT = 9  # ports that are tried after one that is taken


def explore(
    models: list[str] = typer.Argument(
        None,
        help="Models as in other commands, or NAME=MODEL; else those that came with clearhead.",
        show_default=False,
    ),
    text: str = typer.Option(
        "",
        help="What the page reads at first; else a sentence of the lectures.",
        show_default=False,
    ),
    source: str = typer.Option(
        "", help="What an encoder-decoder reads at first.", show_default=False
    ),
    port: int = typer.Option(8800, help="The port; the next free one if it is taken, 0 for any."),
    host: str = typer.Option(
        "127.0.0.1", help="Where to listen; others than this machine get in with a key."
    ),
    no_open: bool = typer.Option(False, "--no-open", help="Do not open a browser."),
    output: Path | None = typer.Option(
        None,
        "--out",
        "--save",
        help="Save the page with its numbers as one .html file, and stop.",
        show_default=False,
    ),
    device: str = typer.Option(
        "", help="cpu, or cuda; else a GPU where there is one.", show_default=False
    ),
    dtype: str = DTYPE_OPTION,
) -> None:
    """Look inside models on a page of this machine.

    It shows tokens, heads, streams and predictions; parts can be switched off, to see what becomes of the answer.

    Nobody else can come in, unless --host lets them: the address that is printed then holds a key, which is
    CLEARHEAD_API_KEY where that is set. For many people there is `clearhead serve --page`.
    """
    from clearhead.serve.app import create_app
    from clearhead.serve.middleware import Limits
    from clearhead.serve.registry import ModelRegistry, default_memory_limit, parse_model_paths
    from clearhead.serve.server import bind_socket, is_loopback, run_server
    from clearhead.weights.load import resolve_model

    if output is not None:
        _check_out(output)
    paths = parse_model_paths(models or _default_models())
    for path in paths.values():
        resolve_model(path)
    shelf = ModelRegistry(paths, default_memory_limit(device), device, dtype)
    key = (
        ""
        if is_loopback(host)
        else os.environ.get("CLEARHEAD_API_KEY") or secrets.token_urlsafe(12)
    )
    app = create_app(shelf, Limits(), key, page=True, hosts=[host])
    if output is not None:
        _save(app, output, text, source, shelf.names)
        return
    at = _listen_on_free_port(host, port, bind_socket)
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{at.getsockname()[1]}/{f'?key={quote(key)}' if key else ''}{_url_fragment(text, source)}"

    def ready() -> None:
        typer.echo(f"{', '.join(shelf.names)} at {url} (Ctrl-C ends it)")
        if not no_open:
            import webbrowser

            webbrowser.open(url)

    run_server(app, shelf, at, False, ready)


def _default_models() -> list[str]:
    """The bundled models; vectors of words alone are none."""
    from clearhead.weights.model_cards import BUNDLED_DIR, bundled_models

    here = [name for name in bundled_models() if (BUNDLED_DIR / name / "clearhead.json").is_file()]
    if not here:
        raise ClearheadError(
            "no model was named, and none came with this installation; clearhead explore PATH."
        )
    return here


def _listen_on_free_port(
    host: str, port: int, listening: Callable[[str, int], "socket"]
) -> "socket":
    """The port, or one of the next ones."""
    from clearhead.serve.server import MAX_PORT, PortInUseError

    others = range(port + 1, min(port + NEXT, MAX_PORT) + 1) if port else ()
    for number in (port, *others):
        with suppress(PortInUseError):
            return listening(host, number)
    raise ClearheadError(
        f"port {port} and the {len(others)} after it are taken on {host}; choose another --port."
    )


def _url_fragment(text: str, source: str) -> str:
    given = {key: value for key, value in (("text", text), ("source", source)) if value}
    return f"#{urlencode(given)}" if given else ""


def _check_out(path: Path) -> None:
    from clearhead.lens.view import check_parent_folder

    if path.suffix not in (".html", ".htm"):
        raise ClearheadError(f"{path} must end in .html.")
    check_parent_folder(path)


def _save(app: "FastAPI", path: Path, text: str, source: str, names: list[str]) -> None:
    import asyncio

    from clearhead.io import write_atomic
    from clearhead.serve.explorer.snapshot import build_saved_page

    written = asyncio.run(build_saved_page(app, text, source)).encode()
    write_atomic(path, written)
    told = f" with {names[0]}; name one model for each file" if len(names) > 1 else ""
    typer.echo(f"saved {path} ({len(written) / 1e6:.1f} MB){told}")
