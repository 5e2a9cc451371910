"""What the page asks about words: the pieces a text is cut into, the rows they pick, and what vectors of words tell."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Query
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError, NonFiniteError
from clearhead.lens.activations import InputSide, check_layer, output_labels, token_labels
from clearhead.lens.attribution import attribution
from clearhead.lens.context import ContextSimilarity, WordInSentence, context, locate_word
from clearhead.lens.logit_lens import RESIDUAL_STREAMS, LogitLens, apply_head
from clearhead.lens.view import Axis, View
from clearhead.model.heads import LMHead
from clearhead.serve.explorer.runs import ExplorerRequest, Run, describe_trace_tokens
from clearhead.serve.explorer.serialize import describe_tokens, finite_or_none, view_to_dict
from clearhead.serve.explorer.service import ExplorerService
from clearhead.tokenizers.tokenizer import BYTE_CHARACTERS, BPEMerges, Tokenizer, encode_with_masks
from clearhead.word_vectors.vectors import Vectors, vectors

# ---- words: What the page asks about words: the pieces a text is cut into, the rows they pick, and what vectors of words tell.

MAX_TOKENS = 8192  # tokens that are shown
MATRIX_MAP_SIZE = (96, 64)  # cells of the picture of a whole matrix, at most
MAX_PARAMETER_TOKENS = 2e11  # parameters × tokens: what may be read for one answer, some seconds
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
Word = Annotated[str, Field(max_length=200)]
WordList = Annotated[list[Word], Field(max_length=64)]


class TokenizeRequest(ExplorerRequest):
    """A text to be cut into tokens, as what a model writes or as the source that an encoder-decoder reads."""

    text: str
    source: bool = False


class VectorsRequest(ExplorerRequest):
    """A sum of words, or pairs that make a direction and words along it, or words to compare."""

    expression: str = Field("", max_length=400)
    pairs: list[tuple[Word, Word]] = Field([], max_length=32)
    words: WordList = Field([])
    layer: int | None = None  # None for the embedding matrix
    top_k: int = Field(10, ge=1, le=50)
    include_inputs: bool = False  # whether the words of the sum may be answers


def word_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/tokens")
    async def tokens(asked: TokenizeRequest) -> dict[str, Any]:
        return await desk.call(asked, tokenize, asked.text, asked.source)

    @router.get("/models/{name}/matrix")
    async def matrix(name: str) -> dict[str, Any]:
        """The whole embedding matrix as a small picture."""
        async with desk.use_model(name) as held:
            return await desk.submit(lambda: view_to_dict(_pooled(held.model)))

    @router.get("/models/{name}/rows")
    async def rows(
        name: str, ids: Annotated[str, Query(max_length=2000)], out: bool = False
    ) -> dict[str, Any]:
        """Rows of the embedding matrix, or of the one that makes logits (`out`), by comma-separated ids."""
        async with desk.use_model(name) as held:
            return await desk.submit(lambda: view_to_dict(_rows(held.model, ids, out)))

    @router.post("/vectors")
    async def sums(asked: VectorsRequest) -> dict[str, Any]:
        return await desk.call(asked, query_vectors, asked)

    return router


def tokenize(model: Model, text: str, source: bool = False) -> dict[str, Any]:
    """The tokens with what stands around them, and of each different one its bytes and how it was merged."""
    tokenizer = (model.source_tokenizer if source else None) or model.tokenizer
    if tokenizer is None:
        raise ClearheadError("this model has no tokenizer, so there is nothing to cut text with.")
    use = model.config.inference
    target = model.architecture == "encoder-decoder" and not source
    before, after = (use.decoder_start_tokens, ()) if target else (use.bos_tokens, use.sep_tokens)
    mask = use.mask_token if isinstance(model.config.model.head, c.MLMHead) else ()
    ids = encode_with_masks(tokenizer, mask[0], text) if mask else tokenizer.encode(text)
    if len(ids) > MAX_TOKENS:
        raise ClearheadError(
            f"{len(ids):,} tokens are more than the {MAX_TOKENS:,} that are shown."
        )
    row = [*before, *ids, *after]
    own = range(len(before), len(before) + len(ids))
    merges = _merges(tokenizer)
    return {
        "tokens": [
            piece | {"added": i not in own}
            for i, piece in enumerate(describe_tokens(tokenizer, row))
        ],
        "made": {
            i: {"bytes": _bytes(tokenizer, i), "steps": merges.merge_steps(i)}
            for i in sorted({*row})
        },
        "merges": len(merges),
        "vocabulary": len(tokenizer),
        "bytes": len(text.encode(errors="surrogatepass")),
        "back": None if (back := tokenizer.decode(ids)) == text else back,
    }


@lru_cache(maxsize=4)
def _merges(tokenizer: Tokenizer) -> BPEMerges:
    """Kept: to read those of a large tokenizer takes a moment."""
    return BPEMerges(tokenizer)


def _bytes(tokenizer: Tokenizer, i: int) -> list[int]:
    token = tokenizer.id_to_token(i)
    if tokenizer.has_space_prefix and set(token) <= set(BYTE_CHARACTERS):
        return [BYTE_CHARACTERS.index(character) for character in token]
    if found := BYTE_TOKEN.fullmatch(token):
        return [int(found[1], 16)]
    return list(token.replace("▁", " ").encode())


def _pooled(model: Model) -> View:
    """Of every block of cells the value furthest from 0."""
    table = InputSide(model).embedding.float().cpu()
    by = [-(-size // most) for size, most in zip(table.shape, MATRIX_MAP_SIZE, strict=True)]
    rest = [-size % n for size, n in zip(table.shape, by, strict=True)]
    cells = (
        F.pad(table, (0, rest[1], 0, rest[0])).unflatten(1, (-1, by[1])).unflatten(0, (-1, by[0]))
    )
    cells = cells.movedim(2, 1).flatten(2)  # rows columns cells
    values = cells.gather(2, cells.abs().argmax(dim=2, keepdim=True))[..., 0]
    down, across = (
        [str(i * n) for i in range(size)] for n, size in zip(by, values.shape, strict=True)
    )
    axes = Axis.from_labels("token", down), Axis.from_labels("dimension", across)
    whole = f"{len(table):,} tokens × {table.shape[1]} dimensions"
    note = (
        whole
        if by == [1, 1]
        else f"{whole}; each cell is the value furthest from 0 of {by[0]} × {by[1]}"
    )
    return View(values, axes, "the embedding matrix", "value", signed=True, note=note)


def _rows(model: Model, ids: str, out: bool) -> View:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", ids):
        raise ClearheadError(f"ids = {ids!r:.60} must be whole numbers with commas between them.")
    numbers = [int(part) for part in ids.split(",")]
    if out:
        head = model.net.head
        if not isinstance(head, LMHead):
            raise ClearheadError("this model has no head that gives each token a logit.")
        table = head.unembed.weight
        tokenizer = model.tokenizer
        title = "rows of the unembedding"
    else:
        side = InputSide(model)
        table = side.embedding
        tokenizer = side.tokenizer
        title = "rows of the embedding matrix"
    if (most := max(numbers)) >= len(table):
        raise ClearheadError(f"there is no row {most}; rows go from 0 to {len(table) - 1}.")
    axes = (
        Axis.from_labels("token", token_labels(tokenizer, numbers)),
        Axis.from_labels("dimension", table.shape[1]),
    )
    return View(table[numbers].detach(), axes, title, "value", signed=True)


def cached_vectors(model: Model, layer: int | None = None) -> Vectors:
    """All vectors of a model, kept with it and gone with it."""
    kept: dict[int | None, Vectors] = vars(model).setdefault("_vectors", {})
    found = kept.get(layer)
    if found is None:  # others may ask at the same time, so nothing here counts on what they leave
        found = vectors(model, layer)  # which refuses a layer that is not there
        for other in [key for key in list(kept) if key is not None]:
            kept.pop(other, None)
        kept[layer] = found
    return found


def query_vectors(model: Model, asked: VectorsRequest) -> dict[str, Any]:
    found = cached_vectors(model, asked.layer)
    if asked.pairs and asked.words:
        direction = found.direction(asked.pairs)
        told = _word_pieces(found, [*(word for pair in asked.pairs for word in pair), *asked.words])
        return {
            "view": view_to_dict(direction.scores(asked.words)),
            "agreement": view_to_dict(direction.agreement()),
            "words": told,
        }
    if not asked.expression:
        if len(asked.words) < 2:
            raise ClearheadError(
                "give a sum (king - man + woman), words to compare, or pairs and words."
            )
        return {
            "view": view_to_dict(found.similarity(asked.words)),
            "words": _word_pieces(found, asked.words),
        }
    if asked.layer is not None and model.num_parameters() * len(found) > MAX_PARAMETER_TOKENS:
        raise ClearheadError(
            f"to read {len(found):,} tokens each alone up to layer {asked.layer} would take this machine too long; "
            "ask the embeddings, or compare words, which reads only those."
        )
    words, goal = found.evaluate_expression(asked.expression)
    view = found.solve(asked.expression, asked.top_k, asked.include_inputs)
    nearest = list(view.axes[0].labels)
    rows = found.source.matrix[[found.source.names.index(name) for name in nearest]]
    points = F.normalize(
        torch.cat((torch.stack([word.vector for word in words]), rows, goal[None])), dim=-1
    )
    if not points.isfinite().all():
        raise NonFiniteError("the vectors")
    names = [*(word.text for word in words), *nearest, asked.expression]
    roles = ["own"] * len(words) + ["near"] * len(nearest) + ["sum"]
    places, share = project_to_plane(points)
    return {
        "view": view_to_dict(view),
        "words": _word_pieces(found, [word.text for word in words]),
        "size": len(found),
        "points": [
            {"text": n, "role": r, "at": p}
            for n, r, p in zip(names, roles, places.tolist(), strict=True)
        ],
        "share": share,
    }


def _word_pieces(found: Vectors, words: Sequence[str]) -> list[dict[str, Any]]:
    """Each word with the tokens it is made of; a page says so where there are several."""
    return [
        {"text": word.text, "pieces": list(word.tokens)}
        for word in found.lookup([*dict.fromkeys(words)])
    ]


def project_to_plane(points: Tensor) -> tuple[Tensor, float]:
    """Points in the plane in which they lie furthest apart, and the share of their spread that it holds."""
    centred = points - points.mean(dim=0)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = (
        axes[:2] * axes[:2].gather(1, axes[:2].abs().argmax(dim=1, keepdim=True)).sign()
    )  # the same at each call
    share = sizes[:2].square().sum() / sizes.square().sum().clamp(min=1e-12)
    return centred @ axes.mT, float(share)


# ---- meanings: What the page asks about meaning: a word in several sentences, and what a run would answer, layer by layer.

NUM_NEIGHBORS = 6  # words told to be nearest
LENS_TOP_K = 8  # answers of each layer
LENS_MAX_TOKENS = 16  # tokens that the lens shows: as many as have room for words in them


class ContextRequest(ExplorerRequest):
    """A word, and sentences that hold it."""

    word: str = Field(max_length=100)
    texts: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=6)]


class SubstitutionRequest(ContextRequest):
    """Other words to be put in its place, and the layer after which they are compared, from the end below 0."""

    substitutes: Annotated[WordList, Field(max_length=24)]
    layer: int = -1


def context_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/context")
    async def in_context(asked: ContextRequest) -> dict[str, Any]:
        return await desk.call(asked, compare_contexts, asked)

    @router.post("/instead")
    async def in_its_place(asked: SubstitutionRequest) -> dict[str, Any]:
        return view_to_dict(await desk.call(asked, compare_substitutes, asked))

    @router.get("/runs/{name}/lens")
    async def lens(name: str, at: int = -1) -> dict[str, Any]:
        """The first answers of all layers at all tokens, and the likeliest ones at one token."""
        return await desk.submit(run_logit_lens, desk.runs.get(name), at)

    @router.get("/runs/{name}/attribution")
    async def parts(
        name: str,
        token: int | None = None,
        against: int | None = None,
        at: Annotated[int, Query()] = -1,
    ) -> dict[str, Any]:
        """What the logit of a token is made of, by part and by head; of two tokens, their difference."""
        run = desk.runs.get(name)
        return await desk.submit(run_attribution, run, token, against, at)

    return router


def compare_contexts(model: Model, asked: ContextRequest) -> dict[str, Any]:
    """How alike the word is in each two sentences, from its bare token on, and what it is near to alone."""
    found = context(model, asked.word, asked.texts)
    side = found.side
    name = _path(found, "embed")
    assert side is not None
    alone = torch.stack([_word(side, [reading], name)[0] for reading in found.sentences])
    unit = F.normalize(alone, dim=-1)
    pairs = [label.split("·") for label in found.axes[1].labels]
    row = torch.stack([unit[int(a)] @ unit[int(b)] for a, b in pairs])
    axes = Axis.from_labels("layer", ["token", *found.axes[0].labels]), found.axes[1]
    values = torch.cat((row[None], found.values))
    return {
        "view": view_to_dict(
            View(values, axes, found.title, "cosine", signed=True, vmax=1.0, note=found.note)
        ),
        "near": view_to_dict(cached_vectors(model).nearest(alone[0], NUM_NEIGHBORS, [asked.word])),
        "readings": [
            {
                "text": reading.text,
                "tokens": side.to_str_tokens(reading.ids),
                "word": reading.word_positions,
            }
            for reading in found.sentences
        ],
    }


def compare_substitutes(model: Model, asked: SubstitutionRequest) -> View:
    """sentence × other word: the cosine of the word's stream with that of another one in its place."""
    found = context(model, asked.word, asked.texts)
    side = found.side
    others = [*dict.fromkeys(word.strip() for word in asked.substitutes if word.strip())]
    assert side is not None
    if not others:
        raise ClearheadError("give some words to put in its place.")
    layer = check_layer(asked.layer, len(side.stack.blocks))
    rows = []
    name = _path(found, f"blocks.{layer}.resid_post")
    for reading in found.sentences:
        start, end = reading.char_span
        texts = [
            (reading.text[:start] + other + reading.text[end:], start + len(other))
            for other in others
        ]
        put = [locate_word(side, text, start, stop) for text, stop in texts]
        own, *values = _word(side, [reading, *put], name)
        rows.append(torch.stack([F.cosine_similarity(own, value, dim=0) for value in values]))
    vectors = cached_vectors(model)
    word, *alone = vectors.lookup([asked.word, *others])
    first = torch.stack([F.cosine_similarity(word.vector, other.vector, dim=0) for other in alone])
    axes = Axis.from_labels("sentence", ["alone", *asked.texts]), Axis.from_labels("word", others)
    where = f"after layer {layer}; alone, the cosine of their embeddings"
    note = f"cosine of {asked.word!r} with another word in its place, {where}"
    title = f"what {asked.word!r} is like"
    return View(
        torch.stack((first, *rows)), axes, title, "cosine", signed=True, vmax=1.0, note=note
    )


