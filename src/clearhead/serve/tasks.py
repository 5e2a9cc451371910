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
from clearhead.data.batch import Batch, batches_by_length
from clearhead.errors import with_index
from clearhead.generate.generation import BeamSearchConfig, encode_prefixes
from clearhead.generate.tasks import (
    Classification,
    check_texts_not_empty,
    classification_results,
    fill_masks,
    max_classification_tokens,
)
from clearhead.generate.translation import (
    EMPTY_TRANSLATION,
    Translation,
    Translator,
    translation_to_json,
)
from clearhead.hooks import NO_HOOKS
from clearhead.serve.middleware import APIError, Limits
from clearhead.serve.openai import (
    ERROR_RESPONSES,
    ClassifyRequest,
    EmbeddingRequest,
    FillRequest,
    JSONDict,
    TranslateRequest,
    check_endpoint,
    client_address,
    to_list,
)
from clearhead.serve.registry import ModelRegistry

BEAM_SEARCH_FIELDS = (
    "num_beams",
    "n_best",
    "length_penalty",
    "early_stopping",
    "no_repeat_ngram_size",
    "prefix",
    "alternatives",
)
MAX_TEXTS_PER_TURN = (
    8  # texts or sentences of one client that are answered before others have their turn
)
MAX_BEAMS_PER_TURN = 40  # texts followed at once in one turn: fewer sentences where each has more

Vector = np.ndarray[Any, Any]


def add_task_routes(app: FastAPI, shelf: ModelRegistry, limits: Limits) -> None:
    """The paths of what is computed in one go."""

    @app.post("/v1/embeddings", responses=ERROR_RESPONSES)
    async def embeddings(asked: EmbeddingRequest, request: Request) -> Response:
        given = to_list(asked.input, limits)
        client = client_address(request)
        async with shelf.using(asked.model) as held:
            check_endpoint(held, "/v1/embeddings")
            width = held.model.config.model.d_model
            if asked.dimensions not in (None, width):
                sentence = f"vectors of this model have {width} dimensions, not {asked.dimensions}."
                raise APIError(sentence, param="dimensions")
            rows = await asyncio.to_thread(_rows, held.model, given)
            vectors = dict[int, Vector]()
            device = next(held.model.net.parameters()).device
            for some in batches_by_length(
                [len(row) for row in rows], device, MAX_TEXTS_PER_TURN
            ):  # who leaves between two of these ends it
                found = await held.worker.call(
                    client, partial(_embedded, held.model, [rows[i] for i in some])
                )
                vectors |= zip(some, found, strict=True)
        read = sum(map(len, rows))
        shelf.metrics.prompt_tokens.inc(read, model=held.name)
        encoded = asked.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _encoded(v) if encoded else v.tolist()}
            for i, v in sorted(vectors.items())
        ]
        usage = {"prompt_tokens": read, "total_tokens": read}
        return JSONResponse({"object": "list", "model": held.name, "data": data, "usage": usage})

    @app.post("/classify", responses=ERROR_RESPONSES)
    async def classify(asked: ClassifyRequest, request: Request) -> Response:
        given = to_list(asked.input, limits)
        client = client_address(request)
        async with shelf.using(asked.model or shelf.default_name) as held:
            check_endpoint(held, "/classify")
            found = dict[int, Classification]()
            batches, cut = await asyncio.to_thread(_batches, held.model, given)
            for some, batch in batches:
                made = await held.worker.call(client, partial(_judged, held.model, batch))
                found |= zip(some, made, strict=True)
                shelf.metrics.prompt_tokens.inc(
                    sum(map(len, batch.unpadded_rows())), model=held.name
                )
        answers = [
            (asdict(one) if one.probabilities else {"number": one.score})
            | {"cut": i in cut}
            for i, one in sorted(found.items())
        ]
        return JSONResponse({"model": held.name, "answers": answers})

    @app.post("/fill", responses=ERROR_RESPONSES)
    async def fill_gaps(asked: FillRequest, request: Request) -> Response:
        given = to_list(asked.input, limits)
        client = client_address(request)
        async with shelf.using(asked.model or shelf.default_name) as held:
            check_endpoint(held, "/fill")
            model = held.model
            answers = list[JSONDict]()
            rows = await asyncio.to_thread(lambda: list(model.encode_texts(given)))
            if (
                gaps := sum(
                    row.count(mask)
                    for row in rows
                    for mask in model.config.inference.mask_token[:1]
                )
            ) > limits.max_texts:
                raise APIError(
                    f"{gaps} gaps are more than the {limits.max_texts} of one request here.",
                    param="input",
                )
            for number, text in enumerate(given):
                with with_index(number if len(given) > 1 else None):
                    work = partial(
                        fill_masks, model.net, model.tokenizer, model.config, text, asked.top_k
                    )
                    filled = await held.worker.call(client, work)
                    answers.append({"gaps": [[*map(asdict, words)] for words in filled.masks]})
        shelf.metrics.prompt_tokens.inc(sum(map(len, rows)), model=held.name)
        return JSONResponse({"model": held.name, "answers": answers})

    @app.post("/translate", responses=ERROR_RESPONSES)
    async def translate(asked: TranslateRequest, request: Request) -> Response:
        given = to_list(asked.text, limits)
        client = client_address(request)
        if asked.max_tokens > limits.max_tokens:
            raise APIError(f"max_tokens is at most {limits.max_tokens} here.", param="max_tokens")
        async with shelf.using(asked.model or shelf.default_name) as held:
            check_endpoint(held, "/translate")
            work = await asyncio.to_thread(TranslationJob, held.model, given, asked, limits)
            for some in work.batches():  # who leaves between two of these ends it
                await held.worker.call(client, partial(work.translate, some))
        return JSONResponse({"model": held.name, "translations": work.results()})


