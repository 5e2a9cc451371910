"""Laws of tokenizers: text round-trips, special tokens are never typed, saving is atomic."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as tk
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import BYTE_CHARACTERS, Tokenizer

LECTURE = [
    "thanks for all the fish",
    "so long, and thanks for all the fish",
    "a fluffy blue creature roamed the forest",
]
BPE = Tokenizer.train_bpe(LECTURE * 3, vocab_size=300)
RAW = Tokenizer.bytes()
LETTERS = Tokenizer.characters("the chicken\ncrossed 🐔 é")


@given(st.text())
def test_bpe_round_trips_any_text(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text


@given(st.text())
def test_byte_tokens_are_utf8(text: str) -> None:
    assert RAW.encode(text) == list(text.encode())
    assert RAW.decode(RAW.encode(text)) == text


@given(st.text("the chicken\ncrossed 🐔 é"))
def test_characters_round_trip_one_token_each(text: str) -> None:
    ids = LETTERS.encode(text)
    assert len(ids) == len(text)
    assert all(0 <= i < len(LETTERS) for i in ids)
    assert LETTERS.decode(ids) == text


@given(st.lists(st.one_of(st.text(), st.just("<|end|>"))).map("".join))
def test_special_tokens_in_a_text_are_plain_text(text: str) -> None:
    assert BPE.special_tokens["<|end|>"] not in BPE.encode(text)
    allowed = BPE.encode(text, allow_special=True)
    assert allowed.count(BPE.special_tokens["<|end|>"]) == text.count("<|end|>")
    assert BPE.decode(allowed) == BPE.decode(BPE.encode(text)) == text


@given(st.lists(st.one_of(st.text(), st.sampled_from(["<|end|>", "a<|end|>b", ""])), max_size=9))
def test_encode_batch_equals_encode(texts: list[str]) -> None:
    for tokenizer in (BPE, RAW):
        assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
        assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)] == texts


@given(
    st.text(),
    st.lists(st.text(st.characters(max_codepoint=127), min_size=2), max_size=3, unique=True),
)
def test_special_tokens_do_not_change_plain_text(text: str, special: list[str]) -> None:
    tokenizer = Tokenizer.bytes(tuple(special))
    assert tokenizer.special_tokens == {token: 256 + i for i, token in enumerate(special)}
    for whole in (text, *special, text.join(special)):
        assert tokenizer.encode(whole) == list(whole.encode())
        assert tokenizer.decode(tokenizer.encode(whole)) == whole


def test_encode_batch_names_the_invalid_text() -> None:
    with pytest.raises(ClearheadError, match=r"text 2 contains 'w' \(U\+0077\)"):
        LETTERS.encode_batch(["the", "cow", "wow"])
    with pytest.raises(ClearheadError, match=r"text 1 contains '\\ud83d'"):
        BPE.encode_batch(["half \ud83d"])
    assert BPE.encode_batch([]) == []


def test_vocabulary_has_bytes_merges_and_special_tokens() -> None:
    assert (len(BPE), len(RAW), len(LETTERS)) == (300, 256, len(set("the chicken\ncrossed 🐔 é")))
    assert (
        len(Tokenizer.train_bpe(["ab"], vocab_size=1000)) == 256 + 1 + 1
    )  # the bytes, "ab", <|end|>
    assert Tokenizer.train_bpe(
        LECTURE, vocab_size=258, special_tokens=("<|a|>", "<|b|>")
    ).special_tokens == {"<|a|>": 256, "<|b|>": 257}


def test_training_merges_frequent_pairs_deterministically() -> None:
    assert BPE.to_str_tokens(BPE.encode("thanks for all the")) == [
        "thanks",
        "·for",
        "·all",
        "·the",
    ]  # L1.2
    again = Tokenizer.train_bpe(iter(LECTURE * 3), vocab_size=300)
    assert all(again.encode(text) == BPE.encode(text) for text in [*LECTURE, "another fish"])


def test_training_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    Tokenizer.train_bpe(LECTURE, vocab_size=300)
    assert capfd.readouterr() == ("", "")


def test_byte_characters_equal_the_library() -> None:
    assert len(BYTE_CHARACTERS) == 256
    assert set(BYTE_CHARACTERS) == set(pre_tokenizers.ByteLevel.alphabet())


def test_str_tokens_are_printable() -> None:
    assert RAW.to_str_tokens(list(b"a \n\t")) == ["a", "·", "↵", "⇥"]
    assert RAW.to_str_tokens(list("€\0".encode())) == ["‹e2›", "‹82›", "‹ac›", "‹00›"]
    assert LETTERS.to_str_tokens(LETTERS.encode("🐔 é")) == ["🐔", "·", "é"]
    euro = Tokenizer.train_bpe(["€"], vocab_size=259)  # a character of three bytes, two merges
    assert euro.to_str_tokens(euro.encode("€<|end|>", allow_special=True)) == ["€", "<|end|>"]
    accent = Tokenizer.characters("e\u0301")
    assert accent.to_str_tokens(accent.encode("e\u0301")) == [
        "e",
        "◌\u0301",
    ]  # which would join the label before it
    (whole,) = Tokenizer.train_bpe(["\u200b"], vocab_size=259).to_str_tokens([257])
    assert whole == "‹e2›‹80›‹8b›"


@given(st.text())
def test_one_printable_str_token_per_token(text: str) -> None:
    ids = BPE.encode(text)
    pieces = BPE.to_str_tokens(ids)
    assert len(pieces) == len(ids)
    assert all(piece and piece.isprintable() and " " not in piece for piece in pieces)


@pytest.mark.parametrize("tokenizer", [BPE, RAW, LETTERS], ids=["bpe", "bytes", "characters"])
def test_saved_tokenizer_round_trips(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    text = "the chicken"
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.special_tokens == tokenizer.special_tokens
    assert len(loaded) == len(tokenizer)


def test_loaded_tokenizer_reads_special_tokens_as_text(tmp_path: Path) -> None:
    BPE.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode("<|end|>", allow_special=True) == [loaded.special_tokens["<|end|>"]]
    assert loaded.encode("<|end|>") == BPE.encode("<|end|>") != [loaded.special_tokens["<|end|>"]]


@pytest.mark.parametrize(
    "model",
    [
        models.Unigram(
            [("<unk>", 0.0), ("<s>", 0.0), ("<", -3.0), ("s", -3.0), (">", -3.0)], 0, False
        ),
        models.BPE(
            {"<unk>": 0, "<s>": 1, "<": 2, "s": 3, ">": 4, "s>": 5},
            [("s", ">"), ("<", "s>")],
            unk_token="<unk>",
        ),
        models.WordPiece({"<unk>": 0, "<s>": 1, "<": 2, "##s": 3, "##>": 4}, unk_token="<unk>"),
        models.WordLevel({"<unk>": 0, "<s>": 1}, unk_token="<unk>"),
    ],
    ids=["unigram", "bpe", "word-piece", "word-level"],
)
def test_special_tokens_that_are_pieces_are_read_as_text(
    model: models.Model,
) -> None:
    inner = tk.Tokenizer(model)
    inner.add_special_tokens(["<unk>", "<s>", "<new>"])
    inner.add_tokens(["word"])
    tokenizer = Tokenizer(inner)
    assert tokenizer.encode("<s>", allow_special=True) == [1]
    encoded = tokenizer.encode("<s>")
    assert 1 not in encoded
    assert encoded == [0] or tokenizer.to_str_tokens(encoded)[0] == "<"
    assert tokenizer.encode("wordé")[:2] == [
        len(tokenizer) - 1,
        0,
    ]  # the ids of added words stay, unknown stays unknown


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    BPE.save(path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ClearheadError, match=r"cannot write .*tokenizer\.json: No space left"):
        RAW.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_truncation_padding_and_post_processing_are_disabled(tmp_path: Path) -> None:
    inner = tk.Tokenizer(models.BPE({c: i for i, c in enumerate(BYTE_CHARACTERS)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["[CLS]"])
    inner.post_processor = processors.TemplateProcessing(
        "[CLS] $A", special_tokens=[("[CLS]", 256)]
    )
    inner.enable_truncation(4)
    inner.enable_padding(length=64)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.load(tmp_path / "tokenizer.json").encode("longer than four")) == 16


def test_added_words_are_shown_as_they_are() -> None:
    inner = tk.Tokenizer.from_str(BPE.backend.to_str())
    inner.add_tokens(["two words"])
    tokenizer = Tokenizer(inner)
    assert tokenizer.to_str_tokens(tokenizer.encode("two words")) == ["two·words"]
    assert "two words" not in tokenizer.special_tokens


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: LETTERS.encode("the cow"),
            r"the text contains 'w' \(U\+0077\), which is not in the vocabulary",
        ),
        (
            lambda: BPE.encode("half \ud83d"),
            r"the text contains '\\ud83d' \(U\+D83D\)",
        ),
        (lambda: BPE.decode([0, 300]), r"token id 300 does not exist; ids run from 0 to 299"),
        (lambda: BPE.decode([-1]), r"token id -1 does not exist"),
        (
            lambda: BPE.to_str_tokens([2**40]),
            r"token id 1099511627776 does not exist",
        ),
        (
            lambda: Tokenizer.train_bpe(LECTURE, 256),
            r"vocab_size must be at least 257",
        ),
        (
            lambda: Tokenizer.train_bpe(LECTURE, 10**23),
            r"vocab_size must be a",
        ),
        (
            lambda: Tokenizer.train_bpe(LECTURE, 300.5),
            r"vocab_size must be a",
        ),
        (
            lambda: Tokenizer.train_bpe([1, 2], 300),
            r"must be a list of strings: 'int' object",
        ),
        (
            lambda: Tokenizer.train_bpe(None, 300),
            r"must be a list of strings: 'NoneType' object",
        ),
        (lambda: Tokenizer.characters(None), r"expected a text, got NoneType\."),
        (lambda: Tokenizer.characters(["ab", "c"]), r"expected a text, got list\."),
        (lambda: BPE.encode_batch("abc"), r"expected a list of texts, got str\."),
        (lambda: BPE.encode_batch(3), r"expected a list of texts, got int\."),
        (lambda: BPE.encode_batch(["a", 3]), r"text 2 must be a string, got int\."),
        (lambda: BPE.decode(3), r"expected a list of token ids, got int\."),
        (lambda: BPE.decode(torch.tensor(3)), r"expected a list of token ids, got int\."),
        (lambda: BPE.decode(torch.tensor([[3, 4]])), r"token id \[3, 4\] does not exist"),
        (lambda: BPE.decode([2.5]), r"token id 2\.5 does not exist"),
        (lambda: BPE.to_str_tokens(3), r"expected a list of token ids, got int\."),
        (
            lambda: Tokenizer.train_bpe("fish", 300),
            r"list of strings, .* write \[text\]",
        ),
        (lambda: Tokenizer.train_bpe(LECTURE, 300, ("a",)), r"'a' could also be plain text"),
        (
            lambda: Tokenizer.train_bpe(LECTURE, 320, ("thanks",)),
            r"'thanks' could also be plain text",
        ),
        (
            lambda: Tokenizer.train_bpe(LECTURE, 300, ("<é>",)),
            r"'<é>' could also be plain text",
        ),
        (lambda: Tokenizer.train_bpe(LECTURE, 300, ("",)), r"'' could also be plain text"),
        (
            lambda: Tokenizer.load("/no/such/file"),
            r"/no/such/file cannot be read",
        ),
        (
            lambda: BPE.save("/no/such/file"),
            r"cannot write /no/such/file",
        ),
    ],
)
def test_invalid_arguments_are_rejected(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ClearheadError, match=message):
        call()


@pytest.mark.parametrize(
    "kind", [iter, tuple, torch.tensor, np.array, lambda ids: torch.tensor(ids).unbind()]
)
def test_ids_may_be_any_iterable_of_integers(kind: Callable[[list[int]], Any]) -> None:
    ids = BPE.encode("so long, fish")
    assert BPE.decode(kind(ids)) == "so long, fish"
    assert BPE.to_str_tokens(kind(ids)) == BPE.to_str_tokens(ids)
    assert BPE.encode_batch(iter(["so long"])) == [BPE.encode("so long")]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"\xff\xfe", json.dumps({"model": 3}).encode()]
)
def test_invalid_tokenizer_json_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ClearheadError, match=r"tokenizer\.json is not a valid tokenizer\.json: "):
        Tokenizer.load(tmp_path / "tokenizer.json")


NAMES = st.lists(st.text("<a|b>", min_size=1, max_size=6), min_size=1, max_size=8, unique=True)


@given(NAMES, st.text("<a|b> ", max_size=40))
def test_names_of_special_tokens_are_found_longest_first(names, text):
    tokenizer = Tokenizer.bytes()
    tokenizer.backend.add_special_tokens(names)
    expected = "|".join(map(re.escape, sorted(tokenizer.special_tokens, key=len, reverse=True)))
    assert tokenizer.special_pattern.findall(text) == re.findall(expected or r"(?!)", text)


def test_thousands_of_special_tokens_are_found_quickly():
    tokenizer = Tokenizer.bytes(tuple(f"<unused{i}>" for i in range(6000)))
    start = time.perf_counter()
    for text in ("<" * 262_144, "<unused1" * 32_768):
        assert tokenizer.special_pattern.findall(text) == []
    assert time.perf_counter() - start < 2  # takes 0.03 s; one by one, 17 s
