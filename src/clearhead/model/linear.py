"""x Wᵀ + b on a CPU, where texts are written with few tokens at a time.

For these torch's usual library has slow kernels on some CPUs. Large matrices are therefore multiplied by oneDNN, which
comes with torch too; and where there is one token, by columns if they lie so (`by_column`): each number of the token
times a column, in one sweep through the memory. With gradients, and on a GPU, torch's own way is the best.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

LARGE = 2**19  # numbers in a matrix from which on this pays; oneDNN takes longer to begin
ONEDNN = torch.backends.mkldnn.is_available()


def linear(
    x: Float[Tensor, "*batch in"], weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> Float[Tensor, "*batch out"]:
    if torch.is_grad_enabled() or weight.numel() < LARGE or not _plain(x, weight):
        return F.linear(x, weight, bias)
    if weight.stride(0) == 1 and x.numel() == x.shape[-1]:
        return F.linear(x, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _plain(x: Tensor, weight: Tensor) -> bool:
    """float32 on a CPU that has oneDNN, and nobody who wants to see the product written out."""
    if not ONEDNN or x.device.type != "cpu" or not x.dtype == weight.dtype == torch.float32:
        return False
    return not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")


class Linear(nn.Linear):
    """A linear layer."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return linear(x, self.weight, self.bias)


@torch.no_grad()
def by_column(net: nn.Module) -> None:
    """Lays the large matrices that have more rows than columns by column in memory; shapes and values stay."""
    for layer in net.modules():
        if isinstance(layer, Linear | nn.Embedding) and layer.weight.dtype == torch.float32:
            rows, columns = layer.weight.shape
            if rows >= columns and rows * columns >= LARGE:
                layer.weight.data = layer.weight.mT.contiguous().mT
