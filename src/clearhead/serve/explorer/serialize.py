"""Numbers on their way to the page: views as JSON with binary values, tensors as .npy files."""

import base64
import io
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from fastapi import Response
from torch import Tensor

from clearhead.lens.activations import token_labels
from clearhead.lens.view import View
from clearhead.tokenizers.tokenizer import Tokenizer

# ---- wire: Numbers on their way to the page: views as JSON with binary values, tensors as .npy files.

NPY_DTYPES = {"f4": "<f4", "f2": "<f2", "u1": "u1"}


def view_to_dict(view: View) -> dict[str, Any]:
    """The wire form of a view; its values are little-endian float32 in base64."""
    return {
        "title": view.title,
        "measure": view.value_name,
        "signed": view.signed,
        "most": None if view.vmax is None or view.vmax == float("inf") else view.vmax,
        "plain": view.vmax == float("inf"),  # no colour at all
        "note": view.note,
        "axes": [{"name": axis.name, "labels": list(axis.labels)} for axis in view.axes],
        "words": None if view.words is None else [list(row) for row in view.words],
        "shape": list(view.values.shape),
        "values": base64.b64encode(
            np.ascontiguousarray(view.numpy(), NPY_DTYPES["f4"]).tobytes()
        ).decode(),
    }


def npy_response(value: Tensor, dtype: str = "f4", **headers: str) -> Response:
    """A file that `np.load` reads."""
    content = io.BytesIO()
    plain = value.detach().cpu()
    numbers = plain.numpy() if dtype == "u1" else plain.to(torch.float32).numpy()
    np.save(content, np.ascontiguousarray(numbers.astype(NPY_DTYPES[dtype], copy=False)))
    return Response(content.getvalue(), media_type="application/octet-stream", headers=headers)


# ---- pieces: Tokens as the page shows them: the number, a label that can be read, and whether plain text ever becomes it.


def describe_tokens(tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[dict[str, Any]]:
    ids = list(ids)
    special = set(tokenizer.special_tokens.values()) if tokenizer else set()
    return [
        {"id": i, "text": label, "special": i in special}
        for i, label in zip(ids, token_labels(tokenizer, ids), strict=True)
    ]


def finite_or_none(value: float | Tensor | None) -> float | None:
    """A number that JSON can hold, or nothing."""
    return None if value is None or not math.isfinite(value) else float(value)


def number_to_dict(value: float) -> dict[str, Any]:
    """JSON has no infinities, and no word for what is no number."""
    return {
        "value": finite_or_none(value),
        **({} if math.isfinite(value) else {"special": str(value)}),
    }
