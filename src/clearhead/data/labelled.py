"""Texts, or pairs of texts, with a class or a number each: from tables to batches of few shapes."""

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.data.classes import class_names, class_number
from clearhead.data.encode import with_ids
from clearhead.data.packed import Packed, Report, order
from clearhead.data.tables import records
from clearhead.errors import ClearheadError
from clearhead.tokens.text import Tokenizer

STEP = 16  # lengths of batches are multiples of this, so there are few


class Row(NamedTuple):
    text: str
    second: str | None
    label: str | float
    where: str


class Example(NamedTuple):
    """A row as ids, without what stands around them."""

    ids: Sequence[int]
    second: Sequence[int] | None
    label: str | float
    where: str = ""


# ---------------------------------------------------------------- files
def rows(
    path: str | Path,
    report: Report,
    *,
    text: str | int,
    label: str | int,
    second: str | int | None = None,
    numbers: bool = False,
) -> Iterator[Row]:
    """The rows of a file that `records` reads; with `numbers`, labels are numbers to be predicted, not classes."""
    columns = [str(column) for column in (text, label, second) if column is not None]
    for where, values in records(Path(path), report, columns, by_number="--data.field 0 --data.label 1"):
        row = _row(where, *values, numbers=numbers)
        if isinstance(row, Row):
            report.read += 1
            yield row
        else:
            report.skip(*row)


def _row(where: str, text: object, label: object, *second: object, numbers: bool) -> Row | tuple[str, str]:
    """The row; or where it is, with the value, and what is wrong with it."""
    for value in (text, *second):
        if not isinstance(value, str) or not value.strip():
            return f"{where} ({value!r:.40})", "there is no text"
    name = label.strip() if isinstance(label, str) else json.dumps(label)
    if not name or isinstance(label, list | dict):
        return where, "there is no label"
    texts = [str(text), *map(str, second), name]
    try:
        "".join(texts).encode()
        number = float(name) if numbers else 0.0
    except UnicodeEncodeError:
        return where, "the line is not UTF-8"
    except ValueError:
        number = math.nan
    if not abs(number) < 1e38:  # so NaN is none, nor what a 32-bit float cannot hold
        return f"{where} ({name!r:.40})", "the label is no number"
    return Row(texts[0], texts[1] if second else None, number if numbers else name, where)


def encoded(read: Iterable[Row], tokenizer: Tokenizer, report: Report) -> Iterator[Example]:
    """Rows as ids."""
    found = with_ids(read, lambda row: (row.text, row.second or ""), (tokenizer, tokenizer), report)
    for row, (first, second) in found:
        yield Example(first, None if row.second is None else second, row.label, row.where)


