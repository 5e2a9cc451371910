"""Tokenizers as .gguf files hold them: lists of tokens and merges, and the name of the rule that cuts text."""

import json
import re
from typing import Any

import tokenizers as tk
from tokenizers import decoders, models, normalizers, pre_tokenizers

from clearhead.errors import ClearheadError, reraise_as, suggest
from clearhead.tokenizers.huggingface import DIGIT, PretrainedTokenizer, split_words
from clearhead.tokenizers.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE_MARKER,
    UNKNOWN,
    UNUSED,
    USER,
    merges_from_scores,
)
from clearhead.tokenizers.tokenizer import Tokenizer

Metadata = dict[str, Any]


def _llama3_pre_tokenizer(number_pattern: str) -> pre_tokenizers.PreTokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split_words(number_pattern), plain])


def _digit_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    parts = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    return pre_tokenizers.Sequence(parts)


PRE_TOKENIZERS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": _digit_pre_tokenizer(),
    "starcoder": _digit_pre_tokenizer(),
    "llama-bpe": _llama3_pre_tokenizer(DIGIT + "{1,3}"),
    "qwen2": _llama3_pre_tokenizer(DIGIT),
}
ADDS_BOS_BY_DEFAULT = {
    "llama-bpe"
}  # rules under which a text begins with a token unless it is said otherwise


def read_gguf_tokenizer(metadata: Metadata) -> PretrainedTokenizer:
    """The tokenizer, and what it puts before and after a text."""
    said = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    kind = said.get("model", "none")
    if kind == "gpt2" and "pre" not in said and metadata.get("general.architecture") != "gpt2":
        raise ClearheadError(
            "the file is too old to tell how its tokenizer cuts text (tokenizer.ggml.pre is missing)."
        )
    cut = said.get("pre", "gpt-2")
    begins = said.get(
        "add_bos_token", kind == "llama" or (kind == "gpt2" and cut in ADDS_BOS_BY_DEFAULT)
    )
    begin = (said["bos_token_id"],) if begins and "bos_token_id" in said else ()
    end = (said["eos_token_id"],) if said.get("add_eos_token") and "eos_token_id" in said else ()
    why = (
        "the .gguf file holds no tokenizer, so the model cannot read text."
        if kind == "none"
        else ""
    )
    return PretrainedTokenizer(
        None if why else _build_tokenizer(kind, cut, said),
        bos_tokens=begin,
        sep_tokens=end,
        missing_reason=why,
    )


def _build_tokenizer(kind: str, pre_tokenizer: str, metadata: Metadata) -> Tokenizer:
    tokens = metadata.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ClearheadError("tokenizer.ggml.tokens must be a list of texts.")
    if len(set(tokens)) != len(tokens):
        raise ClearheadError("tokenizer.ggml.tokens names a token twice.")
    match kind:
        case "gpt2":
            inner = _byte_level_bpe(tokens, metadata.get("merges"), pre_tokenizer)
        case "llama":
            inner = _sentencepiece_bpe(tokens, metadata)
        case _:
            raise ClearheadError(
                f"tokenizers of kind {kind!r} are not read from .gguf files; gpt2 and llama are."
            )
    types = zip(tokens, metadata.get("token_type") or [], strict=False)
    special = (UNKNOWN, CONTROL)
    inner.add_tokens(
        [
            tk.AddedToken(t, special=k in special, normalized=False)
            for t, k in types
            if k in (*special, USER)
        ]
    )
    return Tokenizer(inner)


def _byte_level_bpe(tokens: list[str], merges: object, pre_tokenizer: str) -> tk.Tokenizer:
    if pre_tokenizer not in PRE_TOKENIZERS:
        offer = suggest(str(pre_tokenizer), PRE_TOKENIZERS)
        raise ClearheadError(
            f"the tokenizer cuts text by the rule {pre_tokenizer!r}, which is not known; {offer}"
        )
    vocabulary = {token: i for i, token in enumerate(tokens)}
    with reraise_as("tokenizer.ggml.merges cannot be used"):
        pairs = [tuple(merge.split(" ", 1)) for merge in merges or []]  # type: ignore[attr-defined]
        inner = tk.Tokenizer(
            models.BPE(vocabulary, pairs, ignore_merges=pre_tokenizer == "llama-bpe")
        )
    inner.pre_tokenizer = PRE_TOKENIZERS[pre_tokenizer]
    inner.decoder = decoders.ByteLevel()
    if pre_tokenizer == "qwen2":
        inner.normalizer = normalizers.NFC()
    return inner


