"""Sentence pairs as batches: several pairs share a row, both sides of each under the same number."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.config import Use
from clearhead.data.encode import with_ids
from clearhead.data.packed import IGNORE, Packed, Report, order
from clearhead.data.pair_files import Pair
from clearhead.errors import ClearheadError
from clearhead.tokens.text import Tokenizer

POOL = 512  # pairs of which the next one of a row is chosen
SLACK = 512  # one row in so many is spare, so that almost every epoch fits the same number of rows
Numbers = NDArray[np.int64]


class Encoded(NamedTuple):
    """A pair as ids, with what stands around them: `begin … end`, and `start … stop`."""

    source: Sequence[int]
    target: Sequence[int]
    where: str = ""


def encoded(
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer,
    use: Use,
    report: Report,
    *,
    most: int = 0,
    ratio: float = 0.0,
) -> Iterator[tuple[Pair, Encoded]]:
    """Pairs and their ids. Texts of more than `most` tokens, or `ratio` times as long as the other, are left out."""
    if not use.start:
        raise ClearheadError("use.start is empty, but what a translator writes must start with some token.")
    found = with_ids(pairs, lambda pair: (pair.source, pair.target), (source_tokenizer, tokenizer), report)
    for pair, (source, target) in found:
        short, long = sorted((len(source), len(target)))
        if not short:
            report.skip(pair.where, "one of the sides has no tokens")
        elif most and long > most:
            report.note(pair.where, f"more than {most} tokens on a side")
        elif ratio and long > ratio * short:
            report.note(pair.where, f"one side is more than {ratio:g} times as long as the other")
        else:
            around = [*use.begin, *source, *use.end], [*use.start, *target, *use.stop[:1]]
            yield pair, Encoded(*around, pair.where)


def source_length_for(pairs: Iterable[Encoded], length: int) -> int:
    """How long a source row must be so that both sides fill up together, as a multiple of 8."""
    sizes = np.array([(len(pair.source), len(pair.target) - 1) for pair in pairs]).reshape(-1, 2).sum(axis=0)
    return int(-(-length * sizes[0] // max(8 * sizes[1], 1)) * 8)


class Pairs:
    """Rows of `source_length` tokens to read beside rows of `length` tokens to write, of whole pairs.

    Each epoch is shuffled and packed anew, always into the same number of rows, which are then shuffled as well;
    every pair comes once. A batch that an epoch does not fill takes the first rows of the next.
    The decoder reads a target without its last token and learns it without its first `given` tokens, its start.
    """

    def __init__(
        self,
        train: Iterable[Encoded | tuple[Sequence[int], Sequence[int]]],
        held: Iterable[Encoded | tuple[Sequence[int], Sequence[int]]],
        report: Report,
        *,
        rows: int,
        length: int,
        source_length: int,
        seed: int,
        given: int = 1,
    ) -> None:
        self.report, self.rows, self.seed, self.given = report, rows, seed, given
        self.room = (source_length, length)
        self._train, self._held = self._sides(train), self._sides(held)
        count = len(self._train.sizes)
        if not count:
            raise ClearheadError(f"there is no pair to train on that fits rows of {source_length} and {length} tokens.")
        self._first = self._pack(0)
        self._count = min(len(self._first) + len(self._first) // SLACK, count)
        self._packed: tuple[int, list[Numbers]] = (-1, [])  # the epoch, and its rows
        self.epoch = self._count / rows
        self.share = float(self._train.sizes.sum() / (self._count * sum(self.room)))

    def batch(self, step: int) -> Packed:
        places = (divmod(place, self._count) for place in range(step * self.rows, (step + 1) * self.rows))
        return self._batch(self._train, [self._epoch(epoch)[at] for epoch, at in places])

    def held_out(self) -> Iterator[Packed]:
        """Packed in the order given; the last batch is filled up with empty rows."""
        rows = pack(self._held.sizes, self.room, np.arange(len(self._held.sizes)))
        for at in range(0, len(rows), self.rows):
            yield self._batch(self._held, rows[at : at + self.rows])

    def _epoch(self, epoch: int) -> list[Numbers]:
        """The pairs of each row of an epoch."""
        done, mixed = self._packed
        if done != epoch:
            rows = self._first if epoch == 0 else self._pack(epoch)
            if len(rows) > self._count:  # bad luck: the first epoch's rows, in another order
                rows = self._first
            rows = list(rows)
            while len(rows) < self._count:  # a row without a pair could be a batch without a target
                most = max(range(len(rows)), key=lambda i: len(rows[i]))
                rows[most : most + 1] = np.array_split(rows[most], 2)
            mixed = [rows[i] for i in order(self._count, self.seed, epoch).tolist()]
            self._packed = epoch, mixed
        return mixed

    def _pack(self, epoch: int) -> list[Numbers]:
        sizes = self._train.sizes
        return pack(sizes, self.room, order(len(sizes), self.seed, epoch).numpy())

    def _sides(self, pairs: Iterable[Encoded | tuple[Sequence[int], Sequence[int]]]) -> "_Sides":
        """The pairs that fit a row, one after another."""
        kept = []
        for number, pair in enumerate(pairs, 1):
            source, target, where = Encoded(*pair)
            if not source or len(target) <= self.given:
                self.report.skip(where or f"pair {number}", "there is nothing to read or nothing to write")
            elif len(source) > self.room[0] or len(target) - 1 > self.room[1]:
                why = f"the pair does not fit a row of {self.room[0]} tokens to read and {self.room[1]} to write"
                self.report.note(where or f"pair {number}", why)
            else:
                kept.append((source, target))
        counts = np.array([(len(source), len(target)) for source, target in kept], np.int64).reshape(-1, 2)
        sources, targets = (np.fromiter(chain.from_iterable(pair[i] for pair in kept), np.int32) for i in (0, 1))
        return _Sides(sources, targets, counts - np.array((0, 1)), np.cumsum(counts, axis=0) - counts)

    def _batch(self, sides: "_Sides", rows: Sequence[Numbers]) -> Packed:
        pairs = np.concatenate(rows)
        lengths = [len(row) for row in rows]
        row = np.repeat(np.arange(len(rows)), lengths)
        number = np.concatenate([np.arange(1, n + 1) for n in lengths])
        made = []
        for side, ids in enumerate((sides.sources, sides.targets)):
            n = sides.sizes[pairs, side]
            ends = np.cumsum(n)
            before = (ends - n)[np.cumsum(lengths) - lengths]  # tokens in the rows before each row
            within = np.arange(ends[-1]) - np.repeat(ends - n, n)
            to = np.repeat(row * self.room[side] + ends - n - before[row], n) + within
            at = np.repeat(sides.begins[pairs, side], n) + within
            learned = np.where(within < self.given - 1, IGNORE, ids[at + side])
            for values, empty in ((ids[at], 0), (np.repeat(number, n), 0), (learned, IGNORE)):
                filled = np.full(self.rows * self.room[side], empty)
                filled[to] = values
                made.append(torch.from_numpy(filled.reshape(self.rows, -1)))
        source, source_segments, _, tokens, segments, targets = made
        return Packed(tokens, targets, segments, source, source_segments)


class _Sides(NamedTuple):
    """All pairs: their ids one after another, how much room each takes (to read, to write), where each begins."""

    sources: NDArray[np.int32]
    targets: NDArray[np.int32]
    sizes: Numbers
    begins: Numbers


def pack(sizes: Numbers, room: tuple[int, int], turn: Numbers) -> list[Numbers]:
    """The pairs of each row, when they come in `turn`.

    A row starts with the pair that has waited longest in a pool of the next few hundred. Then always the pair that
    leaves least room is added, one that leaves as much on both sides rather than on one, until none fits.
    """
    never = np.full((POOL, 2), 9.0)  # no row has so much room
    queue = np.concatenate([sizes[turn] / np.array(room), never])
    (reads, writes), who = queue[:POOL].T.copy(), np.arange(POOL)
    coming, rows = POOL, []
    while who.min() < len(turn):
        row, read_left, write_left = [], 1 + 1e-9, 1 + 1e-9  # sums of fractions are not exact
        pick, fits = who.argmin(), True
        while fits:
            row.append(who[pick])
            read_left -= reads[pick]
            write_left -= writes[pick]
            (reads[pick], writes[pick]), who[pick] = queue[coming], coming
            coming += 1
            read_rest, write_rest = read_left - reads, write_left - writes
            least = np.minimum(read_rest, write_rest)
            pick = np.where(least < 0, 99.0, np.maximum(read_rest, write_rest)).argmin()
            fits = bool(least[pick] >= 0)
        rows.append(turn[row])
    return rows
