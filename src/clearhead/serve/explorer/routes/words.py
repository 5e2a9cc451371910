"""Words: tokenization, embedding rows, word-vector arithmetic, and words in context."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated

import torch
from fastapi import APIRouter, Query
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError, NonFiniteError
from clearhead.lens.argument_checks import check_layer
from clearhead.lens.text_stack import TextStack
from clearhead.lens.tokens import token_labels
from clearhead.lens.view import View, label_axes
from clearhead.lens.word_in_context import WordInSentence, context, find_word, locate_word
from clearhead.model.heads import LMHead
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.cost import (
    MAX_STEP_COST,
    MAX_STEPS_COST,
    affordable_tokens,
    check_num_tokens,
)
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.requests import ExplorerRequest
from clearhead.serve.explorer.serialize import describe_tokens, view_to_dict
from clearhead.serve.openai import FAIL_FAST
from clearhead.serve.registry import LoadedModel
from clearhead.tokenizers.tokenizer import BPEMerges, Tokenizer, encode_with_masks
from clearhead.word_vectors.vectors import LayerSource, Vectors, WordVector, split_equation

MAX_TOKENS = 8192  # of a tokenized text
MATRIX_MAP_SIZE = (96, 64)  # maximum rows and columns of the embedding map
NUM_NEIGHBORS = 6

Word = Annotated[str, Field(max_length=200)]
WordList = Annotated[list[Word], FAIL_FAST, Field(max_length=64)]
Sentence = Annotated[str, Field(max_length=2000)]


class TokenizeRequest(ExplorerRequest):
    """A text to tokenize, as target or as source of an encoder-decoder."""

    text: str
    source: bool = False


class VectorsRequest(ExplorerRequest):
    """An expression or equation, or pairs (for a direction) with words, or words to compare."""

    expression: str = Field("", max_length=400)
    equation: str = Field("", max_length=400)  # queen - king = woman - man
    pairs: Annotated[list[tuple[Word, Word]], FAIL_FAST] = Field([], max_length=32)
    words: WordList = Field([])
    layer: int | None = None  # None: the embedding matrix
    top_k: int = Field(10, ge=1, le=50)
    include_inputs: bool = False  # whether words of the expression may be results


class ContextRequest(ExplorerRequest):
    """A word and sentences that contain it."""

    word: str = Field(max_length=100)
    texts: Annotated[list[Sentence], FAIL_FAST, Field(max_length=6)]


class SubstitutionRequest(ContextRequest):
    """Substitutes for the word, compared after a layer (negative: from the end)."""

    substitutes: Annotated[WordList, Field(max_length=24)]
    layer: int = -1


def word_routes(executor: ExplorerExecutor) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/tokenize")
    async def tokenize_text(request: TokenizeRequest) -> JSONDict:
        return await executor.call(request, tokenize, request.text, request.source)

    @router.get("/models/{name}/embedding-matrix")
    async def embedding_matrix(name: str) -> JSONDict:
        """The whole embedding matrix, downsampled."""
        async with executor.use_model(name) as loaded_model:
            return view_to_dict(await executor.submit(embedding_map, loaded_model.model))

    @router.get("/models/{name}/embedding-rows")
    async def rows(
        name: str, ids: Annotated[str, Query(max_length=2000)], unembedding: bool = False
    ) -> JSONDict:
        """Rows of the embedding (or unembedding) matrix by comma-separated ids."""
        async with executor.use_model(name) as loaded_model:
            view = await executor.submit(embedding_rows, loaded_model.model, ids, unembedding)
            return view_to_dict(view)

    @router.post("/vectors")
    async def vectors(request: VectorsRequest) -> JSONDict:
        async with executor.model_for(request) as loaded_model:
            return await executor.run_steps(query_vectors(loaded_model, request))

    @router.post("/context")
    async def in_context(request: ContextRequest) -> JSONDict:
        async with executor.model_for(request) as loaded_model:
            return await executor.submit(compare_contexts, loaded_model, request)

    @router.post("/context/substitute")
    async def substitute(request: SubstitutionRequest) -> JSONDict:
        async with executor.model_for(request) as loaded_model:
            return view_to_dict(
                await executor.run_steps(compare_substitutes(loaded_model, request))
            )

    return router


# Tokens


def tokenize(model: Model, text: str, is_source: bool = False) -> JSONDict:
    """Tokens of a text with added special tokens; bytes and merge steps of each distinct token."""
    tokenizer = (model.source_tokenizer if is_source else None) or model.tokenizer
    if tokenizer is None:
        raise ClearheadError("This model has no tokenizer.")
    inference = model.config.inference
    is_target = model.architecture == "encoder-decoder" and not is_source
    before = inference.decoder_start_tokens if is_target else inference.bos_tokens
    after = () if is_target else inference.sep_tokens
    if isinstance(model.config.model.head, c.MLMHead) and inference.mask_token:
        ids = encode_with_masks(tokenizer, inference.mask_token[0], text)
    else:
        ids = tokenizer.encode(text)
    check_shown_tokens(ids)
    all_ids = [*before, *ids, *after]
    text_positions = range(len(before), len(before) + len(ids))
    tokens = describe_tokens(tokenizer, all_ids)
    for i, token in enumerate(tokens):
        token["added"] = i not in text_positions
    merges = _bpe_merges(tokenizer)
    details = {
        i: {"bytes": tokenizer.token_bytes(i), "steps": merges.merge_steps(i)}
        for i in sorted(set(all_ids))
    }
    decoded = tokenizer.decode(ids)
    return {
        "tokens": tokens,
        "details": details,
        "merges": len(merges),
        "vocab_size": len(tokenizer),
        "bytes": len(text.encode(errors="surrogatepass")),
        "decoded": None if decoded == text else decoded,
    }


def check_shown_tokens(ids: Sequence[int]) -> None:
    """Raise an error for more tokens than the page shows."""
    if len(ids) > MAX_TOKENS:
        raise ClearheadError(
            f"Text has {len(ids):,} tokens; the page shows at most {MAX_TOKENS:,}."
        )


@lru_cache(maxsize=4)
def _bpe_merges(tokenizer: Tokenizer) -> BPEMerges:
    """Cached, as parsing the merges of a large tokenizer is slow."""
    return BPEMerges(tokenizer)


def embedding_map(model: Model) -> View:
    """The embedding matrix, downsampled to the value of largest magnitude in each block."""
    table = TextStack(model).embedding.float().cpu()
    num_rows, d_model = table.shape
    height, width = (
        -(-size // limit) for size, limit in zip(table.shape, MATRIX_MAP_SIZE, strict=True)
    )
    padded = F.pad(table, (0, -d_model % width, 0, -num_rows % height))
    blocks = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height))
    blocks = blocks.movedim(2, 1).flatten(2)  # row column cell
    values = blocks.gather(2, blocks.abs().argmax(dim=2, keepdim=True))[..., 0]
    axes = label_axes(
        {
            "token": [str(i * height) for i in range(values.shape[0])],
            "dimension": [str(i * width) for i in range(values.shape[1])],
        }
    )
    note = f"{num_rows:,} tokens × {d_model} dimensions"
    if height > 1 or width > 1:
        note += f"; each cell shows the value with the largest magnitude of {height} × {width}"
    return View(values, axes, "embedding matrix", "value", signed=True, note=note)


def embedding_rows(model: Model, ids: str, unembedding: bool) -> View:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", ids):
        raise ClearheadError(f"ids must be comma-separated integers, got {ids!r:.60}.")
    rows = [int(part) for part in ids.split(",")]
    if unembedding:
        head = model.net.head
        if not isinstance(head, LMHead):
            raise ClearheadError("This model has no unembedding matrix.")
        table = head.unembed.weight
        tokenizer = model.tokenizer
        title = "rows of the unembedding matrix"
    else:
        text_stack = TextStack(model)
        table = text_stack.embedding
        tokenizer = text_stack.tokenizer
        title = "rows of the embedding matrix"
    if max(rows) >= len(table):
        raise ClearheadError(f"ids must be below {len(table)}, got {max(rows)}.")
    axes = label_axes({"token": token_labels(tokenizer, rows), "dimension": table.shape[1]})
    return View(table[rows].detach(), axes, title, "value", signed=True)


# Vectors


def query_vectors(loaded_model: LoadedModel, request: VectorsRequest) -> Iterator[JSONDict | None]:
    """The vectors, after a None for each of the steps in which they are computed."""
    vectors = loaded_model.word_vectors(request.layer)
    _check_words(vectors, [*request.words, *(word for pair in request.pairs for word in pair)])
    if request.pairs and request.words:
        direction = vectors.direction(request.pairs)
        words = [word for pair in request.pairs for word in pair] + request.words
        yield {
            "view": view_to_dict(direction.scores(request.words)),
            "agreement": view_to_dict(direction.agreement()),
            **_word_tokens(vectors, words),
        }
    elif request.expression or request.equation:
        limit = affordable_tokens(loaded_model.model, MAX_STEPS_COST)
        if request.layer is not None and len(vectors) > limit:
            raise ClearheadError(
                f"Reading {len(vectors):,} tokens up to layer {request.layer} would take too long. "
                "Use the embedding matrix, or compare single words."
            )
        for side in split_equation(request.equation or request.expression):
            vectors.evaluate_expression(side)  # raises before the vectors are read
        if isinstance(vectors.source, LayerSource):
            yield from vectors.source.read_in_steps()
        if request.equation:
            yield _compare_sums(vectors, request.equation)
        else:
            yield _evaluate_expression(vectors, request)
    elif len(request.words) < 2:
        raise ClearheadError("Give an expression (king - man + woman), words, or pairs and words.")
    else:
        yield {
            "view": view_to_dict(vectors.similarity(request.words)),
            **_word_tokens(vectors, request.words),
        }


def _check_words(vectors: Vectors, words: Sequence[str]) -> None:
    """Raise an error if a layer's vectors of these words are too much for one turn."""
    source = vectors.source
    if isinstance(source, LayerSource):
        rows = [source.row_of(word) for word in dict.fromkeys(words) if source.has_word(word)]
        check_num_tokens(source.text_stack.model, [len(row) for row in rows])


