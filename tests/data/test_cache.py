"""Laws of the token cache: the tokens are those of the texts, made once, made anew when needed, never half."""

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.data import language_modeling, readers
from clearhead.data.batch import DataReport
from clearhead.data.encoding import batch_by_size
from clearhead.data.language_modeling import TokenizedCorpus, tokenize_corpus
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer

BPE = Tokenizer.train_bpe(
    ["so long, and thanks for all the fish\n\n  so long\n"] * 3, vocab_size=300
)
RAW = Tokenizer.bytes()
END = BPE.special_tokens["<|end|>"]


def read(tokens: TokenizedCorpus) -> list[list[int]]:
    return [part.tolist() for part in np.split(np.asarray(tokens.ids), tokens.document_starts[1:])]


def make(path: Path, folder: Path, tokenizer: Tokenizer = BPE, **options) -> TokenizedCorpus:
    return tokenize_corpus([str(path)], tokenizer, folder, **({"report": DataReport()} | options))


@given(
    st.lists(st.text("so longfish\n🐔\r", min_size=1), min_size=1, max_size=20),
    st.sampled_from([None, END]),
    st.integers(1, 3),
    st.sampled_from([8, 2**16]),
)
@settings(max_examples=40)
def test_the_tokens_are_those_of_each_text_in_order(texts, begin, workers, batch):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            language_modeling, "batches", lambda found, size: batch_by_size(found, size, batch)
        )
        path = Path(folder) / "a.jsonl"
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        report = DataReport()
        tokens = make(path, Path(folder) / "cache", begin=begin, workers=workers, report=report)
        assert read(tokens) == [
            ([] if begin is None else [begin]) + BPE.encode(text) for text in texts
        ]
        assert report.num_read == len(texts)
        assert tokens.ids.dtype == np.uint16


@given(
    st.lists(st.sampled_from(["so", " ", "long,", "\n", "\n\n", "fish"])).map("".join),
    st.integers(1, 30),
)
@settings(max_examples=40)
def test_pieces_of_a_document_become_the_tokens_of_one_text(text, piece):
    text = "so" + text + "\nfish"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "PIECE", piece)
        patch.setattr(readers, "_parts", lambda line: [line])
        patch.setattr(
            readers,
            "_may_cut",
            lambda size, above, below: size < 2 * piece and MAY_CUT(size, above, below),
        )  # the places that are preferred
        (Path(folder) / "a.txt").write_text(text)
        assert read(make(Path(folder) / "a.txt", Path(folder) / "cache", begin=END)) == [
            [END, *BPE.encode(text)]
        ]


MAY_CUT = readers._can_split


@given(
    st.lists(st.sampled_from(["so", "long,", "fish", "fish\n", "the  end"])), st.integers(12, 40)
)
@settings(max_examples=40)
def test_a_long_line_is_cut_at_spaces_into_the_tokens_of_one_text(words, piece):
    text = " ".join(["so", *words])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "PIECE", piece)
        place = Path(folder)
        (place / "a.txt").write_text(text.replace("\n", ""))
        assert read(make(place / "a.txt", place / "a", begin=END)) == [
            [END, *BPE.encode(text.replace("\n", ""))]
        ]
        (place / "b.jsonl").write_text(json.dumps({"text": text}))
        assert read(make(place / "b.jsonl", place / "b", begin=END)) == [[END, *BPE.encode(text)]]


def test_a_large_vocabulary_needs_larger_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("\U00010400b")
    letters = Tokenizer.characters(
        "".join(map(chr, range(32, 0xD800))) + "".join(map(chr, range(0x10000, 0x14000)))
    )
    tokens = make(tmp_path / "a.txt", tmp_path / "cache", letters)
    assert tokens.ids.dtype == np.uint32
    assert read(tokens) == [letters.encode("\U00010400b")]


def test_a_second_time_nothing_is_read(tmp_path, monkeypatch, capfd):
    (tmp_path / "a.txt").write_bytes(b"so long\n\xff\nfish\n")
    (tmp_path / "b.txt").write_text("and thanks")
    told = DataReport("skip")
    first = make(tmp_path, tmp_path / "cache", report=told)
    monkeypatch.setattr(readers, "opened", None)
    again = DataReport("skip")
    second = make(tmp_path, tmp_path / "cache", report=again)
    assert read(first) == read(second) == [BPE.encode("so long\nfish\n"), BPE.encode("and thanks")]
    assert str(told) == str(again)
    assert (again.num_read, again.skipped.total()) == (2, 1)
    assert isinstance(second.ids, np.memmap)
    assert capfd.readouterr() == ("", "")


