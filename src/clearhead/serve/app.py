"""The FastAPI application: API, health, metrics, error handlers, and optionally the web page."""

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from clearhead import __version__
from clearhead.errors import ClearheadError
from clearhead.serve.metrics import Gauges, make_labels, resident_memory_bytes
from clearhead.serve.middleware import MAX_NAME_CHARS, AccessMiddleware, APIError, JSONDict, Limits
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
) -> FastAPI:
    """Create the app of a registry. `hosts` are allowed besides localhost and IP addresses."""
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

        add_explorer(app, registry, limits)
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
        text = registry.metrics.render(_gauges(registry))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _gauges(registry: ModelRegistry) -> Gauges:
    model_bytes = []
    num_waiting = []
    max_running = []
    num_running = []
    for name, loaded_model in registry.loaded.items():
        labels = make_labels(model=name)
        model_bytes.append((labels, loaded_model.num_bytes))
        worker = loaded_model.existing_worker
        if worker is None:
            continue
        num_waiting.append((labels, worker.text_queue.num_waiting))
        scheduler = worker.existing_scheduler
        if scheduler is not None:
            max_running.append((labels, scheduler.engine.slots))
            num_running.append((labels, len(scheduler.running)))
    process_bytes = [((), resident_memory_bytes())]
    return {
        "clearhead_num_sequences_waiting": ("Queued sequences.", num_waiting),
        "clearhead_max_num_sequences": ("Maximum batch size.", max_running),
        "clearhead_num_sequences_running": ("Sequences being generated.", num_running),
        "clearhead_model_memory_bytes": ("Memory of models and their KV caches.", model_bytes),
        "process_resident_memory_bytes": ("Resident memory of the process.", process_bytes),
    }


async def _handle_clearhead_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ClearheadError)
    return _error_response(APIError.from_error(error))


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Report the first invalid field; if it may have several types, what each of them expects."""
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    first = details[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ClearheadError):
        return _error_response(APIError.from_error(cause))
    if first["type"] == "json_invalid":
        return _error_response(APIError("Request body is not valid JSON."))
    if isinstance(first.get("input"), bytes):
        return _error_response(
            APIError("Request body must be JSON with Content-Type: application/json.")
        )
    field = str([*first["loc"], "body"][1])[:MAX_NAME_CHARS]  # loc: "body", field, index …
    messages = [
        detail["msg"].removeprefix("Input ")
        for detail in details
        if field in map(str, detail["loc"])
    ]
    reason = " or ".join(dict.fromkeys(messages)) or first["msg"]
    return _error_response(APIError(f"{field}: {reason}."[:MAX_MESSAGE_CHARS], param=field))


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
    response = _error_response(APIError(message, error.status_code))
    response.headers.update(error.headers or {})
    return response


def _error_response(error: APIError) -> Response:
    return Response(error.body, error.status_code, error.headers, "application/json")
