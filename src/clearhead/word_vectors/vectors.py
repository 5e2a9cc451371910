"""Sums of words, as people write them: `king - man + woman`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import ClearheadError, suggest
from clearhead.lens.activations import (
    InputSide,
    check_arguments,
    check_top,
)
from clearhead.lens.view import Axis, View
from clearhead.progress import progress_bar
from clearhead.weights.model_cards import bundled_path
from clearhead.word_vectors.io import VectorTable, has_word_vectors, read_vectors, write_vectors

if TYPE_CHECKING:
    from clearhead.api import Model

# ---- sums: Sums of words, as people write them: `king - man + woman`.

SIGN_OF = {"+": 1, "-": -1, "−": -1}
UNSUPPORTED_OPERATORS = ("*", "×", "·", "/", "÷", "^", "=")  # signs of sums that are none
Terms = list[tuple[int, str]]  # a sign and a word each


def parse_terms(expression: str) -> Terms:
    """The words with their signs. + and - stand apart from words; words that follow each other are one name."""
    found: Terms = []
    sign = 1
    name = list[str]()
    for number, part in enumerate(expression.split()):
        if name and part in UNSUPPORTED_OPERATORS:
            raise ClearheadError(
                f"{expression!r} has {part!r} after a word; words are added (+) and taken away (-) only."
            )
        if part not in SIGN_OF:
            name.append(part)
            continue
        if name:
            found.append((sign, " ".join(name)))
        elif number:
            raise ClearheadError(
                f"{expression!r} has no word before {part!r}; write it as king - man + woman."
            )
        sign = SIGN_OF[part]
        name = []
    if not name:
        raise ClearheadError(f"{expression!r} ends without a word; write it as king - man + woman.")
    return [*found, (sign, " ".join(name))]


# ---- word_sources: Where the vector of a word comes from: a table of words, a model's embedding matrix, or one of its layers.

TOKENS_PER_BATCH = 256  # tokens that are read at once


@dataclass(frozen=True)
class WordVector:
    """A word with its vector: the mean over its pieces, where a model knows it by several."""

    text: str
    vector: Tensor
    tokens: tuple[str, ...] = ()


class VectorSource(Protocol):
    """All names with their vectors, and the vector of any word."""

    item_name: str  # what they are, as in "12 …"

    @property
    def names(self) -> list[str]: ...
    @property
    def matrix(self) -> Tensor: ...
    def has_word(self, text: str) -> bool: ...
    def lookup(self, text: str) -> WordVector: ...


@dataclass(frozen=True)
class TableSource:
    """Words as they stand in a table; where one does not, its small letters may."""

    table: VectorTable
    item_name = "words"

    @property
    def names(self) -> list[str]:
        return self.table.words

    @property
    def matrix(self) -> Tensor:
        return self.table.vectors

    @cached_property
    def _row_indices(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.names)}

    def has_word(self, text: str) -> bool:
        return text in self._row_indices or text.lower() in self._row_indices

    def row_index(self, text: str) -> int:
        """The row of a word."""
        if not self.has_word(text):
            joined = len(text) > 1 and any(sign in text[1:] for sign in "+-")
            hint = "put spaces around + and -." if joined else suggest(text.lower(), self.names)
            raise ClearheadError(f"{text!r} is not one of the {len(self.names):,} words; {hint}")
        return self._row_indices[text if text in self._row_indices else text.lower()]

    def lookup(self, text: str) -> WordVector:
        return WordVector(text, self.matrix[self.row_index(text)])


class EmbeddingSource:
    """Words as rows of a model's embedding matrix."""

    item_name = "tokens"

    def __init__(self, side: InputSide) -> None:
        self.side = side
        special = {*side.tokenizer.special_tokens.values()}
        self._ids = [
            i for i in range(len(side.tokenizer)) if i not in special
        ]  # what plain text may become

    @cached_property
    def names(self) -> list[str]:
        return list(self.side.to_str_tokens(self._ids))

    @cached_property
    def matrix(self) -> Tensor:
        return self._vectors_of(self._ids)

    def has_word(self, text: str) -> bool:
        try:
            return bool(self.side.encode_word(text))
        except ClearheadError:
            return False

    def lookup(self, text: str) -> WordVector:
        ids = self.side.encode_word(text)
        return WordVector(text, self._vectors_of(ids).mean(dim=0), self.side.to_str_tokens(ids))

    def _vectors_of(self, ids: list[int]) -> Tensor:
        return self.side.embedding[ids].float().cpu()


