"""Train word vectors from text by skip-gram with negative sampling (word2vec, L1.4).

Each word x and each word y at most `window` words away are a positive pair; the actual window is
drawn anew for each word. The dot product of a positive pair should be large, that of x with
randomly drawn words small:

    log σ(x·y) + Σ log σ(-x·n)        over `negative_samples` words n, drawn by frequency^0.75

Pairs are not processed one by one but as matrix products: `BLOCK_WORDS` consecutive words meet all
words within reach at once, those outside of their windows are masked, and the words of a block
share their negative samples.
"""

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
from clearhead.config.options import option
from clearhead.config.serialize import dataclass_to_dict
from clearhead.data.readers import DataReport, OnError, read_documents
from clearhead.errors import ClearheadError
from clearhead.model.attention import positions_from_segments
from clearhead.progress_bar import progress_bar
from clearhead.word_vectors.io import VectorTable, prepare_output, write_vectors
from clearhead.word_vectors.vectors import Vectors, vectors


# --- configuration
@dataclass(frozen=True)
class VectorDataConfig:
    """Training data of word vectors."""

    train: tuple[str, ...] = option(
        "Text files, folders or globs; also .jsonl, .gz, .xz, .zst.", ()
    )
    text_column: str = option("Field of a JSON line that contains the text.", "text")
    on_error: OnError = option("fail on invalid lines, or skip them.", "fail")


@dataclass(frozen=True)
class SkipGramConfig:
    """Hyperparameters of skip-gram training."""

    vector_size: int = option("Dimension of the vectors.", 100)
    window: int = option("Maximum distance of a context word.", 5)
    negative_samples: int = option("Negative samples per pair.", 5)
    subsample: float = option(
        "Words above this frequency are randomly dropped; 0: none.", 1e-3, ge=0, lt=1
    )
    min_count: int = option("Words that occur less often get no vector.", 5)
    epochs: int = option("Passes over the text.", 5)
    lr: float = option("Initial learning rate; decays linearly to 0.", 0.025, ge=0, lt=1)
    seed: int = option("Random seed.", 0, ge=0)

    def __post_init__(self) -> None:
        check_ranges(self, "train")


@dataclass(frozen=True)
class Word2VecConfig:
    """Data and hyperparameters of word vectors."""

    data: VectorDataConfig = field(default=VectorDataConfig())
    train: SkipGramConfig = field(default=SkipGramConfig())


# --- corpus
WORD_PATTERN = re.compile(r"\w+(?:['’]\w+)*")  # don't and mother's are words; hyphens separate


@dataclass(frozen=True)
class Corpus:
    """The frequent words of some texts as ids, the most frequent word first."""

    words: list[str]
    counts: Tensor
    ids: Tensor  # of each occurrence of one of `words`
    line_ids: Tensor  # the line of each occurrence; windows do not cross lines

    @classmethod
    def from_lines(cls, lines: Iterable[list[str]], min_count: int) -> "Corpus":
        """Collect the words of all lines that occur at least `min_count` times."""
        indices: defaultdict[str, int] = defaultdict()
        indices.default_factory = indices.__len__  # a new word gets the next index
        occurrences = array("i")
        lengths = array("i")
        for line in lines:
            occurrences.extend(map(indices.__getitem__, line))
            lengths.append(len(line))
        ids = np.frombuffer(occurrences, dtype=np.int32) if occurrences else np.empty(0, np.int32)
        counts = np.bincount(ids, minlength=len(indices))
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] >= min_count]
        if len(order) < 2:
            raise ClearheadError(
                f"only {len(order)} of {len(indices):,} words occur at least {min_count} times; "
                "give more text or a lower train.min_count."
            )
        rank = np.full(len(indices), -1)
        rank[order] = np.arange(len(order))
        ids = rank[ids]
        line_ids = np.repeat(np.arange(len(lengths)), lengths)
        is_frequent = ids >= 0
        names = list(indices)
        return cls(
            [names[i] for i in order],
            counts=torch.from_numpy(counts[order]),
            ids=torch.from_numpy(ids[is_frequent]),
            line_ids=torch.from_numpy(line_ids[is_frequent]),
        )


