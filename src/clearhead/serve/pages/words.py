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
from clearhead.errors import ClearheadError, NoNumbers
from clearhead.lens.logit_lens import token_labels
from clearhead.lens.vectors import Vectors, vectors
from clearhead.lens.view import Axis, View
from clearhead.lens.word_sources import Side
from clearhead.model.heads import LanguageHead
from clearhead.serve.pages.asked import Asked
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.pieces import pieces
from clearhead.serve.pages.wire import sent
from clearhead.tokens.gaps import with_gaps
from clearhead.tokens.merges import Merges
from clearhead.tokens.text import BYTES, Tokenizer

MOST = 8192  # tokens that are shown
MAP = (96, 64)  # cells of the picture of a whole matrix, at most
PATIENCE = 2e11  # parameters × tokens: what may be read for one answer, some seconds
BYTE = re.compile("<0x([0-9A-F]{2})>")
Name = Annotated[str, Field(max_length=200)]
Words = Annotated[list[Name], Field(max_length=64)]


class Cut(Asked):
    """A text to be cut into tokens, as what a model writes or as the source that an encoder-decoder reads."""

    text: str
    source: bool = False


class Sum(Asked):
    """A sum of words, or pairs that make a direction and words along it, or words to compare."""

    written: str = Field("", max_length=400)
    pairs: list[tuple[Name, Name]] = Field([], max_length=32)
    words: Words = Field([])
    layer: int | None = None  # None for the embedding matrix
    top: int = Field(10, ge=1, le=50)
    own: bool = False  # whether the words of the sum may be answers


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/tokens")
    async def tokens(asked: Cut) -> dict[str, Any]:
        return await desk.answer(asked, cut, asked.text, asked.source)

    @router.get("/models/{name}/matrix")
    async def matrix(name: str) -> dict[str, Any]:
        """The whole embedding matrix as a small picture."""
        async with desk.using(name) as held:
            return await desk.work(lambda: sent(_pooled(held.model)))

    @router.get("/models/{name}/rows")
    async def rows(name: str, ids: Annotated[str, Query(max_length=2000)], out: bool = False) -> dict[str, Any]:
        """Rows of the embedding matrix, or of the one that makes logits (`out`), by comma-separated ids."""
        async with desk.using(name) as held:
            return await desk.work(lambda: sent(_rows(held.model, ids, out)))

    @router.post("/vectors")
    async def sums(asked: Sum) -> dict[str, Any]:
        return await desk.answer(asked, answer, asked)

    return router


def cut(model: Model, text: str, source: bool = False) -> dict[str, Any]:
    """The tokens with what stands around them, and of each different one its bytes and how it was merged."""
    tokenizer = (model.source_tokenizer if source else None) or model.tokenizer
    if tokenizer is None:
        raise ClearheadError("this model has no tokenizer, so there is nothing to cut text with.")
    use, target = model.config.use, model.kind == "encoder-decoder" and not source
    before, after = (use.start, ()) if target else (use.begin, use.end)
    mask = use.mask if isinstance(model.config.model.head, c.MaskedWord) else ()
    ids = with_gaps(tokenizer, mask[0], text) if mask else tokenizer.encode(text)
    if len(ids) > MOST:
        raise ClearheadError(f"{len(ids):,} tokens are more than the {MOST:,} that are shown.")
    row, own, merges = [*before, *ids, *after], range(len(before), len(before) + len(ids)), _merges(tokenizer)
    return {
        "tokens": [piece | {"added": i not in own} for i, piece in enumerate(pieces(tokenizer, row))],
        "made": {i: {"bytes": _bytes(tokenizer, i), "steps": merges.steps(i)} for i in sorted({*row})},
        "merges": len(merges),
        "vocabulary": len(tokenizer),
        "bytes": len(text.encode(errors="surrogatepass")),
        "back": None if (back := tokenizer.decode(ids)) == text else back,
    }


@lru_cache(maxsize=4)
def _merges(tokenizer: Tokenizer) -> Merges:
    """Kept: to read those of a large tokenizer takes a moment."""
    return Merges(tokenizer)


def _bytes(tokenizer: Tokenizer, i: int) -> list[int]:
    token = tokenizer._token(i)
    if tokenizer.spaces_first and set(token) <= set(BYTES):
        return [BYTES.index(character) for character in token]
    if found := BYTE.fullmatch(token):
        return [int(found[1], 16)]
    return list(token.replace("▁", " ").encode())


