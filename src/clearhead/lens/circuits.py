"""Circuits: what a head does to any token of the vocabulary, read off its matrices alone.

OV: what is written if a token is looked at, E W_V W_O Eᵀ. QK: which tokens look at which, E W_Q W_Kᵀ Eᵀ / √d. Both
are vocabulary × vocabulary and never written down whole: they are kept as two tall matrices of a head's width.
Positions play no part, biases none, and of a norm only its weights; rotary heads are those of equal places. Where norms
stand on the stream itself (post wiring), those of the blocks play none either.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.ask import token_id
from clearhead.lens.given import known_names
from clearhead.lens.logit_lens import token_labels
from clearhead.lens.matrices import after_norm, head_matrices, unembedding
from clearhead.lens.parts import check_head, check_layer, check_top
from clearhead.lens.view import Axis, View
from clearhead.model.inputs import TokenInput

if TYPE_CHECKING:
    from clearhead.api import Model

BLOCK = 1 << 25  # entries of the whole matrix that are looked at together


@dataclass(frozen=True, eq=False, repr=False)
class Circuit:
    """left · rightᵀ, token × token: rows are what stands there (OV) or asks (QK), columns what is said or looked at."""

    model: "Model"
    kind: str
    where: str
    left: Tensor  # vocabulary d
    right: Tensor

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.where}: {self._measure}, {len(self.left):,} × {len(self.right):,} tokens>"

    def row(self, token: str | int, top: int = 10) -> View:
        """OV: the logits that a look at this token adds most to. QK: the tokens that this one looks at most."""
        return self._best(
            self.left[self._id(token)] @ self.right.mT, f"{self.kind} of {self.where}, from {token!r}", top
        )

    def column(self, token: str | int, top: int = 10) -> View:
        """OV: the tokens that add most to this one's logit. QK: the tokens that look at this one most."""
        return self._best(self.left @ self.right[self._id(token)], f"{self.kind} of {self.where}, to {token!r}", top)

    def pairs(self, top: int = 20) -> View:
        """The largest entries of the whole, searched through block by block."""
        check_top(top)
        rows = max(1, BLOCK // len(self.right))
        values, places = self.left.new_empty(0), torch.empty(0, dtype=torch.long)
        for start in range(0, len(self.left), rows):
            block = self.left[start : start + rows] @ self.right.mT
            best = block.amax(dim=1).topk(min(top, len(block))).indices  # no other row holds one of the largest
            found = block[best].flatten().topk(min(top, best.numel() * block.shape[1]))
            inside, column = found.indices // block.shape[1], found.indices % block.shape[1]
            values = torch.cat((values, found.values))
            places = torch.cat((places, (start + best[inside]) * block.shape[1] + column))
            order = values.argsort(descending=True)[:top]
            values, places = values[order], places[order]
        sides = [self._labels(side.tolist()) for side in (places // len(self.right), places % len(self.right))]
        labels = [f"{a} → {b}" for a, b in zip(*sides, strict=True)]
        title = f"{self.kind} of {self.where}, the largest entries"
        return View(values, (Axis.of("pair", labels),), title, self._measure, signed=True)

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Of the whole matrix, those that are not 0, the longest first. left · rightᵀ has those of rightᵀ · left."""
        found = torch.linalg.eigvals(self.right.mT @ self.left)
        return found[found.abs().argsort(descending=True)]

    def spectrum(self) -> View:
        """The eigenvalues in numbers, real and imaginary part."""
        values = torch.view_as_real(self.eigenvalues)
        axes = Axis.of("eigenvalue", len(values)), Axis.of("part", ("real", "imaginary"))
        note = f"copying {self.copying:.3f}: the sum of the eigenvalues / that of their lengths"
        return View(values, axes, f"{self.kind} of {self.where}, eigenvalues", "value", signed=True, note=note)

    @property
    def copying(self) -> float:
        """Σλ / Σ|λ| (Elhage et al.): near 1, a token raises its own logit (OV), or looks for its like (QK)."""
        return float((self.eigenvalues.sum() / self.eigenvalues.abs().sum()).real)

    @property
    def _measure(self) -> str:
        return "logit" if self.kind == "OV" else "score"

    def _best(self, values: Tensor, title: str, top: int) -> View:
        best = values.topk(min(check_top(top), len(values)))
        axis = Axis.of("token", self._labels(best.indices.tolist()))
        return View(best.values, (axis,), title, self._measure, signed=True)

    def _labels(self, ids: list[int]) -> list[str]:
        return token_labels(self.model.tokenizer, ids)

    def _id(self, token: str | int) -> int:
        return token_id(self.model, token, len(self.left))


@known_names
def circuit(model: "Model", layer: int, head: int, kind: Literal["OV", "QK"] = "OV") -> Circuit:
    """What a head of a model of words does, by its matrices."""
    if kind not in ("OV", "QK"):
        raise ClearheadError(f"there is no circuit {kind!r}; known: OV, QK.")
    m, net = model.config.model, model.net
    if not isinstance(net.embed, TokenInput) or (kind == "OV" and not isinstance(m.head, c.Language)):
        raise ClearheadError(
            f"{kind} goes from words to words in straight lines; this model reads or answers otherwise."
        )
    layer, head = check_layer(layer, m.layers), check_head(head, m.attention.heads)
    table = net.embed.tokens.weight.detach().float().cpu() * net.embed.scale
    matrices = head_matrices(net, layer)
    q, k, v = (table @ after_norm(weight[head], net.embed.norm).mT for weight in (matrices.q, matrices.k, matrices.v))
    left, right = (v, unembedding(net) @ matrices.o[head]) if kind == "OV" else (q * matrices.scale, k)
    return Circuit(model, kind, f"layer {layer}, head {head}", left, right)
