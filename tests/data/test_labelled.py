"""Laws of labelled rows: each once an epoch, in brackets, alike in length; and what files may get wrong."""

import csv
import gzip
import json
import lzma
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data.classes import split
from clearhead.data.labelled import Example, Labelled, Row, encoded, rows
from clearhead.data.packed import Packed, Report
from clearhead.errors import ClearheadError
from clearhead.model.transformer import build
from clearhead.presets import presets
from clearhead.tokens.text import Tokenizer

BEGIN, END = 1, 2


def dataset(train: list[Example], held: list[Example] = (), report: Report | None = None, **options) -> Labelled:
    given = {"rows": 4, "context": 32, "seed": 0, "begin": (BEGIN,), "end": (END,), "kinds": True, **options}
    return Labelled(train, held, report or Report(), **given)


def marked(lengths: list[int]) -> list[Example]:
    """Texts that tell their own number: its id comes first, and is no bracket."""
    return [Example([i + 10, *[3] * n], None, str(i % 2)) for i, n in enumerate(lengths)]


def numbers(batch: Packed) -> list[int]:
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
    assert data.epoch == -(-len(lengths) // per_batch)


@given(LENGTHS, st.integers(0, 100))
def test_a_batch_is_a_function_of_seed_and_step(lengths, step):
    one, other = dataset(marked(lengths), seed=5), dataset(marked(lengths), seed=5)
    for earlier in range(3):
        one.batch(earlier)  # what was asked before does not matter
    a, b = one.batch(step), other.batch(step)
    assert all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("tokens", "targets", "segments", "kinds"))


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
    batches = [data.batch(step) for step in range(data.epoch)]
    assert {tuple(b.tokens.shape) for b in batches} <= {(per_batch, 16), (per_batch, 32)}
    real, room = sum(int(b.segments.sum()) for b in batches), sum(b.tokens.numel() for b in batches)
    assert data.share == pytest.approx(real / room)
    for b in batches:
        assert b.tokens.shape == b.segments.shape
        assert not b.tokens[b.segments == 0].any()
        assert not b.kinds[b.segments == 0].any()
        assert (b.segments.diff(dim=1) <= 0).all()  # padding comes last


def test_a_length_that_is_no_multiple_of_16_ends_at_the_context():
    assert dataset(marked([50, 50]), context=21).batch(0).tokens.shape == (4, 21)


def test_like_lengths_meet():
    lengths = torch.randint(1, 100, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    data = dataset(marked(lengths), context=128, rows=16)
    unsorted = sum(lengths) / (sum(max(lengths[i : i + 16]) for i in range(0, 2000, 16)) * 16)
    assert data.share > 0.85 > unsorted + 0.2


def test_like_lengths_meet_in_every_epoch_in_no_order_of_length():
    data = dataset(marked([2, 20] * 50 + [2]))
    for epoch in range(4):
        steps = range(-(-epoch * 101 // 4), (epoch + 1) * 101 // 4)  # those within the epoch
        batches = [data.batch(step) for step in steps]
        assert sum(len(set(b.segments.sum(1).tolist())) > 1 for b in batches) <= 1
        widths = [b.tokens.shape[1] for b in batches]
        assert widths not in (sorted(widths), sorted(widths, reverse=True))


def test_other_rows_meet_in_the_next_epoch_though_no_two_are_alike_in_length():
    data = dataset(marked([*range(13), *range(15, 30)]))
    met = [{frozenset(numbers(data.batch(epoch * 7 + step))) for step in range(7)} for epoch in range(3)]
    assert not met[0] & met[1] & met[2]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(3, 9), max_size=30), st.none() | st.lists(st.integers(3, 9), max_size=30)),
        min_size=1,
        max_size=8,
    ),
    st.integers(6, 40),
)
def test_rows_have_brackets_and_kinds_and_lose_the_end_of_the_longer_text(pairs, context):
    report = Report()
    data = dataset([Example(a, b, float(i)) for i, (a, b) in enumerate(pairs)], report=report, context=context)
    batch = data.batch(0)
    cut = 0
    for a, b in pairs:
        room = context - (2 if b is None else 3)
        cut += len(a) + len(b or ()) > room
    for tokens, kinds, segments, target in zip(batch.tokens, batch.kinds, batch.segments, batch.targets, strict=True):
        first, second = (list(part) if part is not None else None for part in pairs[int(target)])
        while len(first) + len(second or ()) > context - (2 if second is None else 3):
            (first if second is None or len(first) > len(second) else second).pop()
        texts = [[BEGIN, *first, END], [] if second is None else [*second, END]]
        assert tokens[segments == 1].tolist() == texts[0] + texts[1]
        assert kinds[segments == 1].tolist() == [0] * len(texts[0]) + [1] * len(texts[1])
    assert sum(report.skipped.values()) == cut


