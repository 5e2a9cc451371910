"""Labelled rows out of tables, each with its line; and what files may get wrong."""

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packing import write

from clearhead.data.batch import DataReport
from clearhead.data.classification import (
    LabeledExample,
    LabeledText,
    encode_labeled_texts,
    read_labeled_texts,
)
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer

CELLS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
NAMES = {"text": "text", "label": "label"}
NAMED = {"text": "a", "label": "l", "second": "b"}


@given(
    table=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5),
    packed=st.sampled_from(["", ".gz", ".xz", ".zst"]),
)
def test_csv_and_jsonl_read_back_what_was_written(table, packed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    with (folder / "plain").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("a", "b", "l"), *table])
    sheet = write(folder / f"x.csv{packed}", (folder / "plain").read_bytes())
    lines = [json.dumps({"l": label, "a": a, "b": b}) for a, b, label in table]
    objects = write(folder / f"x.jsonl{packed}", "\n".join(lines))
    for path in (sheet, objects):
        report = DataReport()
        read = [row[:3] for row in read_labeled_texts(path, report, **NAMED)]
        assert read == [(a, b, label.strip()) for a, b, label in table]
        assert report.num_read == len(table)


def test_quotes_in_tsv_are_letters_and_in_csv_are_quotes(tmp_path):
    tsv = write(tmp_path / "x.tsv", 'l\ta\n1\t" he said\n0\tsaid "yes"\r\n')
    assert [
        row.text for row in read_labeled_texts(tsv, DataReport(), text_column="a", label_column="l")
    ] == ['" he said', 'said "yes"']
    sheet = write(tmp_path / "x.csv", 'l,a\n1,"one,\ntwo"\n0,said "yes"\n')
    read = list(read_labeled_texts(sheet, DataReport(), text_column="a", label_column="l"))
    assert read == [
        LabeledText("one,\ntwo", None, "1", f"{sheet}:2"),
        LabeledText('said "yes"', None, "0", f"{sheet}:4"),
    ]


