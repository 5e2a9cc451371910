"""Limits of foreign tokenizers, whose library would fill memory or abort the process."""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers as tk

from clearhead.errors import ClearheadError

MAX_TOKEN_ID = 10_000_000  # the library allocates memory for every id up to the largest
LARGE_NUMBER = re.compile(r":\s*[0-9]{8}")
MAX_GROWTH = 64  # characters that a tokenizer makes of one; NFKC makes 18 at most
# A regular expression without these matches no empty string, where it would insert text.
EMPTY_MATCH = re.compile(r"[*?^$|]|\(\)|\{[0,]|\\[bByYAzZGK]")

CHARACTER_MAP = re.compile(r'"precompiled_charsmap"\s*:\s*"([^"]*)"')

Step = dict[str, Any]  # a normalizer, pre-tokenizer or decoder as JSON


def check_token_ids(tokenizer_json: str) -> None:
    """Raise if a tokenizer.json has an id that is larger than any vocabulary."""
    if not LARGE_NUMBER.search(tokenizer_json):
        return
    fields = json.loads(tokenizer_json)
    ids = [token["id"] for token in fields.get("added_tokens") or []]
    if isinstance(fields["model"]["vocab"], dict):
        ids += fields["model"]["vocab"].values()
    if ids and max(ids) > MAX_TOKEN_ID:
        raise ClearheadError(f"the token id {max(ids)} exceeds {MAX_TOKEN_ID:,}.")


def check_character_maps(tokenizer_json: str) -> None:
    """Raise if a character map is smaller than its trie, which the library would allocate."""
    for encoded in CHARACTER_MAP.findall(tokenizer_json):
        charsmap = base64.b64decode(encoded)
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
