"""h Eᵀ (L5.1), for vocabularies that do not suit the machine.

A vocabulary like GPT-2's 50,257 leaves the rows of logits unaligned. On a CPU the product then takes a third
longer, so there they are written with a little room after each row. On a GPU `fused_loss` does the like.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

ALIGNED = 16


@torch.library.custom_op("clearhead::spaced_product", mutates_args=())
def spaced_product(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden @ weight.mT, its rows starting at multiples of 16."""
    return torch.mm(hidden, weight.mT, out=_spaced(hidden, weight))


@spaced_product.register_fake
def _spaced(hidden: Tensor, weight: Tensor) -> Tensor:
    columns = weight.shape[0]
    return hidden.new_empty(hidden.shape[0], -(-columns // ALIGNED) * ALIGNED)[:, :columns]


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    hidden, weight = ctx.saved_tensors
    return grad @ weight, grad.mT @ hidden


spaced_product.register_autograd(_backward, setup_context=_remember)


def unembed(
    hidden: Float[Tensor, "*batch d"], weight: Float[Tensor, "vocabulary d"], bias: Float[Tensor, " vocabulary"] | None
) -> Float[Tensor, "*batch vocabulary"]:
    suits = len(weight) % ALIGNED == 0 or hidden.device.type != "cpu"
    if suits or hidden.dim() == 1 or torch.is_autocast_enabled("cpu"):
        return F.linear(hidden, weight, bias)
    rows = spaced_product(hidden.reshape(-1, hidden.shape[-1]), weight)
    logits = rows.unflatten(0, hidden.shape[:-1])
    return logits if bias is None else logits + bias
