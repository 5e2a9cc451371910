"""Serialization for the page: views and tokens as JSON, tensors as .npy files."""

import base64
import io
import math
from collections.abc import Iterable

import numpy as np
import torch
from fastapi import Response
from torch import Tensor

from clearhead.lens.tokens import token_labels
from clearhead.lens.view import View
from clearhead.serve.errors import JSONDict
from clearhead.tokenizers.tokenizer import Tokenizer

NPY_DTYPES = {"f4": "<f4", "f2": "<f2", "u1": "u1"}


def view_to_dict(view: View) -> JSONDict:
    """Serialize a view; its values are little-endian float32 in base64."""
    has_colors = view.vmax != math.inf
    values = np.ascontiguousarray(view.numpy(), NPY_DTYPES["f4"])
    return {
        "title": view.title,
        "value_name": view.value_name,
        "signed": view.signed,
        "vmax": view.vmax if has_colors else None,
        "has_colors": has_colors,
        "note": view.note,
        "axes": [{"name": axis.name, "labels": list(axis.labels)} for axis in view.axes],
        "words": None if view.words is None else [list(row) for row in view.words],
        "shape": list(view.values.shape),
        "values": base64.b64encode(values.tobytes()).decode(),
    }


def npy_response(value: Tensor, dtype: str = "f4", **headers: str) -> Response:
    """Send a tensor as a file for `np.load`."""
    value = value.detach().cpu()
    array = value.numpy() if dtype == "u1" else value.to(torch.float32).numpy()
    content = io.BytesIO()
    np.save(content, np.ascontiguousarray(array.astype(NPY_DTYPES[dtype], copy=False)))
    return Response(content.getvalue(), media_type="application/octet-stream", headers=headers)


def describe_tokens(tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[JSONDict]:
    """Tokens with id, readable label, and whether they are special."""
    ids = list(ids)
    special_ids = set(tokenizer.special_tokens.values()) if tokenizer else set()
    labels = token_labels(tokenizer, ids)
    return [
        {"id": token, "text": label, "special": token in special_ids}
        for token, label in zip(ids, labels, strict=True)
    ]


def finite_or_none(value: float | Tensor | None) -> float | None:
    """A number for JSON, which has no NaN or infinity."""
    return None if value is None or not math.isfinite(value) else float(value)


def number_to_dict(value: float) -> JSONDict:
    """A number for JSON; NaN and infinity are strings in `non_finite`."""
    number: JSONDict = {"value": finite_or_none(value)}
    if not math.isfinite(value):
        number["non_finite"] = str(value)
    return number
