"""Hostile tokenizers are refused, or fail with an error: none fills memory or ends the process."""

import base64
import json
import time

import pytest

import clearhead as ch
from clearhead.errors import ClearheadError
from clearhead.tokenizers.huggingface import read_tokenizer_json
from clearhead.tokenizers.limits import MAX_GROWTH, max_growth
from clearhead.tokenizers.sentencepiece import read_sentencepiece

LETTERS = {letter: i for i, letter in enumerate("abcdefgh ")}


def write(path, vocab=LETTERS, added=(), **parts):
    fields = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [*added],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    (path / "tokenizer.json").write_text(json.dumps({**fields, **parts}))
    return path / "tokenizer.json"


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*steps, name="normalizers"):
    return {"type": "Sequence", name: [*steps]}


def charsmap(*texts):
    data = (0).to_bytes(4, "little") + b"".join(text.encode() + b"\0" for text in texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


@pytest.mark.parametrize("size", [2**31, 10**7 + 1])
def test_huge_token_ids_are_refused(tmp_path, size):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    for parts in (
        {"vocab": {**LETTERS, "x": size}},
        {"added": [{"id": size, "content": "<x>", **flags}]},
    ):
        with pytest.raises(ClearheadError, match=f"token id {size} exceeds"):
            ch.Tokenizer.load(write(tmp_path, **parts))


def test_large_numbers_in_tokens_are_accepted(tmp_path):
    tokenizer = ch.Tokenizer.load(write(tmp_path, {**LETTERS, ": 2147483648": 9}))
    assert len(tokenizer) == 10


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": sequence(*[replace("a", "a" * 100)] * 6)},
        {"normalizer": sequence(replace("a", "b" * 50), sequence(replace("b", "cc")))},
        {"normalizer": sequence(*[replace("", "a")] * 7)},
        {"normalizer": sequence(*[replace("(?=.)", "ab", "Regex")] * 6)},
        {"normalizer": replace("a+", "a" * 1000, "Regex")},
        {"normalizer": charsmap("a", "b" * 1000)},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 1000}},
        {"normalizer": sequence(charsmap("a" * 18), replace("a", "bcde"))},
        {"pre_tokenizer": sequence(*[{"type": "ByteLevel"}] * 7, name="pretokenizers")},
        {"decoder": sequence(*[replace("a", "aa")] * 7, name="decoders")},
    ],
)
def test_texts_that_multiply_are_refused(tmp_path, parts):
    flags = {"add_prefix_space": True, "trim_offsets": True, "use_regex": False}
    for step in parts.get("pre_tokenizer", {}).get("pretokenizers", []):
        step.update(flags)
    with pytest.raises(ClearheadError, match="characters of one"):
        ch.Tokenizer.load(write(tmp_path, **parts))


@pytest.mark.parametrize(
    ("steps", "growth"),
    [
        ([], 1),
        ([replace(" ", "▁")], 1),
        ([replace("``", '"'), replace("''", '"')], 1),
        ([replace("…", "..."), replace("—", " - "), replace("«", '"')] * 9, 3),
        ([replace(" {2,}", "▁", "Regex"), replace(r"\s+", " ", "Regex")] * 9, 1),
        ([charsmap("x" * 18), {"type": "NFKC"}, replace(" ", "▁")], 18),
        ([replace("a", "bb"), replace("b", "ccc"), replace("d", "a" * 9)], 9),
        ([replace("d", "a" * 9), replace("a", "bb"), replace("b", "ccc")], 54),
        ([replace("ab", "abab")] * 3, 8),
        ([{"type": "Prepend", "prepend": "▁a"}, replace("a", "bb")], 5),
    ],
)
def test_growth_is_bounded_by_what_later_steps_replace(steps, growth):
    assert max_growth(steps) == growth <= MAX_GROWTH


def test_panics_of_the_library_are_errors(tmp_path):
    regex = {"Regex": "(a+)+$z"}
    split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    tokenizer = ch.Tokenizer.load(write(tmp_path, pre_tokenizer=split))
    assert tokenizer.encode("b") == [1]
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch(["b", text])):
        with pytest.raises(ClearheadError, match="cannot encode the text"):
            encode("a" * 40 + "c")


def test_panics_while_a_file_is_read_are_errors(tmp_path):
    regex = {"Regex": "(a+)+$z"}
    split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    start = time.perf_counter()
    with pytest.raises(ClearheadError, match="not a usable"):
        read_tokenizer_json(write(tmp_path, {"a" * 40 + "c": 0}, pre_tokenizer=split))
    assert time.perf_counter() - start < 5


def test_panics_while_decoding_are_errors(tmp_path):
    decoder = replace("(a+)+$z", "", "Regex")
    tokenizer = ch.Tokenizer.load(write(tmp_path, {"a" * 40 + "c": 0}, decoder=decoder))
    with pytest.raises(ClearheadError, match="cannot decode"):
        tokenizer.decode([0])


TRUNCATED_MAP = {"type": "Precompiled", "precompiled_charsmap": "//////8="}


@pytest.mark.parametrize("normalizer", [TRUNCATED_MAP, sequence(sequence(TRUNCATED_MAP))])
def test_character_maps_must_contain_their_trie(tmp_path, normalizer):
    """The library would allocate 8 GB for this one before it reports an error."""
    path = write(tmp_path, normalizer=normalizer)
    text = path.read_text()
    for spelling in (text, text.replace("d_charsmap", "d\\u005fcharsmap")):
        path.write_text(spelling)
        with pytest.raises(ClearheadError, match="character map"):
            ch.Tokenizer.load(path)


def test_character_maps_of_sentencepiece_must_contain_their_trie(tmp_path):
    pytest.importorskip("sentencepiece")
    from sentencepiece import sentencepiece_model_pb2 as pb2

    proto = pb2.ModelProto()
    proto.pieces.add(piece="<unk>", score=0, type=2)
    proto.pieces.add(piece="a", score=0, type=1)
    proto.normalizer_spec.precompiled_charsmap = b"\xff" * 5
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    with pytest.raises(ClearheadError, match="character map"):
        read_sentencepiece(tmp_path / "spiece.model")


@pytest.mark.parametrize("first", [{"normalizer": TRUNCATED_MAP}, {"model": {"vocab": {"a": 1}}}])
def test_duplicate_keys_are_refused(tmp_path, first):
    """The library reads both of them."""
    path = write(tmp_path)
    path.write_text(json.dumps(first)[:-1] + "," + path.read_text()[1:])
    with pytest.raises(ClearheadError, match=f"'{next(iter(first))}' twice"):
        ch.Tokenizer.load(path)


@pytest.mark.parametrize("content", ["[]", "1", "{}", '{"model": {"vocab": {"a": "b"}}}'])
def test_other_json_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ClearheadError, match=r"tokenizer\.json"):
        ch.Tokenizer.load(tmp_path / "tokenizer.json")
