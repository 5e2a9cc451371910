"""Laws of document reading: every character arrives once, and invalid input is reported by line."""

import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from compressed_files import compressor
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data import readers
from clearhead.data.readers import DataReport, check_disjoint, exclude_valid_files, read_documents
from clearhead.errors import ClearheadError

LINES = st.lists(
    st.sampled_from(
        ["a", "é 🐔", "", " b", "\r", "\f ", "c<|endoftext|>", "\u2028", "<|endoftext|>", "\f"]
    )
)


def texts(
    *paths: Path | str, text_column: str = "text", report: DataReport | None = None
) -> list[str]:
    """Documents with their chunks joined."""
    found: list[str] = []
    for document in read_documents(
        [str(path) for path in paths], report or DataReport(), text_column
    ):
        if document.is_start:
            found.append("")
        found[-1] += document.text
    return found


def split_documents(content: str) -> list[str]:
    """A literal implementation of the documented rule."""
    found = [""]
    for line in io.StringIO(content, newline="\n"):
        if line.rstrip("\r\n") in ("<|endoftext|>", "\f"):
            found.append("")
        else:
            found[-1] += line
    return [text for text in found if text]


@given(LINES, st.sampled_from(["\n", "\r\n"]), st.integers(1, 12), st.booleans())
def test_documents_between_separators_are_complete(lines, end, chunk_chars, last):
    content = end.join(lines) + end * last
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_CHARS", chunk_chars)
        path = Path(folder) / "a.txt"
        path.write_bytes(content.encode())
        report = DataReport("skip")
        assert texts(path, report=report) == split_documents(content)
        assert report.num_read == len(split_documents(content))
        for document in read_documents([str(path)], DataReport("skip")):
            longest = max((len(line) + len(end) for line in lines), default=0)
            whole = document.text.endswith("\n") or content.endswith(
                document.text
            )  # cut between lines only
            assert whole or longest > 2 * chunk_chars


@given(st.text("ab \n\f", min_size=1), st.integers(1, 5))
def test_chunks_join_to_the_text(text, chunk_chars):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_CHARS", chunk_chars)
        parts = list(readers._chunks(text))
        assert "".join(parts) == text
        assert all(chunk_chars <= len(part) <= 2 * chunk_chars for part in parts[:-1])
        assert 0 < len(parts[-1]) <= 2 * chunk_chars


def test_long_documents_come_in_chunks(tmp_path):
    (tmp_path / "a.txt").write_text("so long, and thanks for all the fish\n" * 9000)
    found = list(read_documents([str(tmp_path / "a.txt")], DataReport()))
    assert [document.is_start for document in found] == [True] + [False] * 5
    assert all(
        readers.CHUNK_CHARS <= len(document.text) < readers.CHUNK_CHARS + 37
        for document in found[:-1]
    )


COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("packed", COMPRESSORS)
def test_compressed_documents_equal_plain_ones(tmp_path, packed):
    text = "one\r\ntwo\n<|endoftext|>\nthree"
    (tmp_path / f"a.txt{packed}").write_bytes(COMPRESSORS[packed](text.encode()))
    rows = [json.dumps({"body": t, "n": 1}) for t in ("one\n", "two\u2028", "")]
    (tmp_path / f"b.jsonl{packed}").write_bytes(COMPRESSORS[packed]("\n\n".join(rows).encode()))
    assert texts(tmp_path / f"a.txt{packed}") == ["one\r\ntwo\n", "three"]
    assert texts(tmp_path / f"b.jsonl{packed}", text_column="body") == ["one\n", "two\u2028"]


def test_concatenated_compressed_streams_are_read(tmp_path):
    for packed in (".gz", ".xz"):
        (tmp_path / f"a{packed}").write_bytes(
            COMPRESSORS[packed](b"one\n") + COMPRESSORS[packed](b"two\n")
        )
        assert texts(tmp_path / f"a{packed}") == ["one\ntwo\n"]


