"""The fused loss kernel has the value and the gradients of torch's cross-entropy."""

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def torch_cross_entropy(hidden, weight, bias, targets, label_smoothing):
    logits = F.linear(hidden, weight, bias)
    return F.cross_entropy(
        logits, targets, ignore_index=-100, reduction="sum", label_smoothing=label_smoothing
    )


@pytest.mark.parametrize("vocab_size", [2, 61, 64, 8192, 8193, 50257])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_fused_loss_equals_cross_entropy(vocab_size, label_smoothing, has_bias, is_compiled):
    from clearhead.kernels.cross_entropy import fused_cross_entropy

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 32, generator=generator)
    weight = torch.randn(vocab_size, 32, generator=generator)
    bias = torch.randn(vocab_size, generator=generator) if has_bias else None
    targets = torch.randint(vocab_size, (40,), generator=generator)
    targets[::5] = -100
    fused = (
        torch.compile(fused_cross_entropy, dynamic=False) if is_compiled else fused_cross_entropy
    )
    results = []
    for f in (fused, torch_cross_entropy):
        leaves = [x if x is None else x.cuda().requires_grad_() for x in (hidden, weight, bias)]
        loss = f(*leaves, targets.cuda(), label_smoothing)
        (loss / 7).backward()
        results.append([loss.detach(), *(x.grad for x in leaves if x is not None)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4)


def test_fused_loss_works_under_autocast():
    from clearhead.kernels.cross_entropy import fused_cross_entropy

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 32, generator=generator).cuda().bfloat16()
    weight = torch.randn(61, 32, generator=generator).cuda().requires_grad_()
    targets = torch.randint(61, (40,), generator=generator).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = fused_cross_entropy(hidden, weight, None, targets, 0.0)
    loss.backward()
    expected = torch_cross_entropy(hidden.float(), weight.detach(), None, targets, 0.0)
    torch.testing.assert_close(loss.detach(), expected, rtol=2e-2, atol=2e-2)
    assert weight.grad.dtype == torch.float32
    assert weight.grad.isfinite().all()
