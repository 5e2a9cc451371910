"""Where the vector of a word comes from: a table of words, a model's embedding matrix, or one of its layers."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, check_kind, nearest
from clearhead.lens.logit_lens import token_labels
from clearhead.lens.parts import check_layer, numbers
from clearhead.lens.progress import shown
from clearhead.model.inputs import TokenInput
from clearhead.model.transformer import Stack, Transformer
from clearhead.tokens.text import Tokenizer
from clearhead.words.files import Table

if TYPE_CHECKING:
    from clearhead.inside import Inside
    from clearhead.lens.seen import Seen

SOME = 256  # tokens that are read at once


@dataclass(frozen=True)
class Word:
    """A word with its vector: the mean over its pieces, where a model knows it by several."""

    text: str
    vector: Tensor
    pieces: tuple[str, ...] = ()


class Source(Protocol):
    """All names with their vectors, and the vector of any word."""

    words: str  # what they are, as in "12 …"

    @property
    def names(self) -> list[str]: ...
    @property
    def rows(self) -> Tensor: ...
    def knows(self, text: str) -> bool: ...
    def find(self, text: str) -> Word: ...


@dataclass(frozen=True)
class Listed:
    """Words as they stand in a table; where one does not, its small letters may."""

    table: Table
    words = "words"

    @property
    def names(self) -> list[str]:
        return self.table.words

    @property
    def rows(self) -> Tensor:
        return self.table.vectors

    @cached_property
    def _place(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.names)}

    def knows(self, text: str) -> bool:
        return text in self._place or text.lower() in self._place

    def place(self, text: str) -> int:
        """The row of a word."""
        if not self.knows(text):
            joined = len(text) > 1 and any(sign in text[1:] for sign in "+-")
            hint = "put spaces around + and -." if joined else nearest(text.lower(), self.names)
            raise ClearheadError(f"{text!r} is not one of the {len(self.names):,} words; {hint}")
        return self._place[text if text in self._place else text.lower()]

    def find(self, text: str) -> Word:
        return Word(text, self.rows[self.place(text)])


class Side:
    """The side of a model that reads: its tokenizer, its embedding matrix, and what stands around a text."""

    def __init__(self, model: "Inside") -> None:
        check_kind(getattr(model, "net", model), Transformer, "a model")
        self.model, use, encoder = model, model.config.use, model.net.encoder
        words = encoder is not None and isinstance(encoder.embed, TokenInput)
        self.stack: Stack = encoder if encoder is not None and words else model.net
        self.encoder = self.stack is not model.net
        tokenizer = model.tokenizers[self.encoder]
        if not isinstance(self.stack.embed, TokenInput):
            raise ClearheadError("this model reads no words, so it has no vectors of them.")
        if tokenizer is None:
            raise ClearheadError("this model has no tokenizer, so it knows no words; give it one.")
        self.tokenizer: Tokenizer = tokenizer
        self.table = self.stack.embed.tokens.weight.detach()
        self.begin, self.end = (use.begin, use.end) if self.encoder or encoder is None else ((), ())
        self.mask = next(iter(use.mask), None)  # the token of a gap

    def ids(self, word: str) -> list[int]:
        """The tokens of a word as it stands within a text: after a space, where tokens hold it."""
        if not word.strip():
            raise ClearheadError("the word is empty; give at least one letter.")
        ids = self.tokenizer.encode(f" {word.strip()}" if self.tokenizer.spaces_first else word)
        special = {i: name for name, i in self.tokenizer.special.items()}
        if not ids or (unknown := [special[i] for i in ids if i in special]):
            raise ClearheadError(f"{word!r} becomes {unknown[0] if ids else 'nothing'} here; it has no tokens.")
        return ids

    def pieces(self, ids: list[int]) -> tuple[str, ...]:
        return tuple(token_labels(self.tokenizer, ids))

    def stream(self, layer: int) -> str:
        """The name of the residual stream after a layer."""
        return f"{'encoder.' if self.encoder else ''}blocks.{check_layer(layer, len(self.stack.blocks))}.post"

    def watch(self, rows: list[list[int]], names: list[str]) -> "Seen":
        """What the pass over some rows of ids had inside."""
        if not self.encoder:
            return numbers(self.model.watch(rows, names))
        target = [list(self.model.config.use.start) or [0]] * len(rows)  # which no encoder sees
        return numbers(self.model.watch(target, names, source=rows))


class Embedded:
    """Words as rows of a model's embedding matrix."""

    words = "tokens"

    def __init__(self, side: Side) -> None:
        self.side = side
        special = {*side.tokenizer.special.values()}
        self._ids = [i for i in range(len(side.tokenizer)) if i not in special]  # what plain text may become

    @cached_property
    def names(self) -> list[str]:
        return list(self.side.pieces(self._ids))

    @cached_property
    def rows(self) -> Tensor:
        return self._of(self._ids)

    def knows(self, text: str) -> bool:
        try:
            return bool(self.side.ids(text))
        except ClearheadError:
            return False

    def find(self, text: str) -> Word:
        ids = self.side.ids(text)
        return Word(text, self._of(ids).mean(dim=0), self.side.pieces(ids))

    def _of(self, ids: list[int]) -> Tensor:
        return self.side.table[ids].float().cpu()


class InLayer(Embedded):
    """Words as the residual stream after a layer, each read by the model with nothing else."""

    def __init__(self, side: Side, layer: int) -> None:
        super().__init__(side)
        self._name = side.stream(layer)

    @cached_property
    def rows(self) -> Tensor:
        parts = [self._ids[i : i + SOME] for i in range(0, len(self._ids), SOME)]
        batches = shown(parts, len(parts), f"reading every token alone, {SOME} at a time")
        return torch.cat([self._read([[i] for i in part])[:, 0] for part in batches])

    def _of(self, ids: list[int]) -> Tensor:
        return self._read([ids])[0]

    def _read(self, rows: list[list[int]]) -> Tensor:
        """row × token × width, without what stands around each row."""
        begin, end = self.side.begin, self.side.end
        seen = self.side.watch([[*begin, *row, *end] for row in rows], [self._name])[self._name].float().cpu()
        return seen[:, len(begin) : seen.shape[1] - len(end)]
