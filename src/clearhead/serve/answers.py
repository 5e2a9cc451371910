"""What is not written token by token: /v1/embeddings and /translate, some texts at a time."""

import asyncio
import base64
from functools import partial
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from clearhead.api import Model
from clearhead.batch import by_length
from clearhead.generate.answers import check_embeds
from clearhead.generate.told import told
from clearhead.generate.translate import Unreadable
from clearhead.serve.asking import client_of, listed
from clearhead.serve.limits import Limits
from clearhead.serve.openai import FAILURES
from clearhead.serve.refused import Refused
from clearhead.serve.schemas import Embedding, Translation
from clearhead.serve.shapes import Tree
from clearhead.serve.shelf import Shelf

WISHES = ("beam", "n_best", "max_tokens", "length_penalty", "early", "no_repeat", "prefix", "alternatives", "split")
TURN = 8  # texts of one client that are answered before others have their turn

Vector = np.ndarray[Any, Any]


def add(app: FastAPI, shelf: Shelf, limits: Limits) -> None:
    """The paths of what is computed in one go."""

    @app.post("/v1/embeddings", responses=FAILURES)
    async def embeddings(asked: Embedding, request: Request) -> Response:
        given, client = listed(asked.input, limits), client_of(request)
        async with shelf.using(asked.model) as held:
            width = held.model.config.model.width
            if asked.dimensions not in (None, width):
                sentence = f"vectors of this model have {width} dimensions, not {asked.dimensions}."
                raise Refused(sentence, param="dimensions")
            check_embeds(held.model.config.model)
            rows = await asyncio.to_thread(_rows, held.model, given)
            vectors = dict[int, Vector]()
            device = next(held.model.net.parameters()).device
            for some in by_length([len(row) for row in rows], device, TURN):  # who leaves between two of these ends it
                found = await held.worker.call(client, partial(_embedded, held.model, [rows[i] for i in some]))
                vectors |= zip(some, found, strict=True)
        read = sum(map(len, rows))
        shelf.metrics.read.add(read, model=held.name)
        encoded = asked.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _encoded(v) if encoded else v.tolist()}
            for i, v in sorted(vectors.items())
        ]
        usage = {"prompt_tokens": read, "total_tokens": read}
        return JSONResponse({"object": "list", "model": held.name, "data": data, "usage": usage})

    @app.post("/translate", responses=FAILURES)
    async def translate(asked: Translation, request: Request) -> Response:
        given, client = listed(asked.text, limits), client_of(request)
        if asked.max_tokens > limits.max_tokens:
            raise Refused(f"max_tokens is at most {limits.max_tokens} here.", param="max_tokens")
        async with shelf.using(asked.model or shelf.only) as held:
            found = list[Tree]()
            for at in range(0, len(given), TURN):
                work = partial(_translated, held.model, given[at : at + TURN], asked)
                try:
                    found += await held.worker.call(client, work)
                except Unreadable as error:  # which counts from here
                    raise Unreadable(at + error.number, error.why) from None
        return JSONResponse({"model": held.name, "translations": found})


def _rows(model: Model, given: list[Any]) -> list[list[int]]:
    return list(model._rows(given, longest=model.config.use.longest))


def _embedded(model: Model, rows: list[list[int]]) -> Vector:
    """A vector for each text."""
    vectors: Vector = model.embed(rows).float().cpu().numpy()  # type: ignore[arg-type]  # ids do as well as texts
    return vectors


def _encoded(vector: Vector) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _translated(model: Model, texts: list[str], asked: Translation) -> list[Tree]:
    """The best of each text."""
    wishes = {name: getattr(asked, name) for name in WISHES}
    made = model.translate(texts, align=asked.align, **wishes)
    trees = list[Tree]()
    for text, best in zip(texts, made if asked.n_best > 1 else [[one] for one in made], strict=True):
        source, found = told(text, best, model.tokenizers, model.config.use, asked.align is not None)
        trees.append(source | {"best": found})
    return trees
