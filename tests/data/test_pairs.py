"""Laws of TranslationDataset: every pair whole, once per epoch, packed on both sides."""

from collections import Counter
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.config.model import InferenceConfig
from clearhead.data.dataset import shuffled_indices
from clearhead.data.packed_batch import IGNORE_INDEX, PackedBatch
from clearhead.data.pairs import (
    EncodedPair,
    SentencePair,
    TranslationDataset,
    balanced_source_seq_len,
    encode_pairs,
    pack_pairs,
)
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError
from clearhead.model.transformer import build_transformer
from clearhead.tokenizers.tokenizer import Tokenizer

START = 1
STOP = 2


# --- packing
def marked(lengths):
    """Pairs of these lengths in which every token tells whose it is."""
    return [
        (
            [1000 * i + k for k in range(1, s + 1)],
            [START, *(-1000 * i - k for k in range(1, t)), STOP],
        )
        for i, (s, t) in enumerate(lengths, 1)
    ]


def unpacked(packed):
    """For each row: (source, decoder input, targets) of each number in it."""
    rows = []
    sides = (
        packed.source,
        packed.source_segment_ids,
        packed.tokens,
        packed.segment_ids,
        packed.targets,
    )
    for source, source_segment_ids, tokens, segment_ids, targets in zip(*sides, strict=True):
        assert (targets[segment_ids == 0] == IGNORE_INDEX).all()
        assert set(segment_ids.tolist()) - {0} == set(source_segment_ids.tolist()) - {0}
        for numbers in (segment_ids, source_segment_ids):  # 1, 2, 3 … side by side, padding last
            real = numbers[numbers > 0]
            assert (numbers[: len(real)] > 0).all()
            assert set(real.diff().tolist()) <= {0, 1}
        found = [
            (
                source[source_segment_ids == n].tolist(),
                tokens[segment_ids == n].tolist(),
                targets[segment_ids == n].tolist(),
            )
            for n in range(1, int(segment_ids.max()) + 1)
        ]
        rows.append(found)
    return rows


def key(source, tokens, targets):
    return tuple(source), (*tokens, targets[-1])


def equal(a, b):
    return all(
        torch.equal(getattr(a, name), getattr(b, name))
        for name in vars(a)
        if getattr(a, name) is not None
    )


LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=60)
SHAPES = {"seq_len": 14, "source_seq_len": 12}


def passed(data: TranslationDataset, epoch: int) -> list[PackedBatch]:
    """All batches of an epoch that ends with a batch."""
    return [
        data.batch(round(epoch * data.batches_per_epoch) + step)
        for step in range(ceil(data.batches_per_epoch))
    ]


@given(LENGTHS, st.integers(0, 2**40))
def test_every_pair_occurs_once_per_epoch(lengths, seed):
    given_pairs = marked(lengths)
    data = TranslationDataset(given_pairs, [], DataReport(), batch_size=1, seed=seed, **SHAPES)
    want = Counter((tuple(source), tuple(target)) for source, target in given_pairs)
    for epoch in range(3):
        rows = [row for batch in passed(data, epoch) for row in unpacked(batch)]
        assert all(rows), "a row without a pair"
        assert Counter(key(*pair) for row in rows for pair in row) == want


@given(LENGTHS, st.integers(1, 7))
def test_targets_are_the_next_tokens(lengths, rows):
    data = TranslationDataset(marked(lengths), [], DataReport(), batch_size=rows, seed=0, **SHAPES)
    for row in unpacked(data.batch(0)):
        for _, tokens, targets in row:
            assert tokens[0] == START
            assert targets == [*tokens[1:], STOP]


@given(LENGTHS, st.integers(1, 7), st.integers(0, 3))
def test_batches_of_any_size_share_one_order_of_rows(lengths, rows, step):
    one = TranslationDataset(marked(lengths), [], DataReport(), batch_size=1, seed=5, **SHAPES)
    many = TranslationDataset(marked(lengths), [], DataReport(), batch_size=rows, seed=5, **SHAPES)
    assert many.batches_per_epoch == one.batches_per_epoch / rows
    together = many.batch(step)
    assert together.tokens.shape == (rows, 14)
    assert together.source.shape == (rows, 12)
    for i in range(rows):
        assert torch.equal(together.tokens[i], one.batch(step * rows + i).tokens[0])


