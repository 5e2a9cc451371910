"""What each shape of model is for: an encoder-decoder translates (L6.2), an encoder fills gaps and judges (L6.3)."""

from collections.abc import Iterator
from typing import Any

import torch
from fastapi import APIRouter
from pydantic import Field

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.generate.answers import check_judges, judged
from clearhead.serve.pages import uploads
from clearhead.serve.pages.beams import rewritten, translation
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.edits import Edited
from clearhead.serve.pages.pieces import pieces
from clearhead.serve.pages.runs import BEAM, RunRequest, Runs
from clearhead.serve.schemas import Ids
from clearhead.serve.shelf import Held

TOP = 50  # fillers that may be asked for


class Translate(Edited):
    text: str = ""
    sound: str | None = None  # in base64, for a model that listens
    beam: int = Field(BEAM, ge=1, le=16)
    length_penalty: float = Field(1.0, ge=-10, le=10)


class Fill(Edited):
    text: str
    hide: Ids = Field([])  # tokens that become gaps, besides those the text has
    top: int = Field(8, ge=1, le=TOP)


class Classify(RunRequest):
    second: str | None = None  # the other text of a pair


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/translate")
    async def translate(asked: Translate) -> dict[str, Any]:
        """The tree of a beam search; of an edited model, what it writes greedily."""
        async with desk.asked(asked) as held:
            return await desk.steps(translated(desk.runs, held, asked))

    @router.post("/fill")
    async def fill(asked: Fill) -> dict[str, Any]:
        async with desk.asked(asked) as held:
            return await desk.work(filled, desk.runs, held, asked)

    @router.post("/classify")
    async def classify(asked: Classify) -> dict[str, Any]:
        async with desk.asked(asked) as held:
            return await desk.work(classified, desk.runs, held, asked)

    return router


def translated(runs: Runs, held: Held, asked: Translate) -> Iterator[dict[str, Any] | None]:
    """The translation, after nothing for each step that can be waited for."""
    model, shape = held.model, held.model.config.model.shape
    if not isinstance(shape, c.EncoderDecoder):
        raise ClearheadError(f"this {shape.kind} has no source to read; an encoder-decoder translates.")
    given: dict[str, Any] = {"source": asked.text}
    if asked.sound is not None and isinstance(shape.input, c.Mel):
        given = {"sound": uploads.sound(asked.sound, shape.input)}
    if asked.edits:
        yield from rewritten(model, given, runs.edits(held, asked, source=asked.text))
    else:
        yield translation(model, given, asked.beam, asked.length_penalty)


def filled(runs: Runs, held: Held, asked: Fill) -> dict[str, Any]:
    """The tokens with their gaps, and for each gap the likeliest words; of a hidden word also how likely it was."""
    model, use = held.model, held.model.config.use
    if not isinstance(model.config.model.head, c.MaskedWord) or model.tokenizer is None or not use.mask:
        raise ClearheadError(f"this {model.kind} fills no gaps; an encoder with a masked-word head does.")
    ids = model._batch(asked.text).rows()[0]
    for place in asked.hide:
        if not 0 <= place < len(ids):
            raise ClearheadError(f"there is no token {place} to hide; the text has tokens 0 to {len(ids) - 1}.")
    was = {place: ids[place] for place in asked.hide if ids[place] != use.mask[0]}
    shown = [use.mask[0] if place in was else token for place, token in enumerate(ids)]
    gaps = [place for place, token in enumerate(shown) if token == use.mask[0]]
    found: list[dict[str, Any]] = []
    if gaps:
        logits = model.logits(shown, edits=runs.edits(held, asked))[gaps, : len(model.tokenizer)].float()
        found = [
            _gap(model, place, row, asked.top, was.get(place))
            for place, row in zip(gaps, logits.softmax(dim=-1), strict=True)
        ]
    return {"ids": shown, "tokens": pieces(model.tokenizer, shown), "gaps": found}


def _gap(model: Model, place: int, shares: torch.Tensor, top: int, was: int | None) -> dict[str, Any]:
    best = shares.topk(min(top, len(shares)))
    words = zip(pieces(model.tokenizer, best.indices.tolist()), best.values.tolist(), strict=True)
    found: dict[str, Any] = {"at": place, "words": [{**piece, "probability": p} for piece, p in words], "was": None}
    if was is not None:
        rank = int((shares > shares[was]).sum()) + 1
        found["was"] = {**pieces(model.tokenizer, [was])[0], "probability": float(shares[was]), "rank": rank}
    return found


def classified(runs: Runs, held: Held, asked: Classify) -> dict[str, Any]:
    """Each class with its probability, or the number that the model gives."""
    model = held.model
    check_judges(model.config.model)
    given = asked.given(model)
    if asked.second is not None:
        given["x"] = (asked.text or "", asked.second)
    logits = model.logits(**given, edits=runs.edits(held, asked, asked.source)).float()
    verdict = judged(logits[None], model.config)[0]
    if isinstance(verdict, float):
        return {"number": verdict, "classes": None}
    return {"number": None, "classes": [{"text": name, "probability": p} for name, p in verdict.all.items()]}
