"""What the page asks about positions (L2): the model's own scheme, others to compare it with, and a shifted text."""

from typing import Any

import torch
from fastapi import APIRouter
from pydantic import Field

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.hooks import Recorder, force_eager
from clearhead.lens.activations import token_labels
from clearhead.lens.positions import (
    position_shift,
    position_similarity,
    positional_encodings,
    relative_bias,
    rotary_angles,
)
from clearhead.lens.view import Axis, View
from clearhead.model import positions as schemes
from clearhead.serve.explorer.runs import ExplorerRequest
from clearhead.serve.explorer.serialize import view_to_dict
from clearhead.serve.explorer.service import ExplorerService

MAX_TOKENS = 128  # tokens of a text that is shifted or put in reverse


class PositionsRequest(ExplorerRequest):
    num_positions: int = Field(32, ge=2, le=512)  # a model with a shorter context has fewer


class ShiftRequest(ExplorerRequest):
    text: str
    offset: int = Field(1, ge=1, le=4096)


class ReverseRequest(ExplorerRequest):
    text: str


def position_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/positions")
    async def places(asked: PositionsRequest) -> dict[str, Any]:
        return await desk.call(asked, describe_positions, asked.num_positions)

    @router.post("/shifted")
    async def shift(asked: ShiftRequest) -> dict[str, Any]:
        """What changes inside when the text starts later."""
        return await desk.call(asked, shift_text, asked.text, asked.offset)

    @router.post("/order")
    async def order(asked: ReverseRequest) -> dict[str, Any]:
        """What the last token notices when those before it come in reverse."""
        return await desk.call(asked, reverse_text, asked.text)

    return router


def describe_positions(model: Model, count: int) -> dict[str, Any]:
    """Views of positions, each said to be the model's own or not, and the paces at which pairs turn."""
    count = min(count, model.net.context_length)
    own = model.config.model.position.kind
    views: dict[str, View] = {}
    if own in ("learned", "sinusoidal", "rotary"):
        views["own"] = _first(positional_encodings(model, count))
        views["similarity"] = position_similarity(model, count)
    if own == "rotary":
        views["angles"] = rotary_angles(model, count)
    if own in ("relative", "alibi"):
        views["bias"] = relative_bias(model, count)
    compared = {"binary": _counting(count)}
    if own != "sinusoidal":
        compared["waves"] = _waves(model, count)
    return {
        "kind": own,
        "count": count,
        "own": {name: view_to_dict(view) for name, view in views.items()},
        "compared": {name: view_to_dict(view) for name, view in compared.items()},
        "rates": _rates(model).tolist(),
        "turns": own == "rotary",
    }


def _first(view: View) -> View:
    """The scheme without the binary counting beside it."""
    return View(view.values[0], view.axes[1:], view.title, view.value_name, view.signed)


def _counting(count: int) -> View:
    bits = (count - 1).bit_length()
    values = torch.arange(count)[:, None] >> torch.arange(bits) & 1
    axes = (
        Axis.from_labels("position", count),
        Axis.from_labels("bit", [str(2**bit) for bit in range(bits)]),
    )
    return View(
        values,
        axes,
        "binary counting",
        "bit",
        note="each bit flips half as often as the one before it",
    )


def _waves(model: Model, count: int) -> View:
    width = model.config.model.d_model
    values = schemes.Sinusoidal(width + width % 2, "interleaved").embed(
        torch.arange(count)[None], torch.float32
    )[0]
    axes = Axis.from_labels("position", count), Axis.from_labels("dimension", values.shape[1])
    return View(values, axes, "sinusoidal positions", "value", signed=True)


def _rates(model: Model) -> torch.Tensor:
    """Radians a position of each pair of a head's dimensions; where nothing turns, what it would be in 2021's paper."""
    position = model.net.position
    here = torch.device("cpu")
    if isinstance(position, schemes.Rotary):
        return position.frequencies(here)
    width = model.config.model.d_head
    if width < 2:
        raise ClearheadError("heads of one dimension have no pairs that could turn.")
    return schemes.inverse_frequencies(width - width % 2, schemes.DEFAULT_THETA, here)


def shift_text(model: Model, text: str, by: int) -> dict[str, Any]:
    ids, whole = _begun(model, text)
    found = position_shift(model, ids, by)
    assert found.patterns is not None
    return {"stream": view_to_dict(found), "patterns": view_to_dict(found.patterns), "whole": whole}


def _begun(model: Model, text: str) -> tuple[list[int], bool]:
    """The first tokens of a text, for what looks at every pattern; and whether these are all."""
    m = model.config.model
    if not isinstance(m.input, c.Tokens) or isinstance(m.architecture, c.EncoderDecoder):
        raise ClearheadError("a text is moved or put in reverse in decoders and encoders of text.")
    ids = model.make_batch(text).unpadded_rows()[0]
    return ids[:MAX_TOKENS], len(ids) <= MAX_TOKENS


def reverse_text(model: Model, text: str) -> dict[str, Any]:
    """How far the last token's stream moves when the others come in reverse, by layer: with the model's own positions,
    and with all tokens at the same place (L2.1). Who sees whom stays as it is."""
    m = model.config.model
    use = model.config.inference
    ids, whole = _begun(model, text)
    first = len(use.bos_tokens)
    last = len(ids) - (len(use.sep_tokens) if whole else 0) - 1
    if last - first < 2:
        raise ClearheadError(
            "there must be two tokens or more before the last one, to be put in reverse."
        )
    rows = [ids, [*ids[:first], *ids[first:last][::-1], *ids[last:]]]
    device = next(model.net.parameters()).device
    names = [f"blocks.{i}.resid_post" for i in range(m.n_layers)]
    moved = []
    for at in (
        torch.arange(len(ids), device=device)[None],
        torch.zeros(1, len(ids), dtype=torch.long, device=device),
    ):
        watch = Recorder(names)
        with torch.no_grad(), force_eager():
            model.net(torch.tensor(rows, device=device), position_ids=at.expand(2, -1), hooks=watch)
        streams = torch.stack(
            [watch.values[name][:, last].float().cpu() for name in names]
        )  # layer order width
        moved.append((streams[:, 1] - streams[:, 0]).norm(dim=-1) / streams[:, 0].norm(dim=-1))
    axes = (
        Axis.from_labels("positions", ["its own", "all the same"]),
        Axis.from_labels("layer", m.n_layers),
    )
    note = "how far the last token's stream moved, as a share of its length"
    view = View(torch.stack(moved), axes, "the other tokens in reverse", "change", note=note)
    return {
        "view": view_to_dict(view),
        "rows": [token_labels(model.tokenizer, row) for row in rows],
        "at": last,
        "whole": whole,
    }
