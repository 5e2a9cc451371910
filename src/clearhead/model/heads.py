"""Heads (L5): hidden states to logits, and to a summed loss with an explicit count.

A sum and a count, never a mean: micro-batches, ranks and the whole batch then agree exactly.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.kernels import TRITON_AVAILABLE, can_use_triton
from clearhead.model.layers import ACTIVATIONS, make_dropout, make_norm, unembed

if TRITON_AVAILABLE:
    from clearhead.kernels.cross_entropy import fused_cross_entropy

IGNORE_INDEX = -100  # target that does not count; torch's default

Stream = Float[Tensor, "batch token d"]
SegmentIds = Int[Tensor, "batch token"]
Loss = tuple[Float[Tensor, ""], Int[Tensor, ""]]


def cross_entropy_sum(
    logits: Float[Tensor, "row choice"], targets: Int[Tensor, " row"], label_smoothing: float
) -> Loss:
    """The sum of −log p(target), and the number of targets."""
    total = F.cross_entropy(
        logits.float(),
        targets,
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return total, (targets != IGNORE_INDEX).sum()


class Head(nn.Module):
    """No head: the hidden states are the output."""

    def loss(
        self,
        hidden: Stream,
        targets: Tensor,
        segment_ids: SegmentIds | None = None,
        label_smoothing: float = 0.0,
    ) -> Loss:
        raise ClearheadError("this model has no head, so it has no loss. Set model.head.")


class LMHead(Head):
    """u = h Eᵀ: one logit per token of the vocabulary (L5.1)."""

    def __init__(
        self, m: c.ModelConfig, table: nn.Embedding, bias: bool, scale_logits: bool = False
    ) -> None:
        super().__init__()
        self.unembed = table
        self.bias = nn.Parameter(torch.empty(m.vocab_size)) if bias else None
        self.scale = m.d_model**-0.5 if scale_logits else 1.0

    def transform(self, hidden: Stream) -> Stream:
        """Transform hidden states before the unembedding."""
        return hidden * self.scale if self.scale != 1.0 else hidden

    def forward(
        self, hidden: Stream, segment_ids: SegmentIds | None = None
    ) -> Float[Tensor, "batch token vocab"]:
        return unembed(self.transform(hidden), self.unembed, self.bias)

    def loss(
        self,
        hidden: Stream,
        targets: Int[Tensor, "batch token"],
        segment_ids: SegmentIds | None = None,
        label_smoothing: float = 0.0,
    ) -> Loss:
        """Cross-entropy at every position with a target (L5.3)."""
        hidden = self.transform(hidden)
        targets = targets.flatten()
        if hidden.dtype != torch.float64 and can_use_triton(hidden.device):
            total = fused_cross_entropy(
                hidden.flatten(0, -2), self.unembed.weight, self.bias, targets, label_smoothing
            )
            return total, (targets != IGNORE_INDEX).sum()
        return cross_entropy_sum(
            unembed(hidden, self.unembed, self.bias).flatten(0, -2), targets, label_smoothing
        )


class MLMHead(LMHead):
    """BERT's masked-LM head: linear, activation and norm before the tied logits (L6.3)."""

    def __init__(self, m: c.ModelConfig, table: nn.Embedding) -> None:
        super().__init__(m, table, bias=True)
        self.dense = nn.Linear(m.d_model, m.d_model)
        self.norm = make_norm(m.norm, m.d_model)
        self.activation = ACTIVATIONS[m.ffn.activation]

    def transform(self, hidden: Stream) -> Stream:
        return self.norm(self.activation(self.dense(hidden)))


class PooledHead(Head):
    """One output per sequence, from its first token or from the mean of its tokens."""

    def __init__(self, m: c.ModelConfig, outputs: int, pooling: str, pooler: bool) -> None:
        super().__init__()
        self.pools_mean = pooling == "mean"
        self.pooler = nn.Linear(m.d_model, m.d_model) if pooler else None
        self.drop = make_dropout(m.dropout.residual)
        self.out = nn.Linear(m.d_model, outputs)

    def forward(
        self, hidden: Stream, segment_ids: SegmentIds | None = None
    ) -> Float[Tensor, "batch outputs"]:
        pooled = mean_pool(hidden, segment_ids) if self.pools_mean else hidden[:, 0]
        if self.pooler is not None:
            pooled = torch.tanh(self.pooler(pooled))
        return self.out(self.drop(pooled))


class ClassificationHead(PooledHead):
    def loss(
        self,
        hidden: Stream,
        targets: Int[Tensor, " batch"],
        segment_ids: SegmentIds | None = None,
        label_smoothing: float = 0.0,
    ) -> Loss:
        return cross_entropy_sum(self(hidden, segment_ids), targets, label_smoothing)


class RegressionHead(PooledHead):
    def loss(
        self,
        hidden: Stream,
        targets: Float[Tensor, " batch"],
        segment_ids: SegmentIds | None = None,
        label_smoothing: float = 0.0,
    ) -> Loss:
        """Squared error; label smoothing does not apply."""
        predictions = self(hidden, segment_ids).float().squeeze(-1)
        total = F.mse_loss(predictions, targets.float(), reduction="sum")
        return total, torch.tensor(len(targets), device=targets.device)


def mean_pool(hidden: Stream, segment_ids: SegmentIds | None) -> Float[Tensor, "batch d"]:
    """The mean over all tokens that are not padding."""
    if segment_ids is None:
        return hidden.mean(dim=1)
    is_token = (segment_ids != 0).unsqueeze(-1).to(hidden.dtype)
    return (hidden * is_token).sum(dim=1) / is_token.sum(dim=1).clamp(min=1)


def make_head(m: c.ModelConfig, table: nn.Embedding | None) -> Head:
    """The configured head; `table` is the embedding matrix it may be tied to."""
    match head := m.head:
        case c.LMHead():
            assert table is not None  # the configuration requires token input
            own = table if head.tie_embeddings else nn.Embedding(m.vocab_size, m.d_model)
            return LMHead(m, own, head.bias, head.scale_logits)
        case c.MLMHead():
            assert table is not None
            return MLMHead(m, table)
        case c.ClassificationHead():
            return ClassificationHead(m, head.num_labels, head.pooling, head.pooler)
        case c.RegressionHead():
            return RegressionHead(m, 1, head.pooling, head.pooler)
        case c.NoHead():
            return Head()
