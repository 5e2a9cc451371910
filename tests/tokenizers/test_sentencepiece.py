"""Converted SentencePiece models split text as the library does."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_folders import (
    AS_IS,
    LINES,
    LLAMA_SPM,
    T5_SPM,
    draw_text_with_special_tokens,
    sentencepiece,
    spm,
    write_files,
)

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
    path = write_files(tmp_path_factory.mktemp("spm"), {"a.model": SPM[request.param]}) / "a.model"
    return Tokenizer(read_sentencepiece(path)), sentencepiece.SentencePieceProcessor(
        model_file=str(path)
    )


@given(data=st.data())
def test_encoding_equals_sentencepiece(cutters: tuple[Tokenizer, Any], data: st.DataObject) -> None:
    pretrained, reference = cutters
    text = draw_text_with_special_tokens(
        data, ["</s>", "<s>", "<unk>", "<0x0A>", "<sep>", "sea shells", "  ", " ▁", "ß"]
    )
    # The library's normalizer drops marks that do not compose with their letter, and joiners.
    text = "".join(
        c
        for c in unicodedata.normalize("NFC", text)
        if unicodedata.category(c) not in ("Mn", "Me", "Mc", "Cf")
    )
    ids = pretrained.encode(text)
    assert ids == reference.encode(text)
    if reference.unk_id() not in ids and "▁" not in text:
        assert pretrained.decode(ids) == reference.decode(ids)


@pytest.mark.parametrize("line", LINES[:4])
def test_decomposed_letters_equal_sentencepiece(line: str, tmp_path: Path) -> None:
    path = write_files(tmp_path, {"a.model": T5_SPM}) / "a.model"
    text = unicodedata.normalize("NFD", line)
    assert Tokenizer(read_sentencepiece(path)).encode(text) == sentencepiece.SentencePieceProcessor(
        model_proto=T5_SPM
    ).encode(text)
