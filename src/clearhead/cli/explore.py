"""`clearhead explore`: look inside models in the browser."""

import asyncio
import os
import secrets
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from html import escape
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import typer

from clearhead.cli.common import DEVICE_OPTION, DTYPE_OPTION, echo, show_qr_code
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from socket import socket

    from fastapi import FastAPI

NUM_FALLBACK_PORTS = 9
REDIRECT_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={url}">
<title>clearhead</title>
<a href="{url}">Continue to clearhead</a>
</html>
"""


def explore(
    models: list[str] = typer.Argument(
        None,
        metavar="MODEL",
        help="Models as in other commands, or NAME=MODEL. Default: the bundled models.",
        show_default=False,
    ),
    text: str = typer.Option("", help="Text to show first.", show_default=False),
    source: str = typer.Option("", help="Source text to show first.", show_default=False),
    port: int = typer.Option(8800, help="Port, or the next free one; 0 = any."),
    host: str = typer.Option(
        "127.0.0.1", help="Address to listen on; 0.0.0.0 lets other machines in."
    ),
    no_open: bool = typer.Option(False, "--no-open", help="Do not open the browser."),
    output: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Save the page with its data as one .html file instead.",
        show_default=False,
    ),
    device: str = DEVICE_OPTION,
    dtype: str = DTYPE_OPTION,
) -> None:
    """Look inside models in the browser.

    Shows tokens, attention, the residual stream and predictions; heads can be ablated and
    activations edited.

    The printed address contains a key ($CLEARHEAD_API_KEY if set), so that other accounts of this
    machine have no access. For other machines, set --host; for many users, run clearhead serve
    --page.
    """
    from clearhead.serve.app import create_app
    from clearhead.serve.limits import Limits
    from clearhead.serve.registry import ModelRegistry, default_memory_limit, parse_model_paths
    from clearhead.serve.server import is_loopback, run_server, server_url
    from clearhead.weights.load import resolve_model
    from clearhead.word_vectors.io import has_word_vectors

    if output is not None:
        _check_page_path(output)
    paths = parse_model_paths(models or _default_models())
    for path in paths.values():
        if has_word_vectors(resolve_model(path)):
            raise ClearheadError(
                f"{path} contains word vectors, not a model; use clearhead vectors {path}."
            )
    registry = ModelRegistry(paths, default_memory_limit(device), device, dtype)
    if output is not None:
        app = create_app(registry, Limits(), "", page=True, hosts=[host])
        _save_page(app, output, text, source, registry.names)
        return
    # Other accounts of this machine reach the loopback address, too.
    api_key = os.environ.get("CLEARHEAD_API_KEY") or secrets.token_urlsafe(12)
    app = create_app(registry, Limits(), api_key, page=True, hosts=[host], allow_downloads=True)
    listener = _listen_on_free_port(host, port)
    port = listener.getsockname()[1]
    url = f"{server_url(host, port)}?key={quote(api_key)}{_url_fragment(text, source)}"

    def on_ready() -> None:
        echo(f"{', '.join(registry.names)} at {url} (Ctrl-C to stop)")
        if not is_loopback(host):
            show_qr_code(url)
        if not no_open:
            webbrowser.open(files.enter_context(_redirect_file(url)))

    with ExitStack() as files:
        run_server(app, registry, listener, load_all=False, on_ready=on_ready)


def _default_models() -> list[str]:
    """The bundled models, without the bundled word vectors."""
    from clearhead.weights.bundled import BUNDLED_DIR, bundled_models
    from clearhead.word_vectors.io import has_word_vectors

    names = [name for name in bundled_models() if not has_word_vectors(BUNDLED_DIR / name)]
    if not names:
        raise ClearheadError("no models are bundled with this installation; name a model.")
    return names


def _listen_on_free_port(host: str, port: int) -> "socket":
    """Listen on the port, or on one of the next."""
    from clearhead.serve.server import MAX_PORT, PortInUseError, bind_socket

    last_port = max(port, min(port + NUM_FALLBACK_PORTS, MAX_PORT)) if port else port
    for candidate in range(port, last_port + 1):
        with suppress(PortInUseError):
            return bind_socket(host, candidate)
    raise ClearheadError(f"ports {port} to {last_port} are in use on {host}; set another --port.")


def _url_fragment(text: str, source: str) -> str:
    state = {key: value for key, value in (("text", text), ("source", source)) if value}
    return f"#{urlencode(state)}" if state else ""


@contextmanager
def _redirect_file(url: str) -> Iterator[str]:
    """The file:// URL of a temporary page that leads to a URL and is readable by its owner only.

    Other accounts see the arguments of a browser, so they must not contain the key.
    """
    home = Path.home()
    # Browsers in a sandbox, such as Ubuntu's, cannot open files in /tmp.
    folder = home if os.access(home, os.W_OK) else None
    with NamedTemporaryFile("w", prefix="clearhead-", suffix=".html", dir=folder) as file:
        file.write(REDIRECT_PAGE.format(url=escape(url)))
        file.flush()
        yield Path(file.name).as_uri()


def _check_page_path(path: Path) -> None:
    from clearhead.lens.view import check_parent_folder

    if path.suffix not in (".html", ".htm"):
        raise ClearheadError(f"{path} must end in .html.")
    check_parent_folder(path)


def _save_page(app: "FastAPI", path: Path, text: str, source: str, names: list[str]) -> None:
    from clearhead.io import write_atomic
    from clearhead.serve.explorer.saved_page import build_saved_page

    page = asyncio.run(build_saved_page(app, text, source)).encode()
    write_atomic(path, page)
    echo(f"saved {path} ({len(page) / 1e6:.1f} MB)")
    if len(names) > 1:
        echo(f"it contains only {names[0]}; name one model per file")
