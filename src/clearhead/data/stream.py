"""Rows of a language model without waste: all documents in one stream, cut into rows, every token a real one."""

import hashlib
from collections.abc import Collection, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.data.cache import Tokens
from clearhead.data.packed import IGNORE, Packed, draw, order
from clearhead.errors import ClearheadError

Numbers = NDArray[np.int64]


class _Part:
    """Some documents of a corpus as one stream of tokens."""

    def __init__(self, tokens: Tokens, starts: Numbers, ends: Numbers, stop: int | None) -> None:
        starts, ends = starts[ends > starts], ends[ends > starts]
        self._ids = np.asarray(tokens.ids)  # still mapped, without the cost of numpy's own class for it
        self._stop = tokens.begin if stop is None else stop
        self._ends = np.cumsum(ends - starts)
        self._shift = ends - self._ends  # from a place in the stream to one in the corpus
        self.size = int(self._ends[-1]) if len(ends) else 0

    def rows(self, starts: Numbers, length: int) -> Packed:
        """The rows that start at places of the stream; what lies after its end is padding."""
        places = starts[:, None] + np.arange(length + 1)
        real = places < self.size
        places = np.minimum(places, self.size - 1)
        document = np.searchsorted(self._ends, places, side="right")
        ids = np.where(real, self._ids[places + self._shift[document]].astype(np.int64), 0)
        last = document[:, 1:] != document[:, :-1]
        learned, following = real[:, 1:], ids[:, 1:]
        if self._stop is None:
            learned = learned & ~last
        elif len(self._ends) > 1:
            following = np.where(last, self._stop, following)
        real, document = real[:, :-1], document[:, :-1]
        segments = None
        if len(self._ends) > 1 or not real.all():
            segments = torch.from_numpy(np.where(real, document - document[:, :1] + 1, 0))
        targets = np.where(learned, following, IGNORE)
        return Packed(torch.from_numpy(ids[:, :-1].copy()), torch.from_numpy(targets), segments)


class Stream:
    """A corpus as rows of `length` tokens, with the token that follows each as its target.

    A row begins where the one before it ended, in the middle of a document if need be; `segments` number the documents
    inside a row, and are None where there is only one. The target of a document's last token is `stop`, or without it
    the token that begins the next: so a model learns to stop. Without either it has no target. Each epoch cuts the
    stream at other places, and has its own order of rows; less than two rows at the ends of the stream are left over.

    `held_out` is the share of the documents, chosen by the seed, that is kept for validation with all their copies: of
    a single document the last share of its tokens. Or `validation` is a corpus of its own.
    """

    share = 1.0

    def __init__(
        self,
        tokens: Tokens,
        length: int,
        rows: int,
        seed: int = 0,
        held_out: float = 0.0,
        validation: Tokens | None = None,
        stop: int | None = None,
    ) -> None:
        if not 0 <= held_out < 1:
            raise ClearheadError(f"the share that is held out is {held_out}; it must be at least 0 and less than 1.")
        if held_out and validation is not None:
            raise ClearheadError("with texts for validation nothing else is held out; leave out the share.")
        self.report, self.length, self.rows, self.seed = tokens.report, length, rows, seed
        self._train, self._held = _split(tokens, held_out, seed, stop)
        if validation is not None:
            self._held = _split(validation, 0.0, seed, stop)[0]
        if self._train.size <= length:
            few = f"a row needs {length} tokens and one more; there are {self._train.size} to train on"
            raise ClearheadError(f"{few}. Give more text, or a smaller train.length.")
        # The furthest that the first row may start. It is the same in each epoch, and so is the number of rows.
        self._furthest = min(length, self._train.size - length) - 1
        self._count = (self._train.size - 1 - self._furthest) // length
        self.epoch = self._count / rows

    def batch(self, step: int) -> Packed:
        drawn = draw(step, self.rows, self._count, self.seed)
        phases = {epoch: self._phase(epoch) for epoch in {epoch for epoch, _ in drawn}}
        starts = np.array([phases[epoch] + number * self.length for epoch, number in drawn])
        return self._train.rows(starts, self.length)

    def held_out(self) -> Iterator[Packed]:
        """Every token of the held-out part once, in order; the last batch is filled up with padding."""
        if self._held is not None:
            for start in range(0, self._held.size, self.rows * self.length):
                yield self._held.rows(start + np.arange(self.rows) * self.length, self.length)

    def _phase(self, epoch: int) -> int:
        """Where the first row of an epoch starts."""
        return int(np.random.default_rng([self.seed % 2**63, epoch]).integers(self._furthest + 1))