@pytest.mark.parametrize("end", [".zst", ".zstd"])
def test_zstd_documents_are_read(tmp_path, end):
    frame = compressor(end)
    (tmp_path / f"a.txt{end}").write_bytes(frame(b"one\n") + frame(b"two\n"))
    assert texts(tmp_path / f"a.txt{end}") == ["one\ntwo\n"]
    many = "".join(f"{i}\n" for i in range(10**5)).encode()
    (tmp_path / f"b.txt{end}").write_bytes(frame(many))
    assert texts(tmp_path / f"b.txt{end}") == [many.decode()]
    for half in (b"no zstd at all", frame(many)[:-9]):
        (tmp_path / f"b.txt{end}").write_bytes(half)
        with pytest.raises(ClearheadError, match=r"b\.txt\.zstd?:\d+: cannot be read"):
            texts(tmp_path / f"b.txt{end}")


def test_missing_zstd_names_the_package(tmp_path, monkeypatch):
    if sys.version_info >= (3, 14):
        pytest.skip("Python brings zstd itself")
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    (tmp_path / "a.zst").write_bytes(b"x")
    with pytest.raises(ClearheadError, match=r"clearhead\[zstd\]"):
        texts(tmp_path / "a.zst", report=DataReport("skip"))


def test_folders_give_their_text_files_in_order(tmp_path, monkeypatch):
    for name in (
        "b.txt",
        "a/z.md",
        "a/b.txt.gz",
        ".hidden/a.txt",
        "model.bin",
        "c.jsonl",
        "a/.x.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        content = json.dumps({"text": name}).encode() if "jsonl" in name else name.encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert texts(tmp_path) == ["a/b.txt.gz", "a/z.md", "b.txt", "c.jsonl"]
    assert texts(tmp_path / "*.bin", tmp_path / "b.txt") == ["model.bin", "b.txt"]
    assert texts(tmp_path / "**" / "*.md") == ["a/z.md"]
    monkeypatch.chdir(tmp_path)
    assert [d.location for d in read_documents(["b.txt", "a"], DataReport())] == [
        "b.txt:1",
        "a/b.txt.gz:1",
        "a/z.md:1",
    ]


def test_file_named_like_a_glob_is_read(tmp_path):
    (tmp_path / "a[1].txt").write_text("one")
    assert texts(tmp_path / "a[1].txt") == ["one"]


def test_dash_reads_documents_of_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\n\f\ntwo")))
    assert [(d.text, d.location) for d in read_documents(["-"], DataReport())] == [
        ("one\n", "-:1"),
        ("two", "-:3"),
    ]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all").mkdir()
    for name in ("a", "b", "valid"):
        (tmp_path / "all" / f"{name}.txt").write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("train", "valid"),
    [
        (["all"], ["all/valid.txt"]),
        (["all/*.txt"], ["all/v*"]),
        (["all"], ["all/../all/valid.txt"]),
    ],
)
def test_validation_files_are_excluded_from_training_globs(train, valid, corpus):
    report = DataReport()
    assert exclude_valid_files(train, valid, Path("run"), report) == ["all/a.txt", "all/b.txt"]
    assert report.locations == {"the file belongs to data.valid": ["all/valid.txt"]}


def test_disjoint_paths_are_not_expanded(corpus):
    assert exclude_valid_files(["all"], [], Path("run"), DataReport()) == ["all"]
    assert exclude_valid_files(["all/a*"], ["all/b.txt"], Path("run"), DataReport()) == ["all/a*"]


def test_files_of_the_run_are_excluded(corpus):
    (corpus / "all" / "run").mkdir()
    (corpus / "all" / "run" / "log.jsonl").write_text("{}")
    named = [f"all/{name}.txt" for name in ("a", "b", "valid")]
    assert exclude_valid_files(["all"], [], Path("all/run"), DataReport()) == named
    asked = ["all/run/log.jsonl", "all/a.txt"]
    assert exclude_valid_files(asked, [], Path("all/run"), DataReport()) == asked


@pytest.mark.parametrize(
    ("train", "valid", "words"),
    [
        (["all/a.txt"], ["all/a.txt"], "all/a.txt is in both data.train and data.valid"),
        (["all/a.txt"], ["all/*.txt"], "all/a.txt is in both data.train and data.valid"),
        (["all"], ["./all"], "all is in both data.train and data.valid"),
        (["-"], ["-"], "- is in both data.train and data.valid"),
        (["all/*.txt"], ["all"], "no training files are left"),
    ],
)
def test_paths_cannot_be_training_and_validation_data(train, valid, words, corpus):
    with pytest.raises(ClearheadError, match=words):
        exclude_valid_files(train, valid, Path("run"), DataReport())