class TranslationJob:
    """Texts to be translated, cut as `model.translate` cuts them: so one that is long takes many turns."""

    def __init__(
        self, model: Model, texts: list[str], asked: TranslateRequest, limits: Limits
    ) -> None:
        if model.tokenizers[1] is None:
            raise APIError("this model has no tokenizer, so it cannot read a text.")
        self.model = model
        self.texts = texts
        self.asked = asked
        self.begin = encode_prefixes(asked.prefix, 1, model.tokenizer)
        room = max(
            1,
            model.net.context_length
            - len(model.config.inference.decoder_start_tokens)
            - len(self.begin[0]),
        )
        most = asked.max_tokens or min(room, limits.max_tokens)
        wish = BeamSearchConfig(
            max_tokens=most, **{name: getattr(asked, name) for name in BEAM_SEARCH_FIELDS}
        )
        self.translator = Translator(
            model.net, model.config, model.tokenizers, wish, asked.align, asked.split
        )
        self.parts = [self._cut(i, text) for i, text in enumerate(texts)]
        self.rows = [row for some in self.parts for row, _ in some if row]
        self.found = dict[int, Translation]()

    def _cut(self, number: int, text: str) -> list[tuple[list[int], str]]:
        with with_index(number):
            return self.translator.encode_sentences(text)

    def batches(self) -> Iterator[list[int]]:
        """Which are translated together: few enough that others need not wait long."""
        device = next(self.model.net.parameters()).device
        most = max(1, min(MAX_TEXTS_PER_TURN, MAX_BEAMS_PER_TURN // self.asked.num_beams))
        return batches_by_length([len(row) for row in self.rows], device, most)

    def translate(self, some: list[int]) -> None:
        made = self.translator.translate_ids([self.rows[i] for i in some], self.begin * len(some))
        self.found |= zip(some, made, strict=True)

    def results(self) -> list[JSONDict]:
        """The best of each text."""
        model = self.model
        made = (self.found[i] for i in range(len(self.rows)))
        trees = list[JSONDict]()
        for text, some in zip(self.texts, self.parts, strict=True):
            parts = [next(made) if row else EMPTY_TRANSLATION for row, _ in some]
            best = self.translator.join_sentences(parts, [gap for _, gap in some])
            source, found = translation_to_json(
                text, best, model.tokenizers, model.config.inference
            )
            trees.append(source | {"best": found})
        return trees


def _rows(model: Model, given: list[Any]) -> list[list[int]]:
    return list(model.encode_texts(given, longest=model.config.inference.max_length))


def _batches(model: Model, given: list[Any]) -> tuple[list[tuple[list[int], Batch]], set[int]]:
    """Texts and pairs that are judged together, as `model.classify` reads them, by number; and which are cut."""
    check_texts_not_empty(given)
    texts = [tuple(one) if isinstance(one, list) else one for one in given]
    longest = max_classification_tokens(model.config)
    lengths = [len(row) for row in model.encode_texts(texts, endless=True)]
    turns = batches_by_length(
        [min(length, longest) for length in lengths],
        next(model.net.parameters()).device,
        MAX_TEXTS_PER_TURN,
    )
    batches = [
        (some, model.make_batch([texts[i] for i in some], longest=longest)) for some in turns
    ]
    return batches, {i for i, length in enumerate(lengths) if length > longest}


def _judged(model: Model, batch: Batch) -> list[Classification]:
    with torch.no_grad():
        logits = model.net.compute_logits(
            model.run_batch(batch, NO_HOOKS), batch.segment_ids
        ).float()
    return classification_results(logits, model.config)


def _embedded(model: Model, rows: list[list[int]]) -> Vector:
    """A vector for each text."""
    vectors: Vector = model.embed(rows).float().cpu().numpy()  # type: ignore[arg-type]  # ids do as well as texts
    return vectors


def _encoded(vector: Vector) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