def test_a_model_without_kinds_gets_none():
    assert dataset(marked([1, 2]), kinds=False).batch(0).kinds is None


def test_classes_are_numbered_by_their_sorted_names():
    train = [Example([10], None, "no"), Example([11], None, "maybe"), Example([12], None, "yes")]
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
    data = dataset([Example([3], None, 2.5), Example([3], None, -1.0)])
    assert data.labels == ()
    assert data.batch(0).targets.dtype == torch.float
    assert set(data.batch(0).targets.tolist()) == {2.5, -1.0}


def test_held_out_rows_come_in_order_each_once_every_time():
    data = dataset(marked([1, 2]), marked([5] * 10))
    for _ in range(2):
        batches = list(data.held_out())
        assert [n for b in batches for n in numbers(b)] == list(range(10))
        assert [len(b.targets) for b in batches] == [4, 4, 2]
    assert list(dataset(marked([1, 2])).held_out()) == []


def test_held_out_rows_of_an_unknown_class_are_refused_or_left_out():
    held = [Example([3], None, "0", "dev.tsv:2"), Example([3], None, "7", "dev.tsv:3")]
    with pytest.raises(ClearheadError, match=r"dev.tsv:3 \('7'\): the label does not occur in training"):
        dataset(marked([1, 2]), held)
    report = Report("skip")
    data = dataset(marked([1, 2]), held, report)
    assert [b.targets.tolist() for b in data.held_out()] == [[0]]
    assert "dev.tsv:3" in str(report)


@pytest.mark.parametrize(
    ("train", "options", "words"),
    [
        ([], {}, "no labelled rows"),
        ([Example([3], None, "a")] * 2, {}, "no two classes"),
        (marked([1, 2]), {"context": 2}, "no room for a text"),
        ([Example([3], [3], 1.0)], {"context": 4}, "no room for a text"),
        ([Example([], None, 1.0, "x:1")], {"begin": (), "end": ()}, "x:1: the text has no tokens"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(train, options, words):
    with pytest.raises(ClearheadError, match=words):
        dataset(train, **options)


@pytest.mark.parametrize("head", ["classes", "number"])
def test_batches_go_through_the_model(head):
    model = presets["tiny-encoder"].change(head=head).model
    label = [str, float][head == "number"]
    train = [Example([i % 60 + 3, 5, 6], [7] * i if i % 3 else None, label(i % 2)) for i in range(40)]
    data = dataset(train, train[:6], context=model.context)
    net = build(model)
    for batch in [data.batch(0), data.batch(data.epoch), *data.held_out()]:
        hidden = net(batch.tokens, segments=batch.segments, kinds=batch.kinds)
        total, count = net.loss(hidden, batch.targets, batch.segments)
        assert count == len(batch.targets)
        assert torch.isfinite(total)


# ---------------------------------------------------------------- what is held out
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=60), st.floats(0, 0.9), st.integers(0))
def test_a_split_is_disjoint_and_complete_and_never_parts_copies(things, share, seed):
    labels, keys = [label for label, _ in things], [key for _, key in things]
    train, held = split(labels, keys, share, seed)
    assert sorted(train + held) == list(range(len(things)))
    assert not {keys[i] for i in train} & {keys[i] for i in held}
    assert (train, held) == split(labels, keys, share, seed)


@given(st.lists(st.sampled_from("abc"), max_size=90), st.floats(0.01, 0.9), st.integers(0, 9))
def test_a_split_takes_its_share_of_each_class(labels, share, seed):
    _, held = split(labels, range(len(labels)), share, seed)
    taken = Counter(labels[i] for i in held)
    for label, count in Counter(labels).items():
        assert taken[label] == (0 if count == 1 else min(count - 1, max(1, round(share * count))))


def test_numbers_are_split_as_one_class():
    assert [len(part) for part in split([0.5 * i for i in range(10)], range(10), 0.3, 0)] == [7, 3]


@pytest.mark.parametrize("share", [-0.1, 1.0, 3])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ClearheadError, match="at least 0 and less than 1"):
        split(["a"], [0], share, 0)


