"""x Wᵀ + b on a CPU, where texts are written with few tokens at a time.

For these torch's usual library has slow kernels on some CPUs, and uses one core for a single token. Matrices are
therefore multiplied by oneDNN, which comes with torch too; it only takes longer to begin. With gradients, and on a GPU,
torch's own way is the best.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

LARGE = 2**17  # numbers in a matrix from which on this pays
ONEDNN = torch.backends.mkldnn.is_available()


def linear(
    x: Float[Tensor, "*batch in"], weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> Float[Tensor, "*batch out"]:
    if torch.is_grad_enabled() or weight.numel() < LARGE or not _plain(x, weight):
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
