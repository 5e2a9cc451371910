"""Large matrices on a CPU: other ways to multiply, the same products."""

import pytest
import torch
from torch.nn import functional as F

from clearhead.model import layers as under_test
from clearhead.model.layers import Linear, linear


@pytest.fixture(autouse=True)
def every_matrix_is_large(monkeypatch):
    monkeypatch.setattr(under_test, "LARGE", 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(
    "shape", [(17,), (1, 17), (0, 17), (2, 0, 17), (5, 17), (2, 3, 17), (4, 1, 17)]
)
@torch.no_grad()
def test_products_are_those_of_torch(shape, turned, bias):
    weight = torch.randn(33, 17)
    x = torch.randn(shape)
    layer = Linear(17, 33, bias=bias)
    layer.weight.data = weight.mT.contiguous().mT if turned else weight
    torch.testing.assert_close(layer(x), F.linear(x, weight, layer.bias))
    spread = torch.randn(*shape, 2)[..., 0]
    torch.testing.assert_close(layer(spread), F.linear(spread, weight, layer.bias))


def test_gradients_flow():
    layer = Linear(8, 16)
    layer(torch.randn(3, 8)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_other_dtypes_go_torchs_own_way():
    x = torch.randn(3, 8, dtype=torch.float64)
    weight = torch.randn(16, 8, dtype=torch.float64)
    assert torch.equal(linear(x, weight, None), F.linear(x, weight))
