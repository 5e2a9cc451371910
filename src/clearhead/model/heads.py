"""Out of the stack (L5): hidden states to logits, and to a loss that is summed with an explicit count.

A sum and a count, never a mean: pieces of a batch, ranks of a group and the whole batch then agree exactly.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.data.packed import IGNORE
from clearhead.errors import ClearheadError
from clearhead.kernels import TRITON
from clearhead.model.layers import ACTIVATIONS, make_dropout, make_norm
from clearhead.model.unembed import unembed

FUSED = TRITON
if FUSED:
    from clearhead.kernels.loss import fused_loss, works

Stream = Float[Tensor, "batch token d"]
Segments = Int[Tensor, "batch token"]
Loss = tuple[Float[Tensor, ""], Int[Tensor, ""]]


def settle_kernel(device: torch.device) -> bool:
    """Whether the kernel for the loss can be made for that GPU; if not, it is not tried again."""
    global FUSED
    FUSED = FUSED and works(device)
    return FUSED


def surprise(logits: Float[Tensor, "row choice"], targets: Int[Tensor, " row"], smoothing: float) -> Loss:
    """−log p of what came, summed, and how many there were."""
    total = F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    return total, (targets != IGNORE).sum()


class Head(nn.Module):
    """No head: the hidden states are the result."""

    def loss(self, hidden: Stream, targets: Tensor, segments: Segments | None = None, smoothing: float = 0.0) -> Loss:
        raise ClearheadError("this model has no head, so it has no loss; choose a head in its configuration.")


class LanguageHead(Head):
    """u = h Eᵀ: one logit for each token of the vocabulary (L5.1)."""

    def __init__(self, m: c.ModelConfig, table: nn.Embedding, bias: bool, scaled: bool = False) -> None:
        super().__init__()
        self.unembed = table
        self.bias = nn.Parameter(torch.empty(m.vocabulary)) if bias else None
        self.scale = m.width**-0.5 if scaled else 1.0

    def read(self, hidden: Stream) -> Stream:
        """What meets the unembedding."""
        return hidden * self.scale if self.scale != 1.0 else hidden

    def forward(self, hidden: Stream, segments: Segments | None = None) -> Float[Tensor, "batch token vocabulary"]:
        return unembed(self.read(hidden), self.unembed, self.bias)

    def loss(
        self,
        hidden: Stream,
        targets: Int[Tensor, "batch token"],
        segments: Segments | None = None,
        smoothing: float = 0.0,
    ) -> Loss:
        """Every position teaches (L5.3); smoothing spreads a share of the lesson evenly over all words."""
        hidden, targets = self.read(hidden), targets.flatten()
        if FUSED and hidden.is_cuda and hidden.dtype != torch.float64:
            total = fused_loss(hidden.flatten(0, -2), self.unembed.weight, self.bias, targets, smoothing)
            return total, (targets != IGNORE).sum()
        return surprise(unembed(hidden, self.unembed, self.bias).flatten(0, -2), targets, smoothing)


class MaskedWordHead(LanguageHead):
    """BERT's: a layer, the activation of the blocks and a norm before the tied logits (L6.3)."""

    def __init__(self, m: c.ModelConfig, table: nn.Embedding) -> None:
        super().__init__(m, table, bias=True)
        self.dense = nn.Linear(m.width, m.width)
        self.norm = make_norm(m.norm, m.width)
        self.activation = ACTIVATIONS[m.ffn.activation]

    def read(self, hidden: Stream) -> Stream:
        return self.norm(self.activation(self.dense(hidden)))


class PooledHead(Head):
    """One answer for a whole row: from its first token, or from the mean of its tokens."""

    def __init__(self, m: c.ModelConfig, outputs: int, pooling: str, pooler: bool) -> None:
        super().__init__()
        self.mean = pooling == "mean"
        self.pooler = nn.Linear(m.width, m.width) if pooler else None
        self.drop = make_dropout(m.dropout.residual)
        self.out = nn.Linear(m.width, outputs)

    def forward(self, hidden: Stream, segments: Segments | None = None) -> Float[Tensor, "batch outputs"]:
        pooled = pool_mean(hidden, segments) if self.mean else hidden[:, 0]
        if self.pooler is not None:
            pooled = torch.tanh(self.pooler(pooled))
        return self.out(self.drop(pooled))


class ClassHead(PooledHead):
    def loss(
        self,
        hidden: Stream,
        targets: Int[Tensor, " batch"],
        segments: Segments | None = None,
        smoothing: float = 0.0,
    ) -> Loss:
        return surprise(self(hidden, segments), targets, smoothing)


class NumberHead(PooledHead):
    def loss(
        self,
        hidden: Stream,
        targets: Float[Tensor, " batch"],
        segments: Segments | None = None,
        smoothing: float = 0.0,
    ) -> Loss:
        total = F.mse_loss(self(hidden, segments).float().squeeze(-1), targets.float(), reduction="sum")
        return total, torch.tensor(len(targets), device=targets.device)


def pool_mean(hidden: Stream, segments: Segments | None) -> Float[Tensor, "batch d"]:
    """The mean of the real tokens."""
    if segments is None:
        return hidden.mean(dim=1)
    real = (segments != 0).unsqueeze(-1).to(hidden.dtype)
    return (hidden * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def make(m: c.ModelConfig, table: nn.Embedding | None) -> Head:
    """The head of the configuration; `table` is the embedding matrix it may be tied to."""
    match head := m.head:
        case c.Language():
            assert table is not None  # the configuration refuses words without words
            own = table if head.tied else nn.Embedding(m.vocabulary, m.width)
            return LanguageHead(m, own, head.bias, head.scaled)
        case c.MaskedWord():
            assert table is not None
            return MaskedWordHead(m, table)
        case c.Classes():
            return ClassHead(m, head.classes, head.pooling, head.pooler)
        case c.Number():
            return NumberHead(m, 1, head.pooling, head.pooler)
        case c.Hidden():
            return Head()