def _pooled(model: Model) -> View:
    """Of every block of cells the value furthest from 0."""
    table = Side(model).table.float().cpu()
    by = [-(-size // most) for size, most in zip(table.shape, MAP, strict=True)]
    rest = [-size % n for size, n in zip(table.shape, by, strict=True)]
    cells = F.pad(table, (0, rest[1], 0, rest[0])).unflatten(1, (-1, by[1])).unflatten(0, (-1, by[0]))
    cells = cells.movedim(2, 1).flatten(2)  # rows columns cells
    values = cells.gather(2, cells.abs().argmax(dim=2, keepdim=True))[..., 0]
    down, across = ([str(i * n) for i in range(size)] for n, size in zip(by, values.shape, strict=True))
    axes = Axis.of("token", down), Axis.of("dimension", across)
    whole = f"{len(table):,} tokens × {table.shape[1]} dimensions"
    note = whole if by == [1, 1] else f"{whole}; each cell is the value furthest from 0 of {by[0]} × {by[1]}"
    return View(values, axes, "the embedding matrix", "value", signed=True, note=note)


def _rows(model: Model, ids: str, out: bool) -> View:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", ids):
        raise ClearheadError(f"ids = {ids!r:.60} must be whole numbers with commas between them.")
    numbers = [int(part) for part in ids.split(",")]
    if out:
        head = model.net.head
        if not isinstance(head, LanguageHead):
            raise ClearheadError("this model has no head that gives each token a logit.")
        table, tokenizer, title = head.unembed.weight, model.tokenizer, "rows of the unembedding"
    else:
        side = Side(model)
        table, tokenizer, title = side.table, side.tokenizer, "rows of the embedding matrix"
    if (most := max(numbers)) >= len(table):
        raise ClearheadError(f"there is no row {most}; rows go from 0 to {len(table) - 1}.")
    axes = Axis.of("token", token_labels(tokenizer, numbers)), Axis.of("dimension", table.shape[1])
    return View(table[numbers].detach(), axes, title, "value", signed=True)


def known(model: Model, layer: int | None = None) -> Vectors:
    """All vectors of a model, kept with it and gone with it."""
    kept: dict[int | None, Vectors] = vars(model).setdefault("_vectors", {})
    found = kept.get(layer)
    if found is None:  # others may ask at the same time, so nothing here counts on what they leave
        found = vectors(model, layer)  # which refuses a layer that is not there
        for other in [key for key in list(kept) if key is not None]:
            kept.pop(other, None)
        kept[layer] = found
    return found


def answer(model: Model, asked: Sum) -> dict[str, Any]:
    found = known(model, asked.layer)
    if asked.pairs and asked.words:
        direction = found.direction(asked.pairs)
        told = _told(found, [*(word for pair in asked.pairs for word in pair), *asked.words])
        return {"view": sent(direction.scores(asked.words)), "agreement": sent(direction.agreement()), "words": told}
    if not asked.written:
        if len(asked.words) < 2:
            raise ClearheadError("give a sum (king - man + woman), words to compare, or pairs and words.")
        return {"view": sent(found.similarity(asked.words)), "words": _told(found, asked.words)}
    if asked.layer is not None and model.parameters * len(found) > PATIENCE:
        raise ClearheadError(
            f"to read {len(found):,} tokens each alone up to layer {asked.layer} would take this machine too long; "
            "ask the embeddings, or compare words, which reads only those."
        )
    words, goal = found.sum(asked.written)
    view = found.solve(asked.written, asked.top, asked.own)
    nearest = list(view.axes[0].labels)
    rows = found.source.rows[[found.source.names.index(name) for name in nearest]]
    points = F.normalize(torch.cat((torch.stack([word.vector for word in words]), rows, goal[None])), dim=-1)
    if not points.isfinite().all():
        raise NoNumbers("the vectors")
    names = [*(word.text for word in words), *nearest, asked.written]
    roles = ["own"] * len(words) + ["near"] * len(nearest) + ["sum"]
    places, share = flat(points)
    return {
        "view": sent(view),
        "words": _told(found, [word.text for word in words]),
        "size": len(found),
        "points": [{"text": n, "role": r, "at": p} for n, r, p in zip(names, roles, places.tolist(), strict=True)],
        "share": share,
    }


def _told(found: Vectors, words: Sequence[str]) -> list[dict[str, Any]]:
    """Each word with the tokens it is made of; a page says so where there are several."""
    return [{"text": word.text, "pieces": list(word.pieces)} for word in found.found([*dict.fromkeys(words)])]


def flat(points: Tensor) -> tuple[Tensor, float]:
    """Points in the plane in which they lie furthest apart, and the share of their spread that it holds."""
    centred = points - points.mean(dim=0)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * axes[:2].gather(1, axes[:2].abs().argmax(dim=1, keepdim=True)).sign()  # the same at each call
    share = sizes[:2].square().sum() / sizes.square().sum().clamp(min=1e-12)
    return centred @ axes.mT, float(share)
