"""`clearhead serve`: serve models over HTTP with an OpenAI-compatible API."""

import math
import os
from urllib.parse import quote

import typer

from clearhead.cli.common import DEVICE_OPTION, DTYPE_OPTION, echo, show_qr_code
from clearhead.errors import ClearheadError


def serve(
    models: list[str] = typer.Argument(
        metavar="MODEL", help="Models as in other commands, or NAME=MODEL.", show_default=False
    ),
    host: str = typer.Option(
        "127.0.0.1", help="Address to listen on; a public one requires --api-key."
    ),
    port: int = typer.Option(8000, help="Port; 0 = any free one."),
    api_key: str = typer.Option(
        "", envvar="CLEARHEAD_API_KEY", help="API key that clients must send.", show_default=False
    ),
    allow_host: list[str] = typer.Option(
        [],
        metavar="HOST",
        help="Host name that browsers may use for this server. May be repeated.",
        show_default=False,
    ),
    max_queue: int = typer.Option(
        256, help="Maximum number of waiting sequences per model; more get status 429."
    ),
    max_batch_size: int = typer.Option(
        0, help="Sequences per model decoded in one batch; 0 = best for the device."
    ),
    max_tokens: int = typer.Option(2048, help="Maximum number of output tokens per request."),
    max_memory: float = typer.Option(
        0.0, help="Memory for loaded models in GiB; 0 = half of the device memory."
    ),
    page: bool = typer.Option(False, "--page", help="Also serve the page of clearhead explore."),
    read_only: bool = typer.Option(
        False, "--read-only", help="Load all models at startup, and allow no others."
    ),
    device: str = DEVICE_OPTION,
    dtype: str = DTYPE_OPTION,
) -> None:
    """Serve models over HTTP.

    Completions, chat completions and embeddings as the openai client expects them; /translate,
    /classify and /fill; with --page, the page of clearhead explore.
    """
    from clearhead.serve.app import create_app
    from clearhead.serve.limits import Limits
    from clearhead.serve.registry import ModelRegistry, default_memory_limit, parse_model_paths
    from clearhead.serve.server import bind_socket, is_loopback, run_server, server_url
    from clearhead.weights.load import resolve_model

    if not is_loopback(host) and not api_key:
        raise ClearheadError(
            f"--host {host} is accessible from other machines; set CLEARHEAD_API_KEY to a key "
            "that clients must send."
        )
    if not (api_key.isascii() and api_key.isprintable() and api_key == api_key.strip()):
        raise ClearheadError("the API key must be printable ASCII without surrounding spaces.")
    if not 0 <= max_memory < math.inf:
        raise ClearheadError(f"--max-memory must be a non-negative number, got {max_memory:g}.")
    paths = parse_model_paths(models)
    for path in paths.values():  # fail now, not when a model is first requested
        resolve_model(path)
    limits = Limits(max_batch_size=max_batch_size, max_queue=max_queue, max_tokens=max_tokens)
    memory_limit = int(max_memory * 2**30) or default_memory_limit(device)
    registry = ModelRegistry(paths, memory_limit, device, dtype)
    app = create_app(registry, limits, api_key, page, [host, *allow_host])
    listener = bind_socket(host, port)
    url = server_url(*listener.getsockname()[:2])
    is_secret = api_key == os.environ.get("CLEARHEAD_API_KEY")  # not printed
    query = f"?key={'…' if is_secret else quote(api_key, safe='')}" if api_key else ""

    def on_ready() -> None:
        address = f"{url}{query}" if page else f"{url}v1"
        echo(f"{', '.join(registry.names)} at {address} (Ctrl-C to stop)")
        if page and not is_loopback(host):
            show_qr_code(url if is_secret else address)  # without the key, a form asks for it

    run_server(app, registry, listener, load_all=read_only, on_ready=on_ready)
