"""Laws of sources: every character of the files arrives once, and what is broken is told by its line."""

import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data import readers
from clearhead.data.batch import DataReport
from clearhead.data.readers import check_disjoint, exclude_valid_files, read_documents, save_streams
from clearhead.errors import ClearheadError

LINES = st.lists(
    st.sampled_from(
        ["a", "é 🐔", "", " b", "\r", "\f ", "c<|endoftext|>", "\u2028", "<|endoftext|>", "\f"]
    )
)


def texts(*paths: Path | str, field: str = "text", report: DataReport | None = None) -> list[str]:
    """Whole documents: pieces joined."""
    found: list[str] = []
    for document in read_documents([str(path) for path in paths], report or DataReport(), field):
        if document.is_start:
            found.append("")
        found[-1] += document.text
    return found


def split(content: str) -> list[str]:
    """The documents of a text file, by the rule as it is written down."""
    found = [""]
    for line in io.StringIO(content, newline="\n"):
        if line.rstrip("\r\n") in ("<|endoftext|>", "\f"):
            found.append("")
        else:
            found[-1] += line
    return [text for text in found if text]


@given(LINES, st.sampled_from(["\n", "\r\n"]), st.integers(1, 12), st.booleans())
def test_every_character_arrives_once_in_documents_between_separators(lines, end, piece, last):
    content = end.join(lines) + end * last
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "PIECE", piece)
        path = Path(folder) / "a.txt"
        path.write_bytes(content.encode())
        report = DataReport("skip")
        assert texts(path, report=report) == split(content)
        assert report.num_read == len(split(content))
        for document in read_documents([str(path)], DataReport("skip")):
            longest = max((len(line) + len(end) for line in lines), default=0)
            whole = document.text.endswith("\n") or content.endswith(
                document.text
            )  # cut between lines only
            assert whole or longest > 2 * piece


@given(st.text("ab \n\f", min_size=1), st.integers(1, 5))
def test_a_long_text_is_cut_into_short_parts_that_make_it_up(text, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "PIECE", piece)
        parts = list(readers._chunks(text))
        assert "".join(parts) == text
        assert all(piece <= len(part) <= 2 * piece for part in parts[:-1])
        assert 0 < len(parts[-1]) <= 2 * piece


def test_a_long_document_comes_in_pieces_that_stay_one(tmp_path):
    (tmp_path / "a.txt").write_text("so long, and thanks for all the fish\n" * 9000)
    found = list(read_documents([str(tmp_path / "a.txt")], DataReport()))
    assert [document.is_start for document in found] == [True] + [False] * 5
    assert all(
        readers.CHUNK_CHARS <= len(document.text) < readers.CHUNK_CHARS + 37
        for document in found[:-1]
    )


PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("packed", PACKERS)
def test_packed_files_hold_what_plain_ones_do(tmp_path, packed):
    text = "one\r\ntwo\n<|endoftext|>\nthree"
    (tmp_path / f"a.txt{packed}").write_bytes(PACKERS[packed](text.encode()))
    rows = [json.dumps({"body": t, "n": 1}) for t in ("one\n", "two\u2028", "")]
    (tmp_path / f"b.jsonl{packed}").write_bytes(PACKERS[packed]("\n\n".join(rows).encode()))
    assert texts(tmp_path / f"a.txt{packed}") == ["one\r\ntwo\n", "three"]
    assert texts(tmp_path / f"b.jsonl{packed}", field="body") == ["one\n", "two\u2028"]


def test_several_packed_parts_in_one_file_are_all_read(tmp_path):
    for packed in (".gz", ".xz"):
        (tmp_path / f"a{packed}").write_bytes(PACKERS[packed](b"one\n") + PACKERS[packed](b"two\n"))
        assert texts(tmp_path / f"a{packed}") == ["one\ntwo\n"]


