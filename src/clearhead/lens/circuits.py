"""Circuits: what heads do by their weights alone (Elhage et al., 2021).

The OV circuit E W_V W_O Eᵀ says what a head writes when it attends to a token; the QK circuit
E W_Q W_Kᵀ Eᵀ / √d which tokens attend to which. Both are vocabulary × vocabulary and are kept as
two tall factors of a head's width. They ignore positions (rotary heads: at distance 0), biases, and
of norms all but the weights; with post-norm they ignore the norms of the blocks.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.argument_checks import check_head, check_layer, check_model, check_top_k
from clearhead.lens.logit_target import token_ids
from clearhead.lens.tokens import token_labels
from clearhead.lens.view import View, label_axes
from clearhead.model.attention import Attention
from clearhead.model.embeddings import TokenEmbedding
from clearhead.model.heads import LMHead
from clearhead.model.transformer import Block, Transformer

if TYPE_CHECKING:
    from clearhead.api import Model

MAX_BLOCK_ENTRIES = 1 << 25  # entries of a circuit's matrix that are computed together


@dataclass(frozen=True)
class HeadMatrices:
    """Weights of a layer's heads with the norm before them folded in; grouped k, v repeated."""

    q: Tensor  # head d_head d_model
    k: Tensor
    v: Tensor
    o: Tensor  # head d_model d_head
    scale: float  # of the scores


