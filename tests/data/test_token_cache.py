"""Laws of the token cache: correct, reused, invalidated by changes, never incomplete."""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data import readers, token_cache
from clearhead.data.encoding import batch_by_size
from clearhead.data.readers import DataReport
from clearhead.data.token_cache import TokenizedCorpus, tokenize_corpus
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer
from strategies import examples

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
@examples(40)
def test_cached_tokens_equal_tokenized_texts(texts, begin, workers, batch):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            token_cache,
            "batch_by_size",
            lambda items, size: batch_by_size(items, size, batch),
        )
        path = Path(folder) / "a.jsonl"
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        report = DataReport()
        tokens = make(
            path, Path(folder) / "cache", bos_token=begin, num_workers=workers, report=report
        )
        assert read(tokens) == [
            ([] if begin is None else [begin]) + BPE.encode(text) for text in texts
        ]
        assert report.num_read == len(texts)
        assert tokens.ids.dtype == np.uint16


@given(
    st.lists(st.sampled_from(["so", " ", "long,", "\n", "\n\n", "fish"])).map("".join),
    st.integers(1, 30),
)
@examples(40)
def test_chunks_are_tokenized_like_the_whole_document(text, chunk_chars):
    text = "so" + text + "\nfish"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_CHARS", chunk_chars)
        patch.setattr(readers, "_chunks", lambda line: [line])
        patch.setattr(
            readers,
            "_can_split",
            lambda size, above, below: size < 2 * chunk_chars and CAN_SPLIT(size, above, below),
        )  # the places that are preferred
        (Path(folder) / "a.txt").write_text(text)
        assert read(make(Path(folder) / "a.txt", Path(folder) / "cache", bos_token=END)) == [
            [END, *BPE.encode(text)]
        ]


CAN_SPLIT = readers._can_split


@given(
    st.lists(st.sampled_from(["so", "long,", "fish", "fish\n", "the  end"])), st.integers(12, 40)
)
@examples(40)
def test_long_lines_are_tokenized_like_the_whole_document(words, chunk_chars):
    text = " ".join(["so", *words])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_CHARS", chunk_chars)
        place = Path(folder)
        (place / "a.txt").write_text(text.replace("\n", ""))
        assert read(make(place / "a.txt", place / "a", bos_token=END)) == [
            [END, *BPE.encode(text.replace("\n", ""))]
        ]
        (place / "b.jsonl").write_text(json.dumps({"text": text}))
        assert read(make(place / "b.jsonl", place / "b", bos_token=END)) == [
            [END, *BPE.encode(text)]
        ]


def test_large_vocabularies_use_uint32(tmp_path):
    (tmp_path / "a.txt").write_text("\U00010400b")
    letters = Tokenizer.characters(
        "".join(map(chr, range(32, 0xD800))) + "".join(map(chr, range(0x10000, 0x14000)))
    )
    tokens = make(tmp_path / "a.txt", tmp_path / "cache", letters)
    assert tokens.ids.dtype == np.uint32
    assert read(tokens) == [letters.encode("\U00010400b")]


def test_cached_tokens_are_reused(tmp_path, monkeypatch, capfd):
    (tmp_path / "a.txt").write_bytes(b"so long\n\xff\nfish\n")
    (tmp_path / "b.txt").write_text("and thanks")
    report = DataReport("skip")
    first = make(tmp_path, tmp_path / "cache", report=report)
    monkeypatch.setattr(readers, "open_compressed", None)
    second_report = DataReport("skip")
    second = make(tmp_path, tmp_path / "cache", report=second_report)
    assert read(first) == read(second) == [BPE.encode("so long\nfish\n"), BPE.encode("and thanks")]
    assert str(report) == str(second_report)
    assert (second_report.num_read, second_report.skipped.total()) == (2, 1)
    assert isinstance(second.ids, np.memmap)
    assert capfd.readouterr() == ("", "")


def test_cache_with_skipped_lines_is_not_reused_on_error_fail(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"so long\n\xff\nfish\n")
    make(tmp_path / "a.txt", tmp_path / "cache", report=DataReport("skip"))
    with pytest.raises(ClearheadError, match=r"a\.txt:2: the line is not valid UTF-8"):
        make(tmp_path / "a.txt", tmp_path / "cache")


def test_names_of_special_tokens_are_counted_and_parsed_if_wanted(tmp_path):
    lines = ["so <|end|> long", "fish", "<|end|><|end|>", "[MASK]"]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    for parse, num_tokens in ((False, 0), (True, 3), (False, 0)):
        report = DataReport()
        options = {"parse_special_tokens": parse, "report": report}
        tokens = make(tmp_path / "a.txt", tmp_path / "cache", **options)
        assert (np.asarray(tokens.ids) == END).sum() == num_tokens
        assert BPE.decode(tokens.ids) == "\n".join(lines)
        assert report.special_tokens == {"<|end|>": 3}
        assert report.special_token_location == f"{tmp_path / 'a.txt'}:1"


