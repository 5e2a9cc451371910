"""Layers applied to each token: linear, norm (L4.3), feed-forward (L4.2), unembedding (L5.1)."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.hooks import Hooks
from clearhead.model.int8 import Int8Embedding, Int8Linear

ONEDNN_MIN_NUMEL = 2**17  # matrix size from which oneDNN is faster than torch's default on a CPU
ONEDNN_AVAILABLE = torch.backends.mkldnn.is_available()
ROW_ALIGNMENT = 16  # elements to which rows of logits are padded on a CPU

Stream = Float[Tensor, "batch token d"]


def linear(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None,
) -> Float[Tensor, "*batch out"]:
    """x Wᵀ + b; on a CPU without gradients by oneDNN, which is faster for few tokens."""
    if (
        torch.is_grad_enabled()
        or weight.numel() < ONEDNN_MIN_NUMEL
        or not ONEDNN_AVAILABLE
        or x.device.type != "cpu"
        or not x.dtype == weight.dtype == torch.float32
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
    ):
        return F.linear(x, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class Linear(nn.Linear):
    """A linear layer that uses the fastest kernel for the device."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return linear(x, self.weight, self.bias)


def joint_linear(x: Stream, *layers: nn.Linear | Int8Linear) -> list[Tensor]:
    """Apply several linear layers to the same input.

    With gradients, one matrix product is faster and gives one gradient of the input. Without,
    concatenating the weights would cost more than it saves.
    """
    float_layers = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not torch.is_grad_enabled() or len(float_layers) < len(layers):
        return [layer(x) for layer in layers]
    bias = None
    if any(layer.bias is not None for layer in float_layers):
        bias = torch.cat(
            [
                x.new_zeros(layer.out_features) if layer.bias is None else layer.bias
                for layer in float_layers
            ]
        )
    joint = F.linear(x, torch.cat([layer.weight for layer in float_layers]), bias)
    return list(joint.split([layer.out_features for layer in float_layers], dim=-1))


def make_norm(norm: c.Norm, d: int) -> nn.Module:
    """LayerNorm γ (x − μ)/σ + β, or RMSNorm γ x / √mean(x²)."""
    if isinstance(norm, c.LayerNorm):
        return nn.LayerNorm(d, eps=norm.eps, bias=norm.bias)
    return nn.RMSNorm(d, eps=norm.eps)


def make_dropout(p: float) -> nn.Module:
    return nn.Dropout(p) if p else nn.Identity()


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
    """f(x W_up + b) W_down + b, the same for every token."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__()
        self.up = Linear(m.d_model, m.d_ff, bias=m.ffn.bias)
        self.down = Linear(m.d_ff, m.d_model, bias=m.ffn.bias)
        self.activation = ACTIVATIONS[m.ffn.activation]

    def forward(self, x: Stream, hooks: Hooks) -> Stream:
        return hooks("out", self.down(hooks("post", self.activation(hooks("up", self.up(x))))))


class GatedFeedForward(FeedForward):
    """(f(x W_gate) ⊙ x W_up) W_down, as in Llama."""

    def __init__(self, m: c.ModelConfig) -> None:
        nn.Module.__init__(self)
        # The order of registration is the order of initialization.
        self.gate = Linear(m.d_model, m.d_ff, bias=m.ffn.bias)
        self.down = Linear(m.d_ff, m.d_model, bias=m.ffn.bias)
        self.up = Linear(m.d_model, m.d_ff, bias=m.ffn.bias)
        self.activation = ACTIVATIONS[m.ffn.activation]

    def forward(self, x: Stream, hooks: Hooks) -> Stream:
        gate, up = joint_linear(x, self.gate, self.up)
        post = self.activation(hooks("gate", gate)) * hooks("up", up)
        return hooks("out", self.down(hooks("post", post)))


def make_feed_forward(m: c.ModelConfig) -> FeedForward:
    return GatedFeedForward(m) if m.ffn.is_gated else FeedForward(m)


def unembed(
    hidden: Float[Tensor, "*batch d"],
    table: nn.Embedding | Int8Embedding,
    bias: Float[Tensor, " vocab"] | None,
) -> Float[Tensor, "*batch vocab"]:
    """Logits h Eᵀ.

    A vocabulary like GPT-2's 50,257 leaves the rows of logits unaligned, which on a CPU with
    gradients takes a third longer; there rows are padded, as `kernels.cross_entropy` does on a GPU.
    """
    if isinstance(table, Int8Embedding):
        return table.unembed(hidden, bias)
    weight = table.weight
    is_aligned = len(weight) % ROW_ALIGNMENT == 0
    if is_aligned or hidden.device.type != "cpu" or not torch.is_grad_enabled():
        return linear(hidden, weight, bias)
    if hidden.dim() == 1 or torch.is_autocast_enabled("cpu"):
        return linear(hidden, weight, bias)
    rows = padded_matmul(hidden.reshape(-1, hidden.shape[-1]), weight)
    logits = rows.unflatten(0, hidden.shape[:-1])
    return logits if bias is None else logits + bias


@torch.library.custom_op("clearhead::padded_matmul", mutates_args=())
def padded_matmul(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden @ weight.mT, with rows that start at multiples of ROW_ALIGNMENT elements."""
    return torch.mm(hidden, weight.mT, out=_empty_padded(hidden, weight))


@padded_matmul.register_fake
def _empty_padded(hidden: Tensor, weight: Tensor) -> Tensor:
    columns = weight.shape[0]
    padded_columns = -(-columns // ROW_ALIGNMENT) * ROW_ALIGNMENT
    return hidden.new_empty(hidden.shape[0], padded_columns)[:, :columns]


def _padded_matmul_setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _padded_matmul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    hidden, weight = ctx.saved_tensors
    return grad @ weight, grad.mT @ hidden


padded_matmul.register_autograd(_padded_matmul_backward, setup_context=_padded_matmul_setup)
