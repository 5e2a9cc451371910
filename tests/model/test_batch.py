"""Laws of batches: whatever numbers ids are stored in, they are the same ids."""

import pytest
import torch

import clearhead as ch

UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", [*UNSIGNED, torch.int16, torch.int32])
def test_ids_of_any_whole_numbers_are_the_same_ids(dtype):
    model = ch.new("tiny-decoder")
    ids = [[3, 1, 4], [1, 5, 9]]
    assert torch.equal(model.logits(torch.tensor(ids).to(dtype)), model.logits(ids))


@pytest.mark.parametrize("dtype", UNSIGNED[1:])
def test_unsigned_ids_out_of_range_get_a_sentence(dtype):
    with pytest.raises(ch.ClearheadError, match="token id 60000 is out of range"):
        ch.new("tiny-decoder").logits(torch.tensor([60000]).to(dtype))
