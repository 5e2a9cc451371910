"""The matrices of heads, one by one, as they meet the residual stream: with the weights of the norm before them."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.activations import (
    check_arguments,
    check_head,
    check_layer,
    check_top,
    token_labels,
)
from clearhead.lens.attribution import token_id
from clearhead.lens.view import Axis, View
from clearhead.model.attention import Attention
from clearhead.model.heads import LMHead
from clearhead.model.inputs import TokenEmbedding
from clearhead.model.transformer import Block, Transformer

if TYPE_CHECKING:
    from clearhead.api import Model

# ---- matrices: The matrices of heads, one by one, as they meet the residual stream: with the weights of the norm before them.


@dataclass(frozen=True)
class HeadMatrices:
    """Of one layer. Grouped heads share k and v: each has them here."""

    q: Tensor  # head d width
    k: Tensor
    v: Tensor
    o: Tensor  # head width d
    scale: float  # of the scores


def head_matrices(net: Transformer, layer: int) -> HeadMatrices:
    block: Block = net.blocks[layer]  # type: ignore[assignment]
    attention = block.attn
    heads = net.config.attention.n_heads

    def read(linear: nn.Linear, norm: nn.Module | None = None) -> Tensor:
        weight = detach_weight(linear.weight).unflatten(0, (-1, attention.d_head))
        if norm is not None and isinstance(norm, nn.LayerNorm | nn.RMSNorm):  # of queries and keys
            weight = weight * detach_weight(norm.weight)[:, None]
        if net.config.norm_position == "pre":
            weight = fold_norm(weight, block.attn_norm)
        return weight.repeat_interleave(heads // len(weight), dim=0)

    q = read(attention.q, attention.q_norm)
    k = read(attention.k, attention.k_norm)
    return HeadMatrices(q, k, read(attention.v), output_matrices(attention), attention.scale)


def output_matrices(attention: Attention) -> Tensor:
    """W_O by head, head × width × d: what a head writes to the stream is z W_O[head]ᵀ."""
    return detach_weight(attention.out.weight).unflatten(1, (-1, attention.d_head)).transpose(0, 1)


def fold_norm(weight: Tensor, norm: nn.Module) -> Tensor:
    """A matrix that reads what a norm gives, as one that reads what the norm is given; all but the norm's scale."""
    if isinstance(norm, nn.LayerNorm):
        weighted = weight * detach_weight(norm.weight)
        return weighted - weighted.mean(dim=-1, keepdim=True)  # the norm takes the mean away
    return weight * detach_weight(norm.weight) if isinstance(norm, nn.RMSNorm) else weight


def unembedding_matrix(net: Transformer) -> Tensor:
    """vocabulary × width: how the stream becomes logits."""
    assert isinstance(net.head, LMHead)
    return fold_norm(detach_weight(net.head.unembed.weight) * net.head.scale, net.final_norm)


def detach_weight(weight: Tensor) -> Tensor:
    return weight.detach().float().cpu()


# ---- circuits: Circuits: what a head does to any token of the vocabulary, read off its matrices alone.

MAX_BLOCK_ENTRIES = 1 << 25  # entries of the whole matrix that are looked at together