# ---------------------------------------------------------------- files
CELLS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
NAMED = {"text": "a", "label": "l", "second": "b"}


def write(path: Path, text: str | bytes) -> Path:
    if path.suffix == ".zst":
        opener = pytest.importorskip("zstandard").open
    else:
        opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


@given(table=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5), packed=st.sampled_from(["", ".gz", ".xz", ".zst"]))
def test_csv_and_jsonl_read_back_what_was_written(table, packed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    with (folder / "plain").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("a", "b", "l"), *table])
    sheet = write(folder / f"x.csv{packed}", (folder / "plain").read_bytes())
    lines = [json.dumps({"l": label, "a": a, "b": b}) for a, b, label in table]
    objects = write(folder / f"x.jsonl{packed}", "\n".join(lines))
    for path in (sheet, objects):
        report = Report()
        read = [row[:3] for row in rows(path, report, **NAMED)]
        assert read == [(a, b, label.strip()) for a, b, label in table]
        assert report.read == len(table)


def test_quotes_in_tsv_are_letters_and_in_csv_are_quotes(tmp_path):
    tsv = write(tmp_path / "x.tsv", 'l\ta\n1\t" he said\n0\tsaid "yes"\r\n')
    assert [row.text for row in rows(tsv, Report(), text="a", label="l")] == ['" he said', 'said "yes"']
    sheet = write(tmp_path / "x.csv", 'l,a\n1,"one,\ntwo"\n0,said "yes"\n')
    read = list(rows(sheet, Report(), text="a", label="l"))
    assert read == [Row("one,\ntwo", None, "1", f"{sheet}:2"), Row('said "yes"', None, "0", f"{sheet}:4")]


def test_columns_by_number_need_no_first_line(tmp_path):
    path = write(tmp_path / "x.tsv", "gj04\t1\t\tThe sailors rode.\n\ngj04\t0\t*\tHim rode.\n")
    expected = [("The sailors rode.", "1", 1), ("Him rode.", "0", 3)]
    for text, label in ((3, 1), ("3", "1")):
        read = list(rows(path, Report(), text=text, label=label))
        assert read == [Row(words, None, name, f"{path}:{line}") for words, name, line in expected]


def test_a_mark_before_the_first_name_is_none_of_it(tmp_path):
    path = write(tmp_path / "x.tsv", b"\xef\xbb\xbfQuality\t#1 String\n1\tyes\n")
    assert next(rows(path, Report(), text="#1 String", label="Quality")).label == "1"


def test_plain_json_values_are_classes(tmp_path):
    path = write(tmp_path / "x.jsonl", "\n".join(json.dumps({"a": "x", "l": label}) for label in (1, True, "pos")))
    assert [row.label for row in rows(path, Report(), text="a", label="l")] == ["1", "true", "pos"]


BROKEN = [
    ("x.csv", 'a,l\nx,1\n"x"y,1\nx,0\n', 3, "expected after"),
    ("x.csv", 'a,l\nx,1\n"x,1\nx,0', 3, "unexpected end of data"),
    ("x.csv", "a,l\nx,1\nx\nx,0\n", 3, r"\(1\): the number of columns is not 2"),
    ("x.tsv", "a\tl\nx\t1\nx\ty\t1\nx\t0\n", 3, r"\(3\): the number of columns is not 2"),
    ("x.tsv", "a\tl\nx\t1\nx\t\n", 3, "there is no label"),
    ("x.tsv", "a\tl\nx\t1\n \t1\n", 3, r"\(' '\): there is no text"),
    ("x.tsv", b"a\tl\nx\t1\n\xf0\x9f\x98\x80\xff\t1\n", 3, "not UTF-8"),
    ("x.jsonl", '{"a": "x", "l": 1}\n\n{"a": "x", "l": 1\n', 3, "no JSON object"),
    ("x.jsonl", '{"a": "x", "l": 1}\n["x", 1]\n', 2, "no JSON object"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": "x"}\n', 2, "there is no 'l'"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": "x", "l": null}\n', 2, "there is no 'l'"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": "x", "l": [1]}\n', 2, "there is no label"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": 7, "l": 1}\n', 2, r"\(7\): there is no text"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": "\\ud800", "l": 1}\n', 2, "not UTF-8"),
    ("x.jsonl.gz", '{"a": "x", "l": 1}\n' + "[" * 99999, 2, "no JSON object"),
]


