"""All that is served, put together: the API, what tells of the server itself, and the page."""

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from clearhead import __version__
from clearhead.errors import ClearheadError
from clearhead.serve.metrics import Gauges, make_labels, resident_memory_bytes
from clearhead.serve.middleware import AccessMiddleware, APIError, Limits
from clearhead.serve.openai import JSONDict, add_openai_routes
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import stopping_error
from clearhead.serve.tasks import add_task_routes


def create_app(
    shelf: ModelRegistry,
    limits: Limits,
    key: str = "",
    page: bool = False,
    hosts: Sequence[str] = (),
) -> FastAPI:
    """The app for the models of a shelf. `hosts` are names it answers to besides localhost and numbers."""
    shelf.limits = limits
    app = FastAPI(title="clearhead", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(
        AccessMiddleware,
        limits=limits,
        key=key,
        hosts=hosts,
        request_counter=shelf.metrics.requests,
    )
    app.add_exception_handler(ClearheadError, _mistake)
    app.add_exception_handler(RequestValidationError, _misread)
    app.add_exception_handler(HTTPException, _nowhere)
    add_openai_routes(app, shelf, limits)
    add_task_routes(app, shelf, limits)
    _about(app, shelf)
    if page:
        from clearhead.serve.explorer import add_explorer

        add_explorer(app, shelf, limits)
    return app


def _about(app: FastAPI, shelf: ModelRegistry) -> None:
    @app.get("/health")
    async def health() -> JSONDict:
        """Whether work is taken on."""
        if shelf.is_stopping:
            raise stopping_error()
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """What is counted, as Prometheus reads it."""
        at_work = [
            (make_labels(model=name), held.existing_worker)
            for name, held in shelf.loaded.items()
            if held.existing_worker
        ]
        made = [
            (label, scribe) for label, worker in at_work if (scribe := worker.existing_scheduler)
        ]
        now: Gauges = {
            "clearhead_waiting_texts": (
                "Texts that wait.",
                [(label, w.text_queue.num_waiting) for label, w in at_work],
            ),
            "clearhead_slots": (
                "Texts that can be written at once.",
                [(label, m.engine.slots) for label, m in made],
            ),
            "clearhead_slots_used": (
                "Texts being written.",
                [(label, len(m.running)) for label, m in made],
            ),
            "clearhead_models_bytes": (
                "What models take, with the rows of their texts.",
                [(make_labels(model=name), held.num_bytes) for name, held in shelf.loaded.items()],
            ),
            "process_resident_memory_bytes": (
                "Memory of the process.",
                [((), resident_memory_bytes())],
            ),
        }
        return PlainTextResponse(shelf.metrics.render(now), media_type="text/plain; version=0.0.4")


async def _mistake(request: Request, error: Exception) -> Response:
    assert isinstance(error, ClearheadError)
    return _told(APIError.from_error(error))


async def _misread(request: Request, error: Exception) -> Response:
    """What is wrong with a field; where it may be of several kinds, all of them."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if isinstance(own := found[0].get("ctx", {}).get("error"), ClearheadError):
        return _told(APIError.from_error(own))
    if found[0]["type"] == "json_invalid":
        return _told(APIError("the body is not JSON."))
    if isinstance(found[0].get("input"), bytes):
        return _told(APIError("the body was not read; send it as application/json (Content-Type)."))
    name = [*found[0]["loc"], "body"][1]  # loc is the body, its field, places inside that
    wrong = dict.fromkeys(one["msg"].removeprefix("Input ") for one in found if name in one["loc"])
    return _told(
        APIError(
            f"{name}: {' or '.join(wrong) or found[0]['msg']}."[:300].lower(), param=str(name)[:80]
        )
    )


async def _nowhere(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:80]
    instead = path.removeprefix("/v1")
    hint = f"; {instead} is there" if instead in ("/translate", "/classify", "/fill") else ""
    sentences = {
        "Not Found": f"there is nothing at {path}{hint}.",
        "Method Not Allowed": f"{request.method} is not done here.",
    }
    told = _told(APIError(sentences.get(str(error.detail), str(error.detail)), error.status_code))
    told.headers.update(error.headers or {})
    return told


def _told(error: APIError) -> Response:
    return Response(error.body, error.status_code, error.headers, "application/json")