@given(LENGTHS, st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_pair_batch_is_a_function_of_seed_and_step(lengths, steps):
    def make():
        return TranslationDataset(marked(lengths), [], DataReport(), batch_size=2, seed=3, **SHAPES)

    used = make()
    for step in steps:
        assert equal(used.batch(step), make().batch(step))


def test_packing_differs_between_seeds_and_epochs():
    def make(seed):
        return TranslationDataset(
            marked([(3, 3)] * 40), [], DataReport(), batch_size=1, seed=seed, **SHAPES
        )

    data = make(1)
    assert not equal(data.batch(0), make(2).batch(0))
    one, two = (
        {frozenset(key(*pair) for pair in unpacked(batch)[0]) for batch in passed(data, epoch)}
        for epoch in range(2)
    )
    assert data.batches_per_epoch == len(one) == 10
    assert len(one & two) < 5  # other pairs share a row


def test_all_epochs_have_the_same_number_of_rows():
    lengths = np.random.default_rng(2).integers(1, 13, (80, 2))
    needed = [
        len(pack_pairs(lengths, (12, 14), shuffled_indices(80, 0, epoch).numpy()))
        for epoch in range(12)
    ]
    assert min(needed) < needed[0] < max(needed)  # or this would show nothing
    given_pairs = marked(lengths.tolist())
    data = TranslationDataset(given_pairs, [], DataReport(), batch_size=1, seed=0, **SHAPES)
    assert data.batches_per_epoch == needed[0]
    want = Counter((tuple(source), tuple(target)) for source, target in given_pairs)
    for epoch in range(12):
        rows = [row for batch in passed(data, epoch) for row in unpacked(batch)]
        assert Counter(key(*pair) for row in rows for pair in row) == want


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=40), st.integers(1, 5))
def test_validation_pairs_occur_once_in_fixed_order(lengths, rows):
    held = marked(lengths)
    data = TranslationDataset(
        marked([(1, 1)]), held, DataReport(), batch_size=rows, seed=0, **SHAPES
    )
    batches = list(data.valid_batches())
    assert all(batch.tokens.shape == (rows, 14) for batch in batches)
    pair_counts = Counter(
        key(*pair) for batch in batches for row in unpacked(batch) for pair in row
    )
    assert pair_counts == Counter((tuple(source), tuple(target)) for source, target in held)
    assert all(equal(a, b) for a, b in zip(batches, data.valid_batches(), strict=True))
    full = [bool(row) for batch in batches for row in unpacked(batch)]
    assert full == sorted(full, reverse=True)  # what is empty comes last


def like_multi30k(seed, count=6000):
    """Lengths like Multi30k's: median 15 tokens, 5 to 50, correlation of the sides 0.87."""
    noise = np.random.default_rng(seed).normal(size=(2, count))
    source = np.exp(np.log(15) + 0.31 * noise[0])
    target = source * np.exp(0.03 + 0.16 * noise[1])
    return np.stack([source, target], axis=1).round().clip(4, 54).astype(int).tolist()


@pytest.mark.parametrize("length", [256, 512])
@pytest.mark.parametrize("seed", range(3))
def test_packing_efficiency_is_at_least_95_percent(length, seed):
    train = [EncodedPair([5] * s, [START, *[5] * (t - 1), STOP]) for s, t in like_multi30k(seed)]
    data = TranslationDataset(
        train, [], DataReport(), batch_size=1, seq_len=length, source_seq_len=length, seed=seed
    )
    assert data.packing_efficiency >= 0.95
    batches = [data.batch(step) for step in range(ceil(data.batches_per_epoch))]
    real = sum(int((b.segment_ids > 0).sum() + (b.source_segment_ids > 0).sum()) for b in batches)
    assert data.packing_efficiency == pytest.approx(real / (data.batches_per_epoch * 2 * length))


def test_balanced_source_length_fills_both_sides():
    train = [EncodedPair([5] * s, [START, *[5] * (2 * t - 1), STOP]) for s, t in like_multi30k(0)]
    length = balanced_source_seq_len(train, 256)
    assert (length % 8, 120 <= length <= 136) == (0, True)
    assert (
        TranslationDataset(
            train, [], DataReport(), batch_size=1, seq_len=256, source_seq_len=length, seed=0
        ).packing_efficiency
        >= 0.95
    )


def test_pairs_longer_than_a_row_are_reported():
    report = DataReport("fail")
    train = [
        EncodedPair([5] * 13, [1, 5, 2], "a.en:1"),
        ([5], [1, *[5] * 14, 2]),
        ([5] * 12, [1, *[5] * 13, 2]),
    ]
    data = TranslationDataset(train, [], report, batch_size=1, seed=0, **SHAPES)
    assert (data.batches_per_epoch, data.packing_efficiency) == (1, 1.0)
    assert report.locations == {
        "the pair does not fit into a row of 12 source and 14 target tokens": ["a.en:1", "pair 2"]
    }
    with pytest.raises(ClearheadError, match="no training pair fits into rows of 12 source and 14"):
        TranslationDataset(train[:2], [], report, batch_size=1, seed=0, **SHAPES)


