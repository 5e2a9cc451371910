"""The kernel that makes loss and gradient in one reading says what plain arithmetic says."""

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("vocabulary", [2, 61, 64, 8192, 8193, 50257])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_fused_loss_has_the_value_and_gradients_of_cross_entropy(
    vocabulary, smoothing, biased, compiled
):
    from clearhead.kernels.cross_entropy import fused_cross_entropy

    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 32, generator=generator) for n in (40, vocabulary))
    bias = torch.randn(vocabulary, generator=generator) if biased else None
    targets = torch.randint(vocabulary, (40,), generator=generator)
    targets[::5] = -100
    results = []
    for f in (fused_cross_entropy, plain):
        leaves = [x if x is None else x.cuda().requires_grad_() for x in (hidden, weight, bias)]
        call = torch.compile(f, dynamic=False) if compiled and f is fused_cross_entropy else f
        loss = call(*leaves, targets.cuda(), smoothing)
        (loss / 7).backward()
        results.append([loss.detach(), *(x.grad for x in leaves if x is not None)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-4)


def plain(hidden, weight, bias, targets, smoothing):
    logits = F.linear(hidden, weight, bias)
    return F.cross_entropy(
        logits, targets, ignore_index=-100, reduction="sum", label_smoothing=smoothing
    )