def _evaluate_expression(vectors: Vectors, request: VectorsRequest) -> JSONDict:
    """Nearest neighbors of an expression, and all vectors projected to a plane."""
    inputs, result = vectors.evaluate_expression(request.expression)
    view = vectors.solve(request.expression, request.top_k, request.include_inputs)
    neighbors = list(view.axes[0].labels)
    source = vectors.source
    neighbor_vectors = source.matrix[[source.names.index(name) for name in neighbors]]
    input_vectors = torch.stack([word.vector for word in inputs])
    points = torch.cat((input_vectors, neighbor_vectors, result[None]))
    points = F.normalize(points, dim=-1)
    if not points.isfinite().all():
        raise NonFiniteError("the vectors")
    positions, explained_variance = project_to_plane(points)
    labels = [(word.text, "input") for word in inputs]
    labels += [(name, "neighbor") for name in neighbors]
    labels.append((request.expression, "result"))
    return {
        "view": view_to_dict(view),
        **_word_tokens(vectors, [word.text for word in inputs]),
        "num_words": len(vectors),
        "points": [
            {"text": text, "role": role, "position": position}
            for (text, role), position in zip(labels, positions.tolist(), strict=True)
        ],
        "explained_variance": explained_variance,
    }


def _compare_sums(vectors: Vectors, equation: str) -> JSONDict:
    """The cosine of two sums with a control, and their words projected to a plane."""
    view = vectors.compare(equation)
    sides = []
    words: list[WordVector] = []
    for side in split_equation(equation):
        side_words, total = vectors.evaluate_expression(side)
        ends = [F.normalize(word.vector, dim=0) for word in side_words]
        is_difference = len(ends) == 2 and torch.allclose(ends[0] - ends[1], total, atol=1e-5)
        sides.append({"text": side, "is_difference": is_difference, "size": len(side_words)})
        words += side_words
    points = F.normalize(torch.stack([word.vector for word in words]), dim=-1)
    positions, explained_variance = project_to_plane(points)
    return {
        "view": view_to_dict(view),
        "neighbors": [view_to_dict(neighbors) for neighbors in view.neighbors],
        "sides": sides,
        "points": [
            {"text": word.text, "role": "input", "position": position}
            for word, position in zip(words, positions.tolist(), strict=True)
        ],
        "explained_variance": explained_variance,
        **_word_tokens(vectors, [word.text for word in words]),
    }


