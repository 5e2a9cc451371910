"""The kinds of tokenizers that are made from texts, and the token that ends a text. Stdlib only."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise
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
)
from clearhead.io import write_atomic

# ---- kinds: The kinds of tokenizers that are made from texts, and the token that ends a text. Stdlib only.

TOKENIZER_KINDS = ("bpe", "characters", "bytes")
END_TOKEN = "<|end|>"


# ---- text: Text becomes vocabulary indices, and indices become text again (L1.2).


def _byte_characters() -> str:
    """GPT-2's visible character for each of the 256 bytes: itself, or the next one from Ā on."""
    spare = map(chr, range(256, 512))
    return "".join(c if c.isprintable() and c != " " else next(spare) for c in map(chr, range(256)))


BYTE_CHARACTERS = _byte_characters()
VISIBLE_WHITESPACE = {" ": "·", "\n": "↵", "\t": "⇥"}


class Tokenizer:
    """A vocabulary and the rule that cuts text into it: what a `tokenizer.json` holds, published ones included.

    Ids stand for the text alone: beginnings, ends and [CLS] are put around it by whoever makes the batch.
    """

    def __init__(self, inner: tk.Tokenizer) -> None:
        inner.no_truncation()  # some published files cut at 128 tokens, in silence
        inner.no_padding()
        inner.encode_special_tokens = True  # which means: as the plain text that they look like
        self.backend = inner

    @classmethod
    def train_bpe(
        cls, texts: Iterable[str], vocab_size: int, special_tokens: tuple[str, ...] = (END_TOKEN,)
    ) -> Self:
        """Byte-level BPE: the 256 bytes, then merges of the most frequent neighbours, `special` last.

        Of little text there are fewer than `size` tokens to be made: `len` tells how many came out.
        """
        if isinstance(texts, str):
            raise ClearheadError(
                "BPE learns from several texts, not from the letters of one; write [text]."
            )
        check_int("the size of a vocabulary", vocab_size, most=2**31 - 1)
        if vocab_size < (least := len(BYTE_CHARACTERS) + len(special_tokens)):
            need = f"256 bytes and {', '.join(special_tokens)} need {least}"
            raise ClearheadError(f"a vocabulary of {vocab_size} is too small; {need}.")
        inner = tk.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        room = vocab_size - len(special_tokens)
        learner = trainers.BpeTrainer(
            vocab_size=room, initial_alphabet=list(BYTE_CHARACTERS), show_progress=False
        )
        try:
            inner.train_from_iterator(texts, learner)
        except TypeError as error:
            raise ClearheadError(f"BPE learns from a list of texts: {error}.") from None
        return cls(_add_special_tokens(inner, special_tokens))

    @classmethod
    def bytes(cls, special_tokens: tuple[str, ...] = ()) -> Self:
        """The 256 bytes, each its own id: a vocabulary that needs no training. `special` tokens come last."""
        inner = tk.Tokenizer(
            models.BPE({token: byte for byte, token in enumerate(BYTE_CHARACTERS)}, [])
        )
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
        return cls(_add_special_tokens(inner, special_tokens))

    @classmethod
    def characters(cls, text: str, special_tokens: tuple[str, ...] = ()) -> Self:
        """One token for each different character of `text`, in the order of Unicode, then `special`."""
        check_type(text, str, "a text")
        inner = tk.Tokenizer(models.WordLevel({c: i for i, c in enumerate(sorted(set(text)))}))
        inner.pre_tokenizer = pre_tokenizers.Split(tk.Regex(r"[\s\S]"), "isolated")
        inner.decoder = decoders.Fuse()
        return cls(_add_special_tokens(inner, special_tokens))

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of `text`. Special tokens in it are plain text unless allowed: a user may type `<|end|>`."""
        check_type(text, str, "a text")
        try:
            if allow_special:
                return _encode_batch(self._with_special_tokens, [text])[0]
            return self._reencode_if_special(text, _encode_batch(self.backend, [text])[0])
        except Exception:  # the library raises nothing narrower; what we cannot explain goes on
            for character in text:
                if not self._can_encode(character):
                    name = f"{character!r} (U+{ord(character):04X})"
                    raise InputTextError(
                        None, f"holds {name}, for which there is no token."
                    ) from None
            raise

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """What `encode` gives for each text, on all cores at once: for short texts that pays most."""
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise ClearheadError(f"a list of texts is needed, not {type(texts).__name__}.")
        texts = list(texts)
        try:
            found = _encode_batch(self.backend, texts)
        except Exception:  # as in encode, which knows the reason
            for number, text in enumerate(texts):
                try:
                    self.encode(text)
                except ClearheadError as error:
                    raise ClearheadError(f"text {number + 1} of {len(texts)}: {error}") from None
            raise
        return list(map(self._reencode_if_special, texts, found))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens spelled out; bytes that are no whole character become �."""
        for i in (ids := _as_list(ids)):
            self.id_to_token(i)
        return self.backend.decode(ids, skip_special_tokens=False)

    def to_str_tokens(self, ids: Iterable[int]) -> list[str]:
        """Each token as a label: a space is ·, a line's end ↵, a tab ⇥, what cannot be seen its bytes: ‹e2›."""
        tokens = [self.id_to_token(i) for i in _as_list(ids)]
        if isinstance(self.backend.decoder, decoders.ByteLevel):
            tokens = [_decode_byte_characters(token) for token in tokens]
        elif isinstance(
            self.backend.decoder, decoders.Metaspace | decoders.Sequence
        ):  # SentencePiece's
            tokens = [token.removesuffix(" ").replace("▁", " ") for token in tokens]
        return [to_printable(token) for token in tokens]

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """The tokens that no plain text becomes, with their ids."""
        return {
            t.content: i for i, t in self.backend.get_added_tokens_decoder().items() if t.special
        }

    @property
    def has_space_prefix(self) -> bool:
        """Whether a word's token holds the space before it, as in byte-level BPE."""
        return isinstance(self.backend.decoder, decoders.ByteLevel)

    def __repr__(self) -> str:
        return f"<tokenizer of {len(self)} tokens>"

    def __len__(self) -> int:
        return self.backend.get_vocab_size()

    def save(self, path: str | Path) -> None:
        """To a `tokenizer.json`: the old file or the new one is there at any moment, never half of one."""
        try:
            write_atomic(Path(path), self.backend.to_str(pretty=True).encode())
        except OSError as error:
            raise ClearheadError(f"{path} cannot be written: {error.strerror}.") from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a `tokenizer.json`, ours or a published one."""
        with reraise_as(f"{path} is not a tokenizer.json"):
            try:
                text = Path(path).read_text(encoding="utf-8")
            except OSError as error:
                raise cannot_read(path, error) from None
            return cls(tk.Tokenizer.from_str(text))

    @cached_property
    def without_prefix_space(self) -> "Tokenizer":
        """The same rule for what follows a special token: some put a space before what begins a text, and only that."""
        rule = self.backend.to_str().replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
        return Tokenizer(tk.Tokenizer.from_str(rule))

    @cached_property
    def _with_special_tokens(self) -> tk.Tokenizer:
        # A twin, not a switch: a switch would let another thread's text in while it is set.
        return tk.Tokenizer.from_str(self.backend.to_str())

    def _reencode_if_special(self, text: str, ids: list[int]) -> list[int]:
        """The ids of `text`; other ones where it holds what looks like a special token."""
        return (
            ids
            if self._special_ids.isdisjoint(ids)
            else _encode_batch(self._without_special_tokens, [text])[0]
        )

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special_tokens.values())

    @cached_property
    def _without_special_tokens(self) -> tk.Tokenizer:
        # A twin that no longer knows the names of special tokens: many models take `</s>` for one of their pieces.
        tree = json.loads(self.backend.to_str())
        model = tree["model"]
        new = {name: f" \0{i}" for name, i in self.special_tokens.items()}  # no word holds a space
        if isinstance(model["vocab"], list):
            known = {name for name, _ in model["vocab"]}
            model["vocab"] = [[new.get(name, name), score] for name, score in model["vocab"]]
        else:
            known = model["vocab"].keys()
            model["vocab"] = {new.get(name, name): i for name, i in model["vocab"].items()}
        if "merges" in model:
            model["merges"] = [
                pair for pair in model["merges"] if new.keys().isdisjoint([*pair, "".join(pair)])
            ]
        if model.get("unk_token"):
            model["unk_token"] = new.get(model["unk_token"], model["unk_token"])
        kept = [
            token
            for token in tree["added_tokens"]
            if not token["special"] or token["content"] not in known
        ]
        plain = tk.Tokenizer.from_str(
            json.dumps(tree | {"added_tokens": kept, "post_processor": None})
        )
        plain.encode_special_tokens = True
        return plain

    def id_to_token(self, i: int) -> str:
        try:
            token = self.backend.id_to_token(i)
        except (OverflowError, TypeError):
            token = None
        if token is None:
            raise ClearheadError(f"there is no token {i!s:.60}; ids run from 0 to {len(self) - 1}.")
        return token

    def _can_encode(self, character: str) -> bool:
        try:
            self.backend.encode(character)
        except Exception:  # as in encode
            return False
        return True


def _as_list(ids: Iterable[int]) -> list[int]:
    """Ids as a list; they may be in a tensor or an array."""
    ids = getattr(ids, "tolist", lambda: ids)()
    check_type(ids, Iterable, "a list of ids")
    return list(ids)


def _add_special_tokens(inner: tk.Tokenizer, special: tuple[str, ...]) -> tk.Tokenizer:
    for token in special:
        if not token or not token.isascii() or inner.token_to_id(token) is not None:
            raise ClearheadError(
                f"{token!r} may also come out of plain text; write a special token as '<|end|>'."
            )
    inner.add_special_tokens(list(special))
    return inner


def _encode_batch(inner: tk.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [
        one.ids for one in inner.encode_batch_fast(texts, add_special_tokens=False)
    ]  # fast: without offsets


def _decode_byte_characters(token: str) -> str:
    """The text of a token in stand-ins; a byte that is no text becomes a lone surrogate."""
    if not set(token) <= set(BYTE_CHARACTERS):
        return token  # a word added to a published vocabulary as it is
    return bytes(map(BYTE_CHARACTERS.index, token)).decode(errors="surrogateescape")


def to_printable(text: str) -> str:
    """Text as a label that can be printed anywhere: no space, no control code, no accent that joins what it follows."""
    alone = "◌" if text and unicodedata.category(text[0]).startswith("M") else ""
    return alone + "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character in VISIBLE_WHITESPACE or character.isprintable():
        return VISIBLE_WHITESPACE.get(character, character)
    return "".join(f"‹{byte:02x}›" for byte in character.encode(errors="surrogateescape"))


# ---- gaps: Texts with gaps: a token for each word that is missing.

MASK_PLACEHOLDER = "[MASK]"  # what people type, whatever the tokenizer calls it


def encode_with_masks(tokenizer: Tokenizer, mask_token: int, text: str) -> list[int]:
    """The ids of a text, `mask` for each gap."""
    ids = list[int]()
    for start, end, gap in split_at_masks(tokenizer, mask_token, text):
        ids += tokenizer.encode(text[start:end]) if gap is None else [gap]
    return ids


def split_at_masks(
    tokenizer: Tokenizer, mask_token: int | None, text: str
) -> Iterator[tuple[int, int, int | None]]:
    """From where to where the parts of a text go: what is between gaps, and the gaps, with their token.

    A word brings its own space, so a gap does too. For a model without a token for gaps all is one part.
    """
    names = [
        MASK_PLACEHOLDER,
        *(name for name, token in tokenizer.special_tokens.items() if token == mask_token),
    ]
    space = " ?" if tokenizer.has_space_prefix else ""
    at = 0
    for gap in (
        ()
        if mask_token is None
        else re.finditer("|".join(space + re.escape(name) for name in names), text)
    ):
        yield at, gap.start(), None
        yield gap.start(), gap.end(), mask_token
        at = gap.end()
    yield at, len(text), None


# ---- merges: How a BPE built its pieces: from single symbols, always the two neighbours first that were learned first (L1.2).


class BPEMerges:
    """The merges of a tokenizer in the order in which they were learned; none where it is no BPE."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        model = json.loads(tokenizer.backend.to_str())["model"]
        self._ranks = {
            (left, right): rank for rank, (left, right) in enumerate(model.get("merges") or [])
        }

    def __len__(self) -> int:
        return len(self._ranks)

    def first_merges(self, count: int) -> list[list[str]]:
        """Those that were learned first, as labels: left and right, and what they became."""
        return [
            self._to_str_tokens([left, right, left + right])
            for left, right in islice(self._ranks, count)
        ]

    def merge_steps(self, i: int) -> list[list[str]]:
        """The labels of the symbols that token `i` was made of, after each merge; nothing if no merges lead to it."""
        token = self._tokenizer.id_to_token(i)
        symbols = list(token)
        steps = [symbols]
        while len(symbols) > 1:
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in pairwise(symbols)]
            if (least := min(ranks)) == len(self._ranks):
                return []
            at = ranks.index(least)
            symbols = [*symbols[:at], symbols[at] + symbols[at + 1], *symbols[at + 2 :]]
            steps.append(symbols)
        return [self._to_str_tokens(symbols) for symbols in steps] if len(steps) > 1 else []

    def _to_str_tokens(self, symbols: list[str]) -> list[str]:
        ids = [self._tokenizer.backend.token_to_id(symbol) for symbol in symbols]
        return self._tokenizer.to_str_tokens([i for i in ids if i is not None])