def _sentencepiece_bpe(tokens: list[str], metadata: Metadata) -> tk.Tokenizer:
    """SentencePiece's BPE: scores tell which pieces are joined first, bytes stand in for unknown characters."""
    scores = metadata.get("scores")
    types = metadata.get("token_type")
    if (
        not isinstance(scores, list)
        or not isinstance(types, list)
        or not len(scores) == len(types) == len(tokens)
    ):
        raise ClearheadError(
            "tokenizer.ggml.scores and token_type must have one entry for each token."
        )
    normal = {
        token: score
        for token, score, kind in zip(tokens, scores, types, strict=True)
        if kind == NORMAL
    }
    unknown = next(
        (token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None
    )
    with reraise_as("the pieces of tokenizer.ggml.tokens cannot be used"):
        ids = {token: i for i, token in enumerate(tokens)}
        inner = tk.Tokenizer(
            models.BPE(
                ids,
                merges_from_scores(normal),
                unk_token=unknown,
                fuse_unk=True,
                byte_fallback=BYTE in types,
            )
        )
    begins = metadata.get("add_space_prefix", True)
    steps = [normalizers.Prepend(SPACE_MARKER)] if begins else []
    inner.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE_MARKER)])
    ends = [decoders.Strip(" ", 1, 0)] if begins else []
    back = [decoders.Replace(SPACE_MARKER, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    inner.decoder = decoders.Sequence(back)
    return inner


def write_gguf_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> Metadata:
    """The lists for a vocabulary of `size`; what llama.cpp cannot cut the same way is refused."""
    tree = json.loads(tokenizer.backend.to_str())
    model = tree["model"]
    if model["type"] != "BPE":
        raise ClearheadError(
            f"llama.cpp cannot cut text as this {model['type']} tokenizer does; BPE it can."
        )
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for token, i in model["vocab"].items():
        tokens[i], types[i] = token, NORMAL
    for token in tree["added_tokens"]:
        tokens[token["id"]], types[token["id"]] = (
            token["content"],
            CONTROL if token["special"] else USER,
        )
    merges = [
        tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge)
        for merge in model["merges"]
    ]
    if not model.get("byte_fallback"):
        joined = [" ".join(pair) for pair in merges]
        return {
            "model": "gpt2",
            "pre": _pre_tokenizer_name(tree),
            "tokens": tokens,
            "token_type": types,
            "merges": joined,
        }
    ranks: dict[str, float] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), -float(rank))
    last = -float(len(merges))
    types = [
        _token_type(token, kind, model["unk_token"])
        for token, kind in zip(tokens, types, strict=True)
    ]
    said = {"model": "llama", "pre": "default", "tokens": tokens, "token_type": types}
    return {
        **said,
        "scores": [ranks.get(token, last) for token in tokens],
        "add_space_prefix": _adds_prefix_space(tree),
    }


def _token_type(token: str, kind: int, unknown: str) -> int:
    if token == unknown:
        return UNKNOWN
    return BYTE if re.fullmatch(r"<0x[0-9A-F]{2}>", token) else kind


def _adds_prefix_space(backend_json: Metadata) -> bool:
    """Whether a space is put before a text, in either of the ways in which SentencePiece's rule is written."""
    normaliser = backend_json["normalizer"] or {}
    words = backend_json["pre_tokenizer"] or {}
    steps = [step["type"] for step in normaliser.get("normalizers", [normaliser]) if step]
    if words.get("type") == "Metaspace" and not steps:
        return words["prepend_scheme"] != "never"
    if words or steps not in (["Replace"], ["Prepend", "Replace"]):
        raise ClearheadError("llama.cpp has no rule that cuts text as this tokenizer does.")
    return "Prepend" in steps


def _pre_tokenizer_name(backend_json: Metadata) -> str:
    """The name of the rule; without merges any rule that ends in bytes gives the same."""
    here = _flatten_pre_tokenizer(backend_json["pre_tokenizer"])
    normaliser = (backend_json["normalizer"] or {}).get("type")
    for name, cut in PRE_TOKENIZERS.items():
        there = _flatten_pre_tokenizer(json.loads(cut.__getstate__()))
        whole = bool(backend_json["model"].get("ignore_merges"))
        if (
            here == there
            and whole == (name == "llama-bpe")
            and normaliser == ("NFC" if name == "qwen2" else None)
        ):
            return name
    if not backend_json["model"]["merges"] and here == [
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    ]:
        return "gpt-2"
    raise ClearheadError(
        f"llama.cpp has no rule that cuts text as this tokenizer does; it has {', '.join(PRE_TOKENIZERS)}."
    )


def _flatten_pre_tokenizer(rule: Any) -> list[Any]:
    """A rule as a flat list, without what only concerns offsets."""
    if rule is None:
        return []
    if rule.get("type") == "Sequence":
        return [plain for part in rule["pretokenizers"] for plain in _flatten_pre_tokenizer(part)]
    return [{key: value for key, value in rule.items() if key != "trim_offsets"}]