def _word_tokens(vectors: Vectors, words: Sequence[str]) -> JSONDict:
    """Each word with its tokens, about several of which the page warns; and unknown words."""
    known, errors = vectors.split_known([*dict.fromkeys(words)])
    return {
        "words": [
            {"text": word, "pieces": list(vectors.source.split_word(word))} for word in known
        ],
        "left_out": [str(error) for error in errors],
    }


def project_to_plane(points: Tensor) -> tuple[Tensor, float]:
    """The first two principal components, and the fraction of the variance they explain."""
    centered = points - points.mean(dim=0)
    _, singular_values, axes = torch.linalg.svd(centered, full_matrices=False)
    largest = axes[:2].gather(1, axes[:2].abs().argmax(dim=1, keepdim=True))
    axes = axes[:2] * largest.sign()  # deterministic signs
    variances = singular_values.square()
    explained_variance = variances[:2].sum() / variances.sum().clamp(min=1e-12)
    return centered @ axes.mT, float(explained_variance)


# Words in context


def compare_contexts(loaded_model: LoadedModel, request: ContextRequest) -> JSONDict:
    """Cosine similarity of a word between sentences, by layer, and its nearest neighbors alone."""
    model = loaded_model.model
    text_stack = TextStack(model)
    sentences = [find_word(text_stack, request.word, text) for text in request.texts]
    check_num_tokens(model, [len(sentence.ids) for sentence in sentences])
    similarity = context(model, request.word, request.texts)
    embeddings = torch.stack([_word_embedding(text_stack, sentence) for sentence in sentences])
    unit = F.normalize(embeddings, dim=-1)
    pair_axis = similarity.axes[1]
    pairs = [label.split("·") for label in pair_axis.labels]
    cosines = torch.stack([unit[int(a)] @ unit[int(b)] for a, b in pairs])
    view = View(
        torch.cat((cosines[None], similarity.values)),
        (*label_axes({"layer": ["token", *similarity.axes[0].labels]}), pair_axis),
        similarity.title,
        "cosine",
        signed=True,
        vmax=1.0,
        note=similarity.note,
    )
    vectors = loaded_model.word_vectors()
    return {
        "view": view_to_dict(view),
        "nearest": view_to_dict(vectors.nearest(embeddings[0], NUM_NEIGHBORS, [request.word])),
        "occurrences": [
            {
                "text": sentence.text,
                "tokens": text_stack.to_str_tokens(sentence.ids),
                "word": sentence.word_positions,
            }
            for sentence in sentences
        ],
    }


