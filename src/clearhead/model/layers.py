"""What acts on one token alone: norms (L4.3) and the feed-forward layer (L4.2)."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.model.int8 import Linear8
from clearhead.model.linear import Linear
from clearhead.tap import Tap

Stream = Float[Tensor, "batch token d"]


def make_norm(norm: c.Norm, width: int) -> nn.Module:
    """γ (x − μ)/σ + β, or γ x / √mean(x²)."""
    if isinstance(norm, c.LayerNorm):
        return nn.LayerNorm(width, eps=norm.eps, bias=norm.bias)
    return nn.RMSNorm(width, eps=norm.eps)


def make_dropout(share: float) -> nn.Module:
    return nn.Dropout(share) if share else nn.Identity()


def products(x: Stream, *layers: nn.Linear | Linear8) -> list[Tensor]:
    """What several linear layers make of the same input.

    Where gradients are taken it is one product: wide ones suit machines better, and so does one gradient of the input.
    Else joining the matrices would cost more than it saves.
    """
    plain = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not torch.is_grad_enabled() or len(plain) < len(layers):
        return [layer(x) for layer in layers]
    bias = None
    if any(layer.bias is not None for layer in plain):
        bias = torch.cat([x.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in plain])
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
        self.up = Linear(m.width, m.ffn_width, bias=m.ffn.bias)
        self.down = Linear(m.ffn_width, m.width, bias=m.ffn.bias)
        self.activation = ACTIVATIONS[m.ffn.activation]

    def forward(self, x: Stream, tap: Tap) -> Stream:
        return tap("out", self.down(tap("post", self.activation(tap("pre", self.up(x))))))


class Gated(FeedForward):
    """(f(xW_1) ⊙ xW_G) W_2: each neuron has a second reading of x to be multiplied with."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__(m)
        self.gate = Linear(m.width, m.ffn_width, bias=m.ffn.bias)

    def forward(self, x: Stream, tap: Tap) -> Stream:
        up, gate = products(x, self.up, self.gate)
        active = self.activation(tap("pre", up)) * tap("gate", gate)
        return tap("out", self.down(tap("post", active)))


def make_feed_forward(m: c.ModelConfig) -> FeedForward:
    return Gated(m) if m.ffn.gated else FeedForward(m)
