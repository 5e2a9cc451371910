"""Laws of pretrained tokenizers: in any format, they encode and decode as in transformers."""

import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_folders import (
    CHAT,
    FOLDERS,
    LINES,
    OWN,
    PREFIX_SPACE_DIFFERS,
    assert_equal_encoding,
    comparable_text,
    draw_text_with_special_tokens,
    encode_with_special_tokens,
    load_with_clearhead,
    load_with_transformers,
    marian,
    model_config_for,
    plain_texts,
    tokenizer,
    transformers,
    write_files,
    write_folders,
)

from clearhead.config.model import InferenceConfig, ModelConfig
from clearhead.tokenizers.huggingface import (
    SPECIAL_TOKEN_ROLES,
    PretrainedTokenizer,
    write_hf_tokenizer,
)
from clearhead.tokenizers.tokenizer import Tokenizer

LoadedTwice = tuple[str, PretrainedTokenizer, Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_folders(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module", params=FOLDERS)
def pretrained_and_reference(
    request: pytest.FixtureRequest, folders: dict[str, Path]
) -> LoadedTwice:
    """A folder, loaded by clearhead and by transformers."""
    return (
        request.param,
        load_with_clearhead(folders[request.param]),
        load_with_transformers(folders[request.param]),
    )


@given(data=st.data())
def test_encoding_and_decoding_equal_transformers(
    pretrained_and_reference: LoadedTwice, data: st.DataObject
) -> None:
    name, pretrained, reference = pretrained_and_reference
    text = comparable_text(
        name,
        data.draw(plain_texts)
        if name in PREFIX_SPACE_DIFFERS
        else draw_text_with_special_tokens(data, tokenizer(pretrained).special_tokens),
    )
    ids = reference(text)["input_ids"]
    assert encode_with_special_tokens(pretrained, text) == ids
    assert tokenizer(pretrained).decode(ids) == reference.decode(ids)


@given(data=st.data())
def test_special_tokens_in_user_text_are_plain_text(
    pretrained_and_reference: LoadedTwice, data: st.DataObject
) -> None:
    pretrained = pretrained_and_reference[1]
    words = tokenizer(pretrained)
    unknown = pretrained.special_token_ids.get("unk")
    text = draw_text_with_special_tokens(data, words.special_tokens)
    assert {*words.encode(text)} & {*words.special_tokens.values()} <= {unknown} - {
        *pretrained.bos_tokens,
        *pretrained.sep_tokens,
    }
    bare = data.draw(plain_texts)
    if not any(name in bare for name in words.special_tokens):
        assert words.encode(bare) == words.encode(bare, allow_special=True)


def test_special_token_roles_equal_transformers(
    pretrained_and_reference: LoadedTwice,
) -> None:
    _, pretrained, reference = pretrained_and_reference
    there = {role: getattr(reference, f"{role}_token_id") for role in SPECIAL_TOKEN_ROLES}
    assert pretrained.special_token_ids == {role: i for role, i in there.items() if i is not None}
    assert len(tokenizer(pretrained)) == len(reference)
    assert (pretrained.chat_template or None) == (CHAT if reference.chat_template else None)


# Marian: two tokenizers with one vocabulary.
@pytest.fixture(scope="module", params=["unigram", "bpe"])
def marian_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[set[str]]]:
    files, known = marian(request.param)
    return write_files(tmp_path_factory.mktemp("marian"), files), known


@pytest.mark.filterwarnings("ignore:Recommended")
@given(text=plain_texts, code=st.sampled_from(["", ">>de<<", ">>fr<< "]))
def test_marian_sources_and_targets_equal_transformers(
    marian_folder: tuple[Path, list[set[str]]], text: str, code: str
) -> None:
    """Like MarianTokenizer, except for characters that one side has never seen.

    transformers looks them up in the vocabulary of both languages; here they are unknown, since
    the piece with that name belongs to the other language.
    """
    folder, known = marian_folder
    pretrained = load_with_clearhead(folder)
    reference = load_with_transformers(folder)
    assert pretrained.source_tokenizer is not None
    names = [*json.loads((folder / "vocab.json").read_text())]
    text = "".join(
        c
        for c in unicodedata.normalize("NFC", text)
        if unicodedata.category(c) not in ("Mn", "Me", "Mc", "Cf")
    )
    for cutter, expected, ids, own in (
        (
            pretrained.source_tokenizer,
            code + text,
            reference(code + text)["input_ids"],
            known[0] | {">>de<<", ">>fr<<"},
        ),
        (tokenizer(pretrained), text, reference(text_target=text)["input_ids"], known[1]),
    ):
        cut = cutter.encode(expected)
        assert [*cut, *pretrained.sep_tokens] == [
            i if names[i] in own | {"</s>"} else names.index("<unk>") for i in ids
        ]
        assert {names[i] for i in cut} <= own | {"<unk>"}
    if names.index("<unk>") not in cut:
        assert tokenizer(pretrained).decode(cut) == reference.decode(cut)
    assert tokenizer(pretrained).decode(range(len(names))) == pretrained.source_tokenizer.decode(
        range(len(names))
    )


def test_separate_marian_vocabularies(
    marian_folder: tuple[Path, list[set[str]]], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(marian_folder[0], tmp_path / "two"))
    ids = json.loads((folder / "vocab.json").read_text())
    write_files(
        folder, {"target_vocab.json": dict(zip(ids, reversed(range(len(ids))), strict=True))}
    )
    write_files(folder, {"tokenizer_config.json": {"separate_vocabs": True}})
    two = load_with_clearhead(folder)
    one = load_with_clearhead(marian_folder[0])
    assert two.source_tokenizer is not None
    assert one.source_tokenizer is not None
    assert two.source_tokenizer.encode("the dog") == one.source_tokenizer.encode("the dog")
    text = "Fluß"
    assert tokenizer(two).encode(text) == [len(ids) - 1 - i for i in tokenizer(one).encode(text)]
    assert tokenizer(two).decode(tokenizer(two).encode(text)) == text


OWN_TOKENIZERS = {
    "begin-and-end": (
        OWN,
        InferenceConfig(
            bos_tokens=(299, 298),
            sep_tokens=(298,),
            eos_tokens=(298,),
            pad_token=(299,),
            chat_template=CHAT,
        ),
    ),
    "nothing-around": (OWN, InferenceConfig()),
    "a-letter-stops": (OWN, InferenceConfig(eos_tokens=(OWN.encode(".")[0],))),
    "bytes": (Tokenizer.bytes(), InferenceConfig(bos_tokens=(0,), eos_tokens=(10,))),
    "characters": (Tokenizer.characters("01 +="), InferenceConfig(sep_tokens=(0,))),
}
# Not qwen2: AutoTokenizer of transformers 5 always uses its own pattern for it.
TYPES = ["gpt2", "llama", "mistral", "qwen3", "bert", "roformer", "marian", "t5", "whisper"]


@pytest.fixture(scope="module")
def rewritten(
    pretrained_and_reference: LoadedTwice,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[PretrainedTokenizer, PretrainedTokenizer, Any]:
    """The original, what is read after writing it, and what transformers reads."""
    name, words, _ = pretrained_and_reference
    stop, pad, mask = (
        (i,) if (i := words.special_token_ids.get(role)) is not None else ()
        for role in ("eos", "pad", "mask")
    )
    inference = InferenceConfig(
        bos_tokens=words.bos_tokens,
        sep_tokens=words.sep_tokens,
        eos_tokens=stop,
        pad_token=pad,
        mask_token=mask,
        chat_template=words.chat_template,
    )
    folder = tmp_path_factory.mktemp("written")
    write_hf_tokenizer(folder, tokenizer(words), None, inference, model_config_for(inference, 77))
    write_files(folder, {"config.json": {"model_type": TYPES[FOLDERS.index(name) % len(TYPES)]}})
    return words, load_with_clearhead(folder), load_with_transformers(folder)


@given(data=st.data())
def test_written_tokenizer_equals_the_original(
    rewritten: tuple[PretrainedTokenizer, PretrainedTokenizer, Any], data: st.DataObject
) -> None:
    words, again, reference = rewritten
    text = draw_text_with_special_tokens(data, tokenizer(words).special_tokens)
    assert_equal_encoding(words, reference, text)
    assert encode_with_special_tokens(again, text) == encode_with_special_tokens(words, text)
    assert tokenizer(again).encode(text) == tokenizer(words).encode(text)


def test_written_tokenizer_keeps_its_roles(
    rewritten: tuple[PretrainedTokenizer, PretrainedTokenizer, Any],
) -> None:
    words, again, reference = rewritten
    for role in ("eos", "pad", "mask"):
        assert (
            getattr(reference, f"{role}_token_id")
            == again.special_token_ids.get(role)
            == words.special_token_ids.get(role)
        )
    assert (again.bos_tokens, again.sep_tokens, again.chat_template) == (
        words.bos_tokens,
        words.sep_tokens,
        words.chat_template,
    )
    assert (reference.model_max_length, reference.chat_template) == (
        77,
        words.chat_template or None,
    )


@pytest.mark.parametrize("family", TYPES)
def test_written_tokenizer_loads_for_any_model_type(family: str, tmp_path: Path) -> None:
    write_hf_tokenizer(
        tmp_path, OWN, None, InferenceConfig(bos_tokens=(299,), eos_tokens=(298,)), ModelConfig()
    )
    write_files(tmp_path, {"config.json": {"model_type": family}})
    assert_equal_encoding(
        load_with_clearhead(tmp_path),
        load_with_transformers(tmp_path),
        "I'll see 1234 Füße,\n\n  don't they?<|end|>",
    )


@pytest.mark.parametrize("name", OWN_TOKENIZERS)
def test_own_tokenizers_load_in_transformers(name: str, tmp_path: Path) -> None:
    own, inference = OWN_TOKENIZERS[name]
    write_hf_tokenizer(tmp_path, own, None, inference, model_config_for(inference, 128))
    write_files(tmp_path, {"config.json": {"model_type": "llama"}})
    again = load_with_clearhead(tmp_path)
    assert (again.bos_tokens, again.sep_tokens, again.chat_template) == (
        inference.bos_tokens,
        inference.sep_tokens,
        inference.chat_template,
    )
    for text in [
        "",
        "0 + 1 = 1",
        *([] if name == "characters" else ["The end.<|end|>...\n", "<|a:b|> Füße"]),
    ]:
        assert_equal_encoding(again, load_with_transformers(tmp_path), text)
        assert tokenizer(again).encode(text) == own.encode(text)
    assert again.special_token_ids.get("eos") == (298 if name == "begin-and-end" else None)
    tokenizer_config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (
        tokenizer_config["clean_up_tokenization_spaces"] is False
    )  # or transformers 4 takes spaces away
    assert (
        ("chat_template" in tokenizer_config)
        == (tmp_path / "chat_template.jinja").exists()
        == bool(inference.chat_template)
    )


def test_written_qwen2_tokenizer_loads_in_the_fast_class(tmp_path: Path) -> None:
    write_hf_tokenizer(
        tmp_path, OWN, None, InferenceConfig(bos_tokens=(299,), eos_tokens=(298,)), ModelConfig()
    )
    write_files(tmp_path, {"config.json": {"model_type": "qwen2"}})
    assert_equal_encoding(
        load_with_clearhead(tmp_path),
        transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path),
        "I'll see 1234 Füße, don't I?",
    )


def test_pairs_have_special_tokens_and_token_types(tmp_path: Path) -> None:
    write_hf_tokenizer(
        tmp_path, OWN, None, InferenceConfig(bos_tokens=(299,), sep_tokens=(298,)), ModelConfig()
    )
    write_files(tmp_path, {"config.json": {"model_type": "bert"}})
    a = OWN.encode("a")
    b = OWN.encode("b")
    pair = load_with_transformers(tmp_path)("a", "b", return_token_type_ids=True)
    assert pair["input_ids"] == [299, *a, 298, *b, 298]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]


