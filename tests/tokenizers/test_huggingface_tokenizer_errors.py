"""Folders without a usable tokenizer, and defaults where files say little."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_folders import (
    CHAT,
    CONFIG_FILE,
    LEGACY_FORMATS,
    LLAMA_SPM,
    OWN,
    T5_SPM,
    VOCAB,
    WORD_PIECES,
    N,
    assert_equal_encoding,
    load_with_clearhead,
    load_with_transformers,
    marian,
    spm,
    tokenizer,
    write_files,
    write_folders,
)

from clearhead.errors import ClearheadError
from clearhead.tokenizers.huggingface import read_hf_tokenizer
from clearhead.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_folders(tmp_path_factory.mktemp("published"), ["gpt2", "llama"])


@pytest.mark.parametrize(
    ("family", "files", "reason"),
    [
        ("vit", {}, "has no tokenizer.json, so the model cannot read text."),
        (
            "gpt2",
            {"vocab.json": VOCAB},
            "neither tokenizer.json nor vocab.json with merges.txt, so",
        ),
        (
            "bert",
            {"tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["code.Own", None]}}},
            "custom tokenizer code, which is never executed",
        ),
        ("roformer", {"vocab.txt": WORD_PIECES}, "splits words with jieba"),
        (
            "roformer",
            {
                "tokenizer.json": OWN.backend.to_str(),
                "tokenizer_config.json": {"tokenizer_class": "RoFormerTokenizerFast"},
            },
            "splits words with jieba",
        ),
        (
            "bert",
            {
                "vocab.txt": WORD_PIECES,
                "tokenizer_config.json": {"tokenizer_class": "BertJapaneseTokenizer"},
            },
            "has no tokenizer.json, so the model cannot read text.",
        ),
    ],
)
def test_missing_tokenizers_give_a_reason(
    family: str, files: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    words = read_hf_tokenizer(
        write_files(tmp_path, {**files, "chat_template.json": {"chat_template": CHAT}}), family
    )
    assert words.tokenizer is words.source_tokenizer is None
    assert reason in words.missing_reason
    assert words.chat_template == CHAT


def test_custom_code_is_ignored(tmp_path: Path) -> None:
    config = {
        "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]},
        "tokenizer_class": "Tokenizer",
    }
    write_files(
        tmp_path,
        {
            "tokenizer_config.json": config,
            "tokenizer.json": OWN.backend.to_str(),
            "evil.py": "1 / 0",
        },
    )
    assert tokenizer(read_hf_tokenizer(tmp_path, "gpt2")).encode("fox") == OWN.encode("fox")


def test_chat_template_file_takes_precedence(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {"chat_template.jinja": "file", "tokenizer_config.json": {"chat_template": "config"}},
    )
    assert read_hf_tokenizer(tmp_path, "gpt2").chat_template == "file"


@pytest.mark.parametrize("flag", [True, False])
def test_tokenizer_json_ignores_add_bos_token(
    folders: dict[str, Path], tmp_path: Path, flag: bool
) -> None:
    folder = Path(
        shutil.copytree(folders["llama-new" if not flag else "gpt2-new"], tmp_path / "asked")
    )
    tokenizer_config = json.loads((folder / CONFIG_FILE).read_text()) | {
        "add_bos_token": flag,
        "add_eos_token": flag,
    }
    assert_equal_encoding(
        load_with_clearhead(write_files(folder, {CONFIG_FILE: tokenizer_config})),
        load_with_transformers(folder),
        "fox",
    )
    assert load_with_clearhead(folder).bos_tokens == (() if flag else (1,))


def test_llama_adds_bos_by_default(tmp_path: Path) -> None:
    write_files(tmp_path, {"tokenizer.model": LLAMA_SPM})
    assert read_hf_tokenizer(tmp_path, "llama").bos_tokens == (1,)
    write_files(
        tmp_path, {"tokenizer_config.json": {"add_bos_token": False, "add_eos_token": True}}
    )
    words = read_hf_tokenizer(tmp_path, "mistral")
    assert (words.bos_tokens, words.sep_tokens) == ((), (2,))
    write_files(tmp_path, {"tokenizer_config.json": {"add_prefix_space": False}})
    bare = tokenizer(read_hf_tokenizer(tmp_path, "llama"))
    assert (
        bare.to_str_tokens(bare.encode("the"))
        != tokenizer(words).to_str_tokens(tokenizer(words).encode("the"))
        == ["·the"]
    )


def test_prefix_space_of_qwen_is_refused_with_a_tokenizer_json(tmp_path: Path) -> None:
    """Versions of transformers differ in whether it has an effect."""
    Tokenizer.bytes().save(tmp_path / "tokenizer.json")
    for prefix in (False, True):
        options = {"tokenizer_class": "Qwen2TokenizerFast", "add_prefix_space": prefix}
        write_files(tmp_path, {"tokenizer_config.json": options})
        if not prefix:
            assert read_hf_tokenizer(tmp_path, "qwen2").tokenizer
            continue
        with pytest.raises(ClearheadError, match="add_prefix_space"):
            read_hf_tokenizer(tmp_path, "qwen2")


DEEP = "[" * 100_000
GPT2 = LEGACY_FORMATS["gpt2"][1]


@pytest.mark.parametrize(
    ("family", "files", "message"),
    [
        ("gpt2", {CONFIG_FILE: "{"}, r"tokenizer_config\.json is not valid JSON: "),
        ("gpt2", {CONFIG_FILE: b"\xff"}, r"tokenizer_config\.json is not valid JSON: "),
        (
            "gpt2",
            {CONFIG_FILE: f'{{"a": {DEEP}'},
            r"tokenizer_config\.json is not valid JSON: maximum recursion",
        ),
        ("gpt2", {CONFIG_FILE: "[]"}, r"must contain a table of options\."),
        (
            "gpt2",
            GPT2 | {CONFIG_FILE: {"eos_token": 3}},
            r"must be a string, or an object with content, got 3\.",
        ),
        (
            "gpt2",
            GPT2 | {CONFIG_FILE: {"eos_token": {"text": "a"}}},
            r"must be a string, or an object with content",
        ),
        (
            "gpt2",
            GPT2 | {CONFIG_FILE: {"eos_token": {"content": "a", "lstrip": 3}}},
            r"must be a string, or an object",
        ),
        ("gpt2", GPT2 | {CONFIG_FILE: {"eos_token": "\ud800"}}, r"unusable tokenizer: "),
        (
            "gpt2",
            GPT2 | {CONFIG_FILE: {"add_bos_token": "yes"}},
            r"add_bos_token must be true or false, got 'yes'\.",
        ),
        (
            "gpt2",
            GPT2 | {CONFIG_FILE: {"added_tokens_decoder": [3]}},
            r"added_tokens_decoder must be an object",
        ),
        (
            "gpt2",
            GPT2 | {CONFIG_FILE: {"added_tokens_decoder": {"x": "a"}}},
            r"unusable tokenizer: invalid literal",
        ),
        (
            "gpt2",
            GPT2 | {CONFIG_FILE: {"additional_special_tokens": "abc"}},
            r"and additional_special_tokens and .* lists\.",
        ),
        (
            "gpt2",
            GPT2 | {"added_tokens.json": {"new": N + 5}},
            r"'new' cannot have the id 405; ids must be consecutive",
        ),
        (
            "gpt2",
            GPT2 | {"added_tokens.json": {"new": "5"}},
            r"the id of 'new' must be an integer, got '5'\.",
        ),
        ("gpt2", GPT2 | {"vocab.json": {"a": 0, "b": 2}}, r"without gaps or duplicates\."),
        ("gpt2", GPT2 | {"vocab.json": {"a": 0, "b": 0}}, r"without gaps or duplicates\."),
        (
            "gpt2",
            GPT2 | {"vocab.json": {"a": 0, "b": True}},
            r"without gaps or duplicates\.",
        ),
        (
            "gpt2",
            GPT2 | {"vocab.json": {"a": 0, "b": "1"}},
            r"without gaps or duplicates\.",
        ),
        ("gpt2", GPT2 | {"vocab.json": {"a": 1e400}}, r"without gaps or duplicates\."),
        ("gpt2", GPT2 | {"vocab.json": {}}, r"without gaps or duplicates\."),
        (
            "gpt2",
            GPT2 | {"merges.txt": "a nowhere"},
            r"unusable tokenizer: .*Token `nowhere` out of vocabulary\.",
        ),
        (
            "gpt2",
            GPT2 | {"merges.txt": "a b c"},
            r"two tokens separated by a space, got 'a b c'\.",
        ),
        ("gpt2", GPT2 | {"merges.txt": b"\xff"}, r"merges\.txt is not valid UTF-8: "),
        ("gpt2", {"tokenizer.json": DEEP}, r"is not a valid tokenizer\.json: "),
        (
            "gpt2",
            {CONFIG_FILE: {"chat_template": 3}},
            r"chat_template must be a string, or a list of named templates\.",
        ),
        (
            "gpt2",
            {CONFIG_FILE: {"chat_template": ["a"]}},
            r"chat_template must be a string, or a list of named templates\.",
        ),
        (
            "gpt2",
            {CONFIG_FILE: {"chat_template": "\ud800"}},
            r"chat_template contains a lone surrogate\.",
        ),
        ("gpt2", {"chat_template.jinja": b"\xff"}, r"chat_template\.jinja is not valid UTF-8: "),
        ("bert", {"vocab.txt": "a\nb\na\n"}, r"contains 1 duplicate tokens\."),
        (
            "bert",
            {"vocab.txt": WORD_PIECES, CONFIG_FILE: {"do_lower_case": 1}},
            r"do_lower_case must be true or false, got 1",
        ),
        (
            "t5",
            {"spiece.model": T5_SPM, CONFIG_FILE: {"extra_ids": -1}},
            r"extra_ids must be an integer from 0 to 10,000, got -1",
        ),
        (
            "t5",
            {"spiece.model": T5_SPM, CONFIG_FILE: {"extra_ids": 10**9}},
            r"extra_ids must be an integer",
        ),
        ("t5", {"spiece.model": b"x"}, r"spiece\.model is not a SentencePiece model\."),
        ("t5", {"spiece.model": b""}, r"spiece\.model is not a SentencePiece model\."),
        ("t5", {"spiece.model": spm(model_type="char")}, r"must be a Unigram or BPE model"),
        (
            "t5",
            {"spiece.model": spm(model_type="bpe", treat_whitespace_as_suffix=True)},
            r"must be a Unigram or BPE model",
        ),
        (
            "llama",
            {"tokenizer.model": "IQ== 0\nIg== 1\n"},
            r"tokenizer\.model is not a SentencePiece model\.",
        ),
        (
            "marian",
            marian("bpe")[0] | {"vocab.json": {"</s>": 0, "<unk>": 1}},
            r"which has no id in vocab\.",
        ),
        (
            "marian",
            marian("unigram")[0] | {"vocab.json": {"</s>": 0}},
            r"must have an unknown token",
        ),
    ],
)
def test_invalid_tokenizer_files_are_rejected(
    family: str, files: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ClearheadError, match=message) as error:
        read_hf_tokenizer(write_files(tmp_path, files), family)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    "broken",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                "pair": [],
            }
        },
    ],
)
def test_panics_of_the_library_are_errors(broken: dict[str, Any], tmp_path: Path) -> None:
    tree = json.loads(OWN.backend.to_str()) | broken
    tree["post_processor"] = tree["post_processor"] and tree["post_processor"] | {
        "special_tokens": {}
    }
    with pytest.raises(ClearheadError, match=r"\.$"):
        read_hf_tokenizer(write_files(tmp_path, {"tokenizer.json": tree}), "gpt2")


KEYS = [
    "eos_token",
    "added_tokens_decoder",
    "extra_special_tokens",
    "chat_template",
    "tokenizer_class",
    "add_bos_token",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda some: (
        st.lists(some, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "name", "0", "401"]), some, max_size=3)
    ),
    max_leaves=6,
)


@given(
    config=st.dictionaries(st.sampled_from(KEYS), JSON),
    added=st.dictionaries(st.text(max_size=4), JSON, max_size=2),
)
def test_any_config_gives_a_tokenizer_or_an_error(
    folders: dict[str, Path], config: dict[str, Any], added: dict[str, Any]
) -> None:
    for name in ("gpt2", "gpt2-new"):
        folder = folders[name]
        kept = (folder / CONFIG_FILE).read_bytes() if (folder / CONFIG_FILE).exists() else b"{}"
        try:
            words = load_with_clearhead(
                write_files(folder, {CONFIG_FILE: config, "added_tokens.json": added})
            )
            assert (
                words.tokenizer is None
                or words.tokenizer.decode(words.tokenizer.encode("fox")) == "fox"
            )
        except ClearheadError:
            pass
        finally:
            write_files(folder, {CONFIG_FILE: kept, "added_tokens.json": "{}"})


def test_missing_sentencepiece_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(
        ClearheadError, match=r"needs SentencePiece; pip install 'clearhead\[sentencepiece\]'\."
    ):
        read_hf_tokenizer(write_files(tmp_path, {"spiece.model": T5_SPM}), "t5")
