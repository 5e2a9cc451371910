"""Laws of published tokenizers: whatever the layout, ours cut, frame and decode as the model's own does."""

import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_folders import (
    CHAT,
    DEVIATE,
    FOLDERS,
    LINES,
    OWN,
    comparable,
    fill,
    framed,
    layouts,
    marian,
    ours,
    plain,
    same,
    shaped,
    theirs,
    tokenizer,
    transformers,
    typed,
)

from clearhead.config.model import InferenceConfig, ModelConfig
from clearhead.tokenizers.huggingface import (
    SPECIAL_TOKEN_ROLES,
    PretrainedTokenizer,
    write_hf_tokenizer,
)
from clearhead.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return layouts(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module", params=FOLDERS)
def both(
    request: pytest.FixtureRequest, folders: dict[str, Path]
) -> tuple[str, PretrainedTokenizer, Any]:
    """One folder as we read it, and as transformers does."""
    return request.param, ours(folders[request.param]), theirs(folders[request.param])


@given(data=st.data())
def test_text_is_cut_framed_and_decoded_as_by_transformers(
    both: tuple[str, PretrainedTokenizer, Any], data: st.DataObject
) -> None:
    name, mine, other = both
    text = comparable(
        name, data.draw(plain) if name in DEVIATE else typed(data, tokenizer(mine).special_tokens)
    )
    ids = other(text)["input_ids"]
    assert framed(mine, text) == ids
    assert tokenizer(mine).decode(ids) == other.decode(ids)


@given(data=st.data())
def test_special_tokens_typed_by_a_user_are_text(
    both: tuple[str, PretrainedTokenizer, Any], data: st.DataObject
) -> None:
    mine = both[1]
    words = tokenizer(mine)
    unknown = mine.special_token_ids.get("unk")
    text = typed(data, words.special_tokens)
    assert {*words.encode(text)} & {*words.special_tokens.values()} <= {unknown} - {
        *mine.bos_tokens,
        *mine.sep_tokens,
    }
    bare = data.draw(plain)
    if not any(name in bare for name in words.special_tokens):
        assert words.encode(bare) == words.encode(bare, allow_special=True)


def test_roles_are_those_of_transformers(both: tuple[str, PretrainedTokenizer, Any]) -> None:
    _, mine, other = both
    there = {role: getattr(other, f"{role}_token_id") for role in SPECIAL_TOKEN_ROLES}
    assert mine.special_token_ids == {role: i for role, i in there.items() if i is not None}
    assert len(tokenizer(mine)) == len(other)
    assert (mine.chat_template or None) == (CHAT if other.chat_template else None)


# Marian: two ways of cutting, one numbering.
@pytest.fixture(scope="module", params=["unigram", "bpe"])
def translator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[set[str]]]:
    files, known = marian(request.param)
    return fill(tmp_path_factory.mktemp("marian"), files), known


@pytest.mark.filterwarnings("ignore:Recommended")
@given(text=plain, code=st.sampled_from(["", ">>de<<", ">>fr<< "]))
def test_sources_and_targets_are_cut_by_their_own_rules(
    translator: tuple[Path, list[set[str]]], text: str, code: str
) -> None:
    """As by MarianTokenizer, but for characters that a side has never seen.

    Theirs looks those up in the vocabulary of both languages; here they are unknown, since the piece that carries
    that name belongs to the other language.
    """
    folder, known = translator
    mine = ours(folder)
    other = theirs(folder)
    assert mine.source_tokenizer is not None
    names = [*json.loads((folder / "vocab.json").read_text())]
    text = "".join(
        c
        for c in unicodedata.normalize("NFC", text)
        if unicodedata.category(c) not in ("Mn", "Me", "Mc", "Cf")
    )
    for cutter, said, ids, own in (
        (
            mine.source_tokenizer,
            code + text,
            other(code + text)["input_ids"],
            known[0] | {">>de<<", ">>fr<<"},
        ),
        (tokenizer(mine), text, other(text_target=text)["input_ids"], known[1]),
    ):
        cut = cutter.encode(said)
        assert [*cut, *mine.sep_tokens] == [
            i if names[i] in own | {"</s>"} else names.index("<unk>") for i in ids
        ]
        assert {names[i] for i in cut} <= own | {"<unk>"}
    if names.index("<unk>") not in cut:
        assert tokenizer(mine).decode(cut) == other.decode(cut)
    assert tokenizer(mine).decode(range(len(names))) == mine.source_tokenizer.decode(
        range(len(names))
    )