def shares(a: int, b: int, room: int) -> tuple[int, int]:
    """How many ids of each of two texts fit: while there are too many, the longer text loses its last."""
    b = min(b, max(room - a, room // 2))
    return min(a, room - b), b


# ---------------------------------------------------------------- batches
@dataclass(frozen=True)
class _Side:
    """Rows one after another in one tensor, with what stands around them."""

    ids: Tensor
    begins: Tensor
    lengths: Tensor
    firsts: Tensor  # how many ids belong to the first text
    targets: Tensor


class Labelled:
    """Rows of `begin a end [b end]`, never packed with others: a head reads one answer from each row.

    Rows of like length meet in a batch, whose length is a multiple of 16: an epoch's rows are shuffled and sorted by
    that length, then its batches are shuffled. Every row comes once, and the rows that fill no batch share one with
    the next epoch's first.
    """

    def __init__(
        self,
        train: Iterable[Example],
        held: Iterable[Example],
        report: Report,
        *,
        rows: int,
        context: int,
        seed: int,
        begin: Sequence[int] = (),
        end: Sequence[int] = (),
        kinds: bool = False,
    ) -> None:
        self.report, self.rows, self.context, self.seed, self.kinds = report, rows, context, seed, kinds
        self.begin, self.end = begin, end
        train = list(train)
        names = [example.label for example in train if isinstance(example.label, str)]
        self.labels = class_names(names) if names else ()
        self._train, self._held = self._side(train), self._side(held)
        if not len(self._train.targets):
            raise ClearheadError("there are no labelled rows to train on.")
        self._sequence = lru_cache(maxsize=4)(self._shuffled)
        self.epoch = len(self._train.targets) / rows
        real, room = 0, 0
        for step in range(math.ceil(self.epoch)):
            lengths = self._train.lengths[self._picks(step)]
            real, room = real + int(lengths.sum()), room + rows * self._width(lengths)
        self.share = real / room

    def batch(self, step: int) -> Packed:
        return self._batch(self._train, self._picks(step))

    def held_out(self) -> Iterator[Packed]:
        """In the order of the file. The last batch may be smaller: a number, unlike a class, cannot be ignored."""
        count = len(self._held.targets)
        for first in range(0, count, self.rows):
            yield self._batch(self._held, torch.arange(first, min(first + self.rows, count)))

    def _side(self, examples: Iterable[Example]) -> _Side:
        ids, begins, firsts, targets = array("i"), [0], [], []
        numbers = {name: i for i, name in enumerate(self.labels)}
        for first, second, label, where in examples:
            target = class_number(label, numbers, where, self.report) if isinstance(label, str) else label
            if target is None:
                continue
            if not (self.begin or self.end or first or second):
                self.report.skip(where, "the text has no tokens")
                continue
            a, b = self._fitting(len(first), len(second or ()), second is not None)
            if (a, b) != (len(first), len(second or ())):
                self.report.note(where, f"a text was cut to {self.context} tokens")
            ids.extend((*self.begin, *first[:a], *self.end))
            firsts.append(len(ids) - begins[-1])
            if second is not None:
                ids.extend((*second[:b], *self.end))
            begins.append(len(ids))
            targets.append(target)
        at = torch.tensor(begins)
        kind = torch.long if self.labels else torch.float
        all_ids = torch.tensor(ids, dtype=torch.int32)
        return _Side(all_ids, at[:-1], at.diff(), torch.tensor(firsts), torch.tensor(targets, dtype=kind))

    def _fitting(self, a: int, b: int, pair: bool) -> tuple[int, int]:
        room = self.context - len(self.begin) - len(self.end) * (1 + pair)
        if room < 1 + pair:
            raise ClearheadError(f"a context of {self.context} has no room for a text and what stands around it.")
        return shares(a, b, room)

    def _shuffled(self, epoch: int) -> Tensor:
        """The rows of an epoch in order: first those that fill the last epoch's last batch, then whole batches."""
        mixed = order(len(self._train.targets), self.seed, epoch)
        head = min(-epoch * len(mixed) % self.rows, len(mixed))
        body = (len(mixed) - head) // self.rows
        picks = mixed[head : head + body * self.rows]
        steps = (self._train.lengths[picks] + STEP - 1) // STEP  # finer would save little, and the same rows would meet
        batches = picks[steps.argsort(stable=True)].view(body, self.rows)[order(body, self.seed, epoch)]
        return torch.cat((mixed[:head], batches.flatten(), mixed[head + body * self.rows :]))

    def _picks(self, step: int) -> Tensor:
        count, at, picks = len(self._train.targets), step * self.rows, []
        while (left := (step + 1) * self.rows - at) > 0:
            picks.append(self._sequence(at // count)[at % count :][:left])
            at += len(picks[-1])
        return torch.cat(picks)

    def _width(self, lengths: Tensor) -> int:
        return min(-(-int(lengths.max()) // STEP) * STEP, self.context)

    def _batch(self, side: _Side, picks: Tensor) -> Packed:
        lengths, at = side.lengths[picks, None], torch.arange(self._width(side.lengths[picks]))
        real = at < lengths
        tokens = side.ids[(side.begins[picks, None] + at).where(real, 0)].long().where(real, 0)
        kinds = ((at >= side.firsts[picks, None]) & real).long() if self.kinds else None
        return Packed(tokens, side.targets[picks], real.long(), kinds=kinds)
