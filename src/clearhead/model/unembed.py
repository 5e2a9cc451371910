"""h Eᵀ (L5.1), for vocabularies that do not suit the machine.

A vocabulary like GPT-2's 50,257 leaves the rows of logits unaligned. On a CPU that takes gradients, the product is a
third slower then, so there they are written with a little room after each row. On a GPU `kernels.loss` does the like.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.model.int8 import Table8
from clearhead.model.linear import linear

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
    hidden: Float[Tensor, "*batch d"], table: nn.Embedding | Table8, bias: Float[Tensor, " vocabulary"] | None
) -> Float[Tensor, "*batch vocabulary"]:
    if isinstance(table, Table8):
        return table.multiply(hidden, bias)
    weight = table.weight
    suits = len(weight) % ALIGNED == 0 or hidden.device.type != "cpu" or not torch.is_grad_enabled()
    if suits or hidden.dim() == 1 or torch.is_autocast_enabled("cpu"):
        return linear(hidden, weight, bias)
    rows = spaced_product(hidden.reshape(-1, hidden.shape[-1]), weight)
    logits = rows.unflatten(0, hidden.shape[:-1])
    return logits if bias is None else logits + bias
