"""Texts that are written before one's eyes: a token an event, with what could have come instead of it."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import Field

from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.generate.write import Piece
from clearhead.lens.logit_lens import token_labels
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.edits import Edited
from clearhead.serve.pages.runs import Runs
from clearhead.serve.pages.terms import finite
from clearhead.serve.schemas import Ids
from clearhead.serve.shelf import Held


class Writing(Edited):
    """What to go on from and how to draw, as `model.generate` takes it; `forced` is what the text begins with."""

    text: str = ""
    ids: Ids | None = None  # instead of a text, as they are
    forced: Ids = Field([])
    max_tokens: int = Field(40, ge=1)  # the forced ones among them
    temperature: float = 1.0
    top_k: int = Field(0, le=2**31)
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = Field(0, lt=2**64)
    stop: list[str] = Field([], max_length=8)
    top: int = Field(8, ge=0, le=50)  # alternatives told with each token

    def options(self) -> dict[str, Any]:
        named = ("forced", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop")
        return {**{name: getattr(self, name) for name in named}, "logprobs": self.top}


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/generate", response_class=StreamingResponse)
    async def generate(asked: Writing) -> StreamingResponse:
        """Server-sent events: `token` for each token, then `done` with the whole text, or `error` with a sentence."""
        if asked.max_tokens > desk.limits.max_tokens:
            raise ClearheadError(f"{asked.max_tokens} tokens are more than the {desk.limits.max_tokens} allowed here.")
        events = _events(desk, asked)
        await anext(events)  # what cannot be written has a status of its own
        return StreamingResponse(events, media_type="text/event-stream")

    @router.get("/models/{name}/drawing")
    async def drawing(name: str) -> dict[str, Any]:
        """What a draw needs to know besides the logits: how many tokens there are, which never come, which end it."""
        async with desk.using(name) as held:
            model, use = held.model, held.model.config.use
            size = len(model.tokenizer) if model.tokenizer else model.config.model.vocabulary
            return {"known": size, "never": use.never, "never_first": use.never_first, "stop": use.stop}

    return router


async def _events(desk: Desk, asked: Writing) -> AsyncIterator[str]:
    """Nothing when all is ready, then one step of the model at a time, so that others get their turn; who leaves ends
    it with the step under way."""
    text, tokens, reason = "", 0, ""
    async with desk.asked(asked) as held:
        written = await desk.work(_begun, desk.runs, held, asked)
        yield ""
        try:
            while (piece := await desk.work(next, written, None)) is not None:
                yield _event("token", _token(held.model, piece, tokens))
                text, tokens, reason = text + piece.text, tokens + 1, piece.finish_reason
        except ClearheadError as error:
            yield _event("error", {"message": str(error)})
            return
    yield _event("done", {"text": text, "tokens": tokens, "finish_reason": reason})


def _begun(runs: Runs, held: Held, asked: Writing) -> Iterator[Piece]:
    edits: dict[str, Any] = {"edits": runs.edits(held, asked)} if asked.edits else {}
    given = asked.text if asked.ids is None else asked.ids
    written: Iterator[Piece] = held.model.generate(given, stream=True, **asked.options(), **edits)
    return written


def _token(model: Model, piece: Piece, index: int) -> dict[str, Any]:
    chosen = piece.chosen
    names = token_labels(model.tokenizer, [chosen.token, *(i for i, _ in chosen.top)])
    best = [[i, name, finite(logprob)] for (i, logprob), name in zip(chosen.top, names[1:], strict=True)]
    told = {"index": index, "id": chosen.token, "text": names[0], "piece": piece.text}
    return {**told, "logprob": finite(chosen.logprob), "top": best}


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
