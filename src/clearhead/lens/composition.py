"""Composition: how much of what an earlier head writes a later one reads, by their matrices (Elhage et al., 2021)."""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from clearhead.errors import ClearheadError
from clearhead.lens.given import known_names
from clearhead.lens.matrices import HeadMatrices, head_matrices
from clearhead.lens.view import Axis, View

if TYPE_CHECKING:
    from clearhead.api import Model

NOTE = "|later · earlier| / (|later| |earlier|) of the {read} circuit of the later and the OV of the earlier head"


@known_names
def composition(model: "Model", kind: Literal["Q", "K", "V"] = "V") -> View:
    """Earlier head × later head. Q and K: what the later one asks, or answers to, is made of it. V: what it passes on.

    Heads of one layer, or of the wrong order, do not compose: 0.
    """
    if kind not in ("Q", "K", "V"):
        raise ClearheadError(f"heads compose by Q, K or V, not by {kind!r}.")
    layers = [head_matrices(model.net, i) for i in range(model.config.model.layers)]
    heads = model.config.model.attention.heads
    values = torch.zeros(len(layers), heads, len(layers), heads)
    for i, earlier in enumerate(layers):
        for j in range(i + 1, len(layers)):
            values[i, :, j] = _scores(earlier, layers[j], kind)
    labels = [f"{i}.{h}" for i in range(len(layers)) for h in range(heads)]
    note = NOTE.format(read="OV" if kind == "V" else "QK")
    axes = Axis.of("earlier", labels), Axis.of("later", labels)
    return View(values.reshape(len(labels), -1), axes, f"{kind}-composition of heads", "composition", note=note)


def _scores(earlier: HeadMatrices, later: HeadMatrices, kind: str) -> Tensor:
    """|A B| / (|A| |B|), where A = a₁ a₂ is what reads (the later head's), B = o v what was written (the earlier's).

    All are products of tall matrices, and their lengths need only squares of a head's width: |x yᵀ|² = tr(xᵀx yᵀy).
    """
    a1, a2 = {  # head ? d, head d width: A as a product whose right side reads the stream
        "Q": (later.k.mT, later.q),
        "K": (later.q.mT, later.k),
        "V": (later.o, later.v),
    }[kind]
    outer, inner = a1.mT @ a1, a2 @ a2.mT
    written, read = earlier.o.mT @ earlier.o, earlier.v @ earlier.v.mT
    between = torch.einsum("hdw,ewc->ehdc", a2, earlier.o)  # earlier later d d
    both = torch.einsum("ehdc,hdf,ehfg,egc->eh", between, outer, between, read)
    later_size, earlier_size = ((x * y.mT).sum(dim=(-1, -2)) for x, y in ((outer, inner), (written, read)))
    return (both / (earlier_size[:, None] * later_size)).clamp(min=0).sqrt()