def compare_substitutes(
    loaded_model: LoadedModel, request: SubstitutionRequest
) -> Iterator[View | None]:
    """sentence × substitute: cosine similarity of the word with a substitute in its place.

    The view comes after a None for each of the steps in which it is computed.
    """
    word = request.word
    text_stack = TextStack(loaded_model.model)
    sentences = [find_word(text_stack, word, text) for text in request.texts]
    stripped = (text.strip() for text in request.substitutes)
    substitutes = [*dict.fromkeys(text for text in stripped if text)]
    if not substitutes:
        raise ClearheadError("substitutes must contain at least one word.")
    layer = check_layer(request.layer, len(text_stack.stack.blocks))
    name = text_stack.resid_name(layer)
    vectors = loaded_model.word_vectors()
    own, *others = vectors.lookup([word, *substitutes])
    rows = [torch.stack([F.cosine_similarity(own.vector, o.vector, dim=0) for o in others])]
    for sentence in sentences:
        start, end = sentence.char_span
        variants = []
        for substitute in substitutes:
            text = sentence.text[:start] + substitute + sentence.text[end:]
            variants.append(locate_word(text_stack, text, start, start + len(substitute)))
        variants.insert(0, sentence)
        longest = max(len(variant.ids) for variant in variants)
        check_num_tokens(loaded_model.model, [longest])
        per_step = max(1, affordable_tokens(loaded_model.model, MAX_STEP_COST) // longest)
        means: list[Tensor] = []
        for first in range(0, len(variants), per_step):
            means += _word_means(text_stack, variants[first : first + per_step], name)
            yield None
        original, *values = means
        cosines = [F.cosine_similarity(original, value, dim=0) for value in values]
        rows.append(torch.stack(cosines))
    axes = label_axes({"sentence": ["alone", *request.texts], "word": substitutes})
    note = (
        f"cosine similarity of {word!r} and a substitute in its place, after layer {layer}; "
        "alone: similarity of their embeddings"
    )
    title = f"similarity of {word!r} to substitutes"
    yield View(torch.stack(rows), axes, title, "cosine", signed=True, vmax=1.0, note=note)


@torch.no_grad()
def _word_embedding(text_stack: TextStack, sentence: WordInSentence) -> Tensor:
    """The embedding of a sentence's word, averaged over its tokens."""
    ids = [sentence.ids[position] for position in sentence.word_positions]
    embeddings: Tensor = text_stack.stack.embed(
        torch.tensor([ids], device=text_stack.embedding.device)
    )
    return embeddings[0].float().cpu().mean(dim=0)


def _word_means(
    text_stack: TextStack, sentences: Sequence[WordInSentence], name: str
) -> list[Tensor]:
    """An activation of each sentence's word, averaged over its tokens."""
    values = text_stack.watch([sentence.ids for sentence in sentences], [name])[name].float().cpu()
    return [
        value[sentence.word_positions].mean(dim=0)
        for value, sentence in zip(values, sentences, strict=True)
    ]
