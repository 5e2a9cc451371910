"""Linear layers on a CPU compute what torch computes, also where oneDNN is used."""

import pytest
import torch
from torch.nn import functional as F

from clearhead.model import layers
from clearhead.model.layers import Linear, linear


@pytest.fixture(autouse=True)
def use_onednn_for_every_size(monkeypatch):
    monkeypatch.setattr(layers, "ONEDNN_MIN_NUMEL", 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("is_transposed", [True, False])
@pytest.mark.parametrize(
    "shape", [(17,), (1, 17), (0, 17), (2, 0, 17), (5, 17), (2, 3, 17), (4, 1, 17)]
)
@torch.no_grad()
def test_linear_equals_torch(shape, is_transposed, bias):
    weight = torch.randn(33, 17)
    x = torch.randn(shape)
    layer = Linear(17, 33, bias=bias)
    layer.weight.data = weight.mT.contiguous().mT if is_transposed else weight
    torch.testing.assert_close(layer(x), F.linear(x, weight, layer.bias))
    strided = torch.randn(*shape, 2)[..., 0]
    torch.testing.assert_close(layer(strided), F.linear(strided, weight, layer.bias))


def test_linear_has_gradients():
    layer = Linear(8, 16)
    layer(torch.randn(3, 8)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_linear_in_float64_uses_torch():
    x = torch.randn(3, 8, dtype=torch.float64)
    weight = torch.randn(16, 8, dtype=torch.float64)
    assert torch.equal(linear(x, weight, None), F.linear(x, weight))
