"""Speed: operations as the machine counts them, time left as the clock shows it."""

import time

import pytest
import torch
from runs import Counting
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import clearhead as ch
from clearhead.data.batch import IGNORE_INDEX, PackedBatch
from clearhead.model.transformer import build_transformer
from clearhead.train.throughput import (
    ETA,
    Throughput,
    format_duration,
    measure_peak_flops,
    training_flops,
)

SHAPES = {
    "tiny-decoder": {},
    "tiny-llama": {},
    "tiny-encoder": {},
    "tiny-encoder-decoder": {},
    "tiny-pictures": {},
    "tiny-sound": {},
    "tiny-encoder-decoder and two tables": {
        "architecture.source_vocab_size": 48,
        "head.tie_embeddings": False,
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_formula_counts_what_torch_counts(name):
    m = ch.presets[name.split()[0]].replace(**SHAPES[name]).model
    net = build_transformer(m, 0)
    source = None
    ids = torch.randint(48, (3, 24))
    if not m.vocab_size:
        size = (1, 8, 8) if name == "tiny-pictures" else (16, 32)
        ids = torch.randn(3, *size)
        targets = torch.zeros(3, dtype=torch.long)
        length = m.context_length
    else:
        targets = ids
        length = 24
    if "encoder-decoder" in name:
        source = torch.randint(48, (3, 17))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        net.loss(net(ids, source=source), targets)[0].backward()
    # nothing goes back into pictures and sounds, and a learned first token multiplies nothing
    assert training_flops(m, length, 17 if source is not None else 0) == pytest.approx(
        counted.get_total_flops() / 3, rel=1e-9 if m.vocab_size else 0.04
    )


def test_gpt2_costs_what_everybody_says():
    m = ch.presets["gpt2-124m"].model
    weights = (
        124_439_808 - 1024 * 768
    )  # the table of positions is looked up; the tied embedding multiplies once
    assert training_flops(m, 1024) / 1024 == pytest.approx(
        6 * weights + 12 * 12 * 768 * 1024, rel=2e-3
    )


def test_a_window_looks_at_fewer_keys():
    m = ch.presets["tiny-decoder"].model
    windowed = ch.presets["tiny-decoder"].replace(attention__sliding_window=8).model
    assert training_flops(m, 32) - training_flops(windowed, 32) == 12 * 32 * 2 * 32 * (32 - 8)


def test_padding_is_work_but_no_token():
    config = ch.presets["tiny-decoder"]
    ids = torch.ones(2, 16, dtype=torch.long)
    segment_ids = torch.ones(2, 16, dtype=torch.long)
    segment_ids[:, 12:] = 0
    targets = ids.masked_fill(segment_ids == 0, IGNORE_INDEX)
    full, part = (
        Throughput.from_batches(config, [batch], 1e9)
        for batch in (PackedBatch(ids, ids), PackedBatch(ids, targets, segment_ids))
    )
    assert (
        full.tokens_per_target,
        part.tokens_per_target,
        full.targets_per_batch,
        part.targets_per_batch,
    ) == (1.0, 1.0, 32, 24)
    assert part.flops_per_target == pytest.approx(full.flops_per_target * 16 / 12)
    assert part.utilization(1e3) == pytest.approx(1e3 * part.flops_per_target / 1e9)


def test_every_number_to_be_predicted_is_a_lesson_also_the_one_that_marks_no_word():
    config = ch.presets["tiny-encoder"].replace(**{"model.head": {"kind": "regression"}})
    ids = torch.ones(4, 16, dtype=torch.long)
    assert (
        Throughput.from_batches(
            config, [PackedBatch(ids, torch.tensor([1.0, IGNORE_INDEX, IGNORE_INDEX, 2.0]))]
        ).targets_per_batch
        == 4
    )


def test_where_only_the_head_learns_nothing_goes_back():
    both = [Throughput.from_batches(ch.presets["tiny-decoder"].replace(**{"train.trainable": which}), [Counting().batch(0)])
            for which in ("all", "head")]  # fmt: skip
    assert both[0].flops_per_target == 3 * both[1].flops_per_target


def test_the_peak_is_found_quickly():
    measure_peak_flops(torch.device("cpu"), torch.float32)
    start = time.perf_counter()
    found = measure_peak_flops(torch.device("cpu"), torch.float32)
    assert time.perf_counter() - start < 0.3
    assert found > 1e9


def test_the_time_left_does_not_count_the_compiler():
    left = ETA(100)
    assert left.remaining(10, 60.0) is None  # a minute of compiling, and ten steps
    assert left.remaining(20, 61.0) == pytest.approx(8.0)
    assert left.remaining(30, 62.0) == pytest.approx(7.0)


def test_durations_are_read_at_a_glance():
    assert [format_duration(s) for s in (0, 42.4, 725, 3723, 97_440)] == [
        "0:00",
        "0:42",
        "12:05",
        "1:02:03",
        "1 d 03:04",
    ]
