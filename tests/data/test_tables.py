"""Reading labeled texts from tables, and errors for invalid ones."""

import csv
import json

import pytest
from compressed_files import write
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data.classification import (
    LabeledExample,
    LabeledText,
    encode_labeled_texts,
    read_labeled_texts,
)
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer

CELLS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
NAMES = {"text_column": "text", "label_column": "label"}
NAMED = {"text_column": "a", "label_column": "l", "text_pair_column": "b"}


@given(
    table=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5),
    packed=st.sampled_from(["", ".gz", ".xz", ".zst"]),
)
def test_csv_and_jsonl_round_trip(table, packed, tmp_path_factory):
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


def test_quotes_are_plain_characters_in_tsv_only(tmp_path):
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
def test_tsv_cells_quoted_by_a_spreadsheet_are_unquoted(tmp_path, text):
    with (tmp_path / "x.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("a", "l"), (text, "good")])
    assert [
        row[:3]
        for row in read_labeled_texts(
            tmp_path / "x.tsv", DataReport(), text_column="a", label_column="l"
        )
    ] == [(text, None, "good")]


@pytest.mark.parametrize("text", ['"quoted"', '"so" and "so"', '""so""', '"', '""', '"a ""b" c"'])
def test_other_tsv_quotes_are_kept(tmp_path, text):
    path = write(tmp_path / "x.tsv", f"a\tl\n{text}\t1\n")
    assert [
        row.text
        for row in read_labeled_texts(path, DataReport(), text_column="a", label_column="l")
    ] == [text]


def test_columns_by_number_need_no_header(tmp_path):
    path = write(tmp_path / "x.tsv", "gj04\t1\t\tThe sailors rode.\n\ngj04\t0\t*\tHim rode.\n")
    expected = [("The sailors rode.", "1", 1), ("Him rode.", "0", 3)]
    for text, label in ((3, 1), ("3", "1")):
        read = list(read_labeled_texts(path, DataReport(), text_column=text, label_column=label))
        assert read == [
            LabeledText(words, None, name, f"{path}:{line}") for words, name, line in expected
        ]


def test_bom_is_not_part_of_the_header(tmp_path):
    path = write(tmp_path / "x.tsv", b"\xef\xbb\xbfQuality\t#1 String\n1\tyes\n")
    assert (
        next(
            read_labeled_texts(path, DataReport(), text_column="#1 String", label_column="Quality")
        ).label
        == "1"
    )


def test_json_values_become_labels(tmp_path):
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
    ("x.csv", 'a,l\nx,1\n"x,1\nx,0', 3, "a quote is never closed"),
    ("x.csv", 'a,l\nx,1\n"x,1', 3, "a quote is never closed"),
    ("x.csv", "a,l\nx,1\nx\nx,0\n", 3, r"\(1 column\): expected 2 columns"),
    ("x.tsv", "a\tl\nx\t1\nx\ty\t1\nx\t0\n", 3, r"\(3 columns\): expected 2 columns"),
    ("x.tsv", "a\tl\nx\t1\nx\t\n", 3, "the label is missing"),
    ("x.tsv", "a\tl\nx\t1\n \t1\n", 3, r"\(' '\): the text is missing"),
    ("x.tsv", b"a\tl\nx\t1\n\xf0\x9f\x98\x80\xff\t1\n", 3, "not valid UTF-8"),
    ("x.jsonl", '{"a": "x", "l": 1}\n\n{"a": "x", "l": 1\n', 3, "not a JSON object"),
    ("x.jsonl", '{"a": "x", "l": 1}\n["x", 1]\n', 2, "not a JSON object"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": "x"}\n', 2, "the field 'l' is missing"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": "x", "l": null}\n', 2, "the field 'l' is missing"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": "x", "l": [1]}\n', 2, "the label is missing"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": 7, "l": 1}\n', 2, r"\(7\): the text is missing"),
    ("x.jsonl", '{"a": "x", "l": 1}\n{"a": "\\ud800", "l": 1}\n', 2, "not valid UTF-8"),
    ("x.jsonl.gz", '{"a": "x", "l": 1}\n' + "[" * 99999, 2, "not a JSON object"),
]


