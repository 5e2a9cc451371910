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

from clearhead.config import ModelConfig, Use
from clearhead.tokens import published
from clearhead.tokens.published import Published
from clearhead.tokens.text import Tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return layouts(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module", params=FOLDERS)
def both(request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[str, Published, Any]:
    """One folder as we read it, and as transformers does."""
    return request.param, ours(folders[request.param]), theirs(folders[request.param])


@given(data=st.data())
def test_text_is_cut_framed_and_decoded_as_by_transformers(
    both: tuple[str, Published, Any], data: st.DataObject
) -> None:
    name, mine, other = both
    text = comparable(name, data.draw(plain) if name in DEVIATE else typed(data, tokenizer(mine).special))
    ids = other(text)["input_ids"]
    assert framed(mine, text) == ids
    assert tokenizer(mine).decode(ids) == other.decode(ids)


@given(data=st.data())
def test_special_tokens_typed_by_a_user_are_text(both: tuple[str, Published, Any], data: st.DataObject) -> None:
    mine = both[1]
    words, unknown = tokenizer(mine), mine.special.get("unk")
    text = typed(data, words.special)
    assert {*words.encode(text)} & {*words.special.values()} <= {unknown} - {*mine.begin, *mine.end}
    bare = data.draw(plain)
    if not any(name in bare for name in words.special):
        assert words.encode(bare) == words.encode(bare, allow_special=True)


def test_roles_are_those_of_transformers(both: tuple[str, Published, Any]) -> None:
    _, mine, other = both
    there = {role: getattr(other, f"{role}_token_id") for role in published.ROLES}
    assert mine.special == {role: i for role, i in there.items() if i is not None}
    assert len(tokenizer(mine)) == len(other)
    assert (mine.chat or None) == (CHAT if other.chat_template else None)


# Marian: two ways of cutting, one numbering.
@pytest.fixture(scope="module", params=["unigram", "bpe"])
def translator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[set[str]]]:
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
    mine, other = ours(folder), theirs(folder)
    assert mine.source is not None
    names = [*json.loads((folder / "vocab.json").read_text())]
    text = "".join(
        c for c in unicodedata.normalize("NFC", text) if unicodedata.category(c) not in ("Mn", "Me", "Mc", "Cf")
    )
    for cutter, said, ids, own in (
        (mine.source, code + text, other(code + text)["input_ids"], known[0] | {">>de<<", ">>fr<<"}),
        (tokenizer(mine), text, other(text_target=text)["input_ids"], known[1]),
    ):
        cut = cutter.encode(said)
        assert [*cut, *mine.end] == [i if names[i] in own | {"</s>"} else names.index("<unk>") for i in ids]
        assert {names[i] for i in cut} <= own | {"<unk>"}
    if names.index("<unk>") not in cut:
        assert tokenizer(mine).decode(cut) == other.decode(cut)
    assert tokenizer(mine).decode(range(len(names))) == mine.source.decode(range(len(names)))


def test_two_vocabularies_number_two_languages(translator: tuple[Path, list[set[str]]], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(translator[0], tmp_path / "two"))
    ids = json.loads((folder / "vocab.json").read_text())
    fill(folder, {"target_vocab.json": dict(zip(ids, reversed(range(len(ids))), strict=True))})
    fill(folder, {"tokenizer_config.json": {"separate_vocabs": True}})
    two, one = ours(folder), ours(translator[0])
    assert two.source is not None
    assert one.source is not None
    assert two.source.encode("the dog") == one.source.encode("the dog")
    text = "Fluß"
    assert tokenizer(two).encode(text) == [len(ids) - 1 - i for i in tokenizer(one).encode(text)]
    assert tokenizer(two).decode(tokenizer(two).encode(text)) == text


WRITTEN = {
    "begin-and-end": (OWN, Use(begin=(299, 298), end=(298,), stop=(298,), pad=(299,), chat=CHAT)),
    "nothing-around": (OWN, Use()),
    "a-letter-stops": (OWN, Use(stop=(OWN.encode(".")[0],))),
    "bytes": (Tokenizer.bytes(), Use(begin=(0,), stop=(10,))),
    "characters": (Tokenizer.characters("01 +="), Use(end=(0,))),
}
# Not qwen2: whatever a folder says, AutoTokenizer of transformers 5 cuts a qwen2's text with a pattern of its own.
TYPES = ["gpt2", "llama", "mistral", "qwen3", "bert", "roformer", "marian", "t5", "whisper"]


@pytest.fixture(scope="module")
def rewritten(
    both: tuple[str, Published, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Published, Published, Any]:
    """What was read, what is read again after we wrote it, and what transformers reads of that."""
    name, words, _ = both
    stop, pad, mask = ((i,) if (i := words.special.get(role)) is not None else () for role in ("eos", "pad", "mask"))
    around = Use(begin=words.begin, end=words.end, stop=stop, pad=pad, mask=mask, chat=words.chat)
    folder = tmp_path_factory.mktemp("written")
    published.write(folder, tokenizer(words), None, around, shaped(around, 77))
    fill(folder, {"config.json": {"model_type": TYPES[FOLDERS.index(name) % len(TYPES)]}})
    return words, ours(folder), theirs(folder)


@given(data=st.data())
def test_what_is_written_is_cut_and_decoded_as_before(
    rewritten: tuple[Published, Published, Any], data: st.DataObject
) -> None:
    words, again, other = rewritten
    text = typed(data, tokenizer(words).special)
    same(words, other, text)
    assert framed(again, text) == framed(words, text)
    assert tokenizer(again).encode(text) == tokenizer(words).encode(text)


def test_what_is_written_keeps_its_roles(rewritten: tuple[Published, Published, Any]) -> None:
    words, again, other = rewritten
    for role in ("eos", "pad", "mask"):
        assert getattr(other, f"{role}_token_id") == again.special.get(role) == words.special.get(role)
    assert (again.begin, again.end, again.chat) == (words.begin, words.end, words.chat)
    assert (other.model_max_length, other.chat_template) == (77, words.chat or None)


@pytest.mark.parametrize("family", TYPES)
def test_what_is_written_is_read_for_any_family(family: str, tmp_path: Path) -> None:
    published.write(tmp_path, OWN, None, Use(begin=(299,), stop=(298,)), ModelConfig())
    fill(tmp_path, {"config.json": {"model_type": family}})
    same(ours(tmp_path), theirs(tmp_path), "I'll see 1234 Füße,\n\n  don't they?<|end|>")


@pytest.mark.parametrize("name", WRITTEN)
def test_tokenizers_of_our_own_are_read_by_transformers(name: str, tmp_path: Path) -> None:
    own, around = WRITTEN[name]
    published.write(tmp_path, own, None, around, shaped(around, 128))
    fill(tmp_path, {"config.json": {"model_type": "llama"}})
    again = ours(tmp_path)
    assert (again.begin, again.end, again.chat) == (around.begin, around.end, around.chat)
    for text in ["", "0 + 1 = 1", *([] if name == "characters" else ["The end.<|end|>...\n", "<|a:b|> Füße"])]:
        same(again, theirs(tmp_path), text)
        assert tokenizer(again).encode(text) == own.encode(text)
    assert again.special.get("eos") == (298 if name == "begin-and-end" else None)
    said = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert said["clean_up_tokenization_spaces"] is False  # or transformers 4 takes spaces away
    assert ("chat_template" in said) == (tmp_path / "chat_template.jinja").exists() == bool(around.chat)


def test_what_is_written_for_qwen2_is_read_by_the_plain_class(tmp_path: Path) -> None:
    published.write(tmp_path, OWN, None, Use(begin=(299,), stop=(298,)), ModelConfig())
    fill(tmp_path, {"config.json": {"model_type": "qwen2"}})
    same(ours(tmp_path), transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path), "I'll see 1234 Füße, don't I?")


def test_two_texts_are_framed_as_one_is(tmp_path: Path) -> None:
    published.write(tmp_path, OWN, None, Use(begin=(299,), end=(298,)), ModelConfig())
    fill(tmp_path, {"config.json": {"model_type": "bert"}})
    a, b = OWN.encode("a"), OWN.encode("b")
    pair = theirs(tmp_path)("a", "b", return_token_type_ids=True)
    assert pair["input_ids"] == [299, *a, 298, *b, 298]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]


def test_of_two_tokenizers_transformers_reads_sources_and_both_come_back(
    translator: tuple[Path, list[set[str]]], tmp_path: Path
) -> None:
    words = ours(translator[0])
    assert words.source is not None
    special = words.special
    around = Use(end=words.end, stop=(special["eos"],), start=(special["pad"],), pad=(special["pad"],))
    published.write(tmp_path, tokenizer(words), words.source, around, shaped(around, 128))
    fill(tmp_path, {"config.json": {"model_type": "marian"}})
    other, again = theirs(tmp_path), ours(tmp_path)
    assert again.source is not None
    assert (again.end, again.special) == (words.end, words.special)
    for text in LINES[:4]:
        written = tokenizer(words).encode(text)
        assert other(f">>de<< {text}")["input_ids"] == [*words.source.encode(f">>de<< {text}"), *words.end]
        assert other.decode(written) == tokenizer(words).decode(written)
        assert tokenizer(again).encode(text) == written
        assert again.source.encode(text) == words.source.encode(text)