@pytest.mark.parametrize("text", ['a "kind" film', '"quoted"', '"', '""'])
def test_quotes_in_tsv_that_a_spreadsheet_doubled_are_read_as_they_were(tmp_path, text):
    with (tmp_path / "x.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("a", "l"), (text, "good")])
    assert [
        row[:3]
        for row in read_labeled_texts(
            tmp_path / "x.tsv", DataReport(), text_column="a", label_column="l"
        )
    ] == [(text, None, "good")]


@pytest.mark.parametrize("text", ['"quoted"', '"so" and "so"', '""so""', '"', '""', '"a ""b" c"'])
def test_other_quotes_in_tsv_stay(tmp_path, text):
    path = write(tmp_path / "x.tsv", f"a\tl\n{text}\t1\n")
    assert [
        row.text
        for row in read_labeled_texts(path, DataReport(), text_column="a", label_column="l")
    ] == [text]


def test_columns_by_number_need_no_first_line(tmp_path):
    path = write(tmp_path / "x.tsv", "gj04\t1\t\tThe sailors rode.\n\ngj04\t0\t*\tHim rode.\n")
    expected = [("The sailors rode.", "1", 1), ("Him rode.", "0", 3)]
    for text, label in ((3, 1), ("3", "1")):
        read = list(read_labeled_texts(path, DataReport(), text_column=text, label_column=label))
        assert read == [
            LabeledText(words, None, name, f"{path}:{line}") for words, name, line in expected
        ]


def test_a_mark_before_the_first_name_is_none_of_it(tmp_path):
    path = write(tmp_path / "x.tsv", b"\xef\xbb\xbfQuality\t#1 String\n1\tyes\n")
    assert (
        next(
            read_labeled_texts(path, DataReport(), text_column="#1 String", label_column="Quality")
        ).label
        == "1"
    )


def test_plain_json_values_are_classes(tmp_path):
    path = write(
        tmp_path / "x.jsonl",
        "\n".join(json.dumps({"a": "x", "l": label}) for label in (1, True, "pos")),
    )
    assert [
        row.label
        for row in read_labeled_texts(path, DataReport(), text_column="a", label_column="l")
    ] == ["1", "true", "pos"]


BROKEN = [
    ("x.csv", 'a,l\nx,1\n"x"y,1\nx,0\n', 3, "expected after"),
    ("x.csv", 'a,l\nx,1\n"x,1\nx,0', 3, "a quote is opened there and never closed"),
    ("x.csv", 'a,l\nx,1\n"x,1', 3, "a quote is opened there and never closed"),
    ("x.csv", "a,l\nx,1\nx\nx,0\n", 3, r"\(1 column\): the number of columns is not 2"),
    ("x.tsv", "a\tl\nx\t1\nx\ty\t1\nx\t0\n", 3, r"\(3 columns\): the number of columns is not 2"),
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
        list(read_labeled_texts(path, DataReport(), text_column="a", label_column="l"))
    report = DataReport("skip")
    left = list(read_labeled_texts(path, report, text_column="a", label_column="l"))
    assert left
    assert all(row.text == "x" for row in left)
    assert (report.num_read, sum(report.skipped.values())) == (len(left), 1)
    assert f"{path}:{line}" in str(report)


@pytest.mark.parametrize(
    ("later", "times", "end"),
    [
        ("x,0", 100, "never closed"),
        ('x,"0"', 100, "never closed"),
        ("x,0", 50_000, "closed within 131,072 characters"),
    ],
)
def test_a_quote_that_is_never_closed_costs_its_line_and_no_other(tmp_path, later, times, end):
    path = write(
        tmp_path / "x.csv", "\n".join(["a,l", *["x,1"] * 98, '"stray,0', *[later] * times]) + "\n"
    )
    report = DataReport("skip")
    read = list(read_labeled_texts(path, report, text_column="a", label_column="l"))
    [(why, places)] = report.locations.items()
    assert why.startswith("a quote is opened there")
    assert why.endswith(end)
    assert places == [f"{path}:100"]
    assert report.num_read == len(read) == 98 + times
    assert read[-1] == LabeledText("x", None, "0", f"{path}:{100 + times}")


@pytest.mark.parametrize("value", ["abc", "nan", "inf", "1e300", "1,5"])
def test_labels_that_are_no_numbers_are_told_where_numbers_are_needed(tmp_path, value):
    path = write(tmp_path / "x.tsv", f"a\tl\nx\t2.5\nx\t{value}\nx\t-1\n")
    with pytest.raises(ClearheadError, match=rf"x.tsv:3 \('{value}'\): the label is no number"):
        list(
            read_labeled_texts(
                path, DataReport(), text_column="a", label_column="l", is_regression=True
            )
        )
    report = DataReport("skip")
    assert [
        row.label
        for row in read_labeled_texts(
            path, report, text_column="a", label_column="l", is_regression=True
        )
    ] == [2.5, -1.0]


@pytest.mark.parametrize(
    ("name", "text", "columns", "words"),
    [
        (
            "x.tsv",
            "sentence\tlabel\n",
            {"text": "sentense", "label": "label"},
            "did you mean 'sentence'",
        ),
        ("x.tsv", "x\t1\n", {"text": 0, "label": 2}, "no column '2'; there are 2"),
        (
            "x.csv",
            "text;label\nx;1\n",
            NAMES,
            "no column 'text'; columns seem to be separated by ';', where a .csv has",
        ),
        (
            "x.csv",
            "x;1\n",
            {"text": 0, "label": 1},
            "no column '1'; columns seem to be separated by ';'",
        ),
        (
            "x.tsv",
            "dull film\tbad\n",
            NAMES,
            "no column 'text'; known: dull film, bad; choose with --data.text_column and --data.label_column, .*: --data.text_column 0",
        ),
        ("x.tsv", "text\tlabel\n".encode("utf-16"), NAMES, "x.tsv is UTF-16; save it as UTF-8"),
        (
            "x.csv",
            '"a,l\nx,1\n',
            {"text": "a", "label": "l"},
            "it is broken: a quote is opened there and never closed",
        ),
        (
            "x.csv",
            '"a"b,l\nx,1\n',
            {"text": "a", "label": "l"},
            "x.csv:1: the first line tells the columns",
        ),
        ("x.txt", "x", {"text": 0, "label": 1}, "must be a .csv, .tsv or .jsonl"),
        ("x.gz", "x", {"text": 0, "label": 1}, "must be a .csv, .tsv or .jsonl"),
    ],
)
@pytest.mark.parametrize("broken", ["refuse", "skip"])
def test_files_that_cannot_be_understood_are_always_refused(
    tmp_path, name, text, columns, words, broken
):
    with pytest.raises(ClearheadError, match=words):
        list(read_labeled_texts(write(tmp_path / name, text), DataReport(broken), **columns))


@pytest.mark.parametrize("packed", [".gz", ".xz", ".zst"])
def test_a_compressed_file_that_breaks_off_is_refused(tmp_path, packed):
    path = write(tmp_path / f"x.tsv{packed}", "".join(f"{i}\t1\n" for i in range(9999)))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ClearheadError, match="cannot be read"):
        list(read_labeled_texts(path, DataReport(), text_column=0, label_column=1))
    path.write_bytes(b"plain")
    with pytest.raises(ClearheadError, match="cannot be read"):
        list(read_labeled_texts(path, DataReport(), text_column=0, label_column=1))
    with pytest.raises(ClearheadError, match="cannot be read: there is no such file"):
        list(read_labeled_texts(tmp_path / "none.tsv", DataReport(), text_column=0, label_column=1))


def test_a_text_without_tokens_is_told_with_its_line(tmp_path):
    path = write(tmp_path / "x.tsv", "ab\tba\t1\nab\tac\t0\n")
    letters = Tokenizer.characters("ab")
    with pytest.raises(ClearheadError, match=r"x.tsv:2: the text holds 'c' .* no token"):
        list(
            encode_labeled_texts(
                read_labeled_texts(
                    path, DataReport(), text_column=0, text_pair_column=1, label_column=2
                ),
                letters,
                DataReport(),
            )
        )
    report = DataReport("skip")
    read = encode_labeled_texts(
        read_labeled_texts(path, report, text_column=0, text_pair_column=1, label_column=2),
        letters,
        report,
    )
    assert list(read) == [LabeledExample([0, 1], [1, 0], "1", f"{path}:1")]