@pytest.mark.parametrize(("name", "text", "line", "words"), BROKEN)
def test_invalid_rows_fail_or_are_skipped_by_line(tmp_path, name, text, line, words):
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
def test_unclosed_quote_invalidates_only_its_line(tmp_path, later, times, end):
    path = write(
        tmp_path / "x.csv", "\n".join(["a,l", *["x,1"] * 98, '"stray,0', *[later] * times]) + "\n"
    )
    report = DataReport("skip")
    read = list(read_labeled_texts(path, report, text_column="a", label_column="l"))
    [(why, places)] = report.locations.items()
    assert why.startswith("a quote is n")
    assert why.endswith(end)
    assert places == [f"{path}:100"]
    assert report.num_read == len(read) == 98 + times
    assert read[-1] == LabeledText("x", None, "0", f"{path}:{100 + times}")


@pytest.mark.parametrize("value", ["abc", "nan", "inf", "1e300", "1,5"])
def test_regression_labels_must_be_finite_numbers(tmp_path, value):
    path = write(tmp_path / "x.tsv", f"a\tl\nx\t2.5\nx\t{value}\nx\t-1\n")
    with pytest.raises(ClearheadError, match=rf"x.tsv:3 \('{value}'\): the label is not a number"):
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
            {"text_column": "sentense", "label_column": "label"},
            "did you mean 'sentence'",
        ),
        (
            "x.tsv",
            "x\t1\n",
            {"text_column": 0, "label_column": 2},
            "no column '2'; the table has 2",
        ),
        (
            "x.csv",
            "text;label\nx;1\n",
            NAMES,
            "no column 'text'; columns seem to be separated by ';'",
        ),
        (
            "x.csv",
            "x;1\n",
            {"text_column": 0, "label_column": 1},
            "no column '1'; columns seem to be separated by ';'",
        ),
        (
            "x.tsv",
            "dull film\tbad\n",
            NAMES,
            "no column 'text'; known: dull film, bad; choose columns by name.*--data.text_column=0",
        ),
        ("x.tsv", "text\tlabel\n".encode("utf-16"), NAMES, "x.tsv is UTF-16; save it as UTF-8"),
        (
            "x.csv",
            '"a,l\nx,1\n',
            {"text_column": "a", "label_column": "l"},
            "x.csv:1: the first line is invalid: a quote is never closed",
        ),
        (
            "x.csv",
            '"a"b,l\nx,1\n',
            {"text_column": "a", "label_column": "l"},
            "x.csv:1: the first line is invalid",
        ),
        ("x.txt", "x", {"text_column": 0, "label_column": 1}, "must end in .csv, .tsv or .jsonl"),
        ("x.gz", "x", {"text_column": 0, "label_column": 1}, "must end in .csv, .tsv or .jsonl"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_unusable_tables_always_fail(tmp_path, name, text, columns, words, on_error):
    with pytest.raises(ClearheadError, match=words):
        list(read_labeled_texts(write(tmp_path / name, text), DataReport(on_error), **columns))


@pytest.mark.parametrize("packed", [".gz", ".xz", ".zst"])
def test_truncated_compressed_tables_are_rejected(tmp_path, packed):
    path = write(tmp_path / f"x.tsv{packed}", "".join(f"{i}\t1\n" for i in range(9999)))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ClearheadError, match="cannot be read"):
        list(read_labeled_texts(path, DataReport(), text_column=0, label_column=1))
    path.write_bytes(b"plain")
    with pytest.raises(ClearheadError, match="cannot be read"):
        list(read_labeled_texts(path, DataReport(), text_column=0, label_column=1))
    with pytest.raises(ClearheadError, match="cannot be read: no such file"):
        list(read_labeled_texts(tmp_path / "none.tsv", DataReport(), text_column=0, label_column=1))


def test_untokenizable_texts_fail_or_are_skipped_by_line(tmp_path):
    path = write(tmp_path / "x.tsv", "ab\tba\t1\nab\tac\t0\n")
    letters = Tokenizer.characters("ab")
    with pytest.raises(
        ClearheadError, match=r"x.tsv:2: the text contains 'c' .* not in the vocabulary"
    ):
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
