"""Endpoints without sampling: /v1/embeddings, /classify, /fill and /translate.

A large request yields to other requests between steps, and stops when the client disconnects.
"""

import base64
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from clearhead.api import Model
from clearhead.data.batch import Batch, batches_by_length
from clearhead.errors import with_index
from clearhead.generate.beam_search_texts import BeamSearchConfig, encode_prefixes
from clearhead.generate.tasks import (
    Classification,
    check_texts_not_empty,
    classification_results,
    fill_masks,
    max_classification_tokens,
)
from clearhead.generate.translation import Translation, Translator, translation_to_json
from clearhead.hooks import NO_HOOKS
from clearhead.model.transformer import eval_mode
from clearhead.serve.errors import APIError, JSONDict
from clearhead.serve.limits import Limits
from clearhead.serve.openai import (
    ERROR_RESPONSES,
    FAIL_FAST,
    APIRequest,
    EmbeddingRequest,
    TextList,
    TextPair,
    check_endpoint,
    check_max_tokens,
    client_address,
    to_list,
)
from clearhead.serve.registry import ModelRegistry
from clearhead.serve.scheduler import ModelWorker

TASK_PATHS = ("/classify", "/fill", "/translate")
MAX_TEXTS_PER_TURN = 8
MAX_SENTENCES = 2048  # of one request
MAX_BEAMS_PER_TURN = 40  # texts × beams

T = TypeVar("T")
Vector = np.ndarray[Any, np.dtype[np.float32]]


class ClassifyRequest(APIRequest):
    input: str | TextList | Annotated[list[TextPair], FAIL_FAST] = Field(
        description="A text, texts, or pairs of texts."
    )


class FillRequest(APIRequest):
    input: str | TextList = Field(description="Texts with [MASK] for missing words.")
    top_k: int = Field(5, ge=1, le=100, description="Number of most likely words for each mask.")


class TranslateRequest(APIRequest):
    text: str | TextList
    num_beams: int = Field(5, ge=1, le=32)
    n_best: int = Field(1, ge=1, le=32)
    max_tokens: int = Field(0, ge=0)
    length_penalty: float = Field(1.0, ge=-100, le=100)
    early_stopping: bool = False
    no_repeat_ngram_size: int = Field(0, ge=0)
    prefix: str = ""
    alternatives: int | None = None
    align: int | Literal["all"] | None = None
    split_sentences: bool = False


