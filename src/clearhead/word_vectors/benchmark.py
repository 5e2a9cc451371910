"""Benchmark word vectors on published analogies (Google) and similarities (WordSim, SimLex).

- Analogies: lines such as `Athens Greece Baghdad Iraq`, in sections that start with `: name`. A
  question is solved if the fourth word is the nearest to second - first + third, without these
  three, among all words of the table. A model has a vocabulary of tokens instead of words; its
  candidates are the words of the file.
- Similarities: lines of two words and a number, separated by tabs or commas; the first line may
  name the columns. The score is Spearman's correlation of the numbers with the cosines.

Capitalized words fall back to lower case. Questions with unknown words are skipped and counted.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.data.readers import read_lines
from clearhead.errors import ClearheadError
from clearhead.evaluate.metrics import spearman
from clearhead.lens.view import Row, View, label_axes
from clearhead.word_vectors.vectors import TableSource, Vectors

SCORE_COLUMN_NAMES = ("simlex999", "human (mean)")
DEFAULT_SCORE_COLUMN = 2
QUESTIONS_PER_BATCH = 256

AnalogySections = dict[str, list[tuple[str, ...]]]  # section -> questions of four words


@dataclass(frozen=True)
class SimilarityQuestions:
    """Pairs of words and their human similarity scores."""

    pairs: list[tuple[str, str]]
    scores: list[float]


@dataclass(frozen=True, eq=False, repr=False)
class BenchmarkResult(View):
    """A score per section, with the number of scored and of skipped questions."""

    num_scored: tuple[int, ...] = ()
    num_skipped: tuple[int, ...] = ()

    def table(self) -> list[Row]:
        counts = zip(super().table(), self.num_scored, self.num_skipped, strict=True)
        return [{**row, "scored": scored, "skipped": skipped} for row, scored, skipped in counts]


def evaluate_vectors(vectors: Vectors, file: str | Path) -> BenchmarkResult:
    """Score word vectors on a file of analogies or similarities."""
    file = Path(file)
    questions = read_questions(file)
    if isinstance(questions, SimilarityQuestions):
        return _evaluate_similarities(vectors, questions, file.stem)
    return _evaluate_analogies(vectors, questions, file)


# --- reading
def read_questions(path: Path) -> SimilarityQuestions | AnalogySections:
    """The questions of a file in its published format."""
    lines = [
        (number, line.strip())
        for number, line in enumerate(read_lines(path), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise ClearheadError(f"{path} contains no questions.")
    if lines[0][1].startswith(":"):
        return _read_analogies(path, lines)
    return _read_similarities(path, lines)


def _read_analogies(path: Path, lines: list[tuple[int, str]]) -> AnalogySections:
    sections: AnalogySections = {}
    for number, line in lines:
        words = line.split()
        if line.startswith(":"):
            section = sections.setdefault(line[1:].strip(), [])
        elif len(words) == 4:
            section.append(tuple(words))
        else:
            raise ClearheadError(f"{path}:{number}: an analogy has four words, got {len(words)}.")
    return sections


def _read_similarities(path: Path, lines: list[tuple[int, str]]) -> SimilarityQuestions:
    separator = "\t" if "\t" in lines[0][1] else ","
    header = [cell.strip().lower() for cell in lines[0][1].split(separator)]
    score_columns = [i for i, name in enumerate(header) if name in SCORE_COLUMN_NAMES]
    score_column = score_columns[0] if score_columns else DEFAULT_SCORE_COLUMN
    pairs = []
    scores = []
    for number, line in lines[1:] if score_columns else lines:
        cells = [cell.strip() for cell in line.split(separator)]
        try:
            score = float(cells[score_column])
        except (IndexError, ValueError):
            score = math.nan
        if not math.isfinite(score):
            raise ClearheadError(
                f"{path}:{number}: expected two words and a number, got {line!r:.60}."
            )
        pairs.append((cells[0], cells[1]))
        scores.append(score)
    return SimilarityQuestions(pairs, scores)


# --- similarities
def _evaluate_similarities(
    vectors: Vectors, questions: SimilarityQuestions, name: str
) -> BenchmarkResult:
    known = _known_vectors(vectors, [word for pair in questions.pairs for word in pair])
    cosines = []
    scores = []
    for (first, second), score in zip(questions.pairs, questions.scores, strict=True):
        if first in known and second in known:
            cosines.append(float(F.cosine_similarity(known[first], known[second], dim=0)))
            scores.append(score)
    num_scored = len(scores)
    if num_scored < 2:
        raise ClearheadError(
            f"only {num_scored} of {len(questions.pairs)} pairs have vectors; "
            "a correlation needs at least two."
        )
    num_skipped = len(questions.pairs) - num_scored
    return BenchmarkResult(
        torch.tensor([spearman(cosines, scores)]),
        label_axes({"part": [name]}),
        name,
        "correlation",
        signed=True,
        vmax=1.0,
        note=(
            f"Spearman correlation over {num_scored:,} pairs; "
            f"{num_skipped:,} skipped because a word has no vector"
        ),
        num_scored=(num_scored,),
        num_skipped=(num_skipped,),
    )


# --- analogies
def _evaluate_analogies(vectors: Vectors, sections: AnalogySections, file: Path) -> BenchmarkResult:
    words = [word for section in sections.values() for question in section for word in question]
    known = _known_vectors(vectors, words)
    if isinstance(vectors.source, TableSource):
        candidates = vectors.normalized
        rows = {word: vectors.source.row_index(word) for word in known}
    else:
        matrix = torch.stack(list(known.values())) if known else torch.empty(0, 1)
        candidates = F.normalize(matrix, dim=-1)
        rows = {word: i for i, word in enumerate(known)}
    counts = []  # of each section: correct, scored and skipped questions
    for section in sections.values():
        questions = [
            [rows[word] for word in question]
            for question in section
            if all(word in rows for word in question)
        ]
        correct = _count_correct(candidates, questions)
        counts.append((correct, len(questions), len(section) - len(questions)))
    num_correct, num_scored, num_skipped = (
        (*column, sum(column)) for column in zip(*counts, strict=True)
    )
    if not num_scored[-1]:
        raise ClearheadError(
            f"{file}: each of the {num_skipped[-1]:,} questions contains a word without a vector."
        )
    return BenchmarkResult(
        torch.tensor(num_correct) / torch.tensor(num_scored),
        label_axes({"part": [*sections, "all"]}),
        file.stem,
        "accuracy",
        vmax=1.0,
        note=(
            f"accuracy among {len(candidates):,} candidate words; "
            f"all: {num_correct[-1]:,} of {num_scored[-1]:,}"
        ),
        num_scored=num_scored,
        num_skipped=num_skipped,
    )


def _count_correct(candidates: Tensor, questions: list[list[int]]) -> int:
    """The number of solved questions; a question is four row indices."""
    num_correct = 0
    for batch in torch.tensor(questions, dtype=torch.long).view(-1, 4).split(QUESTIONS_PER_BATCH):
        first, second, third, answer = batch.T
        cosines = (candidates[second] - candidates[first] + candidates[third]) @ candidates.mT
        cosines.scatter_(1, batch[:, :3], -torch.inf)  # exclude the words of the question
        num_correct += int((cosines.argmax(dim=-1) == answer).sum())
    return num_correct


def _known_vectors(vectors: Vectors, words: list[str]) -> dict[str, Tensor]:
    """The vectors of all words that have one."""
    return {word: vectors[word] for word in dict.fromkeys(words) if vectors.source.has_word(word)}