def test_two_tokenizers_round_trip(
    marian_folder: tuple[Path, list[set[str]]], tmp_path: Path
) -> None:
    words = load_with_clearhead(marian_folder[0])
    assert words.source_tokenizer is not None
    special = words.special_token_ids
    inference = InferenceConfig(
        sep_tokens=words.sep_tokens,
        eos_tokens=(special["eos"],),
        decoder_start_tokens=(special["pad"],),
        pad_token=(special["pad"],),
    )
    write_hf_tokenizer(
        tmp_path,
        tokenizer(words),
        words.source_tokenizer,
        inference,
        model_config_for(inference, 128),
    )
    write_files(tmp_path, {"config.json": {"model_type": "marian"}})
    reference = load_with_transformers(tmp_path)
    again = load_with_clearhead(tmp_path)
    assert again.source_tokenizer is not None
    assert (again.sep_tokens, again.special_token_ids) == (
        words.sep_tokens,
        words.special_token_ids,
    )
    for text in LINES[:4]:
        written = tokenizer(words).encode(text)
        assert reference(f">>de<< {text}")["input_ids"] == [
            *words.source_tokenizer.encode(f">>de<< {text}"),
            *words.sep_tokens,
        ]
        assert reference.decode(written) == tokenizer(words).decode(written)
        assert tokenizer(again).encode(text) == written
        assert again.source_tokenizer.encode(text) == words.source_tokenizer.encode(text)
