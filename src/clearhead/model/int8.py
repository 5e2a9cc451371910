"""Weights in one byte each, for CPUs: a quarter of the memory to read, and products of whole numbers.

    W ≈ s ⊙ W₈,  x ≈ t · x₈,   so   x Wᵀ ≈ t · (x₈ W₈ᵀ) ⊙ s

Each row of W has its scale s, each token its scale t: the largest value becomes 127. Sums of whole numbers are exact:
what a token gives does not depend on the tokens beside it, to the bit. Norms, biases and attention stay in float32.
"""

import warnings
from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from clearhead.errors import ClearheadError

# Without VNNI, two products are summed in 16 bits, which only hold them where x₈ has 7 bits.
ACTIVATION_LEVELS = 127 if torch.cpu._is_vnni_supported() else 63
MIN_SCALE = 1e-30  # the scale of a token that is all zeros

QuantizedRows = tuple[Int8[Tensor, "out in"], Float[Tensor, " out"]]


def quantize_rows(weight: Float[Tensor, "out in"]) -> QuantizedRows:
    """W₈ and s."""
    scale = weight.detach().abs().amax(dim=1).clamp(min=MIN_SCALE) / 127
    return (weight.detach() / scale[:, None]).round().to(torch.int8), scale


class PackedLinear:
    """x ↦ x Wᵀ + b, its matrix laid out as the CPU reads it fastest."""

    def __init__(self, rows: Int8[Tensor, "out in"], scale: Float[Tensor, " out"]) -> None:
        with (
            warnings.catch_warnings()
        ):  # what packs is deprecated; nothing that is not packs for these kernels
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
            nowhere = torch.zeros(len(rows), dtype=torch.long)
            matrix = torch._make_per_channel_quantized_tensor(rows, scale, nowhere, 0)
        self.packed = torch.ops.quantized.linear_prepack(matrix, None)

    def __call__(
        self, x: Float[Tensor, "*batch in"], bias: Tensor | None
    ) -> Float[Tensor, "*batch out"]:
        if x.requires_grad and torch.is_grad_enabled():
            raise ClearheadError("a model in int8 gives no gradients; load it in float32.")
        t = x.abs().amax(dim=-1, keepdim=True).clamp_(min=MIN_SCALE)
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        product: Tensor = multiply(x / t, 1 / ACTIVATION_LEVELS, ACTIVATION_LEVELS + 1, self.packed)
        return product.mul_(t) if bias is None else torch.addcmul(bias, product, t)

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        unpacked: Tensor = torch.ops.quantized.linear_unpack(self.packed)[0]
        return unpacked.dequantize()


class Int8Module(nn.Module):
    """What takes the place of a layer: it stays on the CPU, does not learn and is not saved."""

    def train(self, mode: bool = True) -> "Int8Module":
        if mode:
            raise ClearheadError("a model in int8 cannot be trained; load it in float32.")
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Int8Module":
        probe = fn(torch.zeros(1))
        if probe.device.type != "cpu" or probe.dtype != torch.float32:
            raise ClearheadError(
                "a model in int8 stays on the CPU, with float32 around its products."
            )
        return self


class Int8Linear(Int8Module):
    """A linear layer in int8."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.bias = layer.bias
        self.packed = PackedLinear(*quantize_rows(layer.weight))

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """The matrix that it multiplies by, written out for whoever looks."""
        return self.packed.weight

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return self.packed(x, self.bias)


class Int8Embedding(Int8Module):
    """An embedding in int8: rows to pick, and the same rows to multiply by where it is the unembedding too."""

    def __init__(self, table: nn.Embedding, unembeds: bool) -> None:
        super().__init__()
        self.rows, self.scale = quantize_rows(table.weight)
        self.packed = PackedLinear(self.rows, self.scale) if unembeds else None

    @property
    def weight(self) -> Float[Tensor, "vocabulary d"]:
        return self.rows * self.scale[:, None]

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d"]:
        return self.rows[ids] * self.scale[ids][..., None]

    def unembed(
        self, hidden: Float[Tensor, "*batch d"], bias: Tensor | None
    ) -> Float[Tensor, "*batch vocabulary"]:
        assert self.packed is not None
        return self.packed(hidden, bias)


def quantization_engine() -> str:
    """What torch packs matrices for."""
    return str(torch.backends.quantized.engine)


def quantize(net: nn.Module) -> None:
    """Puts int8 in the place of every linear layer and every embedding of words."""
    if quantization_engine() not in ("x86", "fbgemm"):
        raise ClearheadError("int8 needs a CPU of the x86 family; float32 works on any.")
    if next(net.parameters()).device.type != "cpu":
        raise ClearheadError("int8 is for CPUs; on a GPU, bfloat16 is faster.")
    head = getattr(net, "head", None)
    made: dict[nn.Module, Int8Module] = {}
    for name, layer in list(net.named_modules(remove_duplicate=False)):
        if isinstance(layer, nn.Linear):
            made[layer] = Int8Linear(layer)
        elif isinstance(layer, nn.Embedding) and layer not in made:
            made[layer] = Int8Embedding(layer, unembeds=layer is getattr(head, "unembed", None))
        if layer in made:
            net.set_submodule(name, made[layer])
    for p in net.parameters():
        p.requires_grad_(False)


def is_quantized(net: nn.Module) -> bool:
    return any(isinstance(module, Int8Module) for module in net.modules())
