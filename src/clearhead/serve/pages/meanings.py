"""What the page asks about meaning: a word in several sentences, and what a run would answer, layer by layer."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Query
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.lens.attribution import attribution
from clearhead.lens.context import Context, Reading, context, placed
from clearhead.lens.logit_lens import STREAMS, Lens, answers, through_the_head
from clearhead.lens.parts import check_layer
from clearhead.lens.view import Axis, View
from clearhead.lens.word_sources import Side
from clearhead.serve.pages.asked import Asked
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.runs import Run, tokens
from clearhead.serve.pages.terms import finite
from clearhead.serve.pages.wire import sent
from clearhead.serve.pages.words import Words, known

NEAR = 6  # words told to be nearest
TOP = 8  # answers of each layer
WIDE = 16  # tokens that the lens shows: as many as have room for words in them


class Meant(Asked):
    """A word, and sentences that hold it."""

    word: str = Field(max_length=100)
    texts: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=6)]


class Instead(Meant):
    """Other words to be put in its place, and the layer after which they are compared, from the end below 0."""

    others: Annotated[Words, Field(max_length=24)]
    layer: int = -1


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/context")
    async def in_context(asked: Meant) -> dict[str, Any]:
        return await desk.answer(asked, meant, asked)

    @router.post("/instead")
    async def in_its_place(asked: Instead) -> dict[str, Any]:
        return sent(await desk.answer(asked, instead, asked))

    @router.get("/runs/{name}/lens")
    async def lens(name: str, at: int = -1) -> dict[str, Any]:
        """The first answers of all layers at all tokens, and the likeliest ones at one token."""
        return await desk.work(looked, desk.runs.get(name), at)

    @router.get("/runs/{name}/attribution")
    async def parts(
        name: str, token: int | None = None, against: int | None = None, at: Annotated[int, Query()] = -1
    ) -> dict[str, Any]:
        """What the logit of a token is made of, by part and by head; of two tokens, their difference."""
        run = desk.runs.get(name)
        return await desk.work(made_of, run, token, against, at)

    return router


def meant(model: Model, asked: Meant) -> dict[str, Any]:
    """How alike the word is in each two sentences, from its bare token on, and what it is near to alone."""
    found = context(model, asked.word, asked.texts)
    side, name = found.side, _path(found, "embed.tokens")
    assert side is not None
    alone = torch.stack([_word(side, [reading], name)[0] for reading in found.readings])
    unit, pairs = F.normalize(alone, dim=-1), [label.split("·") for label in found.axes[1].labels]
    row = torch.stack([unit[int(a)] @ unit[int(b)] for a, b in pairs])
    axes = Axis.of("layer", ["token", *found.axes[0].labels]), found.axes[1]
    values = torch.cat((row[None], found.values))
    return {
        "view": sent(View(values, axes, found.title, "cosine", signed=True, most=1.0, note=found.note)),
        "near": sent(known(model).nearest(alone[0], NEAR, [asked.word])),
        "readings": [
            {"text": reading.text, "tokens": side.pieces(reading.ids), "word": reading.word}
            for reading in found.readings
        ],
    }


def instead(model: Model, asked: Instead) -> View:
    """sentence × other word: the cosine of the word's stream with that of another one in its place."""
    found = context(model, asked.word, asked.texts)
    side, others = found.side, [*dict.fromkeys(word.strip() for word in asked.others if word.strip())]
    assert side is not None
    if not others:
        raise ClearheadError("give some words to put in its place.")
    layer, rows = check_layer(asked.layer, len(side.stack.blocks)), []
    name = _path(found, f"blocks.{layer}.post")
    for reading in found.readings:
        start, end = reading.span
        texts = [(reading.text[:start] + other + reading.text[end:], start + len(other)) for other in others]
        put = [placed(side, text, start, stop) for text, stop in texts]
        own, *values = _word(side, [reading, *put], name)
        rows.append(torch.stack([F.cosine_similarity(own, value, dim=0) for value in values]))
    vectors = known(model)
    word, *alone = vectors.found([asked.word, *others])
    first = torch.stack([F.cosine_similarity(word.vector, other.vector, dim=0) for other in alone])
    axes = Axis.of("sentence", ["alone", *asked.texts]), Axis.of("word", others)
    where = f"after layer {layer}; alone, the cosine of their embeddings"
    note = f"cosine of {asked.word!r} with another word in its place, {where}"
    title = f"what {asked.word!r} is like"
    return View(torch.stack((first, *rows)), axes, title, "cosine", signed=True, most=1.0, note=note)


def _path(found: Context, name: str) -> str:
    return f"encoder.{name}" if found.side is not None and found.side.encoder else name


def _word(side: Side, readings: Sequence[Reading], name: str) -> list[Tensor]:
    """A value of the words of some sentences, the mean over each word's tokens."""
    seen = side.watch([reading.ids for reading in readings], [name])[name].float().cpu()
    return [row[reading.word].mean(dim=0) for row, reading in zip(seen, readings, strict=True)]


def looked(run: Run, at: int) -> dict[str, Any]:
    """The logit lens over the streams that the run has kept; of a long text, over the tokens around one."""
    trace = run.trace
    if isinstance(trace.config.head, c.Hidden):
        raise ClearheadError("this model has no head, so there is no answer to look for; hidden states have no words.")
    model, labels = trace.model, [token["text"] for token in tokens(trace.model, trace.batch.ids, trace, source=False)]
    count, at = len(labels), -1 if trace.pooled else run.place(at)  # a class is one answer for all
    if not -count <= at < count:
        raise ClearheadError(f"there is no token {at}; there are tokens 0 to {count - 1}.")
    start = 0 if trace.pooled else max(0, min(at % count - WIDE // 2, count - WIDE))
    around = slice(None) if trace.pooled else slice(start, start + WIDE)
    streams = {name: value[:, around] for name, value in trace.streams.items()}
    with torch.no_grad():
        best = through_the_head(model.net, {STREAMS[0]: streams["embed"], **streams}, None, TOP)
    ids, shares = (found[0].cpu() for found in best)
    across, place = (["the whole"], 0) if trace.pooled else (labels[around], at % count - start)
    found = Lens.of(across, ids, shares, lambda i: answers(model.config, model.tokenizer, [i])[0], trace.config.head)
    layers = [[(word, finite(share)) for word, share in best] for best in found.likeliest(place)]
    return {"view": sent(found), "start": start, "at": place, "count": count, "layers": layers}


def made_of(run: Run, token: int | None, against: int | None, at: int) -> dict[str, Any]:
    found = attribution(run.trace.model, token=token, against=against, at=run.place(at), **run.given())
    kinds = {part: sent(found.heads(part)) for part in found.layers[0]}
    assert found.question is not None
    return {"view": sent(found), "heads": kinds, "total": finite(found.total), "token": found.question.answer}
