"""Laws of labelled rows: each once an epoch, in brackets, alike in length, copies never on both sides."""

from collections import Counter
from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.config.presets import presets
from clearhead.data.batch import DataReport, PackedBatch
from clearhead.data.classification import LabeledExample, LabeledTextDataset, stratified_split
from clearhead.errors import ClearheadError
from clearhead.model.transformer import build_transformer

BEGIN = 1
END = 2


def dataset(
    train: list[LabeledExample],
    held: list[LabeledExample] = (),
    report: DataReport | None = None,
    **options,
) -> LabeledTextDataset:
    given = {
        "rows": 4,
        "context": 32,
        "seed": 0,
        "begin": (BEGIN,),
        "end": (END,),
        "kinds": True,
        **options,
    }
    return LabeledTextDataset(train, held, report or DataReport(), **given)


def marked(lengths: list[int]) -> list[LabeledExample]:
    """Texts that tell their own number: its id comes first, and is no bracket."""
    return [LabeledExample([i + 10, *[3] * n], None, str(i % 2)) for i, n in enumerate(lengths)]


def numbers(batch: PackedBatch) -> list[int]:
    return (batch.tokens[:, 1] - 10).tolist()


LENGTHS = st.lists(st.integers(0, 40), min_size=2, max_size=60)


