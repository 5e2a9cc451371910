"""The API that programs already speak: /v1/models, completions and chat completions."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from clearhead.serve.asking import check_fits, client_of, conversed, echoed, listed, prompted
from clearhead.serve.job import Job
from clearhead.serve.limits import Limits
from clearhead.serve.refused import Refused
from clearhead.serve.schemas import Chat, Completion, Drawn, Failure
from clearhead.serve.shapes import Shape, Tree
from clearhead.serve.shelf import Shelf

FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": Failure} for status in (400, 401, 403, 404, 413, 429, 500, 503, 504)
}
SSE, LIVE = "text/event-stream", {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"


def add(app: FastAPI, shelf: Shelf, limits: Limits) -> None:
    """The paths of the API that write."""

    @app.get("/v1/models")
    async def models() -> Tree:
        return {"object": "list", "data": [_model(shelf, name) for name in shelf.names]}

    @app.get("/v1/models/{name:path}", responses=FAILURES)
    async def model(name: str) -> Tree:
        shelf.check(name)
        return _model(shelf, name)

    @app.post("/v1/completions", responses=FAILURES)
    async def completions(asked: Completion, request: Request) -> Response:
        given, client = listed(asked.prompt, limits, asked.n), client_of(request)
        async with shelf.using(asked.model) as held:
            check_fits(held, "/v1/completions")
            held.worker.check(client, len(given) * asked.n)
            texts = await asyncio.to_thread(prompted, held, asked, given, limits)
            told = asked.logprobs is not None
            shape = Shape(held, texts, False, told, await echoed(held, client, asked, texts))
            if asked.max_tokens == 0:
                shelf.metrics.read.add(shape.read, model=held.name)
                return _whole(shape.heads(), asked.stream)
            job = held.worker.write(client, texts)
        return await _answer(job, shape, asked)

    @app.post("/v1/chat/completions", responses=FAILURES)
    async def chat_completions(asked: Chat, request: Request) -> Response:
        client = client_of(request)
        listed("".join(message.plain()["content"] for message in asked.messages), limits, asked.n)
        if asked.top_logprobs and not asked.logprobs:
            raise Refused("top_logprobs needs logprobs to be true.", param="top_logprobs")
        async with shelf.using(asked.model) as held:
            check_fits(held, "/v1/completions")
            held.worker.check(client, asked.n)
            texts = await asyncio.to_thread(conversed, held, asked, limits)
            job = held.worker.write(client, texts)
        return await _answer(job, Shape(held, texts, True, asked.logprobs), asked)


async def _answer(job: Job, shape: Shape, asked: Drawn) -> Response:
    """All at once, or a stream. That begins with the first token: what goes wrong before has a status of its own."""
    if asked.stream:
        try:
            await job.begin()
        except BaseException:
            job.close()
            raise
        return Events(job, shape, asked.stream_options.include_usage)
    all_of_it = []
    with job:
        while pieces := await job.take():
            all_of_it += pieces
    return JSONResponse(shape.whole(all_of_it))


def _whole(tree: Tree, stream: bool) -> Response:
    """What is known already; where a stream was asked for, as its only event."""
    return Response(_event(tree) + DONE, headers=LIVE, media_type=SSE) if stream else JSONResponse(tree)


class Events(StreamingResponse):
    """A job's answer while it is written; when it ends, or nobody listens any more, so does the job."""

    def __init__(self, job: Job, shape: Shape, usage: bool) -> None:
        super().__init__(_events(job, shape, usage), headers=LIVE, media_type=SSE)
        self.job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.job.reader = asyncio.current_task()
        with self.job:
            await self.stream_response(send)


async def _events(job: Job, shape: Shape, usage: bool) -> AsyncIterator[bytes]:
    """What is there already goes out together."""
    some = shape.opening()
    try:
        while pieces := await job.take():
            yield b"".join(map(_event, [*some, *map(shape.chunk, pieces)]))
            some = []
        if usage:
            some.append(shape.closing())
    except Refused as error:
        some.append(error.tree)
    yield b"".join(map(_event, some)) + DONE


def _event(tree: Tree) -> bytes:
    return b"data: " + json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n\n"


def _model(shelf: Shelf, name: str) -> Tree:
    path = Path(shelf.paths.get(name, ""))
    created = int(path.stat().st_mtime) if path.name and path.exists() else 0
    return {"id": name, "object": "model", "created": created, "owned_by": "clearhead"}