def _split(tokens: Tokens, share: float, seed: int, stop: int | None) -> tuple[_Part, _Part | None]:
    """What is trained on, and what is held out."""
    starts, ends = np.asarray(tokens.documents), np.append(tokens.documents[1:], len(tokens.ids))
    count = len(starts)
    if not share:
        return _Part(tokens, starts, ends, stop), None
    if count == 1:
        cut = np.array([min(int(ends[0] * (1 - share)), ends[0] - 1)])
        return _Part(tokens, starts, cut, stop), _Part(tokens, cut, ends, stop)
    groups = _copies(tokens, starts, ends)
    different = int(groups.max()) + 1
    if different == 1:
        raise ClearheadError(f"all {count} documents are the same, so none can be held out; data.held_out = 0 may be.")
    picks = order(different, seed, -1)[: min(max(round(share * different), 1), different - 1)]
    chosen = np.isin(groups, picks.numpy())
    train, held = (_Part(tokens, starts[some], ends[some], stop) for some in (~chosen, chosen))
    return train, held


def _copies(tokens: Tokens, starts: Numbers, ends: Numbers) -> Numbers:
    """A number for each document, from 0 as they come, and the same for copies: lest training see what is held out."""
    ids = np.asarray(tokens.ids)
    digests = (hashlib.blake2b(ids[a:b].data, digest_size=8).digest() for a, b in zip(starts, ends, strict=True))
    keys = np.frombuffer(b"".join(digests), np.uint64)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return first.argsort().argsort()[group]


class Masked:
    """The rows of a stream with some of their words hidden, which are the targets (BERT's masked words).

    Of `hidden` of the tokens, 80 % become `mask`, 10 % another word, 10 % stay. No id in `special` is hidden or put in.
    Each step hides anew, as the seed and the step say, and at least one word of a batch, for a batch must teach; what
    is hidden in the held-out part is always the same.
    """

    share = 1.0

    def __init__(
        self, rows: Stream, mask: int, vocabulary: int, special: Collection[int] = (), hidden: float = 0.15
    ) -> None:
        if not 0 < hidden <= 1:
            raise ClearheadError(f"the share of hidden words is {hidden}; it must be more than 0 and at most 1.")
        if outside := [i for i in (mask, *special) if not 0 <= i < vocabulary]:
            raise ClearheadError(f"there is no token {outside[0]}; ids run from 0 to {vocabulary - 1}.")
        self._free = np.ones(vocabulary, bool)
        self._free[[mask, *special]] = False
        if not self._free.any():
            raise ClearheadError(f"all {vocabulary} tokens are special; there is no word to hide.")
        self._words = np.flatnonzero(self._free)
        self._rows, self._mask, self._hidden = rows, mask, hidden
        self.epoch, self.report = rows.epoch, rows.report

    def batch(self, step: int) -> Packed:
        return self._hide(self._rows.batch(step), 0, step)

    def held_out(self) -> Iterator[Packed]:
        for number, packed in enumerate(self._rows.held_out()):
            yield self._hide(packed, 1, number)

    def _hide(self, packed: Packed, part: int, number: int) -> Packed:
        chance = np.random.default_rng([self._rows.seed % 2**63, part, number])
        ids = packed.tokens.numpy()
        free = self._free[ids] if packed.segments is None else self._free[ids] & (packed.segments.numpy() > 0)
        fate = np.where(free, chance.random(ids.shape, np.float32), np.inf) / self._hidden  # hidden if less than 1
        if free.any() and fate.min() >= 1:
            fate.flat[fate.argmin()] = chance.random()
        tokens, other = np.where(fate < 0.8, self._mask, ids), (fate >= 0.8) & (fate < 0.9)
        tokens[other] = self._words[chance.integers(len(self._words), size=other.sum())]
        targets = np.where(fate < 1, ids, IGNORE)
        return Packed(torch.from_numpy(tokens), torch.from_numpy(targets), packed.segments)