CHANGES = {
    "text": lambda path: path.write_text("so long, fish") and {},
    "date": lambda path: os.utime(path, ns=(1, 1)) or {},
    "tokenizer": lambda path: {"tokenizer": RAW},
    "begin": lambda path: {"bos_token": END},
    "field": lambda path: {"text_column": "body"},
    "another file": lambda path: path.with_name("b.txt").write_text("more") and {},
    "torn tokens": lambda path: (path.parent / "cache" / "tokens.bin").write_bytes(b"x") and {},
    "lost documents": lambda path: (path.parent / "cache" / "documents.npy").unlink() or {},
    "broken note": lambda path: (path.parent / "cache" / "cache.json").write_text("[") and {},
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_invalidate_the_cache(tmp_path, change):
    (tmp_path / "a.txt").write_text("so long")
    before = make(tmp_path, tmp_path / "cache")
    tokens_before = read(before)
    options = CHANGES[change](tmp_path / "a.txt")
    stamp = (tmp_path / "cache").stat().st_ino
    after = make(tmp_path, tmp_path / "cache", **options)
    assert (tmp_path / "cache").stat().st_ino != stamp
    assert read(after) == read(make(tmp_path, tmp_path / "fresh", **options))
    if change != "torn tokens":
        assert read(before) == tokens_before  # who has the old ones mapped keeps them
    assert {path.name for path in tmp_path.iterdir()} <= {"a.txt", "b.txt", "cache", "fresh"}


@pytest.mark.parametrize("name", ["tokens.bin", "documents.npy", "cache.json"])
@pytest.mark.parametrize("damage", ["flipped bit", "truncated", "empty", "longer"])
def test_damaged_cache_is_replaced_with_a_message(tmp_path, name, damage):
    (tmp_path / "a.txt").write_text("so long, and thanks\n<|endoftext|>\nfor all the fish")
    tokens = read(make(tmp_path, tmp_path / "cache"))
    file = tmp_path / "cache" / name
    content = bytearray(file.read_bytes())
    if damage == "flipped bit":
        content[content.index(b"num_read") + 11 if name == "cache.json" else -5] ^= 1
    changes = {"truncated": content[:-3], "empty": b"", "longer": content + b"\0\0\0\0"}
    file.write_bytes(changes.get(damage, content))
    report = DataReport()
    assert read(make(tmp_path, tmp_path / "cache", report=report)) == tokens
    [message] = report.messages
    assert "damaged" in message
    assert str(tmp_path / "cache") in message
    report = DataReport()
    assert read(make(tmp_path, tmp_path / "cache", report=report)) == tokens
    assert not report.messages


def test_untokenizable_documents_fail_or_are_skipped_by_location(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n{"text": "xyz"}\n{"text": "cab"}')
    letters = Tokenizer.characters("abc")
    with pytest.raises(
        ClearheadError,
        match=r"a\.jsonl:2: the text contains 'x' \(U\+0078\), which is not in the vocabulary;",
    ):
        make(tmp_path / "a.jsonl", tmp_path / "cache", letters)
    assert not (tmp_path / "cache").exists()
    report = DataReport("skip")
    tokens = make(tmp_path / "a.jsonl", tmp_path / "cache", letters, report=report)
    assert read(tokens) == [[0, 1, 2], [2, 0, 1]]
    assert report.skipped.total() == 1


def test_document_without_its_first_chunk_still_starts_with_bos(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "CHUNK_CHARS", 1)
    (tmp_path / "a.txt").write_text("a\n<|endoftext|>\nx\nb\n")
    tokens = make(
        tmp_path / "a.txt",
        tmp_path / "cache",
        Tokenizer.characters("\nab"),
        report=DataReport("skip"),
    )
    assert read(tokens) == [[1, 0], [2, 0]]


def test_missing_text_and_unknown_bos_token_are_rejected(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ClearheadError, match="there is no text in"):
        make(tmp_path / "a.txt", tmp_path / "cache", report=DataReport("skip"))
    with pytest.raises(ClearheadError, match="token id 300 does not exist"):
        make(tmp_path / "a.txt", tmp_path / "cache", bos_token=300)
    assert not (tmp_path / "cache").exists()


def test_other_folders_are_not_overwritten(tmp_path):
    (tmp_path / "a.txt").write_text("so long")
    with pytest.raises(ClearheadError, match=r"contains a\.txt, which is not part"):
        make(tmp_path / "a.txt", tmp_path)
    with pytest.raises(ClearheadError, match="is a file"):
        make(tmp_path / "a.txt", tmp_path / "a.txt")
    with pytest.raises(ClearheadError, match="cannot write"):
        make(tmp_path / "a.txt", tmp_path / "a.txt" / "cache")


def test_files_of_file_managers_do_not_block_a_new_cache(tmp_path):
    (tmp_path / "a.txt").write_text("so long")
    make(tmp_path / "a.txt", tmp_path / "cache")
    (tmp_path / "cache" / ".DS_Store").touch()
    (tmp_path / "a.txt").write_text("and thanks")
    assert read(make(tmp_path / "a.txt", tmp_path / "cache")) == [BPE.encode("and thanks")]


LARGE = """if True:
    import sys
    from pathlib import Path
    from clearhead.data.token_cache import tokenize_corpus
    from clearhead.data.readers import DataReport
    from clearhead.tokenizers.tokenizer import Tokenizer
    tokenizer = Tokenizer.train_bpe(["so long, and thanks for all the fish"] * 9, vocab_size=300)
    peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    small = Path(sys.argv[2]).with_name("small.txt")
    small.write_text("so long")
    tokenize_corpus([str(small)], tokenizer, sys.argv[2], report=DataReport())
    before = peak()
    print("ready", flush=True)
    report = DataReport()
    tokens = tokenize_corpus(
        [sys.argv[1]], tokenizer, sys.argv[2], report=report, num_workers=2
    )
    print(len(tokens.ids), peak() - before)"""


ONE_LINE = {"a.txt": "{}", "a.jsonl": '{{"text": "{}"}}'}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("name", ONE_LINE)
@pytest.mark.parametrize(
    "words", ["so long, and thanks for all the fish ", "solongandthanksforallthefish"]
)
def test_long_lines_are_tokenized_in_little_memory(tmp_path, name, words):
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
def test_large_files_are_tokenized_in_little_memory(tmp_path, large):
    done = subprocess.run(
        [sys.executable, "-c", LARGE, large, tmp_path / "c"],
        capture_output=True,
        text=True,
        check=True,
    )
    _, size, kilobytes = done.stdout.split()
    assert int(size) > large.stat().st_size / 5
    assert int(kilobytes) < 80_000  # all at once it needs ten times as much


def test_killed_process_leaves_the_previous_cache(tmp_path, large):
    command = [sys.executable, "-c", LARGE, large, tmp_path / "c"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        while not any(path.stat().st_size for path in tmp_path.glob(".c.*/new/tokens.bin")):
            assert run.poll() is None
            time.sleep(0.01)
        run.kill()
        assert run.stdout.read() == b""
    metadata = json.loads((tmp_path / "c" / "cache.json").read_text())
    assert metadata["fingerprint"]["files"][0][0] == str(tmp_path / "small.txt")
    assert (tmp_path / "c" / "tokens.bin").stat().st_size == 2 * metadata["num_tokens"]


def test_interrupted_process_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        yield readers.Document("so long", "a.txt:1")
        raise KeyboardInterrupt

    (tmp_path / "a.txt").write_text("so long")
    monkeypatch.setattr(token_cache, "read_documents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "a.txt", tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


CONCURRENT = """if True:
    import sys, time
    import numpy as np
    from clearhead.data.token_cache import tokenize_corpus
    from clearhead.data.readers import DataReport
    from clearhead.tokenizers.tokenizer import Tokenizer
    tokenizer = Tokenizer.load(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[4])):
        tokens = tokenize_corpus(
            [sys.argv[2]],
            tokenizer,
            f"{sys.argv[3]}{number}",
            report=DataReport(),
            num_workers=1,
        )
        total = int(np.asarray(tokens.ids).sum())
        print(len(tokens.ids), len(tokens.document_starts), total, flush=True)"""


def test_concurrent_processes_share_one_cache(tmp_path):
    BPE.save(tmp_path / "tokenizer.json")
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"so long {i} fish"}) + "\n" for i in range(500))
    )
    rounds = 20  # each a race for another folder
    words = [tmp_path / "tokenizer.json", tmp_path / "a.jsonl", tmp_path / "cache", str(rounds)]
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", CONCURRENT, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
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
    outputs = [run.communicate()[0].splitlines() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    tokens = [i for n in range(500) for i in BPE.encode(f"so long {n} fish")]
    assert outputs[0] == outputs[1] == [f"{len(tokens)} 500 {sum(tokens)}".encode()] * rounds
    names = {"tokenizer.json", "a.jsonl", *(f"cache{number}" for number in range(rounds))}
    assert {path.name for path in tmp_path.iterdir()} == names  # no lock, no temporary file


def test_waiting_process_reuses_the_cache(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("so long")
    first = make(tmp_path / "a.txt", tmp_path / "made")

    @contextmanager
    def waited(lock):
        (tmp_path / "made").rename(
            tmp_path / "cache"
        )  # what another process made while this one waited
        yield

    monkeypatch.setattr(token_cache, "file_lock", waited)
    monkeypatch.setattr(token_cache, "read_documents", None)
    assert read(make(tmp_path / "a.txt", tmp_path / "cache")) == read(first)


def test_stale_lock_file_does_not_block(tmp_path):
    (tmp_path / "a.txt").write_text("so long")
    (tmp_path / ".cache.lock").touch()
    assert read(make(tmp_path / "a.txt", tmp_path / "cache")) == [BPE.encode("so long")]
    assert not (tmp_path / ".cache.lock").exists()
