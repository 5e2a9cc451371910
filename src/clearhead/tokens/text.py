"""Text becomes vocabulary indices, and indices become text again (L1.2)."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import tokenizers as tk
from tokenizers import decoders, models, pre_tokenizers, trainers

from clearhead.errors import ClearheadError, Unreadable, check_kind, check_whole, understood, unreadable
from clearhead.files import overwrite
from clearhead.tokens.kinds import END


def _stand_ins() -> str:
    """GPT-2's visible character for each of the 256 bytes: itself, or the next one from Ā on."""
    spare = map(chr, range(256, 512))
    return "".join(c if c.isprintable() and c != " " else next(spare) for c in map(chr, range(256)))


BYTES = _stand_ins()
VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥"}


class Tokenizer:
    """A vocabulary and the rule that cuts text into it: what a `tokenizer.json` holds, published ones included.

    Ids stand for the text alone: beginnings, ends and [CLS] are put around it by whoever makes the batch.
    """

    def __init__(self, inner: tk.Tokenizer) -> None:
        inner.no_truncation()  # some published files cut at 128 tokens, in silence
        inner.no_padding()
        inner.encode_special_tokens = True  # which means: as the plain text that they look like
        self._inner = inner

    @classmethod
    def train_bpe(cls, texts: Iterable[str], size: int, special: tuple[str, ...] = (END,)) -> Self:
        """Byte-level BPE: the 256 bytes, then merges of the most frequent neighbours, `special` last.

        Of little text there are fewer than `size` tokens to be made: `len` tells how many came out.
        """
        if isinstance(texts, str):
            raise ClearheadError("BPE learns from several texts, not from the letters of one; write [text].")
        check_whole("the size of a vocabulary", size, most=2**31 - 1)
        if size < (least := len(BYTES) + len(special)):
            need = f"256 bytes and {', '.join(special)} need {least}"
            raise ClearheadError(f"a vocabulary of {size} is too small; {need}.")
        inner = tk.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        room = size - len(special)
        learner = trainers.BpeTrainer(vocab_size=room, initial_alphabet=list(BYTES), show_progress=False)
        try:
            inner.train_from_iterator(texts, learner)
        except TypeError as error:
            raise ClearheadError(f"BPE learns from a list of texts: {error}.") from None
        return cls(_with(inner, special))

    @classmethod
    def bytes(cls, special: tuple[str, ...] = ()) -> Self:
        """The 256 bytes, each its own id: a vocabulary that needs no training. `special` tokens come last."""
        inner = tk.Tokenizer(models.BPE({token: byte for byte, token in enumerate(BYTES)}, []))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
        return cls(_with(inner, special))

    @classmethod
    def characters(cls, text: str, special: tuple[str, ...] = ()) -> Self:
        """One token for each different character of `text`, in the order of Unicode, then `special`."""
        check_kind(text, str, "a text")
        inner = tk.Tokenizer(models.WordLevel({c: i for i, c in enumerate(sorted(set(text)))}))
        inner.pre_tokenizer = pre_tokenizers.Split(tk.Regex(r"[\s\S]"), "isolated")
        inner.decoder = decoders.Fuse()
        return cls(_with(inner, special))

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of `text`. Special tokens in it are plain text unless allowed: a user may type `<|end|>`."""
        check_kind(text, str, "a text")
        try:
            if allow_special:
                return _ids(self._heeding, [text])[0]
            return self._as_plain(text, _ids(self._inner, [text])[0])
        except Exception:  # the library raises nothing narrower; what we cannot explain goes on
            for character in text:
                if not self._knows(character):
                    name = f"{character!r} (U+{ord(character):04X})"
                    raise Unreadable(None, f"holds {name}, for which there is no token.") from None
            raise

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """What `encode` gives for each text, on all cores at once: for short texts that pays most."""
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise ClearheadError(f"a list of texts is needed, not {type(texts).__name__}.")
        texts = list(texts)
        try:
            found = _ids(self._inner, texts)
        except Exception:  # as in encode, which knows the reason
            for number, text in enumerate(texts):
                try:
                    self.encode(text)
                except ClearheadError as error:
                    raise ClearheadError(f"text {number + 1} of {len(texts)}: {error}") from None
            raise
        return list(map(self._as_plain, texts, found))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens spelled out; bytes that are no whole character become �."""
        for i in (ids := _numbers(ids)):
            self._token(i)
        return self._inner.decode(ids, skip_special_tokens=False)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each token as a label: a space is ·, a line's end ↵, a tab ⇥, what cannot be seen its bytes: ‹e2›."""
        tokens = [self._token(i) for i in _numbers(ids)]
        if isinstance(self._inner.decoder, decoders.ByteLevel):
            tokens = [_from_bytes(token) for token in tokens]
        elif isinstance(self._inner.decoder, decoders.Metaspace | decoders.Sequence):  # SentencePiece's
            tokens = [token.removesuffix(" ").replace("▁", " ") for token in tokens]
        return [visible(token) for token in tokens]

    @cached_property
    def special(self) -> dict[str, int]:
        """The tokens that no plain text becomes, with their ids."""
        return {t.content: i for i, t in self._inner.get_added_tokens_decoder().items() if t.special}

    @property
    def spaces_first(self) -> bool:
        """Whether a word's token holds the space before it, as in byte-level BPE."""
        return isinstance(self._inner.decoder, decoders.ByteLevel)

    def __repr__(self) -> str:
        return f"<tokenizer of {len(self)} tokens>"

    def __len__(self) -> int:
        return self._inner.get_vocab_size()

    def save(self, path: str | Path) -> None:
        """To a `tokenizer.json`: the old file or the new one is there at any moment, never half of one."""
        try:
            overwrite(Path(path), self._inner.to_str(pretty=True).encode())
        except OSError as error:
            raise ClearheadError(f"{path} cannot be written: {error.strerror}.") from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a `tokenizer.json`, ours or a published one."""
        with understood(f"{path} is not a tokenizer.json"):
            try:
                text = Path(path).read_text(encoding="utf-8")
            except OSError as error:
                raise unreadable(path, error) from None
            return cls(tk.Tokenizer.from_str(text))

    @cached_property
    def going_on(self) -> "Tokenizer":
        """The same rule for what follows a special token: some put a space before what begins a text, and only that."""
        rule = self._inner.to_str().replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
        return Tokenizer(tk.Tokenizer.from_str(rule))

    @cached_property
    def _heeding(self) -> tk.Tokenizer:
        # A twin, not a switch: a switch would let another thread's text in while it is set.
        return tk.Tokenizer.from_str(self._inner.to_str())

    def _as_plain(self, text: str, ids: list[int]) -> list[int]:
        """The ids of `text`; other ones where it holds what looks like a special token."""
        return ids if self._special_ids.isdisjoint(ids) else _ids(self._plain, [text])[0]

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special.values())

    @cached_property
    def _plain(self) -> tk.Tokenizer:
        # A twin that no longer knows the names of special tokens: many models take `</s>` for one of their pieces.
        tree = json.loads(self._inner.to_str())
        model = tree["model"]
        new = {name: f" \0{i}" for name, i in self.special.items()}  # no word holds a space
        if isinstance(model["vocab"], list):
            known = {name for name, _ in model["vocab"]}
            model["vocab"] = [[new.get(name, name), score] for name, score in model["vocab"]]
        else:
            known = model["vocab"].keys()
            model["vocab"] = {new.get(name, name): i for name, i in model["vocab"].items()}
        if "merges" in model:
            model["merges"] = [pair for pair in model["merges"] if new.keys().isdisjoint([*pair, "".join(pair)])]
        if model.get("unk_token"):
            model["unk_token"] = new.get(model["unk_token"], model["unk_token"])
        kept = [token for token in tree["added_tokens"] if not token["special"] or token["content"] not in known]
        plain = tk.Tokenizer.from_str(json.dumps(tree | {"added_tokens": kept, "post_processor": None}))
        plain.encode_special_tokens = True
        return plain

    def _token(self, i: int) -> str:
        try:
            token = self._inner.id_to_token(i)
        except (OverflowError, TypeError):
            token = None
        if token is None:
            raise ClearheadError(f"there is no token {i!s:.60}; ids run from 0 to {len(self) - 1}.")
        return token

    def _knows(self, character: str) -> bool:
        try:
            self._inner.encode(character)
        except Exception:  # as in encode
            return False
        return True


def _numbers(ids: Iterable[int]) -> list[int]:
    """Ids as a list; they may be in a tensor or an array."""
    ids = getattr(ids, "tolist", lambda: ids)()
    check_kind(ids, Iterable, "a list of ids")
    return list(ids)


def _with(inner: tk.Tokenizer, special: tuple[str, ...]) -> tk.Tokenizer:
    for token in special:
        if not token or not token.isascii() or inner.token_to_id(token) is not None:
            raise ClearheadError(f"{token!r} may also come out of plain text; write a special token as '<|end|>'.")
    inner.add_special_tokens(list(special))
    return inner


def _ids(inner: tk.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [one.ids for one in inner.encode_batch_fast(texts, add_special_tokens=False)]  # fast: without offsets


def _from_bytes(token: str) -> str:
    """The text of a token in stand-ins; a byte that is no text becomes a lone surrogate."""
    if not set(token) <= set(BYTES):
        return token  # a word added to a published vocabulary as it is
    return bytes(map(BYTES.index, token)).decode(errors="surrogateescape")


def visible(text: str) -> str:
    """Text as a label that can be printed anywhere: no space, no control code, no accent that joins what it follows."""
    alone = "◌" if text and unicodedata.category(text[0]).startswith("M") else ""
    return alone + "".join(map(_label, text))


def _label(character: str) -> str:
    if character in VISIBLE or character.isprintable():
        return VISIBLE.get(character, character)
    return "".join(f"‹{byte:02x}›" for byte in character.encode(errors="surrogateescape"))
