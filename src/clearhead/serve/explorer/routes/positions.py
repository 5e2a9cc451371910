"""Positions (L2): the model's own scheme, others for comparison, and shifted or reversed texts."""

from collections.abc import Sequence

import torch
from fastapi import APIRouter
from pydantic import Field
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.hooks import Recorder, force_eager
from clearhead.lens.position_encodings import (
    phrase_shift,
    position_curves,
    position_shift,
    position_similarity,
    positional_encodings,
    relative_bias,
    rotary_angles,
)
from clearhead.lens.tokens import token_labels
from clearhead.lens.view import View, label_axes
from clearhead.model.positions import DEFAULT_THETA, Rotary, Sinusoidal, inverse_frequencies
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.cost import check_num_tokens
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.requests import ExplorerRequest
from clearhead.serve.explorer.serialize import view_to_dict

CURVE_POSITIONS = (2, 50)
MAX_TOKENS = 128  # longer texts are truncated before they are shifted or reversed


class PositionsRequest(ExplorerRequest):
    num_positions: int = Field(32, ge=2, le=512)  # at most the model's context length


class ShiftRequest(ExplorerRequest):
    text: str
    offset: int = Field(1, ge=1, le=4096)


class PhraseRequest(ExplorerRequest):
    text: str
    other: str
    layer: int = 0
    head: int = 0


class ReverseRequest(ExplorerRequest):
    text: str


def position_routes(executor: ExplorerExecutor) -> APIRouter:
    router = APIRouter(prefix="/api/positions", tags=["page"])

    @router.post("")
    async def positions(request: PositionsRequest) -> JSONDict:
        return await executor.call(request, describe_positions, request.num_positions)

    @router.post("/shift")
    async def shift(request: ShiftRequest) -> JSONDict:
        """Changes of activations when all positions are shifted."""
        return await executor.call(request, shift_text, request.text, request.offset)

    @router.post("/phrase")
    async def phrase(request: PhraseRequest) -> JSONDict:
        """Scores of one head among the words that two texts share at different positions."""
        return await executor.call(
            request, compare_phrase, request.text, request.other, request.layer, request.head
        )

    @router.post("/reverse")
    async def reverse(request: ReverseRequest) -> JSONDict:
        """Changes of the last token when the tokens before it are reversed."""
        return await executor.call(request, reverse_text, request.text)

    return router


def describe_positions(model: Model, num_positions: int) -> JSONDict:
    """Views of the model's own scheme and of others, and rotary frequencies."""
    count = min(num_positions, model.net.context_length)
    scheme = model.config.model.position.kind
    own: dict[str, View] = {}
    if scheme in ("learned", "sinusoidal", "rotary"):
        encodings = positional_encodings(model, count)
        own["own"] = View(  # without the binary counting
            encodings.values[0],
            encodings.axes[1:],
            encodings.title,
            encodings.value_name,
            encodings.signed,
        )
        own["similarity"] = position_similarity(model, count)
    if scheme == "rotary":
        own["angles"] = rotary_angles(model, count)
    if scheme in ("t5", "alibi"):
        own["bias"] = relative_bias(model, count)
    compared = {"binary": _binary_counting(count)}
    d_model = model.config.model.d_model
    if scheme != "sinusoidal":
        compared["sinusoidal"] = _sinusoidal(d_model, range(count))
    curves: dict[str, View] = {}
    has_curves = model.net.context_length > CURVE_POSITIONS[-1]
    if scheme != "sinusoidal" or not has_curves:
        curves["sinusoidal"] = _sinusoidal(d_model, CURVE_POSITIONS)
    if scheme in ("learned", "sinusoidal") and has_curves:
        curves["own"] = position_curves(model, CURVE_POSITIONS)
    return {
        "scheme": scheme,
        "num_positions": count,
        "own": {name: view_to_dict(view) for name, view in own.items()},
        "compared": {name: view_to_dict(view) for name, view in compared.items()},
        "curves": {name: view_to_dict(view) for name, view in curves.items()},
        "inv_freq": _inverse_frequencies(model).tolist(),
        "is_rotary": scheme == "rotary",
    }


def _binary_counting(count: int) -> View:
    num_bits = (count - 1).bit_length()
    values = torch.arange(count)[:, None] >> torch.arange(num_bits) & 1
    bits = [str(2**bit) for bit in range(num_bits)]
    axes = label_axes({"position": count, "bit": bits})
    note = "each bit flips half as often as the previous one"
    return View(values, axes, "binary counting", "value", note=note)


