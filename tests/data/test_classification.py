"""Laws of LabeledTextDataset: rows once per epoch, similar lengths per batch, no leaks."""

from collections import Counter
from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.config.presets import presets
from clearhead.data.classification import LabeledExample, LabeledTextDataset, stratified_split
from clearhead.data.packed_batch import PackedBatch
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError
from clearhead.model.transformer import build_transformer

BOS = 1
SEP = 2


def dataset(
    train: list[LabeledExample],
    valid: list[LabeledExample] = (),
    report: DataReport | None = None,
    **options,
) -> LabeledTextDataset:
    defaults = {
        "batch_size": 4,
        "context_length": 32,
        "seed": 0,
        "bos_tokens": (BOS,),
        "sep_tokens": (SEP,),
        "token_types": True,
    }
    return LabeledTextDataset(train, valid, report or DataReport(), **{**defaults, **options})


def marked(lengths: list[int]) -> list[LabeledExample]:
    """Texts that start with an id for their own index."""
    return [LabeledExample([i + 10, *[3] * n], None, str(i % 2)) for i, n in enumerate(lengths)]


def indices(batch: PackedBatch) -> list[int]:
    return (batch.tokens[:, 1] - 10).tolist()


LENGTHS = st.lists(st.integers(0, 40), min_size=2, max_size=60)