def test_links_are_resolved(corpus):
    (corpus / "link.tsv").symlink_to(corpus / "all" / "a.txt")
    with pytest.raises(ClearheadError, match=r"link\.tsv is in both"):
        check_disjoint(["link.tsv"], ["all/a.txt"])


def test_bom_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\n\ufefftwo".encode())
    assert texts(tmp_path / "a.txt") == ["one\n\ufefftwo"]


BROKEN = {
    "a.txt": (b"good\n\xff bad\ngood\n", 2, "not valid UTF-8", ["good\ngood\n"]),
    "a.jsonl": (
        b'{"text": "good"}\n\n{"text": \n{"text": "more"}',
        3,
        "not a JSON object",
        ["good", "more"],
    ),
    "b.jsonl": (b'"good"', 1, "not a JSON object", []),
    "c.jsonl": (b'{"txt": "good"}', 1, "the field 'text' is missing", []),
    "d.jsonl": (b'{"text": ["good"]}', 1, "is not a string", []),
    "e.jsonl": (b'{"text": "\\ud83d"}', 1, "lone surrogate", []),
    "f.jsonl": (b"[" * 100_000, 1, "not a JSON object", []),
    "a.txt.gz": (
        gzip.compress(b"good\n" + os.urandom(90_000))[:-9000],
        None,
        "cannot be read",
        None,
    ),
    "b.txt.gz": (b"plain", 1, "cannot be read", []),
    "a.txt.xz": (lzma.compress(b"good\n")[:-9], None, "cannot be read", None),
    "empty.txt": (b"", None, "contains no text", []),
    "wide.txt": ("文\n字".encode("utf-16"), None, "UTF-16; save it as UTF-8", []),
    "bars.txt": (b"\f\n<|endoftext|>\n", None, "contains no text", []),
}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_lines_fail_or_are_skipped_by_location(tmp_path, name):
    content, line, why, left = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)
    where = f"{path}:{line}: " if line else str(path)
    report = DataReport("skip")
    found = texts(path, report=report)
    assert report.skipped.total() >= 1
    assert any(why in reason for reason in report.skipped)
    if left is not None:
        assert found == left
        assert report.num_read == len(left)
    if name != "a.txt.gz":  # whose bytes are no text either
        with pytest.raises(ClearheadError, match=why) as error:
            texts(path)
        assert str(error.value).startswith(where)


def test_missing_and_duplicate_files_fail_or_are_skipped(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "folder").mkdir()
    for missing in ("none.txt", "*.md", "folder"):
        with pytest.raises(ClearheadError, match=r"no such file|contains no file"):
            texts(tmp_path / missing)
    with pytest.raises(ClearheadError, match="duplicate"):
        texts(tmp_path / "a.txt", tmp_path)
    report = DataReport("skip")
    path = str(tmp_path / "a.txt")
    assert texts(path, path, tmp_path / "none.txt", report=report) == ["one"]
    assert report.skipped.total() == 2
    with pytest.raises(ClearheadError, match="must be a list"):
        next(read_documents("a.txt", DataReport()))


@pytest.mark.parametrize(("count", "end"), [(3, "c.txt"), (4, "c.txt …")])
def test_report_abbreviates_locations(count, end):
    report = DataReport("skip")
    for name in "abcd"[:count]:
        report.skip(f"{name}.txt", "it is broken")
    assert str(report).endswith(f"  {count} × it is broken: a.txt, b.txt, {end}")


def test_large_files_are_streamed(tmp_path):
    path = tmp_path / "large.txt"
    with path.open("w") as file:
        for _ in range(60):
            file.write(("so long, and thanks for all the fish " * 27 + "\n") * 1000)
    code = """if True:
        import sys, tracemalloc
        from clearhead.data.readers import DataReport, read_documents
        tracemalloc.start()
        report = DataReport()
        size = sum(len(document.text) for document in read_documents([sys.argv[1]], report))
        assert report.num_read == 1
        print(size, tracemalloc.get_traced_memory()[1])"""
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    size, peak = map(int, done.stdout.split())
    assert size == path.stat().st_size
    assert peak < 4e6
