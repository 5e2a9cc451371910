"""Tokenizers as .gguf files hold them: lists of tokens and merges, and the name of the rule that cuts text."""

import json
import re
from typing import Any

import tokenizers as tk
from tokenizers import decoders, models, normalizers, pre_tokenizers

from clearhead.errors import ClearheadError, nearest, understood
from clearhead.tokens import pieces
from clearhead.tokens.layouts import DIGIT, words
from clearhead.tokens.pieces import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER
from clearhead.tokens.published import Published
from clearhead.tokens.text import Tokenizer

Values = dict[str, Any]


def _cut(numbers: str) -> pre_tokenizers.PreTokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words(numbers), plain])


def _digits() -> pre_tokenizers.PreTokenizer:
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return pre_tokenizers.Sequence(parts)


CUTS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": _digits(),
    "starcoder": _digits(),
    "llama-bpe": _cut(DIGIT + "{1,3}"),
    "qwen2": _cut(DIGIT),
}
BEGINS = {"llama-bpe"}  # rules under which a text begins with a token unless it is said otherwise


def read(values: Values) -> Published:
    """The tokenizer, and what it puts before and after a text."""
    said = {name.removeprefix("tokenizer.ggml."): value for name, value in values.items()}
    kind = said.get("model", "none")
    if kind == "gpt2" and "pre" not in said and values.get("general.architecture") != "gpt2":
        raise ClearheadError("the file is too old to tell how its tokenizer cuts text (tokenizer.ggml.pre is missing).")
    cut = said.get("pre", "gpt-2")
    begins = said.get("add_bos_token", kind == "llama" or (kind == "gpt2" and cut in BEGINS))
    begin = (said["bos_token_id"],) if begins and "bos_token_id" in said else ()
    end = (said["eos_token_id"],) if said.get("add_eos_token") and "eos_token_id" in said else ()
    why = "the .gguf file holds no tokenizer, so the model cannot read text." if kind == "none" else ""
    return Published(None if why else _tokenizer(kind, cut, said), begin=begin, end=end, why=why)


def _tokenizer(kind: str, cut: str, said: Values) -> Tokenizer:
    tokens = said.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ClearheadError("tokenizer.ggml.tokens must be a list of texts.")
    if len(set(tokens)) != len(tokens):
        raise ClearheadError("tokenizer.ggml.tokens names a token twice.")
    match kind:
        case "gpt2":
            inner = _byte_level(tokens, said.get("merges"), cut)
        case "llama":
            inner = _pieces(tokens, said)
        case _:
            raise ClearheadError(f"tokenizers of kind {kind!r} are not read from .gguf files; gpt2 and llama are.")
    types = zip(tokens, said.get("token_type") or [], strict=False)
    special = (UNKNOWN, CONTROL)
    inner.add_tokens(
        [tk.AddedToken(t, special=k in special, normalized=False) for t, k in types if k in (*special, USER)]
    )
    return Tokenizer(inner)


def _byte_level(tokens: list[str], merges: object, cut: str) -> tk.Tokenizer:
    if cut not in CUTS:
        offer = nearest(str(cut), CUTS)
        raise ClearheadError(f"the tokenizer cuts text by the rule {cut!r}, which is not known; {offer}")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    with understood("tokenizer.ggml.merges cannot be used"):
        pairs = [tuple(merge.split(" ", 1)) for merge in merges or []]  # type: ignore[attr-defined]
        inner = tk.Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=cut == "llama-bpe"))
    inner.pre_tokenizer = CUTS[cut]
    inner.decoder = decoders.ByteLevel()
    if cut == "qwen2":
        inner.normalizer = normalizers.NFC()
    return inner