def add_task_routes(app: FastAPI, registry: ModelRegistry, limits: Limits) -> None:
    tokenize = registry.tokenizer_threads.call

    @app.post("/v1/embeddings", responses=ERROR_RESPONSES)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        texts = to_list(body.input, limits)
        client = client_address(request)
        async with registry.using(body.model) as loaded_model:
            check_endpoint(loaded_model, "/v1/embeddings")
            model = loaded_model.model
            d_model = model.config.model.d_model
            if body.dimensions not in (None, d_model):
                raise APIError(
                    f"dimensions must be {d_model} for this model, got {body.dimensions}.",
                    param="dimensions",
                )
            rows = await tokenize(client, partial(_encode_for_embedding, model, texts))
            turns = (
                (indices, partial(_embed, model, [rows[i] for i in indices]))
                for indices in _split_into_turns(model, [len(row) for row in rows])
            )
            vectors = await _call_in_turns(loaded_model.worker, client, turns)
        num_tokens = sum(map(len, rows))
        registry.metrics.prompt_tokens.labels(loaded_model.name).inc(num_tokens)
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": _embedding_to_json(vector, body.encoding_format),
            }
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return JSONResponse(
            {"object": "list", "model": loaded_model.name, "data": data, "usage": usage}
        )

    @app.post("/classify", responses=ERROR_RESPONSES)
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        texts = to_list(body.input, limits)
        client = client_address(request)
        async with registry.using(body.model) as loaded_model:
            check_endpoint(loaded_model, "/classify")
            model = loaded_model.model
            make_batches = partial(_classification_batches, model, texts)
            batches, truncated = await tokenize(client, make_batches)
            turns = ((indices, partial(_classify, model, batch)) for indices, batch in batches)
            results = await _call_in_turns(loaded_model.worker, client, turns)
        num_tokens = sum(len(row) for _, batch in batches for row in batch.unpadded_rows())
        registry.metrics.prompt_tokens.labels(loaded_model.name).inc(num_tokens)
        classifications = [
            {**_classification_to_dict(result), "truncated": i in truncated}
            for i, result in enumerate(results)
        ]
        return JSONResponse({"model": loaded_model.name, "results": classifications})

    @app.post("/fill", responses=ERROR_RESPONSES)
    async def fill(body: FillRequest, request: Request) -> Response:
        texts = to_list(body.input, limits)
        client = client_address(request)
        async with registry.using(body.model) as loaded_model:
            check_endpoint(loaded_model, "/fill")
            model = loaded_model.model
            rows = await tokenize(client, lambda: list(model.encode_texts(texts)))
            mask_token = model.config.inference.mask_token
            num_masks = sum(row.count(mask_token[0]) for row in rows) if mask_token else 0
            if num_masks > limits.max_texts:
                raise APIError(
                    f"Request has {num_masks} masks; the limit is {limits.max_texts}.",
                    param="input",
                )
            results = []
            for index, text in enumerate(texts):
                function = partial(
                    fill_masks, model.net, model.tokenizer, model.config, text, body.top_k
                )
                with with_index(index if len(texts) > 1 else None):
                    result = await loaded_model.worker.call(client, function)
                results.append(asdict(result))
        registry.metrics.prompt_tokens.labels(loaded_model.name).inc(sum(map(len, rows)))
        return JSONResponse({"model": loaded_model.name, "results": results})

    @app.post("/translate", responses=ERROR_RESPONSES)
    async def translate(body: TranslateRequest, request: Request) -> Response:
        texts = to_list(body.text, limits)
        to_list(body.prefix, limits)  # checks its length
        client = client_address(request)
        check_max_tokens(body.max_tokens, limits)
        async with registry.using(body.model) as loaded_model:
            check_endpoint(loaded_model, "/translate")
            model = loaded_model.model
            translator, prefix = await tokenize(
                client, partial(_make_translator, model, body, limits)
            )
            encoded = await tokenize(client, partial(translator.encode_texts, texts))
            rows = [ids for sentences in encoded for ids, _ in sentences if ids]
            if len(rows) > MAX_SENTENCES:
                raise APIError(f"Request has {len(rows)} sentences; the limit is {MAX_SENTENCES}.")
            max_rows = max(1, min(MAX_TEXTS_PER_TURN, MAX_BEAMS_PER_TURN // body.num_beams))

            def translate_turn(indices: list[int]) -> list[Translation]:
                return translator.translate_ids([rows[i] for i in indices], [prefix] * len(indices))

            turns = (
                (indices, partial(translate_turn, indices))
                for indices in _split_into_turns(model, [len(row) for row in rows], max_rows)
            )
            translations = await _call_in_turns(loaded_model.worker, client, turns)
        results = []
        joined = translator.join_texts(encoded, translations)
        for text, translation in zip(texts, joined, strict=True):
            source, best = translation_to_json(
                text, translation, model.tokenizers, model.config.inference
            )
            results.append({**source, "best": best})
        return JSONResponse({"model": loaded_model.name, "translations": results})


async def _call_in_turns(
    worker: ModelWorker,
    client: str,
    turns: Iterable[tuple[list[int], Callable[[], Iterable[T]]]],
) -> list[T]:
    """Call one function per turn; each returns the results of the texts with these indices."""
    results: dict[int, T] = {}
    for indices, function in turns:
        results |= zip(indices, await worker.call(client, function), strict=True)
    return [results[i] for i in range(len(results))]


def _split_into_turns(
    model: Model, lengths: list[int], max_rows: int = MAX_TEXTS_PER_TURN
) -> Iterator[list[int]]:
    return batches_by_length(lengths, next(model.net.parameters()).device, max_rows)


def _make_translator(
    model: Model, request: TranslateRequest, limits: Limits
) -> tuple[Translator, list[int]]:
    """The translator of a request, and the tokens that every translation starts with."""
    if model.tokenizers[1] is None:
        raise APIError("This model has no tokenizer for source texts.")
    [prefix] = encode_prefixes(request.prefix, 1, model.tokenizer)
    num_start_tokens = len(model.config.inference.decoder_start_tokens) + len(prefix)
    room = max(1, model.net.context_length - num_start_tokens)
    config = BeamSearchConfig(
        max_tokens=request.max_tokens or min(room, limits.max_tokens),
        num_beams=request.num_beams,
        n_best=request.n_best,
        length_penalty=request.length_penalty,
        early_stopping=request.early_stopping,
        no_repeat_ngram_size=request.no_repeat_ngram_size,
        prefix=request.prefix,
        alternatives=request.alternatives,
    )
    translator = Translator(
        model.net,
        model.config,
        model.tokenizers,
        config,
        align=request.align,
        split_sentences=request.split_sentences,
    )
    return translator, prefix


def _encode_for_embedding(model: Model, texts: list[Any]) -> list[list[int]]:
    check_texts_not_empty(texts)
    return list(model.encode_texts(texts, max_length=model.config.inference.max_length))


def _embed(model: Model, rows: list[list[int]]) -> Vector:
    vectors: Vector = model.embed(rows).float().cpu().numpy()  # type: ignore[arg-type]  # ids are accepted, too
    return vectors


def _embedding_to_json(vector: Vector, encoding_format: str) -> str | list[float]:
    if encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


def _classification_batches(
    model: Model, texts: list[Any]
) -> tuple[list[tuple[list[int], Batch]], set[int]]:
    """Batches with the indices of their texts, and the indices of truncated texts."""
    check_texts_not_empty(texts)
    texts = [tuple(text) if isinstance(text, list) else text for text in texts]
    max_length = max_classification_tokens(model.config)
    lengths = [len(row) for row in model.encode_texts(texts, allow_overflow=True)]
    batches = []
    for indices in _split_into_turns(model, [min(length, max_length) for length in lengths]):
        batch = model.make_batch([texts[i] for i in indices], max_length=max_length)
        batches.append((indices, batch))
    return batches, {i for i, length in enumerate(lengths) if length > max_length}


def _classify(model: Model, batch: Batch) -> list[Classification]:
    with torch.no_grad(), eval_mode(model.net):
        hidden = model.run_batch(batch, NO_HOOKS)
        logits = model.net.compute_logits(hidden, batch.segment_ids).float()
    return classification_results(logits, model.config)


def _classification_to_dict(result: Classification) -> JSONDict:
    return asdict(result) if result.probabilities else {"value": result.score}