def split_words(text: str) -> Iterable[list[str]]:
    """The lower-case words of each line."""
    return (words for line in text.lower().splitlines() if (words := WORD_PATTERN.findall(line)))


# --- training
BLOCK_WORDS = 16  # words per matrix product, and negative samples per block
BLOCKS_PER_STEP = 32
MAX_UPDATES_PER_WORD = 8  # per step; updates start from the same vector, and many would overshoot
MAX_UPDATE_NORM = 1.0  # rarely reached, unless the text repeats the same few words
CHUNK_WORDS = 2**18  # per update of the progress bar
NEGATIVE_SAMPLING_POWER = 0.75  # as in word2vec: rare words are drawn more often than they occur


class SkipGramTrainer:
    """Trains `input_vectors` (words as x) and `output_vectors` (words as y or n)."""

    def __init__(self, corpus: Corpus, config: SkipGramConfig) -> None:
        self.corpus = corpus
        self.config = config
        self.generator = torch.Generator().manual_seed(config.seed)
        vocab_size = len(corpus.words)
        size = (vocab_size, config.vector_size)
        self.input_vectors = (torch.rand(size, generator=self.generator) - 0.5) / config.vector_size
        self.output_vectors = torch.zeros(size)
        frequency = corpus.counts.double() / corpus.counts.sum()
        self.keep_probability = _keep_probability(frequency, config.subsample)
        weights = frequency**NEGATIVE_SAMPLING_POWER
        self.negative_cdf = weights.cumsum(0) / weights.sum()
        self.block_words = max(BLOCK_WORDS, 2 * config.window)
        self.step_words = self.block_words * BLOCKS_PER_STEP
        self.counts_in_step = torch.zeros(vocab_size)  # zero between steps
        context = torch.arange(self.block_words + 2 * config.window)
        centers = torch.arange(self.block_words)[:, None]
        distance = context - centers - config.window
        # A word is not in its own context.
        self.distance = distance.masked_fill(distance == 0, self.block_words + config.window)

    def __len__(self) -> int:
        """The number of chunks in all epochs."""
        return self.config.epochs * -(-len(self.corpus.ids) // CHUNK_WORDS)

    def __iter__(self) -> Iterator[None]:
        """Train chunk by chunk."""
        num_words = len(self.corpus.ids)
        total = self.config.epochs * num_words
        with _single_thread():
            for epoch in range(self.config.epochs):
                for start in range(0, num_words, CHUNK_WORDS):
                    progress = (epoch * num_words + start) / total
                    chunk = slice(start, start + CHUNK_WORDS)
                    self._train_chunk(chunk, self.config.lr * (1 - progress))
                    yield

    def _train_chunk(self, chunk: slice, lr: float) -> None:
        window = self.config.window
        ids = self.corpus.ids[chunk]
        is_kept = torch.rand(len(ids), generator=self.generator) < self.keep_probability[ids]
        line_ids = self.corpus.line_ids[chunk][is_kept]
        ids = ids[is_kept]
        reach = torch.randint(1, window + 1, ids.shape, generator=self.generator)
        before = torch.minimum(reach, _position_in_line(line_ids))
        after = torch.minimum(reach, _position_in_line(line_ids.flip(0)).flip(0))
        padding = -len(ids) % self.step_words  # words without context
        before, after = (
            F.pad(limit, (0, padding)).view(-1, self.block_words, 1) for limit in (before, after)
        )
        ids = F.pad(ids, (window, window + padding))
        size = (len(before), BLOCK_WORDS)
        draws = torch.rand(size, generator=self.generator, dtype=torch.float64)
        negatives = torch.searchsorted(self.negative_cdf, draws)
        negatives = negatives.clamp_(max=len(self.input_vectors) - 1)
        for block in range(0, len(before), BLOCKS_PER_STEP):
            start = block * self.block_words
            blocks = slice(block, block + BLOCKS_PER_STEP)
            step_ids = ids[start : start + self.step_words + 2 * window]
            self._train_step(step_ids, before[blocks], after[blocks], negatives[blocks], lr)

    def _train_step(
        self, ids: Tensor, before: Tensor, after: Tensor, negatives: Tensor, lr: float
    ) -> None:
        """One step for some blocks; `ids` includes a window of context at both ends."""
        window = self.config.window
        width = self.config.vector_size
        block = self.block_words
        num_blocks = len(before)
        centers = ids[window : len(ids) - window]
        x = self.input_vectors[centers].view(num_blocks, block, width)
        context = self.output_vectors[ids]
        # Consecutive blocks overlap by two windows.
        shape = (num_blocks, block + 2 * window, width)
        y = context.as_strided(shape, (block * width, width, 1))
        n = self.output_vectors[negatives]
        is_pair = ((self.distance >= -before) & (self.distance <= after)).float()
        negative_weight = self.config.negative_samples / BLOCK_WORDS * lr
        weight = is_pair.sum(dim=-1, keepdim=True) * negative_weight
        # The gradient of log σ(s) is 1 - σ(s).
        pull = (1 - (x @ y.mT).sigmoid_()).mul_(is_pair).mul_(lr)
        push = (x @ n.mT).sigmoid_().mul_(-weight)
        y_update = pull.mT @ x
        context_update = torch.zeros(num_blocks + 1, block, width)
        context_update[:-1] += y_update[:, :block]
        context_update[1:, : 2 * window] += y_update[:, block:]
        self._apply_updates(self.input_vectors, centers, pull @ y + push @ n)
        self._apply_updates(self.output_vectors, ids, context_update.view(-1, width)[: len(ids)])
        self._apply_updates(self.output_vectors, negatives.flatten(), push.mT @ x)

    def _apply_updates(self, vectors: Tensor, ids: Tensor, updates: Tensor) -> None:
        """Add updates, scaled down for words with many updates and for very long updates."""
        self.counts_in_step.index_add_(0, ids, self.counts_in_step.new_ones(len(ids)))
        updates = updates.reshape(len(ids), -1)
        count_scale = MAX_UPDATES_PER_WORD / self.counts_in_step[ids]
        norm_scale = MAX_UPDATE_NORM / updates.norm(dim=-1)
        updates = updates * torch.minimum(count_scale, norm_scale).clamp_(max=1)[:, None]
        self.counts_in_step[ids] = 0
        vectors.scatter_add_(0, ids[:, None].expand_as(updates), updates)


@contextmanager
def _single_thread() -> Iterator[None]:
    """The matrices are too small for several threads to pay off."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _keep_probability(frequency: Tensor, subsample: float) -> Tensor:
    """The probability to keep an occurrence of a word; word2vec's formula."""
    if not subsample:
        return torch.ones_like(frequency).float()
    return ((subsample / frequency).sqrt() + subsample / frequency).clamp(max=1).float()


def _position_in_line(line_ids: Tensor) -> Tensor:
    return positions_from_segments(line_ids[None])[0]


def train_word_vectors(
    config: Word2VecConfig, output: str | Path, log: Callable[[str], None] = print
) -> Vectors:
    """Train a vector for each frequent word, and save them as a folder, .txt, .vec or .bin."""
    output = Path(output)
    report = DataReport(config.data.on_error)
    min_count = config.train.min_count
    if not config.data.train:
        raise ClearheadError(
            "data.train is empty; name text files, folders or globs with --data.train."
        )
    prepare_output(output)
    documents = read_documents(config.data.train, report, config.data.text_column)
    lines = (line for document in documents for line in split_words(document.text))
    corpus = Corpus.from_lines(lines, min_count)
    if report.skipped:
        log(str(report))
    log(
        f"{len(corpus.ids):,} words, {len(corpus.words):,} distinct words that occur at least "
        f"{min_count} times"
    )
    trainer = SkipGramTrainer(corpus, config.train)
    for _ in progress_bar(trainer, len(trainer), f"training, {CHUNK_WORDS:,} words at a time"):
        pass
    table = VectorTable(corpus.words, trainer.input_vectors)
    write_vectors(output, table, dataclass_to_dict(config.train))
    log(f"saved {output}; show similar words with: clearhead vectors {output} WORD")
    return vectors(table)