def head_matrices(net: Transformer, layer: int) -> HeadMatrices:
    """The weights of the heads of a layer."""
    block = net.blocks[layer]
    assert isinstance(block, Block)
    attention = block.attn
    n_heads = net.config.attention.n_heads

    def by_head(linear: nn.Linear, qk_norm: nn.Module | None = None) -> Tensor:
        weight = detach_weight(linear.weight).unflatten(0, (-1, attention.d_head))
        if isinstance(qk_norm, nn.LayerNorm | nn.RMSNorm):
            weight = weight * detach_weight(qk_norm.weight)[:, None]
        if net.config.norm_position == "pre":
            weight = fold_norm(weight, block.attn_norm)
        return weight.repeat_interleave(n_heads // len(weight), dim=0)

    return HeadMatrices(
        q=by_head(attention.q, attention.q_norm),
        k=by_head(attention.k, attention.k_norm),
        v=by_head(attention.v),
        o=output_matrices(attention),
        scale=attention.scale,
    )


def output_matrices(attention: Attention) -> Tensor:
    """W_O by head, head × d_model × d_head: a head adds z W_O[head]ᵀ to the residual stream."""
    return detach_weight(attention.out.weight).unflatten(1, (-1, attention.d_head)).transpose(0, 1)


def fold_norm(weight: Tensor, norm: nn.Module) -> Tensor:
    """The matrix that, without the norm before it, does the same up to the norm's scale."""
    if isinstance(norm, nn.LayerNorm):
        weight = weight * detach_weight(norm.weight)
        return weight - weight.mean(dim=-1, keepdim=True)  # the norm subtracts the mean
    return weight * detach_weight(norm.weight) if isinstance(norm, nn.RMSNorm) else weight


def unembedding_matrix(net: Transformer) -> Tensor:
    """vocab_size × d_model: maps the residual stream to logits, with the final norm folded in."""
    assert isinstance(net.head, LMHead)
    return fold_norm(detach_weight(net.head.unembed.weight) * net.head.scale, net.final_norm)


def detach_weight(weight: Tensor) -> Tensor:
    """Without gradient, in float32 on the CPU."""
    return weight.detach().float().cpu()


@dataclass(frozen=True, eq=False, repr=False)
class Circuit:
    """The matrix left · rightᵀ, token × token.

    OV: from attended token (row) to output logit (column). QK: from query (row) to key (column).
    """

    model: "Model"
    kind: Literal["OV", "QK"]
    location: str
    left: Tensor  # vocab_size d_head
    right: Tensor

    @property
    def title(self) -> str:
        """The kind of circuit and its head."""
        return f"{self.kind} circuit of {self.location}"

    @property
    def value_name(self) -> str:
        """What an entry of the matrix is."""
        return "logit" if self.kind == "OV" else "score"

    def __repr__(self) -> str:
        return f"<{self.title}: {self.value_name}, {len(self.left):,} × {len(self.right):,} tokens>"

    def row(self, token: str | int, top_k: int = 10) -> View:
        """OV: the logits that attention to this token raises most. QK: the keys of this query."""
        row = self.left[self._token_id(token)] @ self.right.mT
        return self._top_tokens(row, f"{self.title}, from {token!r}", top_k)

    def column(self, token: str | int, top_k: int = 10) -> View:
        """OV: the tokens that increase this logit most. QK: the queries of this key."""
        column = self.left @ self.right[self._token_id(token)]
        return self._top_tokens(column, f"{self.title}, to {token!r}", top_k)

    def top_pairs(self, top_k: int = 20) -> View:
        """The largest entries of the matrix, which is searched in blocks of rows."""
        check_top_k(top_k)
        num_columns = len(self.right)
        block_rows = max(1, MAX_BLOCK_ENTRIES // num_columns)
        values = self.left.new_empty(0)
        indices = torch.empty(0, dtype=torch.long)  # into the flattened matrix
        for start in range(0, len(self.left), block_rows):
            block = self.left[start : start + block_rows] @ self.right.mT
            # an entry among the `top_k` is in one of the `top_k` rows with the largest maxima
            rows = block.amax(dim=1).topk(min(top_k, len(block))).indices
            best = block[rows].flatten().topk(min(top_k, len(rows) * num_columns))
            block_indices = rows[best.indices // num_columns] * num_columns
            block_indices += start * num_columns + best.indices % num_columns
            values = torch.cat((values, best.values))
            indices = torch.cat((indices, block_indices))
            order = values.argsort(descending=True)[:top_k]
            values = values[order]
            indices = indices[order]
        row_labels = self._labels(indices // num_columns)
        column_labels = self._labels(indices % num_columns)
        labels = [
            f"{row} → {column}" for row, column in zip(row_labels, column_labels, strict=True)
        ]
        return View(
            values,
            label_axes({"pair": labels}),
            f"{self.title}, largest entries",
            self.value_name,
            signed=True,
        )

    @cached_property
    def eigenvalues(self) -> Tensor:
        """The nonzero eigenvalues by magnitude; left · rightᵀ has those of rightᵀ · left."""
        eigenvalues = torch.linalg.eigvals(self.right.mT @ self.left)
        return eigenvalues[eigenvalues.abs().argsort(descending=True)]

    def spectrum(self) -> View:
        """The real and imaginary parts of the eigenvalues."""
        values = torch.view_as_real(self.eigenvalues)
        return View(
            values,
            label_axes({"eigenvalue": len(values), "part": ("real", "imaginary")}),
            f"{self.title}, eigenvalues",
            "value",
            signed=True,
            note=f"copying score Σλ / Σ|λ| = {self.copying_score:.3f}",
        )

    @property
    def copying_score(self) -> float:
        """Σλ / Σ|λ|: near 1, a token increases its own logit (OV), or attends to itself (QK)."""
        return float((self.eigenvalues.sum() / self.eigenvalues.abs().sum()).real)

    def _top_tokens(self, values: Tensor, title: str, top_k: int) -> View:
        best = values.topk(min(check_top_k(top_k), len(values)))
        axes = label_axes({"token": self._labels(best.indices)})
        return View(best.values, axes, title, self.value_name, signed=True)

    def _labels(self, ids: Tensor) -> list[str]:
        return token_labels(self.model.tokenizer, ids.tolist())

    def _token_id(self, token: str | int) -> int:
        return token_ids(self.model, [token], len(self.left))[0]


def circuit(model: "Model", layer: int, head: int, kind: Literal["OV", "QK"] = "OV") -> Circuit:
    """The OV or QK circuit of a head."""
    check_model(model)
    if kind not in ("OV", "QK"):
        raise ClearheadError(f"there is no circuit {kind!r}; known: OV, QK.")
    m = model.config.model
    net = model.net
    if not isinstance(net.embed, TokenEmbedding):
        raise ClearheadError(f"the {kind} circuit needs a model that reads text.")
    if kind == "OV" and not isinstance(m.head, c.LMHead):
        raise ClearheadError("the OV circuit needs a language-model head.")
    layer = check_layer(layer, m.n_layers)
    head = check_head(head, m.attention.n_heads)
    embedding = detach_weight(net.embed.tokens.weight) * net.embed.scale
    matrices = head_matrices(net, layer)

    def project(weights: Tensor) -> Tensor:
        return embedding @ fold_norm(weights[head], net.embed.norm).mT

    location = f"layer {layer}, head {head}"
    if kind == "OV":
        output = unembedding_matrix(net) @ matrices.o[head]
        return Circuit(model, kind, location, project(matrices.v), output)
    return Circuit(model, kind, location, project(matrices.q) * matrices.scale, project(matrices.k))


def composition(model: "Model", kind: Literal["Q", "K", "V"] = "V") -> View:
    """Composition scores, earlier head × later head.

    How much of what the earlier head writes enters the later one's queries (Q), keys (K) or values
    (V). Heads do not compose with heads of the same or an earlier layer: 0.
    """
    check_model(model)
    if kind not in ("Q", "K", "V"):
        raise ClearheadError(f"there is no {kind!r}-composition; known: Q, K, V.")
    n_heads = model.config.model.attention.n_heads
    n_layers = model.config.model.n_layers
    layers = [head_matrices(model.net, i) for i in range(n_layers)]
    values = torch.zeros(n_layers, n_heads, n_layers, n_heads)
    for i, earlier in enumerate(layers):
        for j in range(i + 1, n_layers):
            values[i, :, j] = _composition_scores(earlier, layers[j], kind)
    labels = [f"{i}.{h}" for i in range(n_layers) for h in range(n_heads)]
    later_circuit = "OV" if kind == "V" else "QK"
    return View(
        values.reshape(len(labels), -1),
        label_axes({"earlier": labels, "later": labels}),
        f"{kind}-composition of heads",
        "composition",
        note=f"|A B| / (|A| |B|), where A is the {later_circuit} circuit of the later head and B "
        "the OV circuit of the earlier head",
    )


def _composition_scores(earlier: HeadMatrices, later: HeadMatrices, kind: str) -> Tensor:
    """|A B| / (|A| |B|), A = a₁ a₂ of the later heads and B = o v of the earlier ones.

    The Frobenius norms are computed from products of a head's width: |x yᵀ|² = tr(xᵀx yᵀy).
    """
    a1, a2 = {  # head ? d_head, head d_head d_model
        "Q": (later.k.mT, later.q),
        "K": (later.q.mT, later.k),
        "V": (later.o, later.v),
    }[kind]
    a1_gram = a1.mT @ a1
    a2_gram = a2 @ a2.mT
    o_gram = earlier.o.mT @ earlier.o
    v_gram = earlier.v @ earlier.v.mT
    a2_o = torch.einsum("hdw,ewc->ehdc", a2, earlier.o)  # earlier later d_head d_head
    product = torch.einsum("ehdc,hdf,ehfg,egc->eh", a2_o, a1_gram, a2_o, v_gram)
    later_norm = (a1_gram * a2_gram.mT).sum(dim=(-1, -2))
    earlier_norm = (o_gram * v_gram.mT).sum(dim=(-1, -2))
    return (product / (earlier_norm[:, None] * later_norm)).clamp(min=0).sqrt()
