"""Read and write tokenizers in .gguf files: token lists, merges, and a named pre-tokenizer."""

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
KEY_PREFIX = "tokenizer.ggml."


def _llama3_pre_tokenizer(number_pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split_words(number_pattern), byte_level])


def _digit_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([digits, byte_level])


PRE_TOKENIZERS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": _digit_pre_tokenizer(),
    "starcoder": _digit_pre_tokenizer(),
    "llama-bpe": _llama3_pre_tokenizer(DIGIT + "{1,3}"),
    "qwen2": _llama3_pre_tokenizer(DIGIT),
}
ADDS_BOS_BY_DEFAULT = {"llama-bpe"}  # pre-tokenizers whose models expect a bos token
IGNORES_MERGES = {"llama-bpe"}  # whole words in the vocabulary are not merged from pieces
NORMALIZES_NFC = {"qwen2"}


# --- reading
def read_gguf_tokenizer(metadata: Metadata) -> PretrainedTokenizer:
    """The tokenizer in the metadata of a .gguf file, and its special tokens."""
    fields = {name.removeprefix(KEY_PREFIX): value for name, value in metadata.items()}
    model = fields.get("model", "none")
    if model == "none":
        return PretrainedTokenizer(
            None, missing_reason="the .gguf file has no tokenizer, so the model cannot read text."
        )
    if model == "gpt2" and "pre" not in fields and metadata.get("general.architecture") != "gpt2":
        raise ClearheadError(
            "the file is too old: it does not name its pre-tokenizer (tokenizer.ggml.pre)."
        )
    pre_tokenizer = fields.get("pre", "gpt-2")
    adds_bos = model == "llama" or (model == "gpt2" and pre_tokenizer in ADDS_BOS_BY_DEFAULT)
    bos_tokens: tuple[int, ...] = ()
    sep_tokens: tuple[int, ...] = ()
    if fields.get("add_bos_token", adds_bos) and "bos_token_id" in fields:
        bos_tokens = (fields["bos_token_id"],)
    if fields.get("add_eos_token") and "eos_token_id" in fields:
        sep_tokens = (fields["eos_token_id"],)
    tokenizer = _build_tokenizer(model, pre_tokenizer, fields)
    return PretrainedTokenizer(tokenizer, bos_tokens=bos_tokens, sep_tokens=sep_tokens)


def _build_tokenizer(model: str, pre_tokenizer: str, fields: Metadata) -> Tokenizer:
    tokens = fields.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ClearheadError("tokenizer.ggml.tokens must be a list of strings.")
    if len(set(tokens)) != len(tokens):
        raise ClearheadError("tokenizer.ggml.tokens contains duplicates.")
    match model:
        case "gpt2":
            backend = _byte_level_bpe(tokens, fields.get("merges"), pre_tokenizer)
        case "llama":
            backend = _sentencepiece_bpe(tokens, fields)
        case _:
            raise ClearheadError(
                f"tokenizer.ggml.model = {model!r} is not supported; gpt2 and llama are."
            )
    added = []
    for token, token_type in zip(tokens, fields.get("token_type") or [], strict=False):
        if token_type in (UNKNOWN, CONTROL, USER):
            added.append(tk.AddedToken(token, special=token_type != USER, normalized=False))
    backend.add_tokens(added)
    return Tokenizer(backend)


def _byte_level_bpe(tokens: list[str], merges: object, pre_tokenizer: str) -> tk.Tokenizer:
    if pre_tokenizer not in PRE_TOKENIZERS:
        raise ClearheadError(
            f"the pre-tokenizer {pre_tokenizer!r} is not supported; "
            f"{suggest(str(pre_tokenizer), PRE_TOKENIZERS)}"
        )
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = merges or []
    if not isinstance(merges, list) or not all(isinstance(merge, str) for merge in merges):
        raise ClearheadError("tokenizer.ggml.merges is invalid: it must be a list of strings.")
    with reraise_as("tokenizer.ggml.merges is invalid", TypeError):
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        ignore_merges = pre_tokenizer in IGNORES_MERGES
        backend = tk.Tokenizer(models.BPE(vocab, pairs, ignore_merges=ignore_merges))
    backend.pre_tokenizer = PRE_TOKENIZERS[pre_tokenizer]
    backend.decoder = decoders.ByteLevel()
    if pre_tokenizer in NORMALIZES_NFC:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece_bpe(tokens: list[str], fields: Metadata) -> tk.Tokenizer:
    """SentencePiece BPE: scores give the order of merges, bytes encode unknown characters."""
    scores = fields.get("scores")
    types = fields.get("token_type")
    if (
        not isinstance(scores, list)
        or not isinstance(types, list)
        or not len(scores) == len(types) == len(tokens)
    ):
        raise ClearheadError(
            "tokenizer.ggml.scores and tokenizer.ggml.token_type must have one entry per token."
        )
    normal_scores = {
        token: score
        for token, score, token_type in zip(tokens, scores, types, strict=True)
        if token_type == NORMAL
    }
    unknown = tokens[types.index(UNKNOWN)] if UNKNOWN in types else None
    with reraise_as("tokenizer.ggml.tokens is invalid", TypeError):
        model = models.BPE(
            {token: i for i, token in enumerate(tokens)},
            merges_from_scores(normal_scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
        backend = tk.Tokenizer(model)
    normalizer_steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARKER)]
    decoder_steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE_MARKER, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if fields.get("add_space_prefix", True):
        normalizer_steps.insert(0, normalizers.Prepend(SPACE_MARKER))
        decoder_steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(normalizer_steps)
    backend.decoder = decoders.Sequence(decoder_steps)
    return backend


