"""Skip-gram with negative sampling: a word's vector is to tell which words stand near it (word2vec, L1.4).

Each word x and each word y at most `window` away are a pair; the window's reach is drawn anew for each word. Their
dot product is to be large, that of x with words drawn at random small:

    log σ(x·y) + Σ log σ(−x·n)        over `negatives` words n, drawn by frequency^0.75

What is done one pair at a time elsewhere are matrix products here: `BLOCK` neighbouring words meet all words within
reach at once, those too far are masked out, and the words of a block share the words drawn for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead import check
from clearhead.model.masks import positions_in
from clearhead.variants import say
from clearhead.words.corpus import Corpus

BLOCK = 16  # words that meet their neighbours in one product, and words drawn for them; a window may reach half of it
STEP = 32  # blocks whose steps are taken at once
OFTEN = 8  # times that a word may move in one step: all moves start from the same vector, and too many overshoot
FAR = 1.0  # the length of one move: text hardly ever asks for more, unless it is the same few words over and over
CHUNK = 2**18  # words between two reports
POWER = 0.75  # word2vec's: rare words are drawn more often than they occur


@dataclass(frozen=True)
class SkipGram:
    """How vectors are learned."""

    width: int = say("numbers of a vector", 100)
    window: int = say("how many words away a neighbour may stand", 5)
    negatives: int = say("words drawn at random for each pair", 5)
    sample: float = say(
        "words with a larger share of the text than this are thinned out; 0 = none", 1e-3, least=0, below=1
    )
    least: int = say("words that occur less often have no vector", 5)
    epochs: int = say("how often all text is read", 5)
    rate: float = say("how far a pair moves its vectors at the beginning; it falls to 0", 0.025, least=0, below=1)
    seed: int = say("where the random numbers start", 0, least=0)

    def __post_init__(self) -> None:
        check.ranges(self, "train")


class Learner:
    """The two tables, `inner` for words as x and `outer` for words as y, while they are learned."""

    def __init__(self, corpus: Corpus, how: SkipGram) -> None:
        self.corpus, self.how = corpus, how
        self.random = torch.Generator().manual_seed(how.seed)
        size = len(corpus.words), how.width
        self.inner, self.outer = (torch.rand(size, generator=self.random) - 0.5) / how.width, torch.zeros(size)
        share = corpus.counts.double() / corpus.counts.sum()
        self.keep = _kept(share, how.sample)
        self.drawn_below = (share**POWER).cumsum(0) / (share**POWER).sum()
        self.block = max(BLOCK, 2 * how.window)
        self.step = self.block * STEP
        self.times = torch.zeros(size[0])  # how often each word is in a step; all 0 between steps
        away = torch.arange(self.block + 2 * how.window) - torch.arange(self.block)[:, None] - how.window
        self.away = away.masked_fill(away == 0, self.block + how.window)  # a word is no neighbour of its own

    def __len__(self) -> int:
        """How many chunks there are to learn from."""
        return self.how.epochs * -(-len(self.corpus.ids) // CHUNK)

    def __iter__(self) -> Iterator[None]:
        """Learns chunk by chunk."""
        total = self.how.epochs * len(self.corpus.ids)
        with _one_thread():
            for epoch in range(self.how.epochs):
                for start in range(0, len(self.corpus.ids), CHUNK):
                    done = epoch * len(self.corpus.ids) + start
                    self._chunk(slice(start, start + CHUNK), self.how.rate * (1 - done / total))
                    yield

    def _chunk(self, where: slice, rate: float) -> None:
        window, ids, lines = self.how.window, self.corpus.ids[where], self.corpus.lines[where]
        kept = torch.rand(len(ids), generator=self.random) < self.keep[ids]
        ids, lines = ids[kept], lines[kept]
        reach = torch.randint(1, window + 1, ids.shape, generator=self.random)
        before = torch.minimum(reach, _place(lines))
        after = torch.minimum(reach, _place(lines.flip(0)).flip(0))
        missing = -len(ids) % self.step  # filled up with words that have no neighbours
        before, after = (F.pad(limit, (0, missing)).view(-1, self.block, 1) for limit in (before, after))
        ids = F.pad(ids, (window, window + missing))
        drawn = torch.rand(len(before), BLOCK, generator=self.random, dtype=torch.float64)
        drawn = torch.searchsorted(self.drawn_below, drawn).clamp_(max=len(self.inner) - 1)
        for i in range(0, len(before), STEP):
            near = ids[i * self.block : i * self.block + self.step + 2 * window]
            self._step(near, before[i : i + STEP], after[i : i + STEP], drawn[i : i + STEP], rate)

    def _step(self, ids: Tensor, before: Tensor, after: Tensor, drawn: Tensor, rate: float) -> None:
        """One step for the words of some blocks; `ids` begins and ends with a window's length of neighbours."""
        window, width, block, blocks = self.how.window, self.how.width, self.block, len(before)
        own = ids[window : len(ids) - window]
        x = self.inner[own].view(blocks, block, width)
        near = self.outer[ids]
        y = near.as_strided((blocks, block + 2 * window, width), (block * width, width, 1))  # they overlap
        n = self.outer[drawn]
        pairs = ((self.away >= -before) & (self.away <= after)).float()
        weight = pairs.sum(dim=-1, keepdim=True) * (self.how.negatives / BLOCK * rate)
        pull = (1 - (x @ y.mT).sigmoid_()).mul_(pairs).mul_(rate)  # the gradient of log σ(s) is 1 − σ(s)
        push = (x @ n.mT).sigmoid_().mul_(-weight)
        to_y = pull.mT @ x
        moved = torch.zeros(blocks + 1, block, width)
        moved[:-1] += to_y[:, :block]
        moved[1:, : 2 * window] += to_y[:, block:]
        self._add(self.inner, own, pull @ y + push @ n)
        self._add(self.outer, ids, moved.view(-1, width)[: len(ids)])
        self._add(self.outer, drawn.flatten(), push.mT @ x)

    def _add(self, table: Tensor, ids: Tensor, rows: Tensor) -> None:
        """Moves the words of `ids` by the rows; less where a word is there too often, or would go too far."""
        self.times.index_add_(0, ids, self.times.new_ones(len(ids)))
        rows = rows.reshape(len(ids), -1)
        often, far = OFTEN / self.times[ids], FAR / rows.norm(dim=-1)
        rows = rows * torch.minimum(often, far).clamp_(max=1)[:, None]
        self.times[ids] = 0
        table.scatter_add_(0, ids[:, None].expand_as(rows), rows)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A step's matrices are so small that threads would wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _kept(share: Tensor, sample: float) -> Tensor:
    """The probability that a word stays where it stands, by its share of the text; word2vec's formula."""
    if not sample:
        return torch.ones_like(share).float()
    return ((sample / share).sqrt() + sample / share).clamp(max=1).float()


def _place(lines: Tensor) -> Tensor:
    """How many words stand before each one in its line."""
    return positions_in(lines[None])[0]
