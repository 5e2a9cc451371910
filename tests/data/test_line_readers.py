"""Reading lines of plain and compressed files, and errors for unreadable ones."""

import gzip
import io
import lzma

import pytest
from compressed_files import write

from clearhead.data import readers
from clearhead.data.readers import (
    DataReport,
    decode_lossless,
    read_byte_lines,
    read_documents,
    read_lines,
)
from clearhead.errors import ClearheadError

CONTENT = "\ufeffa\r\n\n ü\u2028b \nlast".encode()
LINES = ["a", "", " ü\u2028b ", "last"]


@pytest.mark.parametrize(
    ("name", "pack"), [("a", bytes), ("a.txt.gz", gzip.compress), ("a.xz", lzma.compress)]
)
def test_compressed_lines_equal_plain_lines_without_bom(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(CONTENT))
    assert list(read_lines(tmp_path / name)) == LINES
    assert [
        decode_lossless(line).rstrip("\r\n") for line in read_byte_lines(tmp_path / name)
    ] == LINES


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_endless_lines_are_refused_before_they_fill_memory(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(readers, "MAX_RECORD_BYTES", 1000)
    path = write(tmp_path / f"a.txt{suffix}", "x" * 999 + "\n" + "y" * 100_000)
    lines = read_lines(path)
    assert next(lines) == "x" * 999
    with pytest.raises(ClearheadError, match="a line is longer than 1,000 bytes"):
        next(lines)
    report = DataReport("skip")
    assert [document.text for document in read_documents([str(path)], report)] == ["x" * 999 + "\n"]
    assert "a line is longer" in str(report)


def test_content_beyond_the_expected_size_is_not_read():
    file = io.BytesIO(b"x" * 10_000_000)
    assert 11 <= len(readers.read_at_most(file, 10)) <= readers.READ_BYTES
    assert readers.read_at_most(io.BytesIO(b"abc"), 10) == b"abc"


def test_dash_reads_lines_of_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CONTENT)))
    assert list(read_lines("-")) == LINES


def test_bom_is_removed_from_the_first_line_only(tmp_path):
    (tmp_path / "a").write_text("\ufeff\ufeffa\n\ufeffb")
    assert list(read_lines(tmp_path / "a")) == ["\ufeffa", "\ufeffb"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none", None, r"none cannot be read: no such file"),
        ("", None, r" cannot be read: Is a directory\."),
        ("a", b"good\n\xff\n", r"a:2: .*UTF-8"),
        ("a", "good\n".encode("utf-16"), r"a is UTF-16; save it as UTF-8\."),
        ("a.gz", b"plain", r"a\.gz cannot be read: Not a gzipped file"),
    ],
)
def test_unreadable_files_raise(tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ClearheadError, match=sentence):
        list(read_lines(tmp_path / name))


def test_empty_file_has_no_lines(tmp_path):
    (tmp_path / "a").touch()
    assert list(read_lines(tmp_path / "a")) == []