@dataclass(frozen=True, eq=False, repr=False)
class Circuit:
    """left · rightᵀ, token × token: rows are what stands there (OV) or asks (QK), columns what is said or looked at."""

    model: "Model"
    kind: str
    location: str
    left: Tensor  # vocabulary d
    right: Tensor

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.location}: {self._measure}, {len(self.left):,} × {len(self.right):,} tokens>"

    def row(self, token: str | int, top: int = 10) -> View:
        """OV: the logits that a look at this token adds most to. QK: the tokens that this one looks at most."""
        return self._best(
            self.left[self._id(token)] @ self.right.mT,
            f"{self.kind} of {self.location}, from {token!r}",
            top,
        )

    def column(self, token: str | int, top: int = 10) -> View:
        """OV: the tokens that add most to this one's logit. QK: the tokens that look at this one most."""
        return self._best(
            self.left @ self.right[self._id(token)],
            f"{self.kind} of {self.location}, to {token!r}",
            top,
        )

    def top_pairs(self, top: int = 20) -> View:
        """The largest entries of the whole, searched through block by block."""
        check_top(top)
        rows = max(1, MAX_BLOCK_ENTRIES // len(self.right))
        values = self.left.new_empty(0)
        places = torch.empty(0, dtype=torch.long)
        for start in range(0, len(self.left), rows):
            block = self.left[start : start + rows] @ self.right.mT
            best = (
                block.amax(dim=1).topk(min(top, len(block))).indices
            )  # no other row holds one of the largest
            found = block[best].flatten().topk(min(top, best.numel() * block.shape[1]))
            inside = found.indices // block.shape[1]
            column = found.indices % block.shape[1]
            values = torch.cat((values, found.values))
            places = torch.cat((places, (start + best[inside]) * block.shape[1] + column))
            order = values.argsort(descending=True)[:top]
            values = values[order]
            places = places[order]
        sides = [
            self._labels(side.tolist())
            for side in (places // len(self.right), places % len(self.right))
        ]
        labels = [f"{a} → {b}" for a, b in zip(*sides, strict=True)]
        title = f"{self.kind} of {self.location}, the largest entries"
        return View(values, (Axis.from_labels("pair", labels),), title, self._measure, signed=True)

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Of the whole matrix, those that are not 0, the longest first. left · rightᵀ has those of rightᵀ · left."""
        found = torch.linalg.eigvals(self.right.mT @ self.left)
        return found[found.abs().argsort(descending=True)]

    def spectrum(self) -> View:
        """The eigenvalues in numbers, real and imaginary part."""
        values = torch.view_as_real(self.eigenvalues)
        axes = (
            Axis.from_labels("eigenvalue", len(values)),
            Axis.from_labels("part", ("real", "imaginary")),
        )
        note = (
            f"copying {self.copying_score:.3f}: the sum of the eigenvalues / that of their lengths"
        )
        return View(
            values,
            axes,
            f"{self.kind} of {self.location}, eigenvalues",
            "value",
            signed=True,
            note=note,
        )

    @property
    def copying_score(self) -> float:
        """Σλ / Σ|λ| (Elhage et al.): near 1, a token raises its own logit (OV), or looks for its like (QK)."""
        return float((self.eigenvalues.sum() / self.eigenvalues.abs().sum()).real)

    @property
    def _measure(self) -> str:
        return "logit" if self.kind == "OV" else "score"

    def _best(self, values: Tensor, title: str, top: int) -> View:
        best = values.topk(min(check_top(top), len(values)))
        axis = Axis.from_labels("token", self._labels(best.indices.tolist()))
        return View(best.values, (axis,), title, self._measure, signed=True)

    def _labels(self, ids: list[int]) -> list[str]:
        return token_labels(self.model.tokenizer, ids)

    def _id(self, token: str | int) -> int:
        return token_id(self.model, token, len(self.left))


@check_arguments
def circuit(model: "Model", layer: int, head: int, kind: Literal["OV", "QK"] = "OV") -> Circuit:
    """What a head of a model of words does, by its matrices."""
    if kind not in ("OV", "QK"):
        raise ClearheadError(f"there is no circuit {kind!r}; known: OV, QK.")
    m = model.config.model
    net = model.net
    if not isinstance(net.embed, TokenEmbedding) or (
        kind == "OV" and not isinstance(m.head, c.LMHead)
    ):
        raise ClearheadError(
            f"{kind} goes from words to words in straight lines; this model reads or answers otherwise."
        )
    layer = check_layer(layer, m.n_layers)
    head = check_head(head, m.attention.n_heads)
    table = net.embed.tokens.weight.detach().float().cpu() * net.embed.scale
    matrices = head_matrices(net, layer)
    q, k, v = (
        table @ fold_norm(weight[head], net.embed.norm).mT
        for weight in (matrices.q, matrices.k, matrices.v)
    )
    left, right = (
        (v, unembedding_matrix(net) @ matrices.o[head]) if kind == "OV" else (q * matrices.scale, k)
    )
    return Circuit(model, kind, f"layer {layer}, head {head}", left, right)


# ---- composition: Composition: how much of what an earlier head writes a later one reads, by their matrices (Elhage et al., 2021).

COMPOSITION_NOTE = "|later · earlier| / (|later| |earlier|) of the {read} circuit of the later and the OV of the earlier head"


@check_arguments
def composition(model: "Model", kind: Literal["Q", "K", "V"] = "V") -> View:
    """Earlier head × later head. Q and K: what the later one asks, or answers to, is made of it. V: what it passes on.

    Heads of one layer, or of the wrong order, do not compose: 0.
    """
    if kind not in ("Q", "K", "V"):
        raise ClearheadError(f"heads compose by Q, K or V, not by {kind!r}.")
    layers = [head_matrices(model.net, i) for i in range(model.config.model.n_layers)]
    heads = model.config.model.attention.n_heads
    values = torch.zeros(len(layers), heads, len(layers), heads)
    for i, earlier in enumerate(layers):
        for j in range(i + 1, len(layers)):
            values[i, :, j] = _composition_scores(earlier, layers[j], kind)
    labels = [f"{i}.{h}" for i in range(len(layers)) for h in range(heads)]
    note = COMPOSITION_NOTE.format(read="OV" if kind == "V" else "QK")
    axes = Axis.from_labels("earlier", labels), Axis.from_labels("later", labels)
    return View(
        values.reshape(len(labels), -1),
        axes,
        f"{kind}-composition of heads",
        "composition",
        note=note,
    )


def _composition_scores(earlier: HeadMatrices, later: HeadMatrices, kind: str) -> Tensor:
    """|A B| / (|A| |B|), where A = a₁ a₂ is what reads (the later head's), B = o v what was written (the earlier's).

    All are products of tall matrices, and their lengths need only squares of a head's width: |x yᵀ|² = tr(xᵀx yᵀy).
    """
    a1, a2 = {  # head ? d, head d width: A as a product whose right side reads the stream
        "Q": (later.k.mT, later.q),
        "K": (later.q.mT, later.k),
        "V": (later.o, later.v),
    }[kind]
    outer = a1.mT @ a1
    inner = a2 @ a2.mT
    written = earlier.o.mT @ earlier.o
    read = earlier.v @ earlier.v.mT
    between = torch.einsum("hdw,ewc->ehdc", a2, earlier.o)  # earlier later d d
    both = torch.einsum("ehdc,hdf,ehfg,egc->eh", between, outer, between, read)
    later_size, earlier_size = (
        (x * y.mT).sum(dim=(-1, -2)) for x, y in ((outer, inner), (written, read))
    )
    return (both / (earlier_size[:, None] * later_size)).clamp(min=0).sqrt()