# --- writing
def write_gguf_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> Metadata:
    """The metadata of a tokenizer, padded to `vocab_size`; fails if llama.cpp lacks its rules."""
    backend_json = json.loads(tokenizer.backend.to_str())
    model = backend_json["model"]
    if model["type"] != "BPE":
        raise ClearheadError(
            f"llama.cpp supports only BPE tokenizers, but this one is {model['type']}."
        )
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for token, i in model["vocab"].items():
        tokens[i] = token
        types[i] = NORMAL
    for added in backend_json["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER
    merges = [
        tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge)
        for merge in model["merges"]
    ]
    if not model.get("byte_fallback"):
        return {
            "model": "gpt2",
            "pre": _pre_tokenizer_name(backend_json),
            "tokens": tokens,
            "token_type": types,
            "merges": [" ".join(pair) for pair in merges],
        }
    scores: dict[str, float] = {}
    for rank, pair in enumerate(merges):
        scores.setdefault("".join(pair), -float(rank))
    min_score = -float(len(merges))
    for i, token in enumerate(tokens):
        if token == model["unk_token"]:
            types[i] = UNKNOWN
        elif re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            types[i] = BYTE
    return {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_type": types,
        "scores": [scores.get(token, min_score) for token in tokens],
        "add_space_prefix": _adds_prefix_space(backend_json),
    }


def _adds_prefix_space(backend_json: Metadata) -> bool:
    """Whether a space is put before a text, in either way of writing SentencePiece's rule."""
    normalizer = backend_json["normalizer"] or {}
    pre_tokenizer = backend_json["pre_tokenizer"] or {}
    steps = [step["type"] for step in normalizer.get("normalizers", [normalizer]) if step]
    if pre_tokenizer.get("type") == "Metaspace" and not steps:
        return pre_tokenizer["prepend_scheme"] != "never"
    if pre_tokenizer or steps not in (["Replace"], ["Prepend", "Replace"]):
        raise ClearheadError("llama.cpp does not support this tokenizer's normalization.")
    return "Prepend" in steps


def _pre_tokenizer_name(backend_json: Metadata) -> str:
    """llama.cpp's name of the pre-tokenizer; without merges, all byte-level ones are equivalent."""
    steps = _flatten_pre_tokenizer(backend_json["pre_tokenizer"])
    normalizer = (backend_json["normalizer"] or {}).get("type")
    ignore_merges = bool(backend_json["model"].get("ignore_merges"))
    for name, pre_tokenizer in PRE_TOKENIZERS.items():
        same_splits = steps == _flatten_pre_tokenizer(json.loads(pre_tokenizer.__getstate__()))
        same_merges = ignore_merges == (name in IGNORES_MERGES)
        same_normalizer = normalizer == ("NFC" if name in NORMALIZES_NFC else None)
        if same_splits and same_merges and same_normalizer:
            return name
    plain_bytes = [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]
    if not backend_json["model"]["merges"] and steps == plain_bytes:
        return "gpt-2"
    raise ClearheadError(
        "llama.cpp does not support this tokenizer's pre-tokenizer; "
        f"it supports {', '.join(PRE_TOKENIZERS)}."
    )


def _flatten_pre_tokenizer(pre_tokenizer: Any) -> list[Any]:
    """The steps as a flat list, without options that only affect offsets."""
    if pre_tokenizer is None:
        return []
    if pre_tokenizer.get("type") == "Sequence":
        steps = map(_flatten_pre_tokenizer, pre_tokenizer["pretokenizers"])
        return [step for flattened in steps for step in flattened]
    return [{key: value for key, value in pre_tokenizer.items() if key != "trim_offsets"}]
