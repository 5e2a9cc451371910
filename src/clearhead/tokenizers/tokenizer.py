"""Tokenizers: convert text to token ids and back."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice, pairwise
from os.path import commonprefix
from pathlib import Path
from typing import Self

import tokenizers as tk
from tokenizers import decoders, models, pre_tokenizers, trainers

from clearhead.errors import (
    ClearheadError,
    InputTextError,
    cannot_read,
    check_int,
    check_type,
    reraise_as,
    rust_panics_as,
    with_index,
)
from clearhead.io import write_atomic
from clearhead.tokenizers.limits import check_growth, check_tokenizer_json

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_KINDS = ("bpe", "characters", "bytes")  # that can be made from texts
END_TOKEN = "<|end|>"
MASK_PLACEHOLDER = "[MASK]"  # what users type, whatever the tokenizer calls its mask token
NEVER = r"(?!)"  # a pattern that matches nothing
VISIBLE_WHITESPACE = {" ": "·", "\n": "↵", "\t": "⇥"}


def _byte_characters() -> str:
    """GPT-2's printable character for each byte: itself, or the next one from Ā on."""
    spare = map(chr, range(256, 512))
    return "".join(c if c.isprintable() and c != " " else next(spare) for c in map(chr, range(256)))


BYTE_CHARACTERS = _byte_characters()
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A vocabulary and the rules that split text into it, as stored in a `tokenizer.json` (L1.2).

    Ids represent only the text: special tokens are added when batches are built.
    """

    def __init__(self, backend: tk.Tokenizer) -> None:
        backend.no_truncation()  # some published files truncate at 128 tokens silently
        backend.no_padding()
        backend.encode_special_tokens = True  # typed by a user, they are plain text
        self.backend = backend

    @classmethod
    def train_bpe(
        cls, texts: Iterable[str], vocab_size: int, special_tokens: tuple[str, ...] = (END_TOKEN,)
    ) -> Self:
        """Byte-level BPE: the 256 bytes, merges of the most frequent pairs, special tokens.

        Little text may give fewer than `vocab_size` tokens; see `len(tokenizer)`.
        """
        if isinstance(texts, str):
            raise ClearheadError("texts must be a list of strings, got one string; write [text].")
        check_int("vocab_size", vocab_size, maximum=2**31 - 1)
        min_size = len(BYTE_CHARACTERS) + len(special_tokens)
        if vocab_size < min_size:
            raise ClearheadError(
                f"vocab_size must be at least {min_size} (256 bytes and "
                f"{len(special_tokens)} special tokens), got {vocab_size}."
            )
        backend = tk.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(special_tokens),
            initial_alphabet=list(BYTE_CHARACTERS),
            show_progress=False,
        )
        try:
            backend.train_from_iterator(texts, trainer)
        except TypeError as error:
            raise ClearheadError(f"texts must be a list of strings: {error}.") from None
        return cls(_add_special_tokens(backend, special_tokens))

    @classmethod
    def bytes(cls, special_tokens: tuple[str, ...] = ()) -> Self:
        """The 256 bytes, each its own id, then special tokens; needs no training."""
        vocab = {token: byte for byte, token in enumerate(BYTE_CHARACTERS)}
        backend = tk.Tokenizer(models.BPE(vocab, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        return cls(_add_special_tokens(backend, special_tokens))

    @classmethod
    def characters(cls, text: str, special_tokens: tuple[str, ...] = ()) -> Self:
        """One token per distinct character of `text`, in Unicode order, then special tokens."""
        check_type(text, str, "a text")
        vocab = {character: i for i, character in enumerate(sorted(set(text)))}
        backend = tk.Tokenizer(models.WordLevel(vocab))
        backend.pre_tokenizer = pre_tokenizers.Split(tk.Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        return cls(_add_special_tokens(backend, special_tokens))

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Token ids of a text; names of special tokens in it are plain text unless allowed."""
        if not isinstance(text, str):
            raise InputTextError(None, f"must be a string, got {type(text).__name__}.")
        try:
            if allow_special:
                return _encode_batch(self._with_special_tokens, [text])[0]
            return self._reencode_if_special(text, _encode_batch(self.backend, [text])[0])
        except ClearheadError:
            raise
        except Exception:  # the library raises nothing more specific
            for character in text:
                with suppress(Exception):
                    _encode_batch(self.backend, [character])
                    continue
                name = f"{character!r} (U+{ord(character):04X})"
                problem = f"contains {name}, which is not in the vocabulary."
                raise InputTextError(None, problem) from None
            raise

    def encode_batch(self, texts: Iterable[str], allow_special: bool = False) -> list[list[int]]:
        """`encode` for several texts on all cores."""
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise ClearheadError(f"expected a list of texts, got {type(texts).__name__}.")
        texts = list(texts)
        try:
            backend = self._with_special_tokens if allow_special else self.backend
            batch = _encode_batch(backend, texts)
        except Exception:  # as in `encode`, which finds the reason
            for i, text in enumerate(texts):
                with with_index(i):
                    self.encode(text, allow_special)
            raise
        return batch if allow_special else list(map(self._reencode_if_special, texts, batch))

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids; incomplete UTF-8 becomes �."""
        ids = _as_list(ids)
        for i in ids:
            self.id_to_token(i)
        with rust_panics_as("this tokenizer cannot decode the tokens"):
            return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def to_str_tokens(self, ids: Iterable[int]) -> list[str]:
        """Printable tokens: a space is ·, a line end ↵, a tab ⇥, and other bytes are ‹e2›."""
        tokens = [self.id_to_token(i) for i in _as_list(ids)]
        if isinstance(self.backend.decoder, decoders.ByteLevel):
            tokens = [_decode_byte_characters(token) for token in tokens]
        elif isinstance(self.backend.decoder, decoders.Metaspace | decoders.Sequence):
            tokens = [token.removesuffix(" ").replace("▁", " ") for token in tokens]
        return [to_printable(token) for token in tokens]

    def token_bytes(self, i: int) -> list[int]:
        """The bytes that a token stands for, which may be part of a character."""
        token = self.id_to_token(i)
        if self.has_space_prefix and set(token) <= set(BYTE_CHARACTERS):
            return list(map(BYTE_CHARACTERS.index, token))
        byte_token = BYTE_TOKEN.fullmatch(token)
        if byte_token:
            return [int(byte_token[1], 16)]
        return list(token.replace("▁", " ").encode())

    def id_to_token(self, i: int) -> str:
        """The token with an id, as the vocabulary spells it."""
        try:
            token = self.backend.id_to_token(i)
        except (OverflowError, TypeError):
            token = None
        if token is None:
            raise ClearheadError(
                f"token id {i!s:.60} does not exist; ids run from 0 to {len(self) - 1}."
            )
        return token

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens and their ids; plain text never becomes one of them."""
        added = self.backend.get_added_tokens_decoder()
        return {token.content: i for i, token in added.items() if token.special}

    @cached_property
    def special_pattern(self) -> re.Pattern[str]:
        """Matches names of special tokens in a text, the longest first."""
        names = _alternatives([*self.special_tokens]) if self.special_tokens else NEVER
        return re.compile(f"({names})")

    @property
    def has_space_prefix(self) -> bool:
        """Whether a word's token includes the space before it, as in byte-level BPE."""
        return isinstance(self.backend.decoder, decoders.ByteLevel)

    def __repr__(self) -> str:
        return f"<Tokenizer: {len(self)} tokens>"

    def __len__(self) -> int:
        return self.backend.get_vocab_size()

    def save(self, path: str | Path) -> None:
        """Write a `tokenizer.json`, atomically."""
        try:
            write_atomic(Path(path), self.backend.to_str(pretty=True).encode())
        except OSError as error:
            raise ClearheadError(f"cannot write {path}: {error.strerror}.") from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a `tokenizer.json`."""
        with reraise_as(f"{path} is not a valid tokenizer.json", TypeError):
            try:
                text = Path(path).read_text(encoding="utf-8")
            except OSError as error:
                raise cannot_read(path, error) from None
            check_tokenizer_json(text)
            backend = tk.Tokenizer.from_str(text)
            check_growth(backend)
            return cls(backend)

    @cached_property
    def without_prefix_space(self) -> "Tokenizer":
        """This tokenizer for text that follows a special token.

        Some tokenizers put a space before the start of a text, and only there.
        """
        rule = self.backend.to_str().replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
        return Tokenizer(tk.Tokenizer.from_str(rule))

    @cached_property
    def _with_special_tokens(self) -> tk.Tokenizer:
        """A copy that recognizes special tokens; toggling a flag would affect other threads."""
        return tk.Tokenizer.from_str(self.backend.to_str())

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special_tokens.values())

    def _reencode_if_special(self, text: str, ids: list[int]) -> list[int]:
        """Replace `ids` if a part of the text was read as a special token."""
        if self._special_ids.isdisjoint(ids):
            return ids
        return _encode_batch(self._without_special_tokens, [text])[0]

    @cached_property
    def _without_special_tokens(self) -> tk.Tokenizer:
        """A copy that does not know the names of special tokens, which may also be BPE pieces."""
        backend_json = json.loads(self.backend.to_str())
        model = backend_json["model"]
        renamed = {name: f" \0{i}" for name, i in self.special_tokens.items()}  # never in a word
        if isinstance(model["vocab"], list):
            vocab = {name for name, _ in model["vocab"]}
            model["vocab"] = [[renamed.get(name, name), score] for name, score in model["vocab"]]
        else:
            vocab = set(model["vocab"])
            model["vocab"] = {renamed.get(name, name): i for name, i in model["vocab"].items()}
        if "merges" in model:
            model["merges"] = [
                pair
                for pair in model["merges"]
                if renamed.keys().isdisjoint([*pair, "".join(pair)])
            ]
        if model.get("unk_token"):
            model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
        backend_json["added_tokens"] = [
            token
            for token in backend_json["added_tokens"]
            if not token["special"] or token["content"] not in vocab
        ]
        backend_json["post_processor"] = None
        backend = tk.Tokenizer.from_str(json.dumps(backend_json))
        backend.encode_special_tokens = True
        return backend


def _alternatives(names: list[str], max_depth: int = 8) -> str:
    """A pattern for the longest of these names.

    Those with the same beginning are grouped, so that thousands do not slow the search down.
    """
    if max_depth == 0:
        return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name[0], []).append(name)
    branches = []
    for group in groups.values():
        prefix = commonprefix(group)  # noqa: RUF071 - of characters is intended
        ends = [name[len(prefix) :] for name in group if name != prefix]
        branch = re.escape(prefix)
        if ends:
            optional = "?" if len(ends) < len(group) else ""
            branch += f"(?:{_alternatives(ends, max_depth - 1)}){optional}"
        branches.append(branch)
    return "|".join(branches)


def _as_list(ids: Iterable[int]) -> list[int]:
    """Ids, which may be in a tensor or an array, as a list."""
    ids = getattr(ids, "tolist", lambda: ids)()
    check_type(ids, Iterable, "a list of token ids")
    return list(ids)


def _add_special_tokens(backend: tk.Tokenizer, special_tokens: tuple[str, ...]) -> tk.Tokenizer:
    for token in special_tokens:
        if not token or not token.isascii() or backend.token_to_id(token) is not None:
            raise ClearheadError(
                f"the special token {token!r} could also be plain text; write it like '<|end|>'."
            )
    backend.add_special_tokens(list(special_tokens))
    return backend


def _encode_batch(backend: tk.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    with rust_panics_as("this tokenizer cannot encode the text"):
        # `fast` leaves out offsets.
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
    return [one.ids for one in encodings]


# --- printable tokens
def _decode_byte_characters(token: str) -> str:
    """The text of a byte-level token; bytes that are not UTF-8 become lone surrogates."""
    if not set(token) <= set(BYTE_CHARACTERS):
        return token  # a word that was added to the vocabulary as it is
    return bytes(map(BYTE_CHARACTERS.index, token)).decode(errors="surrogateescape")


def to_printable(text: str) -> str:
    """Text without spaces, control codes and leading combining marks, to show as a label."""
    starts_with_mark = bool(text) and unicodedata.category(text[0]).startswith("M")
    return ("◌" if starts_with_mark else "") + "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character in VISIBLE_WHITESPACE or character.isprintable():
        return VISIBLE_WHITESPACE.get(character, character)
    return "".join(f"‹{byte:02x}›" for byte in character.encode(errors="surrogateescape"))


# --- mask tokens
def encode_with_masks(tokenizer: Tokenizer, mask_token: int, text: str) -> list[int]:
    """Token ids of a text in which each [MASK] becomes `mask_token`."""
    ids: list[int] = []
    for start, end, mask in split_at_masks(tokenizer, mask_token, text):
        ids += tokenizer.encode(text[start:end]) if mask is None else [mask]
    return ids


def split_at_masks(
    tokenizer: Tokenizer, mask_token: int | None, text: str
) -> Iterator[tuple[int, int, int | None]]:
    """Spans (start, end, token) of a text: those between masks, whose token is None, and masks.

    Like a word's token, a mask includes the space before it. Without a mask token, the whole text
    is one span.
    """
    start = 0
    if mask_token is not None:
        names = [name for name, i in tokenizer.special_tokens.items() if i == mask_token]
        space = " ?" if tokenizer.has_space_prefix else ""
        pattern = "|".join(space + re.escape(name) for name in (MASK_PLACEHOLDER, *names))
        for mask in re.finditer(pattern, text):
            yield start, mask.start(), None
            yield mask.start(), mask.end(), mask_token
            start = mask.end()
    yield start, len(text), None


# --- BPE merges
class BPEMerges:
    """The merges of a BPE tokenizer in the order they were learned; empty for others (L1.2)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        model = json.loads(tokenizer.backend.to_str())["model"]
        merges = model.get("merges") or []
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}

    def __len__(self) -> int:
        return len(self._ranks)

    def first_merges(self, count: int) -> list[list[str]]:
        """The first merges as printable tokens: left, right, merged."""
        return [
            self._to_str_tokens([left, right, left + right])
            for left, right in islice(self._ranks, count)
        ]

    def merge_steps(self, i: int) -> list[list[str]]:
        """The symbols of token `i` before and after each merge; empty if no merges lead to it."""
        symbols = list(self._tokenizer.id_to_token(i))
        steps = [symbols]
        while len(symbols) > 1:
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in pairwise(symbols)]
            first_rank = min(ranks)
            if first_rank == len(self._ranks):
                return []
            index = ranks.index(first_rank)
            merged = symbols[index] + symbols[index + 1]
            symbols = [*symbols[:index], merged, *symbols[index + 2 :]]
            steps.append(symbols)
        return [self._to_str_tokens(symbols) for symbols in steps] if len(steps) > 1 else []

    def _to_str_tokens(self, symbols: list[str]) -> list[str]:
        ids = [self._tokenizer.backend.token_to_id(symbol) for symbol in symbols]
        return self._tokenizer.to_str_tokens([i for i in ids if i is not None])