@pytest.mark.parametrize("end", [".zst", ".zstd"])
def test_zstd_is_read_where_it_can_be(tmp_path, end):
    zstandard = pytest.importorskip("zstandard")
    frame = zstandard.ZstdCompressor().compress
    (tmp_path / f"a.txt{end}").write_bytes(frame(b"one\n") + frame(b"two\n"))
    assert texts(tmp_path / f"a.txt{end}") == ["one\ntwo\n"]
    many = "".join(f"{i}\n" for i in range(10**5)).encode()
    (tmp_path / f"b.txt{end}").write_bytes(frame(many))
    assert texts(tmp_path / f"b.txt{end}") == [many.decode()]
    for half in (b"no zstd at all", frame(many)[:-9]):
        (tmp_path / f"b.txt{end}").write_bytes(half)
        with pytest.raises(ClearheadError, match=r"b\.txt\.zstd?:\d+: it cannot be read"):
            texts(tmp_path / f"b.txt{end}")


def test_without_zstandard_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    if sys.version_info >= (3, 14):
        pytest.skip("Python brings zstd itself")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.zst").write_bytes(b"x")
    with pytest.raises(ClearheadError, match=r"clearhead\[zstd\]"):
        texts(tmp_path / "a.zst", report=DataReport("skip"))


def test_a_folder_is_its_text_files_in_order(tmp_path, monkeypatch):
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


def test_a_file_named_like_a_pattern_is_a_file(tmp_path):
    (tmp_path / "a[1].txt").write_text("one")
    assert texts(tmp_path / "a[1].txt") == ["one"]


def test_a_minus_is_standard_input(monkeypatch):
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
def test_what_is_held_out_is_taken_out_of_the_folder_that_holds_it(train, valid, corpus):
    report = DataReport()
    assert exclude_valid_files(train, valid, Path("run"), report) == ["all/a.txt", "all/b.txt"]
    assert report.locations == {"the file is one of data.valid": ["all/valid.txt"]}


def test_what_is_apart_stays_as_it_was_named(corpus):
    assert exclude_valid_files(["all"], [], Path("run"), DataReport()) == ["all"]
    assert exclude_valid_files(["all/a*"], ["all/b.txt"], Path("run"), DataReport()) == ["all/a*"]


def test_a_run_does_not_learn_from_what_it_wrote(corpus):
    (corpus / "all" / "run").mkdir()
    (corpus / "all" / "run" / "log.jsonl").write_text("{}")
    named = [f"all/{name}.txt" for name in ("a", "b", "valid")]
    assert exclude_valid_files(["all"], [], Path("all/run"), DataReport()) == named
    asked = ["all/run/log.jsonl", "all/a.txt"]
    assert exclude_valid_files(asked, [], Path("all/run"), DataReport()) == asked


@pytest.mark.parametrize(
    ("train", "valid", "words"),
    [
        (["all/a.txt"], ["all/a.txt"], "all/a.txt is in data.train and in data.valid"),
        (["all/a.txt"], ["all/*.txt"], "all/a.txt is in data.train and in data.valid"),
        (["all"], ["./all"], "all is in data.train and in data.valid"),
        (["-"], ["-"], "- is in data.train and in data.valid"),
        (["all/*.txt"], ["all"], "every file of data.train is one of data.valid"),
    ],
)
def test_what_is_named_twice_cannot_be_learned_from_and_held_out(train, valid, words, corpus):
    with pytest.raises(ClearheadError, match=words):
        exclude_valid_files(train, valid, Path("run"), DataReport())


def test_a_link_is_the_file_that_it_leads_to(corpus):
    (corpus / "link.tsv").symlink_to(corpus / "all" / "a.txt")
    with pytest.raises(ClearheadError, match=r"link\.tsv is in data\.train"):
        check_disjoint(["link.tsv"], ["all/a.txt"])


