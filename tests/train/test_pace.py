"""Speed: operations as the machine counts them, time left as the clock shows it."""

import time

import pytest
import torch
from runs import Counting
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import clearhead as ch
from clearhead.data.packed import IGNORE, Packed
from clearhead.model.transformer import build
from clearhead.train.pace import Left, Speed, duration, flops, peak

SHAPES = {
    "tiny-decoder": {},
    "tiny-llama": {},
    "tiny-encoder": {},
    "tiny-encoder-decoder": {},
    "tiny-pictures": {},
    "tiny-sound": {},
    "tiny-encoder-decoder and two tables": {"shape.vocabulary": 48, "head.tied": False},
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_formula_counts_what_torch_counts(name):
    m = ch.presets[name.split()[0]].change(**SHAPES[name]).model
    net, source = build(m, 0), None
    ids = torch.randint(48, (3, 24))
    if not m.vocabulary:
        size = (1, 8, 8) if name == "tiny-pictures" else (16, 32)
        ids, targets, length = torch.randn(3, *size), torch.zeros(3, dtype=torch.long), m.context
    else:
        targets, length = ids, 24
    if "encoder-decoder" in name:
        source = torch.randint(48, (3, 17))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        net.loss(net(ids, source=source), targets)[0].backward()
    # nothing goes back into pictures and sounds, and a learned first token multiplies nothing
    assert flops(m, length, 17 if source is not None else 0) == pytest.approx(
        counted.get_total_flops() / 3, rel=1e-9 if m.vocabulary else 0.04
    )


def test_gpt2_costs_what_everybody_says():
    m = ch.presets["gpt2-124m"].model
    weights = 124_439_808 - 1024 * 768  # the table of positions is looked up; the tied embedding multiplies once
    assert flops(m, 1024) / 1024 == pytest.approx(6 * weights + 12 * 12 * 768 * 1024, rel=2e-3)


def test_a_window_looks_at_fewer_keys():
    m = ch.presets["tiny-decoder"].model
    windowed = ch.presets["tiny-decoder"].change(attention__window=8).model
    assert flops(m, 32) - flops(windowed, 32) == 12 * 32 * 2 * 32 * (32 - 8)


def test_padding_is_work_but_no_token():
    config = ch.presets["tiny-decoder"]
    ids, segments = torch.ones(2, 16, dtype=torch.long), torch.ones(2, 16, dtype=torch.long)
    segments[:, 12:] = 0
    targets = ids.masked_fill(segments == 0, IGNORE)
    full, part = (Speed.of(config, [batch], 1e9) for batch in (Packed(ids, ids), Packed(ids, targets, segments)))
    assert (full.tokens, part.tokens, full.lessons, part.lessons) == (1.0, 1.0, 32, 24)
    assert part.flops == pytest.approx(full.flops * 16 / 12)
    assert part.share(1e3) == pytest.approx(1e3 * part.flops / 1e9)


def test_every_number_to_be_predicted_is_a_lesson_also_the_one_that_marks_no_word():
    config = ch.presets["tiny-encoder"].change(**{"model.head": {"kind": "number"}})
    ids = torch.ones(4, 16, dtype=torch.long)
    assert Speed.of(config, [Packed(ids, torch.tensor([1.0, IGNORE, IGNORE, 2.0]))]).lessons == 4


def test_where_only_the_head_learns_nothing_goes_back():
    both = [Speed.of(ch.presets["tiny-decoder"].change(**{"train.learns": which}), [Counting().batch(0)])
            for which in ("all", "head")]  # fmt: skip
    assert both[0].flops == 3 * both[1].flops


def test_the_peak_is_found_quickly():
    peak(torch.device("cpu"), torch.float32)
    start = time.perf_counter()
    found = peak(torch.device("cpu"), torch.float32)
    assert time.perf_counter() - start < 0.3
    assert found > 1e9


def test_the_time_left_does_not_count_the_compiler():
    left = Left(100)
    assert left.seconds(10, 60.0) is None  # a minute of compiling, and ten steps
    assert left.seconds(20, 61.0) == pytest.approx(8.0)
    assert left.seconds(30, 62.0) == pytest.approx(7.0)


def test_durations_are_read_at_a_glance():
    assert [duration(s) for s in (0, 42.4, 725, 3723, 97_440)] == ["0:00", "0:42", "12:05", "1:02:03", "1 d 03:04"]
