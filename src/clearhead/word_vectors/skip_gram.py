"""Texts as one long row of word numbers, the most frequent word 0."""

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.config.model import check_ranges
from clearhead.config.parse import dataclass_to_dict, option
from clearhead.data.batch import DataReport, OnError
from clearhead.data.readers import read_documents
from clearhead.errors import ClearheadError
from clearhead.model.attention import positions_from_segments
from clearhead.progress import progress_bar
from clearhead.word_vectors.io import VectorTable, prepare_output, write_vectors
from clearhead.word_vectors.vectors import Vectors, vectors

# ---- corpus: Texts as one long row of word numbers, the most frequent word 0.

WORD_PATTERN = re.compile(r"\w+(?:['’]\w+)*")  # don't and mother's are words, a hyphen parts two


@dataclass(frozen=True)
class Corpus:
    """Words that are frequent enough, and where they stand. No window reaches beyond a line."""

    words: list[str]
    counts: Tensor
    ids: Tensor  # of every word in the texts that is one of `words`
    line_ids: Tensor  # the number of the line that each of them stands in

    @classmethod
    def from_lines(cls, lines: Iterable[list[str]], min_count: int) -> "Corpus":
        """From the words of each line; those that are there less than `least` times are left out."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__  # a new word gets the next number
        row = array("i")
        lengths = array("i")
        for line in lines:
            row.extend(map(numbers.__getitem__, line))
            lengths.append(len(line))
        ids = np.frombuffer(row, dtype=np.int32) if row else np.empty(0, np.int32)
        counts = np.bincount(ids, minlength=len(numbers))
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] >= min_count]
        if len(order) < 2:
            raise ClearheadError(
                f"{len(order)} of {len(numbers):,} words are there {min_count} times; give more text, or a lower least."
            )
        rank = np.full(len(numbers), -1)
        rank[order] = np.arange(len(order))
        names = list(numbers)
        ids = rank[ids]
        standing = np.repeat(np.arange(len(lengths)), lengths)
        kept = ids >= 0
        found = (torch.from_numpy(x) for x in (counts[order], ids[kept], standing[kept]))
        return cls([names[i] for i in order], *found)


def split_words(text: str) -> Iterable[list[str]]:
    """The words of each line, in small letters."""
    return (words for line in text.lower().splitlines() if (words := WORD_PATTERN.findall(line)))


# ---- skip_gram: Skip-gram with negative sampling: a word's vector is to tell which words stand near it (word2vec, L1.4).

BLOCK_WORDS = 16  # words that meet their neighbours in one product, and words drawn for them; a window may reach half of it
BLOCKS_PER_STEP = 32  # blocks whose steps are taken at once
MAX_UPDATES_PER_WORD = 8  # times that a word may move in one step: all moves start from the same vector, and too many overshoot
MAX_UPDATE_NORM = 1.0  # the length of one move: text hardly ever asks for more, unless it is the same few words over and over
CHUNK_WORDS = 2**18  # words between two reports
NEGATIVE_SAMPLING_POWER = 0.75  # word2vec's: rare words are drawn more often than they occur


@dataclass(frozen=True)
class SkipGramConfig:
    """How vectors are learned."""

    vector_size: int = option("numbers of a vector", 100)
    window: int = option("how many words away a neighbour may stand", 5)
    negative_samples: int = option("words drawn at random for each pair", 5)
    subsample: float = option(
        "words with a larger share of the text than this are thinned out; 0 = none",
        1e-3,
        ge=0,
        lt=1,
    )
    min_count: int = option("words that occur less often have no vector", 5)
    epochs: int = option("how often all text is read", 5)
    lr: float = option(
        "how far a pair moves its vectors at the beginning; it falls to 0", 0.025, ge=0, lt=1
    )
    seed: int = option("where the random numbers start", 0, ge=0)

    def __post_init__(self) -> None:
        check_ranges(self, "train")


class SkipGramTrainer:
    """The two tables, `inner` for words as x and `outer` for words as y, while they are learned."""

    def __init__(self, corpus: Corpus, config: SkipGramConfig) -> None:
        self.corpus = corpus
        self.config = config
        self.generator = torch.Generator().manual_seed(config.seed)
        size = len(corpus.words), config.vector_size
        self.input_vectors = (torch.rand(size, generator=self.generator) - 0.5) / config.vector_size
        self.output_vectors = torch.zeros(size)
        share = corpus.counts.double() / corpus.counts.sum()
        self.keep_probability = _keep_probability(share, config.subsample)
        self.negative_cdf = (share**NEGATIVE_SAMPLING_POWER).cumsum(0) / (
            share**NEGATIVE_SAMPLING_POWER
        ).sum()
        self.block_words = max(BLOCK_WORDS, 2 * config.window)
        self.step_words = self.block_words * BLOCKS_PER_STEP
        self.counts_in_step = torch.zeros(
            size[0]
        )  # how often each word is in a step; all 0 between steps
        away = (
            torch.arange(self.block_words + 2 * config.window)
            - torch.arange(self.block_words)[:, None]
            - config.window
        )
        self.distance = away.masked_fill(
            away == 0, self.block_words + config.window
        )  # a word is no neighbour of its own

    def __len__(self) -> int:
        """How many chunks there are to learn from."""
        return self.config.epochs * -(-len(self.corpus.ids) // CHUNK_WORDS)

    def __iter__(self) -> Iterator[None]:
        """Learns chunk by chunk."""
        total = self.config.epochs * len(self.corpus.ids)
        with _single_thread():
            for epoch in range(self.config.epochs):
                for start in range(0, len(self.corpus.ids), CHUNK_WORDS):
                    done = epoch * len(self.corpus.ids) + start
                    self._train_chunk(
                        slice(start, start + CHUNK_WORDS), self.config.lr * (1 - done / total)
                    )
                    yield

    def _train_chunk(self, where: slice, rate: float) -> None:
        window = self.config.window
        ids = self.corpus.ids[where]
        lines = self.corpus.line_ids[where]
        kept = torch.rand(len(ids), generator=self.generator) < self.keep_probability[ids]
        ids = ids[kept]
        lines = lines[kept]
        reach = torch.randint(1, window + 1, ids.shape, generator=self.generator)
        before = torch.minimum(reach, _position_in_line(lines))
        after = torch.minimum(reach, _position_in_line(lines.flip(0)).flip(0))
        missing = -len(ids) % self.step_words  # filled up with words that have no neighbours
        before, after = (
            F.pad(limit, (0, missing)).view(-1, self.block_words, 1) for limit in (before, after)
        )
        ids = F.pad(ids, (window, window + missing))
        drawn = torch.rand(len(before), BLOCK_WORDS, generator=self.generator, dtype=torch.float64)
        drawn = torch.searchsorted(self.negative_cdf, drawn).clamp_(max=len(self.input_vectors) - 1)
        for i in range(0, len(before), BLOCKS_PER_STEP):
            near = ids[i * self.block_words : i * self.block_words + self.step_words + 2 * window]
            self._train_step(
                near,
                before[i : i + BLOCKS_PER_STEP],
                after[i : i + BLOCKS_PER_STEP],
                drawn[i : i + BLOCKS_PER_STEP],
                rate,
            )

    def _train_step(
        self, ids: Tensor, before: Tensor, after: Tensor, drawn: Tensor, rate: float
    ) -> None:
        """One step for the words of some blocks; `ids` begins and ends with a window's length of neighbours."""
        window = self.config.window
        width = self.config.vector_size
        block = self.block_words
        blocks = len(before)
        own = ids[window : len(ids) - window]
        x = self.input_vectors[own].view(blocks, block, width)
        near = self.output_vectors[ids]
        y = near.as_strided(
            (blocks, block + 2 * window, width), (block * width, width, 1)
        )  # they overlap
        n = self.output_vectors[drawn]
        pairs = ((self.distance >= -before) & (self.distance <= after)).float()
        weight = pairs.sum(dim=-1, keepdim=True) * (
            self.config.negative_samples / BLOCK_WORDS * rate
        )
        pull = (
            (1 - (x @ y.mT).sigmoid_()).mul_(pairs).mul_(rate)
        )  # the gradient of log σ(s) is 1 − σ(s)
        push = (x @ n.mT).sigmoid_().mul_(-weight)
        to_y = pull.mT @ x
        moved = torch.zeros(blocks + 1, block, width)
        moved[:-1] += to_y[:, :block]
        moved[1:, : 2 * window] += to_y[:, block:]
        self._apply_updates(self.input_vectors, own, pull @ y + push @ n)
        self._apply_updates(self.output_vectors, ids, moved.view(-1, width)[: len(ids)])
        self._apply_updates(self.output_vectors, drawn.flatten(), push.mT @ x)

    def _apply_updates(self, table: Tensor, ids: Tensor, rows: Tensor) -> None:
        """Moves the words of `ids` by the rows; less where a word is there too often, or would go too far."""
        self.counts_in_step.index_add_(0, ids, self.counts_in_step.new_ones(len(ids)))
        rows = rows.reshape(len(ids), -1)
        often = MAX_UPDATES_PER_WORD / self.counts_in_step[ids]
        far = MAX_UPDATE_NORM / rows.norm(dim=-1)
        rows = rows * torch.minimum(often, far).clamp_(max=1)[:, None]
        self.counts_in_step[ids] = 0
        table.scatter_add_(0, ids[:, None].expand_as(rows), rows)


