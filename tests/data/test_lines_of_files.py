"""Lines of the files that people give: one reader, and one sentence for each thing that can be wrong with a file."""

import gzip
import io
import lzma

import pytest

from clearhead.data.readers import decode_lossless, read_byte_lines, read_lines
from clearhead.errors import ClearheadError

CONTENT = "\ufeffa\r\n\n ü\u2028b \nlast".encode()
LINES = ["a", "", " ü\u2028b ", "last"]


@pytest.mark.parametrize(
    ("name", "pack"), [("a", bytes), ("a.txt.gz", gzip.compress), ("a.xz", lzma.compress)]
)
def test_lines_are_the_same_packed_or_not_without_ends_and_mark(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(CONTENT))
    assert list(read_lines(tmp_path / name)) == LINES
    assert [
        decode_lossless(line).rstrip("\r\n") for line in read_byte_lines(tmp_path / name)
    ] == LINES


def test_a_dash_is_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CONTENT)))
    assert list(read_lines("-")) == LINES


def test_a_mark_is_taken_off_the_first_line_only(tmp_path):
    (tmp_path / "a").write_text("\ufeff\ufeffa\n\ufeffb")
    assert list(read_lines(tmp_path / "a")) == ["\ufeffa", "\ufeffb"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none", None, r"none cannot be read: there is no such file\."),
        ("", None, r" cannot be read: Is a directory\."),
        ("a", b"good\n\xff\n", r"a:2: the line is not UTF-8\."),
        ("a", "good\n".encode("utf-16"), r"a is UTF-16; save it as UTF-8\."),
        ("a.gz", b"plain", r"a\.gz cannot be read: Not a gzipped file"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ClearheadError, match=sentence):
        list(read_lines(tmp_path / name))


def test_an_empty_file_has_no_lines(tmp_path):
    (tmp_path / "a").touch()
    assert list(read_lines(tmp_path / "a")) == []