def _pieces(tokens: list[str], said: Values) -> tk.Tokenizer:
    """SentencePiece's BPE: scores tell which pieces are joined first, bytes stand in for unknown characters."""
    scores, types = said.get("scores"), said.get("token_type")
    if not isinstance(scores, list) or not isinstance(types, list) or not len(scores) == len(types) == len(tokens):
        raise ClearheadError("tokenizer.ggml.scores and token_type must have one entry for each token.")
    normal = {token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind == NORMAL}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    with understood("the pieces of tokenizer.ggml.tokens cannot be used"):
        ids = {token: i for i, token in enumerate(tokens)}
        inner = tk.Tokenizer(
            models.BPE(ids, pieces.merges(normal), unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in types)
        )
    begins = said.get("add_space_prefix", True)
    steps = [normalizers.Prepend(pieces.SPACE)] if begins else []
    inner.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", pieces.SPACE)])
    ends = [decoders.Strip(" ", 1, 0)] if begins else []
    back = [decoders.Replace(pieces.SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    inner.decoder = decoders.Sequence(back)
    return inner


def write(tokenizer: Tokenizer, size: int) -> Values:
    """The lists for a vocabulary of `size`; what llama.cpp cannot cut the same way is refused."""
    tree = json.loads(tokenizer._inner.to_str())
    model = tree["model"]
    if model["type"] != "BPE":
        raise ClearheadError(f"llama.cpp cannot cut text as this {model['type']} tokenizer does; BPE it can.")
    tokens, types = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    for token, i in model["vocab"].items():
        tokens[i], types[i] = token, NORMAL
    for token in tree["added_tokens"]:
        tokens[token["id"]], types[token["id"]] = token["content"], CONTROL if token["special"] else USER
    merges = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    if not model.get("byte_fallback"):
        joined = [" ".join(pair) for pair in merges]
        return {"model": "gpt2", "pre": _cut_of(tree), "tokens": tokens, "token_type": types, "merges": joined}
    ranks: dict[str, float] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), -float(rank))
    last = -float(len(merges))
    types = [_type(token, kind, model["unk_token"]) for token, kind in zip(tokens, types, strict=True)]
    said = {"model": "llama", "pre": "default", "tokens": tokens, "token_type": types}
    return {**said, "scores": [ranks.get(token, last) for token in tokens], "add_space_prefix": _prefixed(tree)}


def _type(token: str, kind: int, unknown: str) -> int:
    if token == unknown:
        return UNKNOWN
    return BYTE if re.fullmatch(r"<0x[0-9A-F]{2}>", token) else kind


def _prefixed(tree: Values) -> bool:
    """Whether a space is put before a text, in either of the ways in which SentencePiece's rule is written."""
    normaliser, words = tree["normalizer"] or {}, tree["pre_tokenizer"] or {}
    steps = [step["type"] for step in normaliser.get("normalizers", [normaliser]) if step]
    if words.get("type") == "Metaspace" and not steps:
        return words["prepend_scheme"] != "never"
    if words or steps not in (["Replace"], ["Prepend", "Replace"]):
        raise ClearheadError("llama.cpp has no rule that cuts text as this tokenizer does.")
    return "Prepend" in steps


def _cut_of(tree: Values) -> str:
    """The name of the rule; without merges any rule that ends in bytes gives the same."""
    here = _plain(tree["pre_tokenizer"])
    normaliser = (tree["normalizer"] or {}).get("type")
    for name, cut in CUTS.items():
        there = _plain(json.loads(cut.__getstate__()))
        whole = bool(tree["model"].get("ignore_merges"))
        if here == there and whole == (name == "llama-bpe") and normaliser == ("NFC" if name == "qwen2" else None):
            return name
    if not tree["model"]["merges"] and here == [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]:
        return "gpt-2"
    raise ClearheadError(f"llama.cpp has no rule that cuts text as this tokenizer does; it has {', '.join(CUTS)}.")


def _plain(rule: Any) -> list[Any]:
    """A rule as a flat list, without what only concerns offsets."""
    if rule is None:
        return []
    if rule.get("type") == "Sequence":
        return [plain for part in rule["pretokenizers"] for plain in _plain(part)]
    return [{key: value for key, value in rule.items() if key != "trim_offsets"}]