# ---------------------------------------------------------------- batches
@given(LENGTHS, st.integers(1, 9), st.integers(0, 2**40))
def test_every_row_comes_once_an_epoch_and_epochs_have_no_gap(lengths, per_batch, seed):
    data = dataset(marked(lengths), rows=per_batch, seed=seed)
    epochs = 3
    steps = -(-epochs * len(lengths) // per_batch)
    seen = [number for step in range(steps) for number in numbers(data.batch(step))]
    for epoch in range(epochs):
        assert sorted(seen[epoch * len(lengths) :][: len(lengths)]) == list(range(len(lengths)))
    assert data.batches_per_epoch == len(lengths) / per_batch


@given(LENGTHS, st.integers(0, 100))
def test_a_batch_is_a_function_of_seed_and_step(lengths, step):
    one = dataset(marked(lengths), seed=5)
    other = dataset(marked(lengths), seed=5)
    for earlier in range(3):
        one.batch(earlier)  # what was asked before does not matter
    a = one.batch(step)
    b = other.batch(step)
    assert all(
        torch.equal(getattr(a, name), getattr(b, name))
        for name in ("tokens", "targets", "segments", "kinds")
    )


def test_seeds_and_epochs_differ():
    train = marked([n % 7 for n in range(64)])
    orders = [
        [n for step in steps for n in numbers(dataset(train, seed=seed).batch(step))]
        for seed, steps in ((0, range(16)), (1, range(16)), (0, range(16, 32)))
    ]
    assert len({tuple(order) for order in orders}) == 3


@given(LENGTHS, st.integers(1, 9))
def test_shapes_are_few_and_the_share_is_that_of_an_epoch(lengths, per_batch):
    data = dataset(marked(lengths), rows=per_batch)
    batches = [data.batch(step) for step in range(ceil(data.batches_per_epoch))]
    assert {tuple(b.tokens.shape) for b in batches} <= {(per_batch, 16), (per_batch, 32)}
    real = sum(int(b.segment_ids.sum()) for b in batches)
    room = sum(b.tokens.numel() for b in batches)
    assert data.packing_efficiency == pytest.approx(real / room)
    for b in batches:
        assert b.tokens.shape == b.segment_ids.shape
        assert not b.tokens[b.segment_ids == 0].any()
        assert not b.token_type_ids[b.segment_ids == 0].any()
        assert (b.segment_ids.diff(dim=1) <= 0).all()  # padding comes last


def test_a_length_that_is_no_multiple_of_16_ends_at_the_context():
    assert dataset(marked([50, 50]), context=21).batch(0).tokens.shape == (4, 21)


def test_like_lengths_meet():
    lengths = torch.randint(1, 100, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    data = dataset(marked(lengths), context=128, rows=16)
    unsorted = sum(lengths) / (sum(max(lengths[i : i + 16]) for i in range(0, 2000, 16)) * 16)
    assert data.packing_efficiency > 0.85 > unsorted + 0.2


def test_like_lengths_meet_in_every_epoch_in_no_order_of_length():
    data = dataset(marked([2, 20] * 50 + [2]))
    for epoch in range(4):
        steps = range(-(-epoch * 101 // 4), (epoch + 1) * 101 // 4)  # those within the epoch
        batches = [data.batch(step) for step in steps]
        assert sum(len(set(b.segment_ids.sum(1).tolist())) > 1 for b in batches) <= 1
        widths = [b.tokens.shape[1] for b in batches]
        assert widths not in (sorted(widths), sorted(widths, reverse=True))


def test_other_rows_meet_in_the_next_epoch_though_no_two_are_alike_in_length():
    data = dataset(marked([*range(13), *range(15, 30)]))
    met = [
        {frozenset(numbers(data.batch(epoch * 7 + step))) for step in range(7)}
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
def test_rows_have_brackets_and_kinds_and_lose_the_end_of_the_longer_text(pairs, context):
    report = DataReport()
    data = dataset(
        [LabeledExample(a, b, float(i)) for i, (a, b) in enumerate(pairs)],
        report=report,
        context=context,
    )
    batch = data.batch(0)
    cut = 0
    for a, b in pairs:
        room = context - (2 if b is None else 3)
        cut += len(a) + len(b or ()) > room
    for tokens, kinds, segment_ids, target in zip(
        batch.tokens, batch.token_type_ids, batch.segment_ids, batch.targets, strict=True
    ):
        first, second = (list(part) if part is not None else None for part in pairs[int(target)])
        while len(first) + len(second or ()) > context - (2 if second is None else 3):
            (first if second is None or len(first) > len(second) else second).pop()
        texts = [[BEGIN, *first, END], [] if second is None else [*second, END]]
        assert tokens[segment_ids == 1].tolist() == texts[0] + texts[1]
        assert kinds[segment_ids == 1].tolist() == [0] * len(texts[0]) + [1] * len(texts[1])
    assert sum(report.skipped.values()) == cut


def test_a_model_without_kinds_gets_none():
    assert dataset(marked([1, 2]), kinds=False).batch(0).token_type_ids is None


def test_classes_are_numbered_by_their_sorted_names():
    train = [
        LabeledExample([10], None, "no"),
        LabeledExample([11], None, "maybe"),
        LabeledExample([12], None, "yes"),
    ]
    data = dataset(train, rows=3)
    assert data.labels == ("maybe", "no", "yes")
    batch = data.batch(0)
    assert batch.targets.dtype == torch.long
    assert {n: data.labels[t] for n, t in zip(numbers(batch), batch.targets, strict=True)} == {
        0: "no",
        1: "maybe",
        2: "yes",
    }


def test_numbers_are_floats_and_have_no_names():
    data = dataset([LabeledExample([3], None, 2.5), LabeledExample([3], None, -1.0)])
    assert data.labels == ()
    assert data.batch(0).targets.dtype == torch.float
    assert set(data.batch(0).targets.tolist()) == {2.5, -1.0}


def test_held_out_rows_come_in_order_each_once_every_time():
    data = dataset(marked([1, 2]), marked([5] * 10))
    for _ in range(2):
        batches = list(data.valid_batches())
        assert [n for b in batches for n in numbers(b)] == list(range(10))
        assert [len(b.targets) for b in batches] == [4, 4, 2]
    assert list(dataset(marked([1, 2])).valid_batches()) == []


def test_held_out_rows_of_an_unknown_class_are_refused_or_left_out():
    held = [
        LabeledExample([3], None, "0", "dev.tsv:2"),
        LabeledExample([3], None, "7", "dev.tsv:3"),
    ]
    with pytest.raises(
        ClearheadError, match=r"dev.tsv:3 \('7'\): the label does not occur in training"
    ):
        dataset(marked([1, 2]), held)
    report = DataReport("skip")
    data = dataset(marked([1, 2]), held, report)
    assert [b.targets.tolist() for b in data.valid_batches()] == [[0]]
    assert "dev.tsv:3" in str(report)


@pytest.mark.parametrize(
    ("train", "options", "words"),
    [
        ([], {}, "no labelled rows"),
        ([LabeledExample([3], None, "a")] * 2, {}, "no two classes"),
        (marked([1, 2]), {"context": 2}, "no room for a text"),
        ([LabeledExample([3], [3], 1.0)], {"context": 4}, "no room for a text"),
        (
            [LabeledExample([], None, 1.0, "x:1")],
            {"begin": (), "end": ()},
            "x:1: the text has no tokens",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused(train, options, words):
    with pytest.raises(ClearheadError, match=words):
        dataset(train, **options)


@pytest.mark.parametrize("head", ["classes", "number"])
def test_batches_go_through_the_model(head):
    model = presets["tiny-encoder"].replace(head=head).model
    label = [str, float][head == "regression"]
    train = [
        LabeledExample([i % 60 + 3, 5, 6], [7] * i if i % 3 else None, label(i % 2))
        for i in range(40)
    ]
    data = dataset(train, train[:6], context=model.context_length)
    net = build_transformer(model)
    for batch in [data.batch(0), data.batch(ceil(data.batches_per_epoch)), *data.valid_batches()]:
        hidden = net(
            batch.tokens, segment_ids=batch.segment_ids, token_type_ids=batch.token_type_ids
        )
        total, count = net.loss(hidden, batch.targets, batch.segment_ids)
        assert count == len(batch.targets)
        assert torch.isfinite(total)


# ---------------------------------------------------------------- what is held out
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=60),
    st.floats(0, 0.9),
    st.integers(0),
)
def test_a_split_is_disjoint_and_complete_and_never_parts_copies(things, share, seed):
    labels = [label for label, _ in things]
    keys = [key for _, key in things]
    train, held = stratified_split(labels, keys, share, seed)
    assert sorted(train + held) == list(range(len(things)))
    assert not {keys[i] for i in train} & {keys[i] for i in held}
    assert (train, held) == stratified_split(labels, keys, share, seed)


@given(st.lists(st.sampled_from("abc"), max_size=90), st.floats(0.01, 0.9), st.integers(0, 9))
def test_a_split_takes_its_share_of_each_class(labels, share, seed):
    _, held = stratified_split(labels, range(len(labels)), share, seed)
    taken = Counter(labels[i] for i in held)
    for label, count in Counter(labels).items():
        assert taken[label] == (0 if count == 1 else min(count - 1, max(1, round(share * count))))


def test_numbers_are_split_as_one_class():
    assert [
        len(part) for part in stratified_split([0.5 * i for i in range(10)], range(10), 0.3, 0)
    ] == [7, 3]


@pytest.mark.parametrize("share", [-0.1, 1.0, 3])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ClearheadError, match="at least 0 and less than 1"):
        stratified_split(["a"], [0], share, 0)