def test_two_vocabularies_number_two_languages(
    translator: tuple[Path, list[set[str]]], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(translator[0], tmp_path / "two"))
    ids = json.loads((folder / "vocab.json").read_text())
    fill(folder, {"target_vocab.json": dict(zip(ids, reversed(range(len(ids))), strict=True))})
    fill(folder, {"tokenizer_config.json": {"separate_vocabs": True}})
    two = ours(folder)
    one = ours(translator[0])
    assert two.source_tokenizer is not None
    assert one.source_tokenizer is not None
    assert two.source_tokenizer.encode("the dog") == one.source_tokenizer.encode("the dog")
    text = "Fluß"
    assert tokenizer(two).encode(text) == [len(ids) - 1 - i for i in tokenizer(one).encode(text)]
    assert tokenizer(two).decode(tokenizer(two).encode(text)) == text


WRITTEN = {
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
# Not qwen2: whatever a folder says, AutoTokenizer of transformers 5 cuts a qwen2's text with a pattern of its own.
TYPES = ["gpt2", "llama", "mistral", "qwen3", "bert", "roformer", "marian", "t5", "whisper"]


@pytest.fixture(scope="module")
def rewritten(
    both: tuple[str, PretrainedTokenizer, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[PretrainedTokenizer, PretrainedTokenizer, Any]:
    """What was read, what is read again after we wrote it, and what transformers reads of that."""
    name, words, _ = both
    stop, pad, mask = (
        (i,) if (i := words.special_token_ids.get(role)) is not None else ()
        for role in ("eos", "pad", "mask")
    )
    around = InferenceConfig(
        bos_tokens=words.bos_tokens,
        sep_tokens=words.sep_tokens,
        eos_tokens=stop,
        pad_token=pad,
        mask_token=mask,
        chat_template=words.chat_template,
    )
    folder = tmp_path_factory.mktemp("written")
    write_hf_tokenizer(folder, tokenizer(words), None, around, shaped(around, 77))
    fill(folder, {"config.json": {"model_type": TYPES[FOLDERS.index(name) % len(TYPES)]}})
    return words, ours(folder), theirs(folder)


@given(data=st.data())
def test_what_is_written_is_cut_and_decoded_as_before(
    rewritten: tuple[PretrainedTokenizer, PretrainedTokenizer, Any], data: st.DataObject
) -> None:
    words, again, other = rewritten
    text = typed(data, tokenizer(words).special_tokens)
    same(words, other, text)
    assert framed(again, text) == framed(words, text)
    assert tokenizer(again).encode(text) == tokenizer(words).encode(text)


def test_what_is_written_keeps_its_roles(
    rewritten: tuple[PretrainedTokenizer, PretrainedTokenizer, Any],
) -> None:
    words, again, other = rewritten
    for role in ("eos", "pad", "mask"):
        assert (
            getattr(other, f"{role}_token_id")
            == again.special_token_ids.get(role)
            == words.special_token_ids.get(role)
        )
    assert (again.bos_tokens, again.sep_tokens, again.chat_template) == (
        words.bos_tokens,
        words.sep_tokens,
        words.chat_template,
    )
    assert (other.model_max_length, other.chat_template) == (77, words.chat_template or None)


@pytest.mark.parametrize("family", TYPES)
def test_what_is_written_is_read_for_any_family(family: str, tmp_path: Path) -> None:
    write_hf_tokenizer(
        tmp_path, OWN, None, InferenceConfig(bos_tokens=(299,), eos_tokens=(298,)), ModelConfig()
    )
    fill(tmp_path, {"config.json": {"model_type": family}})
    same(ours(tmp_path), theirs(tmp_path), "I'll see 1234 Füße,\n\n  don't they?<|end|>")


@pytest.mark.parametrize("name", WRITTEN)
def test_tokenizers_of_our_own_are_read_by_transformers(name: str, tmp_path: Path) -> None:
    own, around = WRITTEN[name]
    write_hf_tokenizer(tmp_path, own, None, around, shaped(around, 128))
    fill(tmp_path, {"config.json": {"model_type": "llama"}})
    again = ours(tmp_path)
    assert (again.bos_tokens, again.sep_tokens, again.chat_template) == (
        around.bos_tokens,
        around.sep_tokens,
        around.chat_template,
    )
    for text in [
        "",
        "0 + 1 = 1",
        *([] if name == "characters" else ["The end.<|end|>...\n", "<|a:b|> Füße"]),
    ]:
        same(again, theirs(tmp_path), text)
        assert tokenizer(again).encode(text) == own.encode(text)
    assert again.special_token_ids.get("eos") == (298 if name == "begin-and-end" else None)
    said = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert said["clean_up_tokenization_spaces"] is False  # or transformers 4 takes spaces away
    assert (
        ("chat_template" in said)
        == (tmp_path / "chat_template.jinja").exists()
        == bool(around.chat_template)
    )


def test_what_is_written_for_qwen2_is_read_by_the_plain_class(tmp_path: Path) -> None:
    write_hf_tokenizer(
        tmp_path, OWN, None, InferenceConfig(bos_tokens=(299,), eos_tokens=(298,)), ModelConfig()
    )
    fill(tmp_path, {"config.json": {"model_type": "qwen2"}})
    same(
        ours(tmp_path),
        transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path),
        "I'll see 1234 Füße, don't I?",
    )


def test_two_texts_are_framed_as_one_is(tmp_path: Path) -> None:
    write_hf_tokenizer(
        tmp_path, OWN, None, InferenceConfig(bos_tokens=(299,), sep_tokens=(298,)), ModelConfig()
    )
    fill(tmp_path, {"config.json": {"model_type": "bert"}})
    a = OWN.encode("a")
    b = OWN.encode("b")
    pair = theirs(tmp_path)("a", "b", return_token_type_ids=True)
    assert pair["input_ids"] == [299, *a, 298, *b, 298]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]


def test_of_two_tokenizers_transformers_reads_sources_and_both_come_back(
    translator: tuple[Path, list[set[str]]], tmp_path: Path
) -> None:
    words = ours(translator[0])
    assert words.source_tokenizer is not None
    special = words.special_token_ids
    around = InferenceConfig(
        sep_tokens=words.sep_tokens,
        eos_tokens=(special["eos"],),
        decoder_start_tokens=(special["pad"],),
        pad_token=(special["pad"],),
    )
    write_hf_tokenizer(
        tmp_path, tokenizer(words), words.source_tokenizer, around, shaped(around, 128)
    )
    fill(tmp_path, {"config.json": {"model_type": "marian"}})
    other = theirs(tmp_path)
    again = ours(tmp_path)
    assert again.source_tokenizer is not None
    assert (again.sep_tokens, again.special_token_ids) == (
        words.sep_tokens,
        words.special_token_ids,
    )
    for text in LINES[:4]:
        written = tokenizer(words).encode(text)
        assert other(f">>de<< {text}")["input_ids"] == [
            *words.source_tokenizer.encode(f">>de<< {text}"),
            *words.sep_tokens,
        ]
        assert other.decode(written) == tokenizer(words).decode(written)
        assert tokenizer(again).encode(text) == written
        assert again.source_tokenizer.encode(text) == words.source_tokenizer.encode(text)
