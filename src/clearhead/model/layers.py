"""x Wᵀ + b on a CPU, where texts are written with few tokens at a time.

For these torch's usual library has slow kernels on some CPUs, and uses one core for a single token. Matrices are
therefore multiplied by oneDNN, which comes with torch too; it only takes longer to begin. With gradients, and on a GPU,
torch's own way is the best.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.hooks import Hooks
from clearhead.model.int8 import Int8Embedding, Int8Linear

# ---- linear: x Wᵀ + b on a CPU, where texts are written with few tokens at a time.

ONEDNN_MIN_NUMEL = 2**17  # numbers in a matrix from which on this pays
ONEDNN_AVAILABLE = torch.backends.mkldnn.is_available()


def linear(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None,
) -> Float[Tensor, "*batch out"]:
    if (
        torch.is_grad_enabled()
        or weight.numel() < ONEDNN_MIN_NUMEL
        or not _onednn_applies(x, weight)
    ):
        return F.linear(x, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _onednn_applies(x: Tensor, weight: Tensor) -> bool:
    """float32 on a CPU that has oneDNN, and nobody who wants to see the product written out."""
    if (
        not ONEDNN_AVAILABLE
        or x.device.type != "cpu"
        or not x.dtype == weight.dtype == torch.float32
    ):
        return False
    return not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")


class Linear(nn.Linear):
    """A linear layer."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return linear(x, self.weight, self.bias)


# ---- layers: What acts on one token alone: norms (L4.3) and the feed-forward layer (L4.2).

Stream = Float[Tensor, "batch token d"]


def make_norm(norm: c.Norm, width: int) -> nn.Module:
    """γ (x − μ)/σ + β, or γ x / √mean(x²)."""
    if isinstance(norm, c.LayerNorm):
        return nn.LayerNorm(width, eps=norm.eps, bias=norm.bias)
    return nn.RMSNorm(width, eps=norm.eps)


def make_dropout(share: float) -> nn.Module:
    return nn.Dropout(share) if share else nn.Identity()


def joint_linear(x: Stream, *layers: nn.Linear | Int8Linear) -> list[Tensor]:
    """What several linear layers make of the same input.

    Where gradients are taken it is one product: wide ones suit machines better, and so does one gradient of the input.
    Else joining the matrices would cost more than it saves.
    """
    plain = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not torch.is_grad_enabled() or len(plain) < len(layers):
        return [layer(x) for layer in layers]
    bias = None
    if any(layer.bias is not None for layer in plain):
        bias = torch.cat(
            [
                x.new_zeros(layer.out_features) if layer.bias is None else layer.bias
                for layer in plain
            ]
        )
    joined = F.linear(x, torch.cat([layer.weight for layer in plain]), bias)
    return list(joined.split([layer.out_features for layer in plain], dim=-1))


def relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": relu2,
    "gelu": F.gelu,
    "gelu-tanh": gelu_tanh,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu-tanh": gelu_tanh,
}


class FeedForward(nn.Module):
    """f(xW_1 + b_1) W_2 + b_2, the same for every position."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__()
        self.up = Linear(m.d_model, m.d_ff, bias=m.ffn.bias)
        self.down = Linear(m.d_ff, m.d_model, bias=m.ffn.bias)
        self.activation = ACTIVATIONS[m.ffn.activation]

    def forward(self, x: Stream, hooks: Hooks) -> Stream:
        return hooks("out", self.down(hooks("post", self.activation(hooks("up", self.up(x))))))


class GatedFeedForward(FeedForward):
    """(f(xW_1) ⊙ xW_G) W_2: each neuron has a second reading of x to be multiplied with."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__(m)
        self.gate = Linear(m.d_model, m.d_ff, bias=m.ffn.bias)

    def forward(self, x: Stream, hooks: Hooks) -> Stream:
        gate, up = joint_linear(x, self.gate, self.up)
        active = self.activation(hooks("gate", gate)) * hooks("up", up)
        return hooks("out", self.down(hooks("post", active)))


def make_feed_forward(m: c.ModelConfig) -> FeedForward:
    return GatedFeedForward(m) if m.ffn.is_gated else FeedForward(m)


# ---- unembed: h Eᵀ (L5.1), for vocabularies that do not suit the machine.

ROW_ALIGNMENT = 16


@torch.library.custom_op("clearhead::spaced_product", mutates_args=())
def padded_matmul(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden @ weight.mT, its rows starting at multiples of 16."""
    return torch.mm(hidden, weight.mT, out=_empty_padded(hidden, weight))


@padded_matmul.register_fake
def _empty_padded(hidden: Tensor, weight: Tensor) -> Tensor:
    columns = weight.shape[0]
    return hidden.new_empty(hidden.shape[0], -(-columns // ROW_ALIGNMENT) * ROW_ALIGNMENT)[
        :, :columns
    ]


def _padded_matmul_setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _padded_matmul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    hidden, weight = ctx.saved_tensors
    return grad @ weight, grad.mT @ hidden


padded_matmul.register_autograd(_padded_matmul_backward, setup_context=_padded_matmul_setup)


def unembed(
    hidden: Float[Tensor, "*batch d"],
    table: nn.Embedding | Int8Embedding,
    bias: Float[Tensor, " vocabulary"] | None,
) -> Float[Tensor, "*batch vocabulary"]:
    if isinstance(table, Int8Embedding):
        return table.unembed(hidden, bias)
    weight = table.weight
    suits = (
        len(weight) % ROW_ALIGNMENT == 0
        or hidden.device.type != "cpu"
        or not torch.is_grad_enabled()
    )
    if suits or hidden.dim() == 1 or torch.is_autocast_enabled("cpu"):
        return linear(hidden, weight, bias)
    rows = padded_matmul(hidden.reshape(-1, hidden.shape[-1]), weight)
    logits = rows.unflatten(0, hidden.shape[:-1])
    return logits if bias is None else logits + bias