def _path(found: ContextSimilarity, name: str) -> str:
    return f"encoder.{name}" if found.side is not None and found.side.is_encoder else name


def _word(side: InputSide, readings: Sequence[WordInSentence], name: str) -> list[Tensor]:
    """A value of the words of some sentences, the mean over each word's tokens."""
    seen = side.watch([reading.ids for reading in readings], [name])[name].float().cpu()
    return [
        row[reading.word_positions].mean(dim=0) for row, reading in zip(seen, readings, strict=True)
    ]


def run_logit_lens(run: Run, at: int) -> dict[str, Any]:
    """The logit lens over the streams that the run has kept; of a long text, over the tokens around one."""
    trace = run.trace
    if isinstance(trace.config.head, c.NoHead):
        raise ClearheadError(
            "this model has no head, so there is no answer to look for; hidden states have no words."
        )
    model = trace.model
    labels = [
        token["text"]
        for token in describe_trace_tokens(trace.model, trace.batch.inputs, trace, source=False)
    ]
    # a class is one answer for all
    count = len(labels)
    at = -1 if trace.is_pooled else run.resolve_token(at)
    if not -count <= at < count:
        raise ClearheadError(f"there is no token {at}; there are tokens 0 to {count - 1}.")
    start = (
        0
        if trace.is_pooled
        else max(0, min(at % count - LENS_MAX_TOKENS // 2, count - LENS_MAX_TOKENS))
    )
    around = slice(None) if trace.is_pooled else slice(start, start + LENS_MAX_TOKENS)
    streams = {name: value[:, around] for name, value in trace.residuals.items()}
    with torch.no_grad():
        best = apply_head(
            model.net, {RESIDUAL_STREAMS[0]: streams["full_embed"], **streams}, None, LENS_TOP_K
        )
    ids, shares = (found[0].cpu() for found in best)
    across, place = (["the whole"], 0) if trace.is_pooled else (labels[around], at % count - start)
    found = LogitLens.from_top_k(
        across,
        ids,
        shares,
        lambda i: output_labels(model.config, model.tokenizer, [i])[0],
        trace.config.head,
    )
    layers = [
        [(word, finite_or_none(share)) for word, share in best]
        for best in found.top_predictions(place)
    ]
    return {
        "view": view_to_dict(found),
        "start": start,
        "at": place,
        "count": count,
        "layers": layers,
    }


def run_attribution(run: Run, token: int | None, against: int | None, at: int) -> dict[str, Any]:
    found = attribution(
        run.trace.model, token=token, against=against, at=run.resolve_token(at), **run.lens_inputs()
    )
    kinds = {part: view_to_dict(found.by_head(part)) for part in found.layer_contributions[0]}
    assert found.target is not None
    return {
        "view": view_to_dict(found),
        "heads": kinds,
        "total": finite_or_none(found.total),
        "token": found.target.answer,
    }
