"""Files of SentencePiece are cut as the library cuts them."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_folders import AS_IS, LINES, LLAMA_SPM, T5_SPM, fill, sentencepiece, spm, typed

from clearhead.tokenizers.sentencepiece import read_sentencepiece
from clearhead.tokenizers.tokenizer import Tokenizer

SPM = {
    "t5": T5_SPM,
    "llama": LLAMA_SPM,
    "bpe": spm(model_type="bpe"),
    "bpe-no-prefix": spm(
        model_type="bpe", add_dummy_prefix=False, split_by_whitespace=False, **AS_IS
    ),
    "unigram-as-is": spm(model_type="unigram", **AS_IS),
    "unigram-trimmed": spm(model_type="unigram", normalization_rule_name="identity"),
    "unigram-sentences": spm(model_type="unigram", split_by_whitespace=False),
    "unigram-bytes": spm([*LINES, "< > / 0 x A"], model_type="unigram", byte_fallback=True),
    "unigram-symbols": spm(
        model_type="unigram", user_defined_symbols=["<sep>", "sea shells", "ßß"]
    ),
}


@pytest.fixture(scope="module", params=SPM)
def cutters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    path = fill(tmp_path_factory.mktemp("spm"), {"a.model": SPM[request.param]}) / "a.model"
    return Tokenizer(read_sentencepiece(path)), sentencepiece.SentencePieceProcessor(
        model_file=str(path)
    )


@given(data=st.data())
def test_sentencepiece_files_cut_as_sentencepiece_does(
    cutters: tuple[Tokenizer, Any], data: st.DataObject
) -> None:
    mine, other = cutters
    text = typed(data, ["</s>", "<s>", "<unk>", "<0x0A>", "<sep>", "sea shells", "  ", " ▁", "ß"])
    # The library's normaliser loses what follows a letter in its cluster: marks that compose with nothing, joiners.
    text = "".join(
        c
        for c in unicodedata.normalize("NFC", text)
        if unicodedata.category(c) not in ("Mn", "Me", "Mc", "Cf")
    )
    ids = mine.encode(text)
    assert ids == other.encode(text)
    if other.unk_id() not in ids and "▁" not in text:
        assert mine.decode(ids) == other.decode(ids)


@pytest.mark.parametrize("line", LINES[:4])
def test_letters_with_their_marks_apart_are_cut_as_sentencepiece_does(
    line: str, tmp_path: Path
) -> None:
    path = fill(tmp_path, {"a.model": T5_SPM}) / "a.model"
    text = unicodedata.normalize("NFD", line)
    assert Tokenizer(read_sentencepiece(path)).encode(text) == sentencepiece.SentencePieceProcessor(
        model_proto=T5_SPM
    ).encode(text)