def test_who_refuses_broken_lines_is_not_given_what_was_skipped(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"so long\n\xff\nfish\n")
    make(tmp_path / "a.txt", tmp_path / "cache", report=DataReport("skip"))
    with pytest.raises(ClearheadError, match=r"a\.txt:2: the line is not UTF-8"):
        make(tmp_path / "a.txt", tmp_path / "cache")


CHANGES = {
    "text": lambda path: path.write_text("so long, fish") and {},
    "date": lambda path: os.utime(path, ns=(1, 1)) or {},
    "tokenizer": lambda path: {"tokenizer": RAW},
    "begin": lambda path: {"begin": END},
    "field": lambda path: {"field": "body"},
    "another file": lambda path: path.with_name("b.txt").write_text("more") and {},
    "torn tokens": lambda path: (path.parent / "cache" / "tokens.bin").write_bytes(b"x") and {},
    "lost documents": lambda path: (path.parent / "cache" / "documents.npy").unlink() or {},
    "broken note": lambda path: (path.parent / "cache" / "cache.json").write_text("[") and {},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_made_anew(tmp_path, change):
    (tmp_path / "a.txt").write_text("so long")
    before = make(tmp_path, tmp_path / "cache")
    seen = read(before)
    options = CHANGES[change](tmp_path / "a.txt")
    stamp = (tmp_path / "cache").stat().st_ino
    after = make(tmp_path, tmp_path / "cache", **options)
    assert (tmp_path / "cache").stat().st_ino != stamp
    assert read(after) == read(make(tmp_path, tmp_path / "fresh", **options))
    if change != "torn tokens":
        assert read(before) == seen  # who has the old ones mapped keeps them
    assert {path.name for path in tmp_path.iterdir()} <= {"a.txt", "b.txt", "cache", "fresh"}


def test_standard_input_is_read_each_time(tmp_path, monkeypatch):
    for text in ("one", "two"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        assert read(make(Path("-"), tmp_path / "cache", RAW)) == [list(text.encode())]


def test_a_text_without_tokens_is_told_by_its_place(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n{"text": "xyz"}\n{"text": "cab"}')
    letters = Tokenizer.characters("abc")
    with pytest.raises(
        ClearheadError,
        match=r"a\.jsonl:2: the text holds 'x' \(U\+0078\), for which there is no token;",
    ):
        make(tmp_path / "a.jsonl", tmp_path / "cache", letters)
    assert not (tmp_path / "cache").exists()
    report = DataReport("skip")
    tokens = make(tmp_path / "a.jsonl", tmp_path / "cache", letters, report=report)
    assert read(tokens) == [[0, 1, 2], [2, 0, 1]]
    assert report.skipped.total() == 1


def test_a_document_whose_first_piece_is_left_out_does_not_join_the_one_before(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(readers, "PIECE", 1)
    (tmp_path / "a.txt").write_text("a\n<|endoftext|>\nx\nb\n")
    tokens = make(
        tmp_path / "a.txt",
        tmp_path / "cache",
        Tokenizer.characters("\nab"),
        report=DataReport("skip"),
    )
    assert read(tokens) == [[1, 0], [2, 0]]


def test_no_text_and_no_token_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ClearheadError, match="there is no text in"):
        make(tmp_path / "a.txt", tmp_path / "cache", report=DataReport("skip"))
    with pytest.raises(ClearheadError, match="there is no token 300"):
        make(tmp_path / "a.txt", tmp_path / "cache", begin=300)
    assert not (tmp_path / "cache").exists()


def test_nobody_elses_folder_is_replaced(tmp_path):
    (tmp_path / "a.txt").write_text("so long")
    with pytest.raises(ClearheadError, match=r"holds a\.txt, which is no part"):
        make(tmp_path / "a.txt", tmp_path)
    with pytest.raises(ClearheadError, match="is a file"):
        make(tmp_path / "a.txt", tmp_path / "a.txt")
    with pytest.raises(ClearheadError, match="cannot be saved"):
        make(tmp_path / "a.txt", tmp_path / "a.txt" / "cache")


LARGE = """if True:
    import sys
    from pathlib import Path
    from clearhead.data.cache import tokenised
    from clearhead.data.packed import Report
    from clearhead.tokens.text import Tokenizer
    tokenizer = Tokenizer.train_bpe(["so long, and thanks for all the fish"] * 9, size=300)
    peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    small = Path(sys.argv[2]).with_name("small.txt")
    small.write_text("so long")
    tokenised([str(small)], tokenizer, sys.argv[2], report=Report())
    before = peak()
    print("ready", flush=True)
    tokens = tokenised([sys.argv[1]], tokenizer, sys.argv[2], report=Report(), workers=2)
    print(len(tokens.ids), peak() - before)"""


ONE_LINE = {"a.txt": "{}", "a.jsonl": '{{"text": "{}"}}'}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("name", ONE_LINE)
@pytest.mark.parametrize(
    "words", ["so long, and thanks for all the fish ", "solongandthanksforallthefish"]
)
def test_one_long_line_needs_little_memory(tmp_path, name, words):
    (tmp_path / name).write_text(ONE_LINE[name].format(words * (4_000_000 // len(words))))
    command = [sys.executable, "-c", LARGE, tmp_path / name, tmp_path / "c"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (
        int(done.stdout.split()[2]) < 80_000
    )  # kilobytes; all at once it needs five times as much


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.txt"
    with path.open("w") as file:
        for _ in range(6):
            file.write(("so long, and thanks for all the fish " * 27 + "\n") * 1000)
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_large_file_needs_little_memory(tmp_path, large):
    done = subprocess.run(
        [sys.executable, "-c", LARGE, large, tmp_path / "c"],
        capture_output=True,
        text=True,
        check=True,
    )
    _, size, kilobytes = done.stdout.split()
    assert int(size) > large.stat().st_size / 5
    assert int(kilobytes) < 80_000  # all at once it needs ten times as much


def test_who_is_killed_in_the_middle_leaves_the_earlier_tokens(tmp_path, large):
    command = [sys.executable, "-c", LARGE, large, tmp_path / "c"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        while not any(path.stat().st_size for path in tmp_path.glob(".c.*/new/tokens.bin")):
            assert run.poll() is None
            time.sleep(0.01)
        run.kill()
        assert run.stdout.read() == b""
    about = json.loads((tmp_path / "c" / "cache.json").read_text())
    assert about["made_from"]["files"][0][0] == str(tmp_path / "small.txt")
    assert (tmp_path / "c" / "tokens.bin").stat().st_size == 2 * about["tokens"]


def test_who_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        yield readers.Document("so long", "a.txt:1")
        raise KeyboardInterrupt

    (tmp_path / "a.txt").write_text("so long")
    monkeypatch.setattr(language_modeling, "documents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "a.txt", tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


TOGETHER = """if True:
    import sys, time
    import numpy as np
    from clearhead.data.cache import tokenised
    from clearhead.data.packed import Report
    from clearhead.tokens.text import Tokenizer
    tokenizer = Tokenizer.load(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[4])):
        tokens = tokenised([sys.argv[2]], tokenizer, f"{sys.argv[3]}{number}", report=Report(), workers=1)
        print(len(tokens.ids), len(tokens.documents), int(np.asarray(tokens.ids).sum()), flush=True)"""


def test_processes_that_need_the_same_tokens_at_once_all_get_them(tmp_path):
    BPE.save(tmp_path / "tokenizer.json")
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"so long {i} fish"}) + "\n" for i in range(500))
    )
    rounds = 20  # each a race for another folder
    words = [tmp_path / "tokenizer.json", tmp_path / "a.jsonl", tmp_path / "cache", str(rounds)]
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write(b"go\n")
        run.stdin.flush()
    told = [run.communicate()[0].splitlines() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    tokens = [i for n in range(500) for i in BPE.encode(f"so long {n} fish")]
    assert told[0] == told[1] == [f"{len(tokens)} 500 {sum(tokens)}".encode()] * rounds
    names = {"tokenizer.json", "a.jsonl", *(f"cache{number}" for number in range(rounds))}
    assert {path.name for path in tmp_path.iterdir()} == names  # no lock, no draft


def test_who_waits_for_another_process_does_not_tokenise_again(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("so long")
    first = make(tmp_path / "a.txt", tmp_path / "made")

    @contextmanager
    def waited(lock):
        (tmp_path / "made").rename(
            tmp_path / "cache"
        )  # what another process made while this one waited
        yield

    monkeypatch.setattr(language_modeling, "alone", waited)
    monkeypatch.setattr(language_modeling, "documents", None)
    assert read(make(tmp_path / "a.txt", tmp_path / "cache")) == read(first)


def test_the_lock_of_a_killed_process_locks_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("so long")
    (tmp_path / ".cache.lock").touch()
    assert read(make(tmp_path / "a.txt", tmp_path / "cache")) == [BPE.encode("so long")]
    assert not (tmp_path / ".cache.lock").exists()
