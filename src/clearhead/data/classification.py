"""The names and numbers of classes, and which rows are held out."""

import json
import math
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.data.batch import DataReport, PackedBatch, shuffled_indices, truncated_lengths
from clearhead.data.encoding import encode_texts
from clearhead.data.readers import read_records
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer

# ---- classes: The names and numbers of classes, and which rows are held out.


def label_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The classes in the order of their numbers."""
    names = tuple(sorted(set(labels)))
    if len(names) < 2:
        raise ClearheadError(
            f"there are no two classes to tell apart among the labels, only {names[0] if names else 'none'}."
        )
    return names


def label_id(label: str, names: Mapping[str, int], location: str, report: DataReport) -> int | None:
    """The number of a class, or None: held-out rows may be of a class that training never saw."""
    if label not in names:
        report.skip(f"{location} ({label!r:.40})", "the label does not occur in training")
    return names.get(label)


def stratified_split(
    labels: Sequence[str | float], keys: Sequence[Hashable], fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """The numbers of the rows to train on and of those held out: of each class about `share`, at least one of two.

    Rows of the same key are copies of each other and stay together, lest training see what is held out.
    """
    if not 0 <= fraction < 1:
        raise ClearheadError(
            f"the share that is held out must be at least 0 and less than 1, not {fraction}."
        )
    first: dict[Hashable, str] = {}
    classes: dict[str, dict[Hashable, list[int]]] = {}
    for i, (label, key) in enumerate(zip(labels, keys, strict=True)):
        name = first.setdefault(key, label if isinstance(label, str) else "")
        classes.setdefault(name, {}).setdefault(key, []).append(i)
    train = []
    held = []
    for number, (_, groups) in enumerate(sorted(classes.items())):
        copies = list(groups.values())
        mixed = [copies[i] for i in shuffled_indices(len(copies), seed, number).tolist()]
        most = min(len(mixed) - 1, max(1, round(fraction * len(mixed)))) if fraction else 0
        held += [i for group in mixed[:most] for i in group]
        train += [i for group in mixed[most:] for i in group]
    return sorted(train), sorted(held)


# ---- labelled: Texts, or pairs of texts, with a class or a number each: from tables to batches of few shapes.

LENGTH_MULTIPLE = 16  # lengths of batches are multiples of this, so there are few


class LabeledText(NamedTuple):
    text: str
    text_pair: str | None
    label: str | float
    location: str


class LabeledExample(NamedTuple):
    """A row as ids, without what stands around them."""

    ids: Sequence[int]
    ids_pair: Sequence[int] | None
    label: str | float
    location: str = ""


# ---------------------------------------------------------------- files
def read_labeled_texts(
    path: str | Path,
    report: DataReport,
    *,
    text_column: str | int,
    label_column: str | int,
    text_pair_column: str | int | None = None,
    is_regression: bool = False,
) -> Iterator[LabeledText]:
    """The rows of a file that `records` reads; with `numbers`, labels are numbers to be predicted, not classes."""
    columns = [
        str(column)
        for column in (text_column, label_column, text_pair_column)
        if column is not None
    ]
    for where, values in read_records(
        Path(path), report, columns, column_hint="--data.text_column 0 --data.label_column 1"
    ):
        row = _parse_row(where, *values, is_regression=is_regression)
        if isinstance(row, LabeledText):
            report.num_read += 1
            yield row
        else:
            report.skip(*row)


def _parse_row(
    location: str, text: object, label: object, *text_pair: object, is_regression: bool
) -> LabeledText | tuple[str, str]:
    """The row; or where it is, with the value, and what is wrong with it."""
    for value in (text, *text_pair):
        if not isinstance(value, str) or not value.strip():
            return f"{location} ({value!r:.40})", "there is no text"
    name = label.strip() if isinstance(label, str) else json.dumps(label)
    if not name or isinstance(label, list | dict):
        return location, "there is no label"
    texts = [str(text), *map(str, text_pair), name]
    try:
        "".join(texts).encode()
        number = float(name) if is_regression else 0.0
    except UnicodeEncodeError:
        return location, "the line is not UTF-8"
    except ValueError:
        number = math.nan
    if not abs(number) < 1e38:  # so NaN is none, nor what a 32-bit float cannot hold
        return f"{location} ({name!r:.40})", "the label is no number"
    return LabeledText(
        texts[0], texts[1] if text_pair else None, number if is_regression else name, location
    )


def encode_labeled_texts(
    rows: Iterable[LabeledText], tokenizer: Tokenizer, report: DataReport
) -> Iterator[LabeledExample]:
    """Rows as ids."""
    found = encode_texts(
        rows, lambda row: (row.text, row.text_pair or ""), (tokenizer, tokenizer), report
    )
    for row, (first, second) in found:
        yield LabeledExample(
            first, None if row.text_pair is None else second, row.label, row.location
        )


# ---------------------------------------------------------------- batches
@dataclass(frozen=True)
class _ExampleArrays:
    """Rows one after another in one tensor, with what stands around them."""

    ids: Tensor
    starts: Tensor
    lengths: Tensor
    first_lengths: Tensor  # how many ids belong to the first text
    targets: Tensor


class LabeledTextDataset:
    """Rows of `begin a end [b end]`, never packed with others: a head reads one answer from each row.

    Rows of like length meet in a batch, whose length is a multiple of 16: an epoch's rows are shuffled and sorted by
    that length, then its batches are shuffled. Every row comes once, and the rows that fill no batch share one with
    the next epoch's first.
    """

    def __init__(
        self,
        train: Iterable[LabeledExample],
        valid: Iterable[LabeledExample],
        report: DataReport,
        *,
        batch_size: int,
        context_length: int,
        seed: int,
        bos_tokens: Sequence[int] = (),
        sep_tokens: Sequence[int] = (),
        token_types: bool = False,
    ) -> None:
        self.report = report
        self.batch_size = batch_size
        self.context_length = context_length
        self.seed = seed
        self.token_types = token_types
        self.bos_tokens = bos_tokens
        self.sep_tokens = sep_tokens
        train = list(train)
        names = [example.label for example in train if isinstance(example.label, str)]
        self.labels = label_names(names) if names else ()
        self._train, self._valid = self._arrays(train), self._arrays(valid)
        if not len(self._train.targets):
            raise ClearheadError("there are no labelled rows to train on.")
        self._epoch_order = lru_cache(maxsize=4)(self._shuffled)
        self.batches_per_epoch = len(self._train.targets) / batch_size
        real = 0
        room = 0
        for step in range(math.ceil(self.batches_per_epoch)):
            lengths = self._train.lengths[self._batch_indices(step)]
            real = real + int(lengths.sum())
            room = room + batch_size * self._batch_length(lengths)
        self.packing_efficiency = real / room

    def batch(self, step: int) -> PackedBatch:
        return self._batch(self._train, self._batch_indices(step))

    def valid_batches(self) -> Iterator[PackedBatch]:
        """In the order of the file. The last batch may be smaller: a number, unlike a class, cannot be ignored."""
        count = len(self._valid.targets)
        for first in range(0, count, self.batch_size):
            yield self._batch(self._valid, torch.arange(first, min(first + self.batch_size, count)))

    def _arrays(self, examples: Iterable[LabeledExample]) -> _ExampleArrays:
        ids = array("i")
        begins = [0]
        firsts = []
        targets = []
        numbers = {name: i for i, name in enumerate(self.labels)}
        for first, second, label, where in examples:
            target = (
                label_id(label, numbers, where, self.report) if isinstance(label, str) else label
            )
            if target is None:
                continue
            if not (self.bos_tokens or self.sep_tokens or first or second):
                self.report.skip(where, "the text has no tokens")
                continue
            a, b = self._fitting_lengths(len(first), len(second or ()), second is not None)
            if (a, b) != (len(first), len(second or ())):
                self.report.record(where, f"a text was cut to {self.context_length} tokens")
            ids.extend((*self.bos_tokens, *first[:a], *self.sep_tokens))
            firsts.append(len(ids) - begins[-1])
            if second is not None:
                ids.extend((*second[:b], *self.sep_tokens))
            begins.append(len(ids))
            targets.append(target)
        at = torch.tensor(begins)
        kind = torch.long if self.labels else torch.float
        all_ids = torch.tensor(ids, dtype=torch.int32)
        return _ExampleArrays(
            all_ids, at[:-1], at.diff(), torch.tensor(firsts), torch.tensor(targets, dtype=kind)
        )

    def _fitting_lengths(self, a: int, b: int, is_pair: bool) -> tuple[int, int]:
        room = self.context_length - len(self.bos_tokens) - len(self.sep_tokens) * (1 + is_pair)
        if room < 1 + is_pair:
            raise ClearheadError(
                f"a context of {self.context_length} has no room for a text and what stands around it."
            )
        return truncated_lengths(a, b, room)

    def _shuffled(self, epoch: int) -> Tensor:
        """The rows of an epoch in order: first those that fill the last epoch's last batch, then whole batches."""
        mixed = shuffled_indices(len(self._train.targets), self.seed, epoch)
        head = min(-epoch * len(mixed) % self.batch_size, len(mixed))
        body = (len(mixed) - head) // self.batch_size
        picks = mixed[head : head + body * self.batch_size]
        steps = (
            self._train.lengths[picks] + LENGTH_MULTIPLE - 1
        ) // LENGTH_MULTIPLE  # finer would save little, and the same rows would meet
        batches = picks[steps.argsort(stable=True)].view(body, self.batch_size)[
            shuffled_indices(body, self.seed, epoch)
        ]
        return torch.cat((mixed[:head], batches.flatten(), mixed[head + body * self.batch_size :]))

    def _batch_indices(self, step: int) -> Tensor:
        count = len(self._train.targets)
        at = step * self.batch_size
        picks = []
        while (left := (step + 1) * self.batch_size - at) > 0:
            picks.append(self._epoch_order(at // count)[at % count :][:left])
            at += len(picks[-1])
        return torch.cat(picks)

    def _batch_length(self, lengths: Tensor) -> int:
        return min(-(-int(lengths.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, self.context_length)

    def _batch(self, side: _ExampleArrays, picks: Tensor) -> PackedBatch:
        lengths = side.lengths[picks, None]
        at = torch.arange(self._batch_length(side.lengths[picks]))
        real = at < lengths
        tokens = side.ids[(side.starts[picks, None] + at).where(real, 0)].long().where(real, 0)
        kinds = (
            ((at >= side.first_lengths[picks, None]) & real).long() if self.token_types else None
        )
        return PackedBatch(tokens, side.targets[picks], real.long(), token_type_ids=kinds)