class LayerSource(EmbeddingSource):
    """Words as the residual stream after a layer, each read by the model with nothing else."""

    def __init__(self, side: InputSide, layer: int) -> None:
        super().__init__(side)
        self._name = side.resid_name(layer)

    @cached_property
    def matrix(self) -> Tensor:
        parts = [
            self._ids[i : i + TOKENS_PER_BATCH] for i in range(0, len(self._ids), TOKENS_PER_BATCH)
        ]
        batches = progress_bar(
            parts, len(parts), f"reading every token alone, {TOKENS_PER_BATCH} at a time"
        )
        return torch.cat([self._read([[i] for i in part])[:, 0] for part in batches])

    def _vectors_of(self, ids: list[int]) -> Tensor:
        return self._read([ids])[0]

    def _read(self, rows: list[list[int]]) -> Tensor:
        """row × token × width, without what stands around each row."""
        begin = self.side.bos_tokens
        end = self.side.sep_tokens
        seen = (
            self.side.watch([[*begin, *row, *end] for row in rows], [self._name])[self._name]
            .float()
            .cpu()
        )
        return seen[:, len(begin) : seen.shape[1] - len(end)]


# ---- vectors: Vectors of words (L1.4): which are near each other, what sums of them mean, and what directions carry.


@dataclass(frozen=True)
class Direction:
    """What pairs of words have in common: the mean of second less first."""

    vectors: "Vectors"
    pairs: tuple[tuple[str, str], ...]
    differences: Tensor  # pair width

    @property
    def vector(self) -> Tensor:
        """Their mean: the direction itself."""
        return self.differences.mean(dim=0)

    def score(self, word: str) -> float:
        """How far a word lies along the direction: its dot product with it."""
        return float(self.vectors.vector(word) @ self.vector)

    def scores(self, words: Sequence[str]) -> View:
        """The same for several words, as a view."""
        found = self.vectors.lookup(words)
        values = torch.stack([word.vector for word in found]) @ self.vector
        note = "dot product of each word with the mean of second less first" + _pieces_note(found)
        return View(
            values,
            (Axis.from_labels("word", list(words)),),
            self._title,
            "score",
            signed=True,
            note=note,
        )

    def agreement(self) -> View:
        """How much the pairs point the same way: the cosine of each two differences."""
        unit = F.normalize(self.differences, dim=-1)
        names = [f"{a}:{b}" for a, b in self.pairs]
        axes = Axis.from_labels("pair", names), Axis.from_labels("other", names)
        note = "cosine of second less first of one pair with that of another"
        return View(unit @ unit.mT, axes, self._title, "cosine", signed=True, vmax=1.0, note=note)

    @property
    def _title(self) -> str:
        return f"the direction {', '.join(f'{a} → {b}' for a, b in self.pairs)}"