@pytest.mark.parametrize(("name", "text", "line", "words"), BROKEN)
def test_broken_lines_are_refused_or_left_out_with_their_number(tmp_path, name, text, line, words):
    path = write(tmp_path / name, text)
    with pytest.raises(ClearheadError, match=f":{line}.*{words}"):
        list(rows(path, Report(), text="a", label="l"))
    report = Report("skip")
    left = list(rows(path, report, text="a", label="l"))
    assert left
    assert all(row.text == "x" for row in left)
    assert (report.read, sum(report.skipped.values())) == (len(left), 1)
    assert f"{path}:{line}" in str(report)


@pytest.mark.parametrize("value", ["abc", "nan", "inf", "1e300", "1,5"])
def test_labels_that_are_no_numbers_are_told_where_numbers_are_needed(tmp_path, value):
    path = write(tmp_path / "x.tsv", f"a\tl\nx\t2.5\nx\t{value}\nx\t-1\n")
    with pytest.raises(ClearheadError, match=rf"x.tsv:3 \('{value}'\): the label is no number"):
        list(rows(path, Report(), text="a", label="l", numbers=True))
    report = Report("skip")
    assert [row.label for row in rows(path, report, text="a", label="l", numbers=True)] == [2.5, -1.0]


@pytest.mark.parametrize(
    ("name", "text", "columns", "words"),
    [
        ("x.tsv", "sentence\tlabel\n", {"text": "sentense", "label": "label"}, "did you mean 'sentence'"),
        ("x.tsv", "x\t1\n", {"text": 0, "label": 2}, "no column '2'; there are 2"),
        ("x.csv", '"a"b,l\nx,1\n', {"text": "a", "label": "l"}, "x.csv:1: the first line tells the columns"),
        ("x.txt", "x", {"text": 0, "label": 1}, "must be a .csv, .tsv or .jsonl"),
        ("x.gz", "x", {"text": 0, "label": 1}, "must be a .csv, .tsv or .jsonl"),
    ],
)
@pytest.mark.parametrize("broken", ["refuse", "skip"])
def test_files_that_cannot_be_understood_are_always_refused(tmp_path, name, text, columns, words, broken):
    with pytest.raises(ClearheadError, match=words):
        list(rows(write(tmp_path / name, text), Report(broken), **columns))


@pytest.mark.parametrize("packed", [".gz", ".xz", ".zst"])
def test_a_compressed_file_that_breaks_off_is_refused(tmp_path, packed):
    path = write(tmp_path / f"x.tsv{packed}", "".join(f"{i}\t1\n" for i in range(9999)))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ClearheadError, match="cannot be read"):
        list(rows(path, Report(), text=0, label=1))
    path.write_bytes(b"plain")
    with pytest.raises(ClearheadError, match="cannot be read"):
        list(rows(path, Report(), text=0, label=1))
    with pytest.raises(ClearheadError, match="cannot be read: No such file"):
        list(rows(tmp_path / "none.tsv", Report(), text=0, label=1))


def test_a_text_without_tokens_is_told_with_its_line(tmp_path):
    path = write(tmp_path / "x.tsv", "ab\tba\t1\nab\tac\t0\n")
    letters = Tokenizer.characters("ab")
    with pytest.raises(ClearheadError, match=r"x.tsv:2: the text holds 'c' .* no token"):
        list(encoded(rows(path, Report(), text=0, second=1, label=2), letters, Report()))
    report = Report("skip")
    read = encoded(rows(path, report, text=0, second=1, label=2), letters, report)
    assert list(read) == [Example([0, 1], [1, 0], "1", f"{path}:1")]
