"""Published questions about words: analogies as Google's, similarities as WordSim-353 and SimLex-999.

- Analogies: `Athens Greece Baghdad Iraq` on a line, `: name` before each section. Right is who finds the fourth word
  nearest to second − first + third, the three themselves aside, among all words of the table. A model has no table of
  words, but of tokens: there the answer is looked for among the words of the file.
- Similarities: two words and a number on a line, between tabs or commas; the columns may be named in the first line.
  Spearman's correlation of the numbers with the cosines.

Small letters stand for capitals where the table has no capitals. Questions with words that have no vector are counted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.data.readers import read_lines
from clearhead.errors import ClearheadError
from clearhead.evaluate.metrics import spearman
from clearhead.lens.view import Axis, Row, View
from clearhead.word_vectors.vectors import TableSource, Vectors

SCORE_COLUMN_NAMES = ("simlex999", "human (mean)")  # what the column of the numbers is called
QUESTIONS_PER_BATCH = 256  # questions that are answered at once


@dataclass(frozen=True)
class SimilarityQuestions:
    """Two words and a number each."""

    pairs: list[tuple[str, str]]
    scores: list[float]


AnalogySections = dict[str, list[tuple[str, ...]]]  # name → questions of four words


@dataclass(frozen=True, eq=False, repr=False)
class BenchmarkResult(View):
    """A value for each section, with how many questions it is of and how many could not be asked."""

    num_scored: tuple[int, ...] = ()
    num_skipped: tuple[int, ...] = ()

    def table(self) -> list[Row]:
        counts = zip(super().table(), self.num_scored, self.num_skipped, strict=True)
        return [{**row, "asked": asked, "left out": left} for row, asked, left in counts]


def evaluate_vectors(vectors: Vectors, file: str | Path) -> BenchmarkResult:
    """The answers to a file of analogies or similarities."""
    questions = read_questions(Path(file))
    name = Path(file).stem
    if isinstance(questions, SimilarityQuestions):
        value, asked = _score_similarities(vectors, questions)
        left = len(questions.pairs) - asked
        note = f"Spearman's correlation of {asked:,} pairs; {left:,} were left out for words without a vector"
        axes = (Axis.from_labels("part", [name]),)
        return BenchmarkResult(
            torch.tensor([value]), axes, name, "correlation", signed=True, vmax=1.0, note=note,
            num_scored=(asked,), num_skipped=(left,),
        )  # fmt: skip
    right, asked_in, among = _score_analogies(vectors, questions)
    counts = [len(section) for section in questions.values()]
    rows = [*zip(right, asked_in, counts, strict=True), (sum(right), sum(asked_in), sum(counts))]
    if not sum(asked_in):
        raise ClearheadError(
            f"none of the {sum(counts):,} questions of {file} can be asked: their words have no vectors."
        )
    values = torch.tensor([good / asked if asked else math.nan for good, asked, _ in rows])
    note = (
        f"share of right answers, among {among:,} words; all: {sum(right):,} of {sum(asked_in):,}"
    )
    return BenchmarkResult(
        values, (Axis.from_labels("part", [*questions, "all"]),), name, "accuracy", vmax=1.0, note=note,
        num_scored=tuple(asked for _, asked, _ in rows), num_skipped=tuple(all_ - asked for _, asked, all_ in rows),
    )  # fmt: skip


def read_questions(path: Path) -> SimilarityQuestions | AnalogySections:
    """The questions of a file as it was published."""
    lines = enumerate(read_lines(path), 1)
    numbered = [(n, line.strip()) for n, line in lines if line.strip() and not line.startswith("#")]
    if not numbered:
        raise ClearheadError(f"{path} holds no questions.")
    if numbered[0][1].startswith(":"):
        return _read_analogies(path, numbered)
    return _read_similarities(path, numbered)


def _read_analogies(path: Path, lines: list[tuple[int, str]]) -> AnalogySections:
    sections: AnalogySections = {}
    for number, line in lines:
        if line.startswith(":"):
            section = sections.setdefault(line[1:].strip(), [])
        elif len(words := line.split()) == 4:
            section.append(tuple(words))
        else:
            raise ClearheadError(f"{path}:{number} has {len(words)} words; an analogy has four.")
    return sections


def _read_similarities(path: Path, lines: list[tuple[int, str]]) -> SimilarityQuestions:
    between = "\t" if "\t" in lines[0][1] else ","
    first = [cell.strip().lower() for cell in lines[0][1].split(between)]
    named = [column for column, name in enumerate(first) if name in SCORE_COLUMN_NAMES]
    column = named[0] if named else 2
    pairs = []
    numbers = []
    for number, line in lines[1:] if named else lines:
        cells = [cell.strip() for cell in line.split(between)]
        try:
            numbers.append(float(cells[column]))
            if not math.isfinite(numbers[-1]):
                raise ValueError
        except (IndexError, ValueError):
            raise ClearheadError(
                f"{path}:{number} must be two words and a number, not {line!r:.60}."
            ) from None
        pairs.append((cells[0], cells[1]))
    return SimilarityQuestions(pairs, numbers)


def _score_similarities(vectors: Vectors, questions: SimilarityQuestions) -> tuple[float, int]:
    rows = _known_vectors(vectors, [word for pair in questions.pairs for word in pair])
    cosines = []
    numbers = []
    for (a, b), number in zip(questions.pairs, questions.scores, strict=True):
        if a in rows and b in rows:
            cosines.append(float(F.cosine_similarity(rows[a], rows[b], dim=0)))
            numbers.append(number)
    if len(numbers) < 2:
        raise ClearheadError(
            f"{len(numbers)} of {len(questions.pairs)} pairs have vectors; a correlation needs two."
        )
    return spearman(cosines, numbers), len(numbers)


def _score_analogies(
    vectors: Vectors, sections: AnalogySections
) -> tuple[list[int], list[int], int]:
    """For each section, how many are right and how many were asked; and among how many words the answer was found."""
    rows = _known_vectors(
        vectors,
        [word for section in sections.values() for question in section for word in question],
    )
    if isinstance(vectors.source, TableSource):
        unit = vectors.normalized
        places = {word: vectors.source.row_index(word) for word in rows}
    else:
        unit = F.normalize(torch.stack(list(rows.values())), dim=-1) if rows else torch.empty(0, 1)
        places = {word: number for number, word in enumerate(rows)}
    asked = [
        [
            [places[word] for word in question]
            for question in section
            if places.keys() >= {*question}
        ]
        for section in sections.values()
    ]
    right = [
        sum(_count_correct(unit, torch.tensor(part)) for part in _batches(section))
        for section in asked
    ]
    return right, list(map(len, asked)), len(unit)


def _count_correct(unit: Tensor, questions: Tensor) -> int:
    """How many are right; a question is four places."""
    a, b, c, wanted = questions.T
    cosines = (unit[b] - unit[a] + unit[c]) @ unit.mT
    cosines.scatter_(1, questions[:, :3], -torch.inf)  # the three themselves
    return int((cosines.argmax(dim=-1) == wanted).sum())


def _batches(section: list[list[int]]) -> Iterator[list[list[int]]]:
    return (
        section[i : i + QUESTIONS_PER_BATCH] for i in range(0, len(section), QUESTIONS_PER_BATCH)
    )


def _known_vectors(vectors: Vectors, words: list[str]) -> dict[str, Tensor]:
    """The vectors of those words that have one."""
    return {
        word: vectors.vector(word) for word in dict.fromkeys(words) if vectors.source.has_word(word)
    }
