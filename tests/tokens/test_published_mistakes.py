"""Folders that hold no tokenizer, or none that can be used; and what is taken for granted where little is said."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_folders import (
    CHAT,
    LLAMA_SPM,
    OLD,
    OWN,
    SETTINGS,
    T5_SPM,
    VOCAB,
    WORD_PIECES,
    N,
    fill,
    layouts,
    marian,
    ours,
    same,
    spm,
    theirs,
    tokenizer,
)

from clearhead.errors import ClearheadError
from clearhead.tokenizers.huggingface import read_hf_tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return layouts(tmp_path_factory.mktemp("published"), ["gpt2", "llama"])


@pytest.mark.parametrize(
    ("family", "files", "why"),
    [
        ("vit", {}, "holds no tokenizer.json, so the model cannot read text."),
        (
            "gpt2",
            {"vocab.json": VOCAB},
            "neither tokenizer.json nor vocab.json with merges.txt, so",
        ),
        (
            "bert",
            {"tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["code.Own", None]}}},
            "code of its own, which",
        ),
        ("roformer", {"vocab.txt": WORD_PIECES}, "cuts words with jieba, which"),
        (
            "roformer",
            {
                "tokenizer.json": OWN.backend.to_str(),
                "tokenizer_config.json": {"tokenizer_class": "RoFormerTokenizerFast"},
            },
            "cuts words with jieba, which",
        ),
        (
            "bert",
            {
                "vocab.txt": WORD_PIECES,
                "tokenizer_config.json": {"tokenizer_class": "BertJapaneseTokenizer"},
            },
            "holds no tokenizer.json, so the model cannot read text.",
        ),
    ],
)
def test_without_a_tokenizer_a_sentence_says_why(
    family: str, files: dict[str, Any], why: str, tmp_path: Path
) -> None:
    words = read_hf_tokenizer(
        fill(tmp_path, {**files, "chat_template.json": {"chat_template": CHAT}}), family
    )
    assert words.tokenizer is words.source_tokenizer is None
    assert why in words.missing_reason
    assert words.chat_template == CHAT


def test_code_beside_a_tokenizer_is_ignored(tmp_path: Path) -> None:
    config = {
        "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]},
        "tokenizer_class": "Tokenizer",
    }
    fill(
        tmp_path,
        {
            "tokenizer_config.json": config,
            "tokenizer.json": OWN.backend.to_str(),
            "evil.py": "1 / 0",
        },
    )
    assert tokenizer(read_hf_tokenizer(tmp_path, "gpt2")).encode("fox") == OWN.encode("fox")


def test_a_file_of_its_own_is_the_chat_template_before_others(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {"chat_template.jinja": "file", "tokenizer_config.json": {"chat_template": "config"}},
    )
    assert read_hf_tokenizer(tmp_path, "gpt2").chat_template == "file"


@pytest.mark.parametrize("flag", [True, False])
def test_beside_a_tokenizer_json_nobody_asks_for_beginnings(
    folders: dict[str, Path], tmp_path: Path, flag: bool
) -> None:
    folder = Path(
        shutil.copytree(folders["llama-new" if not flag else "gpt2-new"], tmp_path / "asked")
    )
    said = json.loads((folder / SETTINGS).read_text()) | {
        "add_bos_token": flag,
        "add_eos_token": flag,
    }
    same(ours(fill(folder, {SETTINGS: said})), theirs(folder), "fox")
    assert ours(folder).bos_tokens == (() if flag else (1,))


def test_where_nothing_is_said_llama_begins_with_a_token(tmp_path: Path) -> None:
    fill(tmp_path, {"tokenizer.model": LLAMA_SPM})
    assert read_hf_tokenizer(tmp_path, "llama").bos_tokens == (1,)
    fill(tmp_path, {"tokenizer_config.json": {"add_bos_token": False, "add_eos_token": True}})
    words = read_hf_tokenizer(tmp_path, "mistral")
    assert (words.bos_tokens, words.sep_tokens) == ((), (2,))
    fill(tmp_path, {"tokenizer_config.json": {"add_prefix_space": False}})
    bare = tokenizer(read_hf_tokenizer(tmp_path, "llama"))
    assert (
        bare.to_str_tokens(bare.encode("the"))
        != tokenizer(words).to_str_tokens(tokenizer(words).encode("the"))
        == ["·the"]
    )


DEEP = "[" * 100_000
GPT2 = OLD["gpt2"][1]


@pytest.mark.parametrize(
    ("family", "files", "sentence"),
    [
        ("gpt2", {SETTINGS: "{"}, r"tokenizer_config\.json is not valid JSON: "),
        ("gpt2", {SETTINGS: b"\xff"}, r"tokenizer_config\.json is not valid JSON: "),
        (
            "gpt2",
            {SETTINGS: f'{{"a": {DEEP}'},
            r"tokenizer_config\.json is not valid JSON: maximum recursion",
        ),
        ("gpt2", {SETTINGS: "[]"}, r"must hold a table of options\."),
        (
            "gpt2",
            GPT2 | {SETTINGS: {"eos_token": 3}},
            r"must be a text, or a table with its content, not 3\.",
        ),
        (
            "gpt2",
            GPT2 | {SETTINGS: {"eos_token": {"text": "a"}}},
            r"must be a text, or a table with its content",
        ),
        (
            "gpt2",
            GPT2 | {SETTINGS: {"eos_token": {"content": "a", "lstrip": 3}}},
            r"must be a text, or a table",
        ),
        ("gpt2", GPT2 | {SETTINGS: {"eos_token": "\ud800"}}, r"cannot be used: "),
        (
            "gpt2",
            GPT2 | {SETTINGS: {"add_bos_token": "yes"}},
            r"add_bos_token = 'yes' must be true or false\.",
        ),
        (
            "gpt2",
            GPT2 | {SETTINGS: {"added_tokens_decoder": [3]}},
            r"added_tokens_decoder must be a table",
        ),
        (
            "gpt2",
            GPT2 | {SETTINGS: {"added_tokens_decoder": {"x": "a"}}},
            r"cannot be used: invalid literal",
        ),
        (
            "gpt2",
            GPT2 | {SETTINGS: {"additional_special_tokens": "abc"}},
            r"and additional_special_tokens and .* lists\.",
        ),
        (
            "gpt2",
            GPT2 | {"added_tokens.json": {"new": N + 5}},
            r"'new' cannot have the id 405; ids must follow one another",
        ),
        (
            "gpt2",
            GPT2 | {"added_tokens.json": {"new": "5"}},
            r"the id of 'new' is '5', no whole number\.",
        ),
        ("gpt2", GPT2 | {"vocab.json": {"a": 0, "b": 2}}, r"each number once and none left out\."),
        ("gpt2", GPT2 | {"vocab.json": {"a": 0, "b": 0}}, r"each number once and none left out\."),
        (
            "gpt2",
            GPT2 | {"vocab.json": {"a": 0, "b": True}},
            r"each number once and none left out\.",
        ),
        (
            "gpt2",
            GPT2 | {"vocab.json": {"a": 0, "b": "1"}},
            r"each number once and none left out\.",
        ),
        ("gpt2", GPT2 | {"vocab.json": {"a": 1e400}}, r"each number once and none left out\."),
        ("gpt2", GPT2 | {"vocab.json": {}}, r"each number once and none left out\."),
        (
            "gpt2",
            GPT2 | {"merges.txt": "a nowhere"},
            r"cannot be used: .*Token `nowhere` out of vocabulary\.",
        ),
        (
            "gpt2",
            GPT2 | {"merges.txt": "a b c"},
            r"'a b c' must be two tokens with a space between\.",
        ),
        ("gpt2", GPT2 | {"merges.txt": b"\xff"}, r"merges\.txt is not text in UTF-8: "),
        ("gpt2", {"tokenizer.json": DEEP}, r"is not a tokenizer\.json: "),
        (
            "gpt2",
            {SETTINGS: {"chat_template": 3}},
            r"chat_template must be a text, or a list of texts with names\.",
        ),
        (
            "gpt2",
            {SETTINGS: {"chat_template": ["a"]}},
            r"chat_template must be a text, or a list of texts with names\.",
        ),
        (
            "gpt2",
            {SETTINGS: {"chat_template": "\ud800"}},
            r"chat_template holds half a character\.",
        ),
        ("gpt2", {"chat_template.jinja": b"\xff"}, r"chat_template\.jinja is not text in UTF-8: "),
        ("bert", {"vocab.txt": "a\nb\na\n"}, r"must hold each token once; 1 repeat\."),
        (
            "bert",
            {"vocab.txt": WORD_PIECES, SETTINGS: {"do_lower_case": 1}},
            r"do_lower_case = 1 must be true or false",
        ),
        (
            "t5",
            {"spiece.model": T5_SPM, SETTINGS: {"extra_ids": -1}},
            r"extra_ids = -1 must be a small whole number",
        ),
        (
            "t5",
            {"spiece.model": T5_SPM, SETTINGS: {"extra_ids": 10**9}},
            r"must be a small whole number",
        ),
        ("t5", {"spiece.model": b"x"}, r"spiece\.model is not a SentencePiece model\."),
        ("t5", {"spiece.model": b""}, r"spiece\.model is not a SentencePiece model\."),
        ("t5", {"spiece.model": spm(model_type="char")}, r"must be Unigram or BPE"),
        (
            "t5",
            {"spiece.model": spm(model_type="bpe", treat_whitespace_as_suffix=True)},
            r"must be Unigram or BPE",
        ),
        (
            "llama",
            {"tokenizer.model": "IQ== 0\nIg== 1\n"},
            r"tokenizer\.model is not a SentencePiece model\.",
        ),
        (
            "marian",
            marian("bpe")[0] | {"vocab.json": {"</s>": 0, "<unk>": 1}},
            r"for which the vocabulary has no id\.",
        ),
        (
            "marian",
            marian("unigram")[0] | {"vocab.json": {"</s>": 0}},
            r"needs a token for unknown text",
        ),
    ],
)
def test_what_cannot_be_used_is_told_in_a_sentence(
    family: str, files: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ClearheadError, match=sentence) as told:
        read_hf_tokenizer(fill(tmp_path, files), family)
    assert str(told.value).endswith(".")


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
def test_a_panic_of_the_library_is_a_sentence(broken: dict[str, Any], tmp_path: Path) -> None:
    tree = json.loads(OWN.backend.to_str()) | broken
    tree["post_processor"] = tree["post_processor"] and tree["post_processor"] | {
        "special_tokens": {}
    }
    with pytest.raises(ClearheadError, match=r"\.$"):
        read_hf_tokenizer(fill(tmp_path, {"tokenizer.json": tree}), "gpt2")


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
    settings=st.dictionaries(st.sampled_from(KEYS), JSON),
    added=st.dictionaries(st.text(max_size=4), JSON, max_size=2),
)
def test_any_settings_give_a_tokenizer_or_a_sentence(
    folders: dict[str, Path], settings: dict[str, Any], added: dict[str, Any]
) -> None:
    for name in ("gpt2", "gpt2-new"):
        folder = folders[name]
        kept = (folder / SETTINGS).read_bytes() if (folder / SETTINGS).exists() else b"{}"
        try:
            words = ours(fill(folder, {SETTINGS: settings, "added_tokens.json": added}))
            assert (
                words.tokenizer is None
                or words.tokenizer.decode(words.tokenizer.encode("fox")) == "fox"
            )
        except ClearheadError:
            pass
        finally:
            fill(folder, {SETTINGS: kept, "added_tokens.json": "{}"})


def test_without_the_extra_the_sentence_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(
        ClearheadError, match=r"needs SentencePiece; pip install 'clearhead\[sentencepiece\]'\."
    ):
        read_hf_tokenizer(fill(tmp_path, {"spiece.model": T5_SPM}), "t5")
