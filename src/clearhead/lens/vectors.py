"""Vectors of words (L1.4): which are near each other, what sums of them mean, and what directions carry."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import ClearheadError
from clearhead.lens.given import known_names
from clearhead.lens.parts import check_top
from clearhead.lens.sums import terms
from clearhead.lens.view import Axis, View
from clearhead.lens.word_sources import Embedded, InLayer, Listed, Side, Source, Word
from clearhead.weights import bundled
from clearhead.words.files import Table, holds_vectors, read_table, write_table

if TYPE_CHECKING:
    from clearhead.inside import Inside


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
        found = self.vectors.found(words)
        values = torch.stack([word.vector for word in found]) @ self.vector
        note = "dot product of each word with the mean of second less first" + _told(found)
        return View(values, (Axis.of("word", list(words)),), self._title, "score", signed=True, note=note)

    def agreement(self) -> View:
        """How much the pairs point the same way: the cosine of each two differences."""
        unit, names = F.normalize(self.differences, dim=-1), [f"{a}:{b}" for a, b in self.pairs]
        axes = Axis.of("pair", names), Axis.of("other", names)
        note = "cosine of second less first of one pair with that of another"
        return View(unit @ unit.mT, axes, self._title, "cosine", signed=True, most=1.0, note=note)

    @property
    def _title(self) -> str:
        return f"the direction {', '.join(f'{a} → {b}' for a, b in self.pairs)}"


class Vectors:
    """A vector for each word; near is what has a large cosine."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source.names)

    def __repr__(self) -> str:
        return f"<vectors of {len(self):,} {self.source.words}>"

    def vector(self, word: str) -> Tensor:
        """The vector of a word; of one that is several tokens, the mean of theirs."""
        return self.source.find(_text(word)).vector

    def found(self, words: Sequence[str]) -> list[Word]:
        """Each word with its vector and the pieces it is the mean of."""
        if isinstance(words, str) or not words:
            raise ClearheadError("several words are a list; write ['one', 'two'].")
        return [self.source.find(_text(word)) for word in words]

    def solve(self, written: str, top: int = 10, own: bool = False) -> View:
        """The words nearest to a sum of words, `king - man + woman`, other than its `own`.

        Words count with length 1. Of names that differ in case or in a space before them, only the nearest is told.
        """
        words, goal = self.sum(written)
        best = self.nearest(goal, top, () if own else [word.text for word in words])
        return replace(best, title=written, note=f"cosine with {written}" + _told(words))

    def sum(self, written: str) -> tuple[list[Word], Tensor]:
        """The words of a sum, each with length 1 in it, and what it adds up to."""
        summed = terms(_text(written))
        words = self.found([word for _, word in summed])
        signs = torch.tensor([float(sign) for sign, _ in summed])
        goal = signs @ F.normalize(torch.stack([word.vector for word in words]), dim=-1)
        if goal.norm() < 1e-6:
            raise ClearheadError(f"{written!r} adds up to nothing; every word in it is taken away again.")
        return words, goal

    def nearest(self, vector: Tensor, top: int = 10, without: Sequence[str] = ()) -> View:
        """The words nearest to any vector, but for some."""
        check_top(top)
        if not isinstance(vector, Tensor):
            raise ClearheadError(f"nearest takes a vector, not {vector!r:.40}; near(word) takes a word.")
        if vector.shape != self.unit.shape[1:]:
            raise ClearheadError(f"a vector has {self.unit.shape[1]} numbers here, not {tuple(vector.shape)}.")
        cosines = self.unit @ F.normalize(vector, dim=0)
        seen, best = {*map(_fold, without)}, list[int]()
        for i in cosines.argsort(descending=True).tolist():
            if len(best) == top:
                break
            if (same := _fold(self.source.names[i])) not in seen:
                seen.add(same)
                best.append(i)
        names = Axis.of("word", [self.source.names[i] for i in best])
        return View(cosines[best], (names,), "nearest words", "cosine", signed=True, most=1.0)

    def near(self, word: str, top: int = 10) -> View:
        """The words nearest to a word."""
        return self.solve(word, top)

    def similarity(self, words: Sequence[str]) -> View:
        """The cosine of each two of some words."""
        found = self.found(words)
        unit = F.normalize(torch.stack([word.vector for word in found]), dim=-1)
        axes = Axis.of("word", list(words)), Axis.of("other", list(words))
        note = "cosine of each two words" + _told(found)
        return View(unit @ unit.mT, axes, "similarity of words", "cosine", signed=True, most=1.0, note=note)

    def direction(self, pairs: Sequence[tuple[str, str]]) -> Direction:
        """What leads from the first word of each pair to the second: `[("cat", "cats"), ("dog", "dogs")]`."""
        listed = isinstance(pairs, tuple | list) and bool(pairs)
        if not listed or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise ClearheadError('a direction is made of pairs of words: [("cat", "cats")].')
        ends = [self.found(pair) for pair in pairs]
        differences = torch.stack([b.vector - a.vector for a, b in ends])
        return Direction(self, tuple((a.text, b.text) for a, b in ends), differences)

    def save(self, where: str | Path) -> None:
        """As a folder, or as .txt, .vec or .bin in word2vec's format."""
        write_table(Path(where), Table(self.source.names, self.source.rows))

    @cached_property
    def unit(self) -> Tensor:
        """All vectors with length 1."""
        return F.normalize(self.source.rows, dim=-1)


@known_names
def vectors(of: "Inside | str | Path | Table", layer: int | None = None) -> Vectors:
    """Of a model: the rows of its embedding matrix, or with `layer` the stream after it, each word read alone.

    Of a folder or file of vectors (.txt, .vec, .bin), or of the bundled "words": what is in it.
    """
    if isinstance(of, str | Path):
        path = Path(of) if holds_vectors(Path(of)) else bundled.find(str(of)) or Path(of)
        if not holds_vectors(path):
            raise ClearheadError(f"{of} holds no vectors of words; a model must be loaded first, with clearhead.load.")
        of = read_table(path)
    if not isinstance(of, Table):
        side = Side(of)
        return Vectors(Embedded(side) if layer is None else InLayer(side, layer))
    if layer is not None:
        raise ClearheadError(f"a table of vectors has no layers; leave out layer={layer}.")
    return Vectors(Listed(of))


def _text(word: object) -> str:
    if not isinstance(word, str) or not word.strip():
        raise ClearheadError(f"a word is needed, not {word!r:.60}.")
    return word.strip()


def _fold(name: str) -> str:
    """What names of one word have in common, whatever their case and the marks of their beginning."""
    return name.strip("· ").removeprefix("##").casefold()


def _told(words: Sequence[Word]) -> str:
    """The end of a note: which words were put together from pieces."""
    several = [f"{word.text!r} is the mean of {' '.join(word.pieces)}" for word in words if len(word.pieces) > 1]
    return "".join(f"; {sentence}" for sentence in dict.fromkeys(several))
