"""What is not written token by token: /v1/embeddings, /classify, /fill, /translate; some texts at a time."""

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from clearhead.api import Model
from clearhead.batch import Batch, by_length
from clearhead.errors import numbered
from clearhead.generate.answers import Judged, check_said, fill, judged, judged_tokens
from clearhead.generate.beamed import prefixes, wishes
from clearhead.generate.told import told
from clearhead.generate.translate import NOTHING, Translated, Translator
from clearhead.serve.asking import check_fits, client_of, listed
from clearhead.serve.limits import Limits
from clearhead.serve.openai import FAILURES
from clearhead.serve.refused import Refused
from clearhead.serve.schemas import Classification, Embedding, Filling, Translation
from clearhead.serve.shapes import Tree
from clearhead.serve.shelf import Shelf
from clearhead.tap import SILENT

WISHES = ("beam", "n_best", "length_penalty", "early", "no_repeat", "prefix", "alternatives")
TURN = 8  # texts or sentences of one client that are answered before others have their turn
BEAMS = 40  # texts followed at once in one turn: fewer sentences where each has more

Vector = np.ndarray[Any, Any]


def add(app: FastAPI, shelf: Shelf, limits: Limits) -> None:
    """The paths of what is computed in one go."""

    @app.post("/v1/embeddings", responses=FAILURES)
    async def embeddings(asked: Embedding, request: Request) -> Response:
        given, client = listed(asked.input, limits), client_of(request)
        async with shelf.using(asked.model) as held:
            check_fits(held, "/v1/embeddings")
            width = held.model.config.model.width
            if asked.dimensions not in (None, width):
                sentence = f"vectors of this model have {width} dimensions, not {asked.dimensions}."
                raise Refused(sentence, param="dimensions")
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

    @app.post("/classify", responses=FAILURES)
    async def classify(asked: Classification, request: Request) -> Response:
        given, client = listed(asked.input, limits), client_of(request)
        async with shelf.using(asked.model or shelf.only) as held:
            check_fits(held, "/classify")
            found = dict[int, Judged | float]()
            batches, cut = await asyncio.to_thread(_batches, held.model, given)
            for some, batch in batches:
                made = await held.worker.call(client, partial(_judged, held.model, batch))
                found |= zip(some, made, strict=True)
                shelf.metrics.read.add(sum(map(len, batch.rows())), model=held.name)
        answers = [
            (asdict(one) if isinstance(one, Judged) else {"number": one}) | {"cut": i in cut}
            for i, one in sorted(found.items())
        ]
        return JSONResponse({"model": held.name, "answers": answers})

    @app.post("/fill", responses=FAILURES)
    async def fill_gaps(asked: Filling, request: Request) -> Response:
        given, client = listed(asked.input, limits), client_of(request)
        async with shelf.using(asked.model or shelf.only) as held:
            check_fits(held, "/fill")
            model, answers = held.model, list[Tree]()
            rows = await asyncio.to_thread(lambda: list(model._rows(given)))
            if (gaps := sum(row.count(mask) for row in rows for mask in model.config.use.mask[:1])) > limits.texts:
                raise Refused(f"{gaps} gaps are more than the {limits.texts} of one request here.", param="input")
            for number, text in enumerate(given):
                with numbered(number if len(given) > 1 else None):
                    work = partial(fill, model.net, model.tokenizer, model.config, text, asked.top)
                    answers.append({"gaps": [[*map(asdict, gap)] for gap in await held.worker.call(client, work)]})
        shelf.metrics.read.add(sum(map(len, rows)), model=held.name)
        return JSONResponse({"model": held.name, "answers": answers})

    @app.post("/translate", responses=FAILURES)
    async def translate(asked: Translation, request: Request) -> Response:
        given, client = listed(asked.text, limits), client_of(request)
        if asked.max_tokens > limits.max_tokens:
            raise Refused(f"max_tokens is at most {limits.max_tokens} here.", param="max_tokens")
        async with shelf.using(asked.model or shelf.only) as held:
            check_fits(held, "/translate")
            work = await asyncio.to_thread(Sentences, held.model, given, asked, limits)
            for some in work.turns():  # who leaves between two of these ends it
                await held.worker.call(client, partial(work.translate, some))
        return JSONResponse({"model": held.name, "translations": work.told()})


class Sentences:
    """Texts to be translated, cut as `model.translate` cuts them: so one that is long takes many turns."""

    def __init__(self, model: Model, texts: list[str], asked: Translation, limits: Limits) -> None:
        if model.tokenizers[1] is None:
            raise Refused("this model has no tokenizer, so it cannot read a text.")
        self.model, self.texts, self.asked = model, texts, asked
        self.begin = prefixes(asked.prefix, 1, model.tokenizer)
        room = max(1, model.net.context - len(model.config.use.start) - len(self.begin[0]))
        most = asked.max_tokens or min(room, limits.max_tokens)
        wish = wishes(max_tokens=most, **{name: getattr(asked, name) for name in WISHES})
        self.translator = Translator(model.net.eval(), model.config, model.tokenizers, wish, asked.align, asked.split)
        self.parts = [self._cut(i, text) for i, text in enumerate(texts)]
        self.rows = [row for some in self.parts for row, _ in some if row]
        self.found = dict[int, list[Translated]]()

    def _cut(self, number: int, text: str) -> list[tuple[list[int], str]]:
        with numbered(number):
            return self.translator._parts(text)

    def turns(self) -> Iterator[list[int]]:
        """Which are translated together: few enough that others need not wait long."""
        device, most = next(self.model.net.parameters()).device, max(1, min(TURN, BEAMS // self.asked.beam))
        return by_length([len(row) for row in self.rows], device, most)

    def translate(self, some: list[int]) -> None:
        made = self.translator.rows([self.rows[i] for i in some], self.begin * len(some))
        self.found |= zip(some, made, strict=True)

    def told(self) -> list[Tree]:
        """The best of each text."""
        model, made, trees = self.model, (self.found[i] for i in range(len(self.rows))), list[Tree]()
        for text, some in zip(self.texts, self.parts, strict=True):
            best = self.translator._joined([(next(made) if row else [NOTHING], gap) for row, gap in some])
            source, found = told(text, best, model.tokenizers, model.config.use, self.asked.align is not None)
            trees.append(source | {"best": found})
        return trees


def _rows(model: Model, given: list[Any]) -> list[list[int]]:
    return list(model._rows(given, longest=model.config.use.longest))


def _batches(model: Model, given: list[Any]) -> tuple[list[tuple[list[int], Batch]], set[int]]:
    """Texts and pairs that are judged together, as `model.classify` reads them, by number; and which are cut."""
    check_said(given)
    texts, longest = [tuple(one) if isinstance(one, list) else one for one in given], judged_tokens(model.config)
    lengths = [len(row) for row in model._rows(texts, endless=True)]
    turns = by_length([min(length, longest) for length in lengths], next(model.net.parameters()).device, TURN)
    batches = [(some, model._batch([texts[i] for i in some], longest=longest)) for some in turns]
    return batches, {i for i, length in enumerate(lengths) if length > longest}


def _judged(model: Model, batch: Batch) -> list[Judged] | list[float]:
    with torch.no_grad():
        logits = model.net.predict(model._run(batch, SILENT), batch.segments).float()
    return judged(logits, model.config)


def _embedded(model: Model, rows: list[list[int]]) -> Vector:
    """A vector for each text."""
    vectors: Vector = model.embed(rows).float().cpu().numpy()  # type: ignore[arg-type]  # ids do as well as texts
    return vectors


def _encoded(vector: Vector) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
