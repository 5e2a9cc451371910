"""`clearhead serve`: models for other programs, through the API that they already speak."""

import math
import os
from urllib.parse import quote

import typer

from clearhead.cli.common import DTYPE_OPTION
from clearhead.errors import ClearheadError


def serve(
    models: list[str] = typer.Argument(
        help="Models as in other commands, or NAME=MODEL.", show_default=False
    ),
    host: str = typer.Option(
        "127.0.0.1", help="Where to listen; all but this machine's own addresses want a key."
    ),
    port: int = typer.Option(8000, help="The port; 0 takes one that is free."),
    api_key: str = typer.Option(
        "",
        envvar="CLEARHEAD_API_KEY",
        help="What clients must know; best kept in the environment.",
        show_default=False,
    ),
    allow_host: list[str] = typer.Option(
        [],
        help="A name by which browsers may call this server; may be given again.",
        show_default=False,
    ),
    max_queue_size: int = typer.Option(
        256, help="How many texts may wait for a model; more are refused (429)."
    ),
    max_num_seqs: int = typer.Option(
        0, help="How many texts a model writes side by side; 0 = as suits the device."
    ),
    max_tokens: int = typer.Option(2048, help="The longest text that may be asked for."),
    max_memory: float = typer.Option(
        0.0, help="GiB that loaded models may take; 0 = half of what the device has."
    ),
    page: bool = typer.Option(False, "--page", help="Also the page of `clearhead explore`."),
    read_only: bool = typer.Option(
        False,
        "--read-only",
        help="For a class: every model is loaded at the start, and none later.",
    ),
    device: str = typer.Option(
        "", help="cpu, or cuda; else a GPU where there is one.", show_default=False
    ),
    dtype: str = DTYPE_OPTION,
) -> None:
    """Serve models to other programs over HTTP.

    Completions, chats and embeddings as the openai client asks for them; translations, classes and words for gaps;
    --page adds the page.
    """
    from clearhead.serve.app import create_app
    from clearhead.serve.middleware import Limits
    from clearhead.serve.registry import ModelRegistry, default_memory_limit, parse_model_paths
    from clearhead.serve.server import bind_socket, is_loopback, run_server
    from clearhead.weights.load import resolve_model

    if not is_loopback(host) and not api_key:
        key = "set CLEARHEAD_API_KEY to a key that they must know"
        raise ClearheadError(f"with --host {host} others can come in; {key}.")
    if not (api_key.isascii() and api_key.isprintable() and api_key == api_key.strip()):
        raise ClearheadError(
            "the key must be of ASCII characters, with no space around them; headers carry no others."
        )
    if not 0 <= max_memory < math.inf:
        raise ClearheadError(
            f"--memory {max_memory:g} is no amount; it must be a number of at least 0."
        )
    paths = parse_model_paths(models)
    for path in paths.values():  # those that are loaded later too
        resolve_model(path)
    limits = Limits(max_batch_size=max_num_seqs, max_queue=max_queue_size, max_tokens=max_tokens)
    shelf = ModelRegistry(
        paths, int(max_memory * 2**30) or default_memory_limit(device), device, dtype
    )
    app = create_app(shelf, limits, api_key, page, [host, *allow_host])
    at = bind_socket(host, port)
    name, port = at.getsockname()[:2]
    url = f"http://{f'[{name}]' if ':' in name else name}:{port}/"
    shown = "…" if api_key == os.environ.get("CLEARHEAD_API_KEY") else quote(api_key, safe="")
    path = (f"?key={shown}" if api_key else "") if page else "v1"

    def ready() -> None:
        typer.echo(f"{', '.join(shelf.names)} at {url}{path} (Ctrl-C ends it)")

    run_server(app, shelf, at, read_only, ready)