@contextmanager
def _single_thread() -> Iterator[None]:
    """A step's matrices are so small that threads would wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _keep_probability(share: Tensor, subsample: float) -> Tensor:
    """The probability that a word stays where it stands, by its share of the text; word2vec's formula."""
    if not subsample:
        return torch.ones_like(share).float()
    return ((subsample / share).sqrt() + subsample / share).clamp(max=1).float()


def _position_in_line(lines: Tensor) -> Tensor:
    """How many words stand before each one in its line."""
    return positions_from_segments(lines[None])[0]


# ---- learn: From files of text to vectors of their words: `clearhead train vectors`.


@dataclass(frozen=True)
class VectorDataConfig:
    """What is learned from."""

    train: tuple[str, ...] = option(
        "files, folders or globs of text; .gz, .xz, .zst and .jsonl too", ()
    )
    text_column: str = option("the field of a JSON line that is the text", "text")
    on_error: OnError = option("what becomes of broken lines", "fail")


@dataclass(frozen=True)
class Word2VecConfig:
    """What is learned from, and how."""

    data: VectorDataConfig = field(default=VectorDataConfig())
    train: SkipGramConfig = field(default=SkipGramConfig())


def train_word_vectors(
    config: Word2VecConfig, output: str | Path, log: Callable[[str], None] = print
) -> Vectors:
    """Learns a vector for each frequent word of some texts and saves them.

    `out` is a folder, or a .txt, .vec or .bin in word2vec's format.
    """
    output = Path(output)
    how = config.train
    report = DataReport(config.data.on_error)
    if not config.data.train:
        raise ClearheadError(
            "there is nothing to learn from; give --data.train a file, a folder or a glob."
        )
    prepare_output(output)
    texts = read_documents(config.data.train, report, config.data.text_column)
    corpus = Corpus.from_lines(
        (line for text in texts for line in split_words(text.text)), how.min_count
    )
    if report.skipped:
        log(str(report))
    log(
        f"{len(corpus.ids):,} words, {len(corpus.words):,} different ones that occur {how.min_count} times or more"
    )
    learner = SkipGramTrainer(corpus, how)
    for _ in progress_bar(learner, len(learner), f"learning, {CHUNK_WORDS:,} words at a time"):
        pass
    table = VectorTable(corpus.words, learner.input_vectors)
    write_vectors(output, table, dataclass_to_dict(how))
    log(f"saved {output}; clearhead vectors {output} WORD tells what is near it")
    return vectors(table)