def test_what_can_be_read_only_once_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("é\n".encode())))
    pipe = tmp_path / "pipe.jsonl"
    name = str(tmp_path / "piped" / "x")
    os.mkfifo(pipe)
    Thread(target=pipe.write_text, args=['{"text": "two"}'], daemon=True).start()
    paths = save_streams(["-", str(pipe), "c.txt"], name, resume=False)
    assert paths == [f"{name}-0.txt", f"{name}-1.jsonl", "c.txt"]
    for _ in range(2):
        assert texts(*paths[:2]) == ["é\n", "two"]
    assert (
        save_streams(["-", str(pipe), "c.txt"], name, resume=True) == paths
    )  # and nothing waits for the pipe
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"new")))
    assert texts(*save_streams(["-"], name, resume=False)) == ["new"]


def test_a_mark_of_utf8_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\n\ufefftwo".encode())
    assert texts(tmp_path / "a.txt") == ["one\n\ufefftwo"]


BROKEN = {
    "a.txt": (b"good\n\xff bad\ngood\n", 2, "not UTF-8", ["good\ngood\n"]),
    "a.jsonl": (
        b'{"text": "good"}\n\n{"text": \n{"text": "more"}',
        3,
        "not JSON",
        ["good", "more"],
    ),
    "b.jsonl": (b'"good"', 1, "not a JSON object", []),
    "c.jsonl": (b'{"txt": "good"}', 1, "no field 'text'", []),
    "d.jsonl": (b'{"text": ["good"]}', 1, "is not text", []),
    "e.jsonl": (b'{"text": "\\ud83d"}', 1, "half a character", []),
    "f.jsonl": (b"[" * 100_000, 1, "not JSON", []),
    "a.txt.gz": (
        gzip.compress(b"good\n" + os.urandom(90_000))[:-9000],
        None,
        "cannot be read",
        None,
    ),
    "b.txt.gz": (b"plain", 1, "cannot be read", []),
    "a.txt.xz": (lzma.compress(b"good\n")[:-9], None, "cannot be read", None),
    "empty.txt": (b"", None, "no text in it", []),
    "wide.txt": ("文\n字".encode("utf-16"), None, "it is UTF-16; save it as UTF-8", []),
    "bars.txt": (b"\f\n<|endoftext|>\n", None, "no text in it", []),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_lines_are_refused_or_skipped_by_name_and_number(tmp_path, name):
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


def test_what_is_not_there_or_there_twice_is_refused_or_skipped(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "folder").mkdir()
    for missing in ("none.txt", "*.md", "folder"):
        with pytest.raises(
            ClearheadError, match=r"there is no such file|the folder holds no texts"
        ):
            texts(tmp_path / missing)
    with pytest.raises(ClearheadError, match="given twice"):
        texts(tmp_path / "a.txt", tmp_path)
    report = DataReport("skip")
    path = str(tmp_path / "a.txt")
    assert texts(path, path, tmp_path / "none.txt", report=report) == ["one"]
    assert report.skipped.total() == 2
    with pytest.raises(ClearheadError, match="list of paths"):
        next(read_documents("a.txt", DataReport()))


@pytest.mark.parametrize(("count", "end"), [(3, "c.txt"), (4, "c.txt …")])
def test_a_report_hints_at_more_places_where_there_are_more(count, end):
    report = DataReport("skip")
    for name in "abcd"[:count]:
        report.skip(f"{name}.txt", "it is broken")
    assert str(report).endswith(f"  {count} × it is broken: a.txt, b.txt, {end}")


def test_a_large_file_needs_little_memory(tmp_path):
    path = tmp_path / "large.txt"
    with path.open("w") as file:
        for _ in range(60):
            file.write(("so long, and thanks for all the fish " * 27 + "\n") * 1000)
    code = """if True:
        import sys, tracemalloc
        from clearhead.data.packed import Report
        from clearhead.data.sources import documents
        tracemalloc.start()
        report = Report()
        size = sum(len(document.text) for document in documents([sys.argv[1]], report))
        assert report.read == 1
        print(size, tracemalloc.get_traced_memory()[1])"""
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    size, peak = map(int, done.stdout.split())
    assert size == path.stat().st_size
    assert peak < 4e6
