"""What is answered at once, not written token by token: /v1/embeddings and /translate."""

import base64
from functools import partial
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from clearhead.api import Model
from clearhead.generate.translate import Unreadable
from clearhead.serve.asking import client_of, listed
from clearhead.serve.limits import Limits
from clearhead.serve.openai import FAILURES
from clearhead.serve.refused import Refused
from clearhead.serve.schemas import Embedding, Translation
from clearhead.serve.shapes import Tree
from clearhead.serve.shelf import Shelf

WISHES = ("beam", "n_best", "max_tokens", "length_penalty", "early", "no_repeat", "prefix", "alternatives", "split")
TURN = 8  # texts that are translated before others have their turn


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
            vectors, read = await held.worker.call(client, partial(_embedded, held.model, given))
        shelf.metrics.read.add(read, model=held.name)
        encoded = asked.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _encoded(v) if encoded else v.tolist()}
            for i, v in enumerate(vectors)
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


def _embedded(model: Model, given: list[Any]) -> tuple[np.ndarray[Any, Any], int]:
    rows = model._batch(given, longest=model.config.use.longest).rows()
    vectors = model.embed(rows).float().cpu().numpy()  # type: ignore[arg-type]  # ids do as well as texts
    if not np.isfinite(vectors).all():
        raise Refused("the vectors hold no numbers; the weights of the model may be broken.", 500)
    return vectors, sum(map(len, rows))


def _encoded(vector: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _translated(model: Model, texts: list[str], asked: Translation) -> list[Tree]:
    """The best of each text; with `align`, places in `source_pieces` for each of their tokens."""
    wishes = {name: getattr(asked, name) for name in WISHES}
    made = model.translate(texts, align=asked.align, **wishes)
    own, use = model.source_tokenizer or model.tokenizer, model.config.use
    trees = []
    for text, best in zip(texts, made if asked.n_best > 1 else [[one] for one in made], strict=True):
        tree: Tree = {"source": text}
        if asked.align is not None and own is not None:
            tree["source_pieces"] = own.pieces([*use.begin, *own.encode(text), *use.end])
        tree["best"] = [
            {name: value for name, value in vars(one).items() if name != "tree" and value is not None}
            | {"pieces": model.tokenizer.pieces(one.tokens) if model.tokenizer else []}
            for one in best
        ]
        trees.append(tree)
    return trees
