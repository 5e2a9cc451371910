"""Int8 inference on a CPU: weights in one byte each, integer matrix products.

    W ≈ s ⊙ W₈,  x ≈ t · x₈,   so   x Wᵀ ≈ t · (x₈ W₈ᵀ) ⊙ s

Each row of W has a scale s, each token a scale t: its largest absolute value becomes 127. Integer
sums are exact, so the result for a token does not depend on the rest of the batch. Norms, biases
and attention stay in float32.
"""

import warnings
from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from clearhead.errors import ClearheadError

MIN_SCALE = 1e-30  # for a token that is all zeros

QuantizedRows = tuple[Int8[Tensor, "out in"], Float[Tensor, " out"]]


@cache
def activation_levels() -> int:
    """The largest x₈. Without VNNI the CPU adds products in 16 bits, so x₈ has only 7."""
    is_vnni_supported = getattr(torch.cpu, "_is_vnni_supported", None)  # not public
    return 127 if is_vnni_supported is not None and is_vnni_supported() else 63


def quantize_rows(weight: Float[Tensor, "out in"]) -> QuantizedRows:
    """W₈ and s."""
    scale = weight.detach().abs().amax(dim=1).clamp(min=MIN_SCALE) / 127
    return (weight.detach() / scale[:, None]).round().to(torch.int8), scale


class PackedLinear:
    """x ↦ x Wᵀ + b with the int8 matrix in the CPU's preferred memory layout."""

    def __init__(self, rows: Int8[Tensor, "out in"], scale: Float[Tensor, " out"]) -> None:
        # quantize_per_tensor is deprecated, but nothing else packs for these kernels
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
            zero_points = torch.zeros(len(rows), dtype=torch.long)
            matrix = torch._make_per_channel_quantized_tensor(rows, scale, zero_points, 0)
        self._packed_weight = torch.ops.quantized.linear_prepack(matrix, None)

    def __call__(
        self, x: Float[Tensor, "*batch in"], bias: Tensor | None
    ) -> Float[Tensor, "*batch out"]:
        if x.requires_grad and torch.is_grad_enabled():
            raise ClearheadError("an int8 model has no gradients. Load it with dtype=float32.")
        t = x.abs().amax(dim=-1, keepdim=True).clamp_(min=MIN_SCALE)
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        levels = activation_levels()
        product: Tensor = multiply(x / t, 1 / levels, levels + 1, self._packed_weight)
        return product.mul_(t) if bias is None else torch.addcmul(bias, product, t)

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """The dequantized matrix."""
        unpacked: Tensor = torch.ops.quantized.linear_unpack(self._packed_weight)[0]
        return unpacked.dequantize()


class Int8Module(nn.Module):
    """A quantized layer: it stays on the CPU, cannot be trained and is not saved."""

    def train(self, mode: bool = True) -> "Int8Module":
        if mode:
            raise ClearheadError("an int8 model cannot be trained. Load it with dtype=float32.")
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Int8Module":
        probe = fn(torch.zeros(1))
        if probe.device.type != "cpu" or probe.dtype != torch.float32:
            raise ClearheadError(
                f"an int8 model stays on the CPU, with float32 activations; it cannot be moved to "
                f"{probe.device.type}, {probe.dtype}."
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
        """The dequantized matrix."""
        return self.packed.weight

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return self.packed(x, self.bias)


class Int8Embedding(Int8Module):
    """An embedding in int8, which also unembeds if it is tied."""

    def __init__(self, table: nn.Embedding, is_unembedding: bool) -> None:
        super().__init__()
        self.rows, self.scale = quantize_rows(table.weight)
        self.packed = PackedLinear(self.rows, self.scale) if is_unembedding else None

    @property
    def weight(self) -> Float[Tensor, "vocab d"]:
        """The dequantized matrix."""
        return self.rows * self.scale[:, None]

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d"]:
        return self.rows[ids] * self.scale[ids][..., None]

    def unembed(
        self, hidden: Float[Tensor, "*batch d"], bias: Tensor | None
    ) -> Float[Tensor, "*batch vocab"]:
        assert self.packed is not None
        return self.packed(hidden, bias)


def quantization_engine() -> str:
    """The CPU backend torch packs quantized matrices for."""
    return str(torch.backends.quantized.engine)


def quantize(net: nn.Module) -> None:
    """Replace every linear layer and token embedding by its int8 form, in place."""
    if quantization_engine() not in ("x86", "fbgemm"):
        raise ClearheadError("int8 needs an x86 CPU. Use dtype=float32.")
    device = next(net.parameters()).device.type
    if device != "cpu":
        raise ClearheadError(
            f"int8 runs on the CPU only, the model is on {device}. Use dtype=bfloat16 on a GPU."
        )
    unembedding = getattr(getattr(net, "head", None), "unembed", None)
    quantized: dict[nn.Module, Int8Module] = {}
    for name, layer in list(net.named_modules(remove_duplicate=False)):
        if isinstance(layer, nn.Linear):
            quantized[layer] = Int8Linear(layer)
        elif isinstance(layer, nn.Embedding) and layer not in quantized:
            quantized[layer] = Int8Embedding(layer, is_unembedding=layer is unembedding)
        if layer in quantized:
            net.set_submodule(name, quantized[layer])
    for p in net.parameters():
        p.requires_grad_(False)


def is_quantized(net: nn.Module) -> bool:
    return any(isinstance(module, Int8Module) for module in net.modules())