def _sinusoidal(d_model: int, positions: Sequence[int]) -> View:
    scheme = Sinusoidal(d_model + d_model % 2, "interleaved")
    values = scheme.embed(torch.tensor([[*positions]]), torch.float32)[0]
    names = [str(position) for position in positions]
    axes = label_axes({"position": names, "dimension": values.shape[1]})
    return View(values, axes, "sinusoidal positions", "value", signed=True)


def _inverse_frequencies(model: Model) -> Tensor:
    """Radians per position of each dimension pair; RoPE's defaults if the model is not rotary."""
    device = torch.device("cpu")
    position = model.net.position
    if isinstance(position, Rotary):
        return position.frequencies(device)
    d_head = model.config.model.d_head
    if d_head < 2:
        raise ClearheadError("Heads with d_head = 1 have no pairs of dimensions to rotate.")
    return inverse_frequencies(d_head - d_head % 2, DEFAULT_THETA, device)


def shift_text(model: Model, text: str, offset: int) -> JSONDict:
    ids, is_complete = _first_tokens(model, text)
    view = position_shift(model, ids, offset)
    return {
        "residual": view_to_dict(view),
        "patterns": view_to_dict(view.patterns),
        "is_complete": is_complete,
    }


def compare_phrase(model: Model, text: str, other: str, layer: int, head: int) -> JSONDict:
    check_num_tokens(model, [len(ids) for ids in model.encode_texts([text, other])])
    view = phrase_shift(model, text, other, layer=layer, head=head)
    patterns = [
        View(values, view.axes[1:], view.title, "score", signed=True) for values in view.values
    ]
    return {
        "texts": [view_to_dict(pattern) for pattern in patterns],
        "starts": view.axes[0].labels,
        "difference": float(view.differences.values[head]),
        "largest_difference": float(view.differences.values.max()),
    }


def _first_tokens(model: Model, text: str) -> tuple[list[int], bool]:
    """The first tokens of a text, and whether these are all."""
    m = model.config.model
    if not isinstance(m.input, c.Tokens) or isinstance(m.architecture, c.EncoderDecoder):
        raise ClearheadError("Shifting and reversing need a decoder or encoder of text.")
    ids = model.make_batch(text).unpadded_rows()[0]
    return ids[:MAX_TOKENS], len(ids) <= MAX_TOKENS


def reverse_text(model: Model, text: str) -> JSONDict:
    """Relative change of the last token's residual stream, by layer, when the others are reversed.

    With the model's own positions, and with all tokens at the same position (L2.1); the mask is
    unchanged.
    """
    inference = model.config.inference
    n_layers = model.config.model.n_layers
    ids, is_complete = _first_tokens(model, text)
    first = len(inference.bos_tokens)
    last = len(ids) - (len(inference.sep_tokens) if is_complete else 0) - 1
    if last - first < 2:
        raise ClearheadError("The text needs at least two tokens before the last one.")
    reversed_ids = [*ids[:first], *ids[first:last][::-1], *ids[last:]]
    rows = [ids, reversed_ids]
    device = next(model.net.parameters()).device
    names = [f"blocks.{layer}.resid_post" for layer in range(n_layers)]
    own_positions = torch.arange(len(ids), device=device)[None]
    changes = []
    for position_ids in (own_positions, torch.zeros_like(own_positions)):
        recorder = Recorder(names)
        with torch.no_grad(), force_eager():
            model.net(
                torch.tensor(rows, device=device),
                position_ids=position_ids.expand(2, -1),
                hooks=recorder,
            )
        # layer order d_model
        streams = torch.stack([recorder.values[name][:, last].float().cpu() for name in names])
        difference = (streams[:, 1] - streams[:, 0]).norm(dim=-1)
        changes.append(difference / streams[:, 0].norm(dim=-1))
    axes = label_axes({"positions": ["own", "all the same"], "layer": n_layers})
    note = "relative change of the last token's residual stream"
    view = View(torch.stack(changes), axes, "other tokens reversed", "change", note=note)
    return {
        "view": view_to_dict(view),
        "rows": [token_labels(model.tokenizer, row) for row in rows],
        "token": last,
        "is_complete": is_complete,
    }