class Vectors:
    """A vector for each word; near is what has a large cosine."""

    def __init__(self, source: VectorSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source.names)

    def __repr__(self) -> str:
        return f"<vectors of {len(self):,} {self.source.item_name}>"

    def vector(self, word: str) -> Tensor:
        """The vector of a word; of one that is several tokens, the mean of theirs."""
        return self.source.lookup(_check_word(word)).vector

    def lookup(self, words: Sequence[str]) -> list[WordVector]:
        """Each word with its vector and the pieces it is the mean of."""
        if isinstance(words, str) or not words:
            raise ClearheadError("several words are a list; write ['one', 'two'].")
        return [self.source.lookup(_check_word(word)) for word in words]

    def solve(self, expression: str, top_k: int = 10, include_inputs: bool = False) -> View:
        """The words nearest to a sum of words, `king - man + woman`, other than its `own`.

        Words count with length 1. Of names that differ in case or in a space before them, only the nearest is told.
        """
        words, goal = self.evaluate_expression(expression)
        best = self.nearest(goal, top_k, () if include_inputs else [word.text for word in words])
        return replace(
            best, title=expression, note=f"cosine with {expression}" + _pieces_note(words)
        )

    def evaluate_expression(self, expression: str) -> tuple[list[WordVector], Tensor]:
        """The words of a sum, each with length 1 in it, and what it adds up to."""
        summed = parse_terms(_check_word(expression))
        words = self.lookup([word for _, word in summed])
        signs = torch.tensor([float(sign) for sign, _ in summed])
        goal = signs @ F.normalize(torch.stack([word.vector for word in words]), dim=-1)
        if goal.norm() < 1e-6:
            raise ClearheadError(
                f"{expression!r} adds up to nothing; every word in it is taken away again."
            )
        return words, goal

    def nearest(self, vector: Tensor, top_k: int = 10, exclude: Sequence[str] = ()) -> View:
        """The words nearest to any vector, but for some."""
        check_top(top_k)
        if not isinstance(vector, Tensor):
            raise ClearheadError(
                f"nearest takes a vector, not {vector!r:.40}; near(word) takes a word."
            )
        if vector.shape != self.normalized.shape[1:]:
            raise ClearheadError(
                f"a vector has {self.normalized.shape[1]} numbers here, not {tuple(vector.shape)}."
            )
        cosines = self.normalized @ F.normalize(vector, dim=0)
        seen = {*map(_fold_name, exclude)}
        best = list[int]()
        for i in cosines.argsort(descending=True).tolist():
            if len(best) == top_k:
                break
            if (same := _fold_name(self.source.names[i])) not in seen:
                seen.add(same)
                best.append(i)
        names = Axis.from_labels("word", [self.source.names[i] for i in best])
        return View(cosines[best], (names,), "nearest words", "cosine", signed=True, vmax=1.0)

    def most_similar(self, word: str, top_k: int = 10) -> View:
        """The words nearest to a word."""
        return self.solve(word, top_k)

    def similarity(self, words: Sequence[str]) -> View:
        """The cosine of each two of some words."""
        found = self.lookup(words)
        unit = F.normalize(torch.stack([word.vector for word in found]), dim=-1)
        axes = Axis.from_labels("word", list(words)), Axis.from_labels("other", list(words))
        note = "cosine of each two words" + _pieces_note(found)
        return View(
            unit @ unit.mT, axes, "similarity of words", "cosine", signed=True, vmax=1.0, note=note
        )

    def direction(self, pairs: Sequence[tuple[str, str]]) -> Direction:
        """What leads from the first word of each pair to the second: `[("cat", "cats"), ("dog", "dogs")]`."""
        listed = isinstance(pairs, tuple | list) and bool(pairs)
        if not listed or not all(
            isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs
        ):
            raise ClearheadError('a direction is made of pairs of words: [("cat", "cats")].')
        ends = [self.lookup(pair) for pair in pairs]
        differences = torch.stack([b.vector - a.vector for a, b in ends])
        return Direction(self, tuple((a.text, b.text) for a, b in ends), differences)

    def save(self, path: str | Path) -> None:
        """As a folder, or as .txt, .vec or .bin in word2vec's format."""
        write_vectors(Path(path), VectorTable(self.source.names, self.source.matrix))

    @cached_property
    def normalized(self) -> Tensor:
        """All vectors with length 1."""
        return F.normalize(self.source.matrix, dim=-1)


@check_arguments
def vectors(source: "Model | str | Path | VectorTable", layer: int | None = None) -> Vectors:
    """Of a model: the rows of its embedding matrix, or with `layer` the stream after it, each word read alone.

    Of a folder or file of vectors (.txt, .vec, .bin), or of the bundled "words": what is in it.
    """
    if isinstance(source, str | Path):
        path = (
            Path(source)
            if has_word_vectors(Path(source))
            else bundled_path(str(source)) or Path(source)
        )
        if not has_word_vectors(path):
            raise ClearheadError(
                f"{source} holds no vectors of words; a model must be loaded first, with clearhead.load."
            )
        source = read_vectors(path)
    if not isinstance(source, VectorTable):
        side = InputSide(source)
        return Vectors(EmbeddingSource(side) if layer is None else LayerSource(side, layer))
    if layer is not None:
        raise ClearheadError(f"a table of vectors has no layers; leave out layer={layer}.")
    return Vectors(TableSource(source))


def _check_word(word: object) -> str:
    if not isinstance(word, str) or not word.strip():
        raise ClearheadError(f"a word is needed, not {word!r:.60}.")
    return word.strip()


def _fold_name(name: str) -> str:
    """What names of one word have in common, whatever their case and the marks of their beginning."""
    return name.strip("· ").removeprefix("##").casefold()


def _pieces_note(words: Sequence[WordVector]) -> str:
    """The end of a note: which words were put together from pieces."""
    several = [
        f"{word.text!r} is the mean of {' '.join(word.tokens)}"
        for word in words
        if len(word.tokens) > 1
    ]
    return "".join(f"; {sentence}" for sentence in dict.fromkeys(several))
