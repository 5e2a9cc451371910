"""Out of the stack (L5): hidden states to logits, and to a loss that is summed with an explicit count.

A sum and a count, never a mean: pieces of a batch, ranks of a group and the whole batch then agree exactly.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.data.batch import IGNORE_INDEX
from clearhead.errors import ClearheadError
from clearhead.kernels import TRITON_AVAILABLE
from clearhead.model.layers import ACTIVATIONS, make_dropout, make_norm, unembed

USE_FUSED_LOSS = TRITON_AVAILABLE
if USE_FUSED_LOSS:
    from clearhead.kernels.cross_entropy import fused_cross_entropy, kernel_compiles

Stream = Float[Tensor, "batch token d"]
Segments = Int[Tensor, "batch token"]
Loss = tuple[Float[Tensor, ""], Int[Tensor, ""]]


def probe_fused_loss(device: torch.device) -> bool:
    """Whether the kernel for the loss can be made for that GPU; if not, it is not tried again."""
    global USE_FUSED_LOSS
    USE_FUSED_LOSS = USE_FUSED_LOSS and kernel_compiles(device)
    return USE_FUSED_LOSS


def cross_entropy_sum(
    logits: Float[Tensor, "row choice"], targets: Int[Tensor, " row"], smoothing: float
) -> Loss:
    """−log p of what came, summed, and how many there were."""
    total = F.cross_entropy(
        logits.float(),
        targets,
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return total, (targets != IGNORE_INDEX).sum()


class Head(nn.Module):
    """No head: the hidden states are the result."""

    def loss(
        self,
        hidden: Stream,
        targets: Tensor,
        segment_ids: Segments | None = None,
        label_smoothing: float = 0.0,
    ) -> Loss:
        raise ClearheadError(
            "this model has no head, so it has no loss; choose a head in its configuration."
        )


class LMHead(Head):
    """u = h Eᵀ: one logit for each token of the vocabulary (L5.1)."""

    def __init__(
        self, m: c.ModelConfig, table: nn.Embedding, bias: bool, scaled: bool = False
    ) -> None:
        super().__init__()
        self.unembed = table
        self.bias = nn.Parameter(torch.empty(m.vocab_size)) if bias else None
        self.scale = m.d_model**-0.5 if scaled else 1.0

    def transform(self, hidden: Stream) -> Stream:
        """What meets the unembedding."""
        return hidden * self.scale if self.scale != 1.0 else hidden

    def forward(
        self, hidden: Stream, segment_ids: Segments | None = None
    ) -> Float[Tensor, "batch token vocabulary"]:
        return unembed(self.transform(hidden), self.unembed, self.bias)

    def loss(
        self,
        hidden: Stream,
        targets: Int[Tensor, "batch token"],
        segment_ids: Segments | None = None,
        label_smoothing: float = 0.0,
    ) -> Loss:
        """Every position teaches (L5.3); smoothing spreads a share of the lesson evenly over all words."""
        hidden = self.transform(hidden)
        targets = targets.flatten()
        if USE_FUSED_LOSS and hidden.is_cuda and hidden.dtype != torch.float64:
            total = fused_cross_entropy(
                hidden.flatten(0, -2), self.unembed.weight, self.bias, targets, label_smoothing
            )
            return total, (targets != IGNORE_INDEX).sum()
        return cross_entropy_sum(
            unembed(hidden, self.unembed, self.bias).flatten(0, -2), targets, label_smoothing
        )


class MLMHead(LMHead):
    """BERT's: a layer, the activation of the blocks and a norm before the tied logits (L6.3)."""

    def __init__(self, m: c.ModelConfig, table: nn.Embedding) -> None:
        super().__init__(m, table, bias=True)
        self.dense = nn.Linear(m.d_model, m.d_model)
        self.norm = make_norm(m.norm, m.d_model)
        self.activation = ACTIVATIONS[m.ffn.activation]

    def transform(self, hidden: Stream) -> Stream:
        return self.norm(self.activation(self.dense(hidden)))


class PooledHead(Head):
    """One answer for a whole row: from its first token, or from the mean of its tokens."""

    def __init__(self, m: c.ModelConfig, outputs: int, pooling: str, pooler: bool) -> None:
        super().__init__()
        self.pools_mean = pooling == "mean"
        self.pooler = nn.Linear(m.d_model, m.d_model) if pooler else None
        self.drop = make_dropout(m.dropout.residual)
        self.out = nn.Linear(m.d_model, outputs)

    def forward(
        self, hidden: Stream, segment_ids: Segments | None = None
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
        segment_ids: Segments | None = None,
        label_smoothing: float = 0.0,
    ) -> Loss:
        return cross_entropy_sum(self(hidden, segment_ids), targets, label_smoothing)


class RegressionHead(PooledHead):
    def loss(
        self,
        hidden: Stream,
        targets: Float[Tensor, " batch"],
        segment_ids: Segments | None = None,
        label_smoothing: float = 0.0,
    ) -> Loss:
        total = F.mse_loss(
            self(hidden, segment_ids).float().squeeze(-1), targets.float(), reduction="sum"
        )
        return total, torch.tensor(len(targets), device=targets.device)


def mean_pool(hidden: Stream, segment_ids: Segments | None) -> Float[Tensor, "batch d"]:
    """The mean of the real tokens."""
    if segment_ids is None:
        return hidden.mean(dim=1)
    real = (segment_ids != 0).unsqueeze(-1).to(hidden.dtype)
    return (hidden * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def make_head(m: c.ModelConfig, table: nn.Embedding | None) -> Head:
    """The head of the configuration; `table` is the embedding matrix it may be tied to."""
    match head := m.head:
        case c.LMHead():
            assert table is not None  # the configuration refuses words without words
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
