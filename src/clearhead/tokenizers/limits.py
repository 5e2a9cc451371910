"""Limits of foreign tokenizers, whose library would fill memory or abort the process."""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers as tk

from clearhead.errors import ClearheadError

MAX_TOKEN_ID = 10_000_000  # the library allocates memory for every id up to the largest
MAX_GROWTH = 64  # characters that a tokenizer makes of one; NFKC makes 18 at most
# A regular expression without these matches no empty string, where it would insert text.
EMPTY_MATCH = re.compile(r"[*?^$|]|\(\)|\{[0,]|\\[bByYAzZGK]")

Step = dict[str, Any]  # a normalizer, pre-tokenizer or decoder as JSON


def check_tokenizer_json(text: str) -> None:
    """Raise if reading a tokenizer.json would fill memory or abort the process."""
    fields = json.loads(text, object_pairs_hook=_unique_keys)
    if not isinstance(fields, dict):
        raise TypeError("it must be an object")
    _check_token_ids(fields)
    for charsmap in _character_maps(fields.get("normalizer")):
        check_character_map(base64.b64decode(charsmap))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without duplicate keys: the library would also read the first of them."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(duplicate, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ClearheadError(f"an object in tokenizer.json has the key {duplicate!r:.60} twice.")
    return fields


def _check_token_ids(fields: dict[str, Any]) -> None:
    """Raise if an id is larger than any vocabulary."""
    ids = [token["id"] for token in fields.get("added_tokens") or []]
    vocab = fields["model"]["vocab"]
    if isinstance(vocab, dict):
        ids += vocab.values()
    if ids and max(ids) > MAX_TOKEN_ID:
        raise ClearheadError(f"the token id {max(ids)} exceeds {MAX_TOKEN_ID:,}.")


def _character_maps(value: object) -> Iterator[str]:
    """All character maps, in base64, within a normalizer."""
    if isinstance(value, list):
        for part in value:
            yield from _character_maps(part)
    if isinstance(value, dict):
        for name, part in value.items():
            if name == "precompiled_charsmap":
                yield part
            else:
                yield from _character_maps(part)


def check_character_map(charsmap: bytes) -> None:
    """Raise if a map is smaller than the trie it announces, which the library would allocate."""
    if len(charsmap) < 4 or int.from_bytes(charsmap[:4], "little") > len(charsmap) - 4:
        raise ClearheadError("the character map of its normalizer is truncated.")


def check_growth(backend: tk.Tokenizer) -> None:
    """Raise if encoding or decoding makes a text many times longer on the way."""
    encoding_steps = [*_steps(backend.normalizer), *_steps(backend.pre_tokenizer)]
    for name, steps in (("encoding", encoding_steps), ("decoding", [*_steps(backend.decoder)])):
        growth = max_growth(steps)
        if growth > MAX_GROWTH:
            raise ClearheadError(
                f"{name} can make {growth:.3g} characters of one; the limit is {MAX_GROWTH}."
            )


def _steps(component: Any) -> Iterator[Step]:
    """The steps of a normalizer, pre-tokenizer or decoder, which may be nested sequences."""
    if component is not None:
        yield from _flatten(json.loads(component.__getstate__()))


def _flatten(step: Step) -> Iterator[Step]:
    if step["type"] != "Sequence":
        yield step
        return
    for name in ("normalizers", "pretokenizers", "decoders"):
        for part in step.get(name, ()):
            yield from _flatten(part)


def max_growth(steps: Sequence[Step]) -> float:
    """A bound on how many characters these steps make of one.

    Rules of Unicode, such as NFKC, are left out: applied again, they change nothing.
    """
    growth: dict[str, float] = {}  # of a character in the later steps
    default = 1.0  # of all others
    prefix = 0.0
    for step in reversed(steps):
        largest = max(default, *growth.values(), 0.0)
        match step["type"]:
            case "ByteLevel" | "Metaspace":
                default = 2 * largest
                growth = {}
            case "Prepend":
                prefix += sum(growth.get(character, default) for character in step["prepend"])
            case "Precompiled":
                default = _longest_replacement(step) * largest
                growth = {}
            case "Replace":
                new = sum(growth.get(character, default) for character in step["content"])
                pattern = step["pattern"].get("String", "")
                regex = step["pattern"].get("Regex", "")
                insertion = new if not (pattern or regex) or EMPTY_MATCH.search(regex) else 0.0
                if not pattern:  # any character can be replaced
                    default = max(default + insertion, new)
                    growth = {key: max(value + insertion, new) for key, value in growth.items()}
                for character in pattern:
                    old = growth.get(character, default)
                    growth[character] = max(old, new / len(pattern))
    return max(default, *growth.values(), 1.0) + prefix


def _longest_replacement(step: Step) -> int:
    """Of SentencePiece's character map: the size of a trie, the trie, zero-terminated texts."""
    charsmap = base64.b64decode(step["precompiled_charsmap"])
    texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")
    return max(len(text.decode(errors="replace")) for text in texts)