# --- batches
@given(LENGTHS, st.integers(1, 9), st.integers(0, 2**40))
def test_every_row_occurs_once_per_epoch(lengths, batch_size, seed):
    data = dataset(marked(lengths), batch_size=batch_size, seed=seed)
    epochs = 3
    steps = -(-epochs * len(lengths) // batch_size)
    rows_read = [number for step in range(steps) for number in indices(data.batch(step))]
    for epoch in range(epochs):
        assert sorted(rows_read[epoch * len(lengths) :][: len(lengths)]) == list(
            range(len(lengths))
        )
    assert data.batches_per_epoch == len(lengths) / batch_size


@given(LENGTHS, st.integers(0, 100))
def test_labeled_batch_is_a_function_of_seed_and_step(lengths, step):
    one = dataset(marked(lengths), seed=5)
    other = dataset(marked(lengths), seed=5)
    for earlier in range(3):
        one.batch(earlier)  # what was asked before does not matter
    a = one.batch(step)
    b = other.batch(step)
    assert all(
        torch.equal(getattr(a, name), getattr(b, name))
        for name in ("tokens", "targets", "segment_ids", "token_type_ids")
    )


def test_order_differs_between_seeds_and_epochs():
    train = marked([n % 7 for n in range(64)])
    orders = [
        [n for step in steps for n in indices(dataset(train, seed=seed).batch(step))]
        for seed, steps in ((0, range(16)), (1, range(16)), (0, range(16, 32)))
    ]
    assert len({tuple(order) for order in orders}) == 3


@given(LENGTHS, st.integers(1, 9))
def test_shapes_are_few_and_packing_efficiency_is_measured(lengths, batch_size):
    data = dataset(marked(lengths), batch_size=batch_size)
    batches = [data.batch(step) for step in range(ceil(data.batches_per_epoch))]
    assert {tuple(b.tokens.shape) for b in batches} <= {(batch_size, 16), (batch_size, 32)}
    real = sum(int(b.segment_ids.sum()) for b in batches)
    room = sum(b.tokens.numel() for b in batches)
    assert data.packing_efficiency == pytest.approx(real / room)
    for b in batches:
        assert b.tokens.shape == b.segment_ids.shape
        assert not b.tokens[b.segment_ids == 0].any()
        assert not b.token_type_ids[b.segment_ids == 0].any()
        assert (b.segment_ids.diff(dim=1) <= 0).all()  # padding comes last


def test_batch_length_is_at_most_the_context():
    assert dataset(marked([50, 50]), context_length=21).batch(0).tokens.shape == (4, 21)


def test_similar_lengths_share_batches():
    lengths = torch.randint(1, 100, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    data = dataset(marked(lengths), context_length=128, batch_size=16)
    unsorted = sum(lengths) / (sum(max(lengths[i : i + 16]) for i in range(0, 2000, 16)) * 16)
    assert data.packing_efficiency > 0.85 > unsorted + 0.2


def test_similar_lengths_share_batches_in_random_order():
    data = dataset(marked([2, 20] * 50 + [2]))
    for epoch in range(4):
        steps = range(-(-epoch * 101 // 4), (epoch + 1) * 101 // 4)  # those within the epoch
        batches = [data.batch(step) for step in steps]
        assert sum(len(set(b.segment_ids.sum(1).tolist())) > 1 for b in batches) <= 1
        widths = [b.tokens.shape[1] for b in batches]
        assert widths not in (sorted(widths), sorted(widths, reverse=True))


def test_batches_combine_other_rows_in_the_next_epoch():
    data = dataset(marked([*range(13), *range(15, 30)]))
    met = [
        {frozenset(indices(data.batch(epoch * 7 + step))) for step in range(7)}
        for epoch in range(3)
    ]
    assert not met[0] & met[1] & met[2]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(3, 9), max_size=30),
            st.none() | st.lists(st.integers(3, 9), max_size=30),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(6, 40),
)
def test_rows_have_special_tokens_and_truncate_the_longer_text(pairs, context):
    report = DataReport()
    data = dataset(
        [LabeledExample(a, b, float(i)) for i, (a, b) in enumerate(pairs)],
        report=report,
        context_length=context,
    )
    batch = data.batch(0)
    cut = 0
    for a, b in pairs:
        room = context - (2 if b is None else 3)
        cut += len(a) + len(b or ()) > room
    for tokens, token_types, segment_ids, target in zip(
        batch.tokens, batch.token_type_ids, batch.segment_ids, batch.targets, strict=True
    ):
        first, second = (list(part) if part is not None else None for part in pairs[int(target)])
        while len(first) + len(second or ()) > context - (2 if second is None else 3):
            (first if second is None or len(first) > len(second) else second).pop()
        texts = [[BOS, *first, SEP], [] if second is None else [*second, SEP]]
        assert tokens[segment_ids == 1].tolist() == texts[0] + texts[1]
        assert token_types[segment_ids == 1].tolist() == [0] * len(texts[0]) + [1] * len(texts[1])
    assert sum(report.skipped.values()) == cut


def test_token_types_are_optional():
    assert dataset(marked([1, 2]), token_types=False).batch(0).token_type_ids is None


def test_label_ids_follow_sorted_names():
    train = [
        LabeledExample([10], None, "no"),
        LabeledExample([11], None, "maybe"),
        LabeledExample([12], None, "yes"),
    ]
    data = dataset(train, batch_size=3)
    assert data.labels == ("maybe", "no", "yes")
    batch = data.batch(0)
    assert batch.targets.dtype == torch.long
    assert {n: data.labels[t] for n, t in zip(indices(batch), batch.targets, strict=True)} == {
        0: "no",
        1: "maybe",
        2: "yes",
    }


def test_regression_targets_are_floats():
    data = dataset([LabeledExample([3], None, 2.5), LabeledExample([3], None, -1.0)])
    assert data.labels == ()
    assert data.batch(0).targets.dtype == torch.float
    assert set(data.batch(0).targets.tolist()) == {2.5, -1.0}


def test_validation_rows_are_in_order():
    data = dataset(marked([1, 2]), marked([5] * 10))
    for _ in range(2):
        batches = list(data.valid_batches())
        assert [n for b in batches for n in indices(b)] == list(range(10))
        assert [len(b.targets) for b in batches] == [4, 4, 2]
    assert list(dataset(marked([1, 2])).valid_batches()) == []


def test_validation_rows_with_an_unknown_label_fail_or_are_skipped():
    valid = [
        LabeledExample([3], None, "0", "dev.tsv:2"),
        LabeledExample([3], None, "7", "dev.tsv:3"),
    ]
    with pytest.raises(
        ClearheadError, match=r"dev.tsv:3 \('7'\): the label does not occur in the training data"
    ):
        dataset(marked([1, 2]), valid)
    report = DataReport("skip")
    data = dataset(marked([1, 2]), valid, report)
    assert [b.targets.tolist() for b in data.valid_batches()] == [[0]]
    assert "dev.tsv:3" in str(report)


@pytest.mark.parametrize(
    ("train", "options", "words"),
    [
        ([], {}, "no labeled rows"),
        ([LabeledExample([3], None, "a")] * 2, {}, "at least two labels"),
        (marked([1, 2]), {"context_length": 2}, "too short for a text"),
        ([LabeledExample([3], [3], 1.0)], {"context_length": 4}, "too short for a text"),
        (
            [LabeledExample([], None, 1.0, "x:1")],
            {"bos_tokens": (), "sep_tokens": ()},
            "x:1: the text has no tokens",
        ),
    ],
)
def test_invalid_training_data_is_rejected(train, options, words):
    with pytest.raises(ClearheadError, match=words):
        dataset(train, **options)


@pytest.mark.parametrize("head", ["classification", "regression"])
def test_labeled_batches_run_through_the_model(head):
    model = presets["tiny-encoder"].replace(head=head).model
    label = [str, float][head == "regression"]
    train = [
        LabeledExample([i % 60 + 3, 5, 6], [7] * i if i % 3 else None, label(i % 2))
        for i in range(40)
    ]
    data = dataset(train, train[:6], context_length=model.context_length)
    net = build_transformer(model)
    for batch in [data.batch(0), data.batch(ceil(data.batches_per_epoch)), *data.valid_batches()]:
        hidden = net(
            batch.tokens, segment_ids=batch.segment_ids, token_type_ids=batch.token_type_ids
        )
        total, count = net.loss(hidden, batch.targets, batch.segment_ids)
        assert count == len(batch.targets)
        assert torch.isfinite(total)


# --- splits
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=60),
    st.floats(0, 0.9),
    st.integers(0),
)
def test_stratified_split_is_disjoint_and_keeps_duplicates_together(rows, fraction, seed):
    labels = [label for label, _ in rows]
    keys = [key for _, key in rows]
    train, valid = stratified_split(labels, keys, fraction, seed)
    assert sorted(train + valid) == list(range(len(rows)))
    assert not {keys[i] for i in train} & {keys[i] for i in valid}
    assert (train, valid) == stratified_split(labels, keys, fraction, seed)


@given(st.lists(st.sampled_from("abc"), max_size=90), st.floats(0.01, 0.9), st.integers(0, 9))
def test_stratified_split_holds_out_a_fraction_of_each_class(labels, fraction, seed):
    _, valid = stratified_split(labels, range(len(labels)), fraction, seed)
    taken = Counter(labels[i] for i in valid)
    for label, count in Counter(labels).items():
        assert taken[label] == (
            0 if count == 1 else min(count - 1, max(1, round(fraction * count)))
        )


def test_regression_rows_are_split_as_one_class():
    assert [
        len(part) for part in stratified_split([0.5 * i for i in range(10)], range(10), 0.3, 0)
    ] == [7, 3]


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 3])
def test_invalid_fractions_are_rejected(fraction):
    with pytest.raises(ClearheadError, match=r"data\.valid_fraction"):
        ch.Config().replace(data={"valid_fraction": fraction})