def test_start_tokens_are_not_targets():
    data = TranslationDataset(
        [([7, 8], [1, 3, 4, 9, 2])],
        [],
        DataReport(),
        batch_size=1,
        seq_len=5,
        source_seq_len=3,
        seed=0,
        num_start_tokens=3,
    )
    batch = data.batch(0)
    assert batch.tokens.tolist() == [[1, 3, 4, 9, 0]]
    assert batch.targets.tolist() == [[IGNORE_INDEX, IGNORE_INDEX, 9, 2, IGNORE_INDEX]]
    assert batch.source.tolist() == [[7, 8, 0]]


def test_packed_loss_equals_loss_of_single_pairs():
    draw = np.random.default_rng(0)
    train = [
        (draw.integers(3, 64, s).tolist(), [START, *draw.integers(3, 64, t).tolist(), STOP])
        for s, t in draw.integers(1, 12, (30, 2)).tolist()
    ]
    data = TranslationDataset(
        train, [], DataReport(), batch_size=1, seq_len=40, source_seq_len=36, seed=0
    )
    assert data.batches_per_epoch < len(train) / 2
    net = build_transformer(ch.presets["tiny-encoder-decoder"].model, seed=0).eval().double()

    def cost(packed):
        sides = {
            "segment_ids": packed.segment_ids,
            "source": packed.source,
            "source_segment_ids": packed.source_segment_ids,
        }
        return net.loss(net(packed.tokens, **sides), packed.targets)

    with torch.no_grad():
        for step in range(
            ceil(data.batches_per_epoch)
        ):  # row by row: losses are summed in 32 bits, which end at 1e-4 above 1000
            batch = data.batch(step)
            total, count = cost(batch)
            single = [
                cost(PackedBatch(*map(_row, (t, y)), source=_row(s)))
                for s, t, y in unpacked(batch)[0]
            ]
            assert int(count) == sum(int(n) for _, n in single)
            assert float(total) == pytest.approx(sum(float(loss) for loss, _ in single), abs=1e-4)
            mixed = replace(batch, source_segment_ids=batch.source_segment_ids.clamp(max=1))
            assert (
                len(single) == 1 or abs(float(cost(mixed)[0] - total)) > 1e-2
            )  # so the comparison can fail


def _row(ids):
    return torch.tensor([ids])


# --- texts to ids
USE = InferenceConfig(
    bos_tokens=(250,), sep_tokens=(251,), decoder_start_tokens=(252,), eos_tokens=(253, 254)
)
BYTES = Tokenizer.bytes()


def test_encoded_pairs_have_special_tokens():
    found = [
        ids
        for _, ids in encode_pairs(
            [SentencePair("ab", "c", "f:1")], BYTES, BYTES, USE, DataReport()
        )
    ]
    assert found == [([250, 97, 98, 251], [252, 99, 253], "f:1")]


def test_long_and_unbalanced_pairs_are_filtered():
    report = DataReport("fail")
    read = [
        SentencePair("abcd", "abcde", "f:1"),
        SentencePair("ab", "a", "f:2"),
        SentencePair("abc", "a", "f:3"),
        SentencePair("abcd", "ab", "f:4"),
    ]
    found = encode_pairs(read, BYTES, BYTES, USE, report, max_tokens=4, max_length_ratio=2)
    assert [pair.location for pair, _ in found] == ["f:2", "f:4"]
    assert list(report.locations.values()) == [["f:1"], ["f:3"]]


def test_untokenizable_pairs_fail_or_are_skipped_by_line():
    letters = Tokenizer.characters("abc")
    read = [SentencePair("a", "x", "f:1"), SentencePair("a", "b", "f:2")]
    with pytest.raises(ClearheadError, match=r"f:1: the text contains 'x'"):
        list(encode_pairs(read, letters, letters, USE, DataReport()))
    assert len(list(encode_pairs(read, letters, letters, USE, DataReport("skip")))) == 1


def test_decoder_start_tokens_are_required():
    with pytest.raises(ClearheadError, match=r"decoder_start_tokens is empty"):
        list(encode_pairs([], BYTES, BYTES, InferenceConfig(), DataReport()))
