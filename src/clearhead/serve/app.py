"""The FastAPI application: API, health, metrics, error handlers, and optionally the web page."""

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from clearhead import __version__
from clearhead.errors import ClearheadError
from clearhead.serve.errors import APIError, JSONDict
from clearhead.serve.limits import Limits
from clearhead.serve.middleware import MAX_NAME_CHARS, AccessMiddleware
from clearhead.serve.openai import add_openai_routes
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import stopping_error
from clearhead.serve.tasks import TASK_PATHS, add_task_routes

MAX_MESSAGE_CHARS = 300


def create_app(
    registry: ModelRegistry,
    limits: Limits,
    api_key: str = "",
    page: bool = False,
    hosts: Sequence[str] = (),
    allow_downloads: bool = False,
) -> FastAPI:
    """Create the app of a registry. `hosts` are allowed besides localhost and IP addresses.

    With `allow_downloads`, users of the page can download models of a fixed list.
    """
    registry.limits = limits
    app = FastAPI(title="clearhead", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(
        AccessMiddleware,
        limits=limits,
        api_key=api_key,
        hosts=hosts,
        request_counter=registry.metrics.requests,
    )
    app.add_exception_handler(ClearheadError, _handle_clearhead_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    add_openai_routes(app, registry, limits)
    add_task_routes(app, registry, limits)
    _add_status_routes(app, registry)
    if page:
        from clearhead.serve.explorer import add_explorer

        add_explorer(app, registry, limits, allow_downloads=allow_downloads)
    return app


def _add_status_routes(app: FastAPI, registry: ModelRegistry) -> None:
    @app.get("/health")
    async def health() -> JSONDict:
        """Whether the server accepts requests."""
        if registry.is_stopping:
            raise stopping_error()
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(generate_latest(registry.metrics), media_type=CONTENT_TYPE_LATEST)


async def _handle_clearhead_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ClearheadError)
    return APIError.from_error(error).to_response()


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Report the first invalid field; if it may have several types, what each of them expects."""
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    first = details[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ClearheadError):
        return APIError.from_error(cause).to_response()
    if first["type"] == "json_invalid":
        return APIError("Request body is not valid JSON.").to_response()
    if isinstance(first.get("input"), bytes):
        message = "Request body must be JSON with Content-Type: application/json."
        return APIError(message).to_response()
    field = str([*first["loc"], "body"][1])[:MAX_NAME_CHARS]  # loc: "body", field, index …
    messages = [
        detail["msg"].removeprefix("Input ")
        for detail in details
        if field in map(str, detail["loc"])
    ]
    reason = " or ".join(dict.fromkeys(messages)) or first["msg"]
    return APIError(f"{field}: {reason}."[:MAX_MESSAGE_CHARS], param=field).to_response()


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:MAX_NAME_CHARS]
    message = str(error.detail)
    if message == "Not Found":
        alternative = path.removeprefix("/v1")
        hint = f" Use {alternative}." if path != alternative and alternative in TASK_PATHS else ""
        message = f"Not found: {path}.{hint}"
    elif message == "Method Not Allowed":
        message = f"Method {request.method} is not allowed for {path}."
    response = APIError(message, error.status_code).to_response()
    response.headers.update(error.headers or {})
    return response
