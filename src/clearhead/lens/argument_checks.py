"""Checks of the arguments that functions of the lens share."""

from typing import TYPE_CHECKING, TypedDict

from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError, check_int

if TYPE_CHECKING:
    from clearhead.api import MediaInput, TextInput


class ModelInputs(TypedDict, total=False):
    """What a model reads: keyword arguments of `model.watch`."""

    x: "TextInput | None"
    source: "TextInput | None"
    images: "MediaInput | None"
    audio: "MediaInput | None"


def check_model(model: object) -> None:
    """Raise unless this is a model."""
    if not hasattr(model, "net"):
        raise ClearheadError(
            f"expected a model, got {type(model).__name__}; clearhead.load returns one."
        )


def check_layer(layer: int, count: int) -> int:
    return check_index(layer, count, "layer", "this model")


def check_head(head: int, count: int) -> int:
    return check_index(head, count, "head", "this layer")


def check_token(position: int, count: int) -> int:
    return check_index(position, count, "token", "the text")


def check_index(index: object, count: int, noun: str, owner: str) -> int:
    """A valid index as a number from 0; negative ones count from the end."""
    if isinstance(index, bool) or not isinstance(index, int) or not -count <= index < count:
        raise ClearheadError(f"there is no {noun} {index!r}; {owner} has {noun}s 0 to {count - 1}.")
    return index % count


def check_top_k(top_k: int) -> int:
    """Raise unless `top_k` is a positive integer."""
    check_int("top_k", top_k, minimum=1)
    return top_k


def answer_position(config: c.Config, batch: Batch, position: int | None = None) -> int:
    """The given position; by default that of the first mask token, or the last."""
    if position is not None:
        if type(position) is not int:
            raise ClearheadError(f"position must be an integer, got {position!r}.")
        return position
    if not isinstance(config.model.head, c.MLMHead):
        return -1
    mask_token = config.inference.mask_token
    ids = batch.inputs[0].tolist()
    return next((i for i, token in enumerate(ids) if token in mask_token), -1)


def check_single_text(batch: Tensor) -> None:
    if len(batch) != 1:
        raise ClearheadError(f"this function takes one text at a time, got {len(batch)}.")
