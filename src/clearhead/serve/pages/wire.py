"""Numbers on their way to the page: views as JSON with binary values, tensors as .npy files."""

import base64
import io
from typing import Any

import numpy as np
import torch
from fastapi import Response
from torch import Tensor

from clearhead.lens.view import View

DTYPES = {"f4": "<f4", "f2": "<f2", "u1": "u1"}


def sent(view: View) -> dict[str, Any]:
    """The wire form of a view; its values are little-endian float32 in base64."""
    return {
        "title": view.title,
        "measure": view.measure,
        "signed": view.signed,
        "most": None if view.most is None or view.most == float("inf") else view.most,
        "plain": view.most == float("inf"),  # no colour at all
        "note": view.note,
        "axes": [{"name": axis.name, "labels": list(axis.labels)} for axis in view.axes],
        "words": None if view.words is None else [list(row) for row in view.words],
        "shape": list(view.values.shape),
        "values": base64.b64encode(np.ascontiguousarray(view.numpy(), DTYPES["f4"]).tobytes()).decode(),
    }


def npy(value: Tensor, dtype: str = "f4", **headers: str) -> Response:
    """A file that `np.load` reads."""
    content = io.BytesIO()
    plain = value.detach().cpu()
    numbers = plain.numpy() if dtype == "u1" else plain.to(torch.float32).numpy()
    np.save(content, np.ascontiguousarray(numbers.astype(DTYPES[dtype], copy=False)))
    return Response(content.getvalue(), media_type="application/octet-stream", headers=headers)
