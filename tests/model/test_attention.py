"""Both implementations of attention agree for masks that only decoding uses."""

import pytest
import torch

from clearhead.hooks import NO_HOOKS
from clearhead.model.attention import Mask, eager_attention, fused_attention


@pytest.mark.parametrize("attend", [fused_attention, eager_attention])
@pytest.mark.parametrize("has_bias", [True, False])
@torch.no_grad()
def test_keys_are_read_from_the_rows_that_own_them(attend, has_bias):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 4, 1, 8, generator=generator)
    k, v = (torch.randn(3, 2, 6, 8, generator=generator) for _ in range(2))
    bias = torch.randn(3, 4, 1, 6, generator=generator) if has_bias else None
    kv_lengths = torch.tensor([6, 2, 4])
    kv_owner = torch.randint(0, 3, (3, 9), generator=generator, dtype=torch.int32)
    own_k, own_v = (
        torch.stack([x[kv_owner[row, :6].long(), :, range(6)] for row in range(3)]) for x in (k, v)
    )
    mask = Mask(kv_lengths=kv_lengths, kv_owner=kv_owner)
    actual = attend(q, k, v, bias, mask, 0.5, 0.0, NO_HOOKS)
    for row in range(3):
        keys, values = (x[row, : kv_lengths[row]].transpose(0, 1) for x in (own_k, own_v))
        keys, values = (x.repeat_interleave(2, dim=0) for x in (keys, values))
        scores = q[row] @ keys.mT * 0.5
        if bias is not None:
            scores = scores + bias[row, :, :, : kv_lengths[row]]
        torch.testing.assert_close(actual[row], scores.softmax(-1) @ values)
