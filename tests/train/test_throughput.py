"""Throughput and remaining time."""

import pytest
import torch

import clearhead as ch
from clearhead.config import num_input_tokens
from clearhead.data.packed_batch import IGNORE_INDEX, PackedBatch
from clearhead.train.throughput import ETA, Throughput, format_duration


def test_padding_counts_neither_as_token_nor_as_target():
    config = ch.presets["tiny-decoder"]
    ids = torch.ones(2, 16, dtype=torch.long)
    segment_ids = torch.ones(2, 16, dtype=torch.long)
    segment_ids[:, 12:] = 0
    targets = ids.masked_fill(segment_ids == 0, IGNORE_INDEX)
    full = Throughput.from_batches(config, [PackedBatch(ids, ids)])
    padded = Throughput.from_batches(config, [PackedBatch(ids, targets, segment_ids)])
    assert (full.tokens_per_target, full.targets_per_batch) == (1.0, 32)
    assert (padded.tokens_per_target, padded.targets_per_batch) == (1.0, 24)


def test_every_regression_target_counts():
    config = ch.presets["tiny-encoder"].replace(**{"model.head": {"kind": "regression"}})
    targets = torch.tensor([1.0, IGNORE_INDEX, IGNORE_INDEX, 2.0])
    batch = PackedBatch(torch.ones(4, 16, dtype=torch.long), targets)
    throughput = Throughput.from_batches(config, [batch])
    assert (throughput.tokens_per_target, throughput.targets_per_batch) == (16, 4)


def test_patches_of_images_count_as_tokens():
    config = ch.presets["tiny-images"]
    batch = PackedBatch(torch.rand(3, 1, 8, 8), torch.arange(3))
    throughput = Throughput.from_batches(config, [batch])
    assert throughput.targets_per_batch == 3
    assert throughput.tokens_per_target == num_input_tokens(config.model.input) > 1


def test_remaining_time_excludes_compilation():
    eta = ETA(100)
    assert eta.remaining(10, 60.0) is None  # a minute of compilation, and ten steps
    assert eta.remaining(20, 61.0) == pytest.approx(8.0)
    assert eta.remaining(30, 62.0) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (42.4, "0:42"), (725, "12:05"), (3723, "1:02:03"), (97_440, "1 d 03:04")],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text
