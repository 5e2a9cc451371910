"""Labeled texts, for classification and regression, in batches of similar length."""

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

from clearhead.data.batch import truncated_lengths
from clearhead.data.dataset import shuffled_indices
from clearhead.data.encoding import encode_records
from clearhead.data.packed_batch import PackedBatch
from clearhead.data.readers import DataReport, is_valid_unicode, read_records
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer


# --- labels
def label_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in the order of their ids."""
    names = tuple(sorted(set(labels)))
    if len(names) < 2:
        raise ClearheadError(
            f"classification needs at least two labels, got {', '.join(names) or 'none'}."
        )
    return names


def label_id(
    label: str, label_ids: Mapping[str, int], location: str, report: DataReport
) -> int | None:
    """The id of a label; labels that occur only in the validation data are skipped."""
    if label not in label_ids:
        report.skip(f"{location} ({label!r:.40})", "the label does not occur in the training data")
    return label_ids.get(label)


def stratified_split(
    labels: Sequence[str | float], keys: Sequence[Hashable], fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Indices of training and validation rows: about `fraction` of each class is held out.

    Rows with equal keys are duplicates and stay together. At least one row of each class that has
    two distinct ones is held out.
    """
    label_of: dict[Hashable, str] = {}
    classes: dict[str, dict[Hashable, list[int]]] = {}
    for i, (label, key) in enumerate(zip(labels, keys, strict=True)):
        name = label_of.setdefault(key, label if isinstance(label, str) else "")
        classes.setdefault(name, {}).setdefault(key, []).append(i)
    train: list[int] = []
    valid: list[int] = []
    for class_index, name in enumerate(sorted(classes)):
        duplicates = list(classes[name].values())
        num_valid = 0
        if fraction:
            num_valid = min(len(duplicates) - 1, max(1, round(fraction * len(duplicates))))
        order = shuffled_indices(len(duplicates), seed, class_index).tolist()
        for rank, group in enumerate(order):
            (valid if rank < num_valid else train).extend(duplicates[group])
    return sorted(train), sorted(valid)


# --- files
COLUMN_HINT = "--data.text_column=0 --data.label_column=1"
MAX_TARGET = 1e38  # of a 32-bit float


class LabeledText(NamedTuple):
    text: str
    text_pair: str | None
    label: str | float
    location: str


class LabeledExample(NamedTuple):
    """A text or pair as token ids, without special tokens."""

    ids: Sequence[int]
    ids_pair: Sequence[int] | None
    label: str | float
    location: str = ""


def read_labeled_texts(
    path: str | Path,
    report: DataReport,
    *,
    text_column: str | int,
    label_column: str | int,
    text_pair_column: str | int | None = None,
    is_regression: bool = False,
) -> Iterator[LabeledText]:
    """The rows of a .csv, .tsv or .jsonl file; for regression, labels are numbers."""
    columns = [str(text_column), str(label_column)]
    if text_pair_column is not None:
        columns.append(str(text_pair_column))
    for location, values in read_records(Path(path), report, columns, column_hint=COLUMN_HINT):
        row = _parse_row(location, *values, is_regression=is_regression)
        if isinstance(row, LabeledText):
            report.num_read += 1
            yield row
        else:
            report.skip(*row)


def _parse_row(
    location: str, text: object, label: object, *text_pair: object, is_regression: bool
) -> LabeledText | tuple[str, str]:
    """The row, or its location and why it is invalid."""
    for value in (text, *text_pair):
        if not isinstance(value, str) or not value.strip():
            return f"{location} ({value!r:.40})", "the text is missing"
    name = label.strip() if isinstance(label, str) else json.dumps(label)
    if not name or isinstance(label, list | dict):
        return location, "the label is missing"
    texts = [str(value) for value in (text, *text_pair)]
    if not is_valid_unicode("".join([*texts, name])):
        return location, "the line is not valid UTF-8"
    target: str | float = name
    if is_regression:
        try:
            target = float(name)
        except ValueError:
            target = math.nan
        if not abs(target) < MAX_TARGET:  # also rejects NaN
            return f"{location} ({name!r:.40})", "the label is not a number"
    return LabeledText(texts[0], texts[1] if text_pair else None, target, location)


def encode_labeled_texts(
    rows: Iterable[LabeledText], tokenizer: Tokenizer, report: DataReport
) -> Iterator[LabeledExample]:
    """Tokenize labeled texts."""
    encoded = encode_records(
        rows, lambda row: (row.text, row.text_pair or ""), (tokenizer, tokenizer), report
    )
    for row, (ids, ids_pair) in encoded:
        has_pair = row.text_pair is not None
        yield LabeledExample(ids, ids_pair if has_pair else None, row.label, row.location)


# --- batches
LENGTH_MULTIPLE = 16  # batch lengths are multiples of this, so that there are few shapes


@dataclass(frozen=True)
class _ExampleArrays:
    """Concatenated rows with their special tokens."""

    ids: Tensor
    starts: Tensor
    lengths: Tensor
    first_lengths: Tensor  # tokens of the first text of a pair
    targets: Tensor


class LabeledTextDataset:
    """Rows of `bos text sep [text_pair sep]`, one example each, with one target per row.

    Batches combine rows of similar length, padded to a multiple of 16: an epoch's rows are shuffled
    and sorted by that length, then its batches are shuffled. Every row occurs once per epoch; the
    rows that do not fill a batch share one with the first rows of the next epoch.
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
        labels = [example.label for example in train if isinstance(example.label, str)]
        self.labels = label_names(labels) if labels else ()
        self._train = self._arrays(train)
        self._valid = self._arrays(valid)
        num_rows = len(self._train.targets)
        if not num_rows:
            raise ClearheadError("data.train has no labeled rows to train on.")
        self._epoch_order = lru_cache(maxsize=4)(self._shuffle_epoch)
        self.batches_per_epoch = num_rows / batch_size
        num_tokens = 0
        room = 0
        for step in range(math.ceil(self.batches_per_epoch)):
            lengths = self._train.lengths[self._batch_indices(step)]
            num_tokens += int(lengths.sum())
            room += batch_size * self._batch_length(lengths)
        self.packing_efficiency = num_tokens / room

    def batch(self, step: int) -> PackedBatch:
        return self._batch(self._train, self._batch_indices(step))

    def valid_batches(self) -> Iterator[PackedBatch]:
        """In file order; the last batch may be smaller, as regression targets cannot be ignored."""
        num_rows = len(self._valid.targets)
        for start in range(0, num_rows, self.batch_size):
            indices = torch.arange(start, min(start + self.batch_size, num_rows))
            yield self._batch(self._valid, indices)

    def _arrays(self, examples: Iterable[LabeledExample]) -> _ExampleArrays:
        ids = array("i")
        starts = [0]
        first_lengths = []
        targets = []
        label_ids = {name: i for i, name in enumerate(self.labels)}
        for first, second, label, location in examples:
            target = label
            if isinstance(label, str):
                class_id = label_id(label, label_ids, location, self.report)
                if class_id is None:
                    continue
                target = class_id
            if not (self.bos_tokens or self.sep_tokens or first or second):
                self.report.skip(location, "the text has no tokens")
                continue
            lengths = len(first), len(second or ())
            fitting = self._fitting_lengths(*lengths, is_pair=second is not None)
            if fitting != lengths:
                self.report.record(
                    location, f"a text was truncated to {self.context_length} tokens"
                )
            ids.extend((*self.bos_tokens, *first[: fitting[0]], *self.sep_tokens))
            first_lengths.append(len(ids) - starts[-1])
            if second is not None:
                ids.extend((*second[: fitting[1]], *self.sep_tokens))
            starts.append(len(ids))
            targets.append(target)
        offsets = torch.tensor(starts)
        return _ExampleArrays(
            ids=torch.tensor(ids, dtype=torch.int32),
            starts=offsets[:-1],
            lengths=offsets.diff(),
            first_lengths=torch.tensor(first_lengths),
            targets=torch.tensor(targets, dtype=torch.long if self.labels else torch.float),
        )

    def _fitting_lengths(self, first: int, second: int, is_pair: bool) -> tuple[int, int]:
        num_texts = 1 + is_pair
        room = self.context_length - len(self.bos_tokens) - len(self.sep_tokens) * num_texts
        if room < num_texts:
            raise ClearheadError(
                f"a context of {self.context_length} tokens is too short for a text and its "
                "special tokens; increase train.seq_len."
            )
        return truncated_lengths(first, second, room)

    def _shuffle_epoch(self, epoch: int) -> Tensor:
        """The rows of an epoch: those that complete the previous epoch's batch, then batches."""
        order = shuffled_indices(len(self._train.targets), self.seed, epoch)
        num_head = min(-epoch * len(order) % self.batch_size, len(order))
        num_batches = (len(order) - num_head) // self.batch_size
        end = num_head + num_batches * self.batch_size
        body = order[num_head:end]
        # Sorting by exact length would save little padding, and the same rows would always meet.
        steps = (self._train.lengths[body] + LENGTH_MULTIPLE - 1) // LENGTH_MULTIPLE
        batches = body[steps.argsort(stable=True)].view(num_batches, self.batch_size)
        batches = batches[shuffled_indices(num_batches, self.seed, epoch)]
        return torch.cat((order[:num_head], batches.flatten(), order[end:]))

    def _batch_indices(self, step: int) -> Tensor:
        num_rows = len(self._train.targets)
        position = step * self.batch_size
        end = position + self.batch_size
        parts = []
        while position < end:
            epoch, start = divmod(position, num_rows)
            parts.append(self._epoch_order(epoch)[start:][: end - position])
            position += len(parts[-1])
        return torch.cat(parts)

    def _batch_length(self, lengths: Tensor) -> int:
        padded = -(-int(lengths.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        return min(padded, self.context_length)

    def _batch(self, arrays: _ExampleArrays, indices: Tensor) -> PackedBatch:
        lengths = arrays.lengths[indices, None]
        positions = torch.arange(self._batch_length(lengths))
        is_token = positions < lengths
        token_indices = (arrays.starts[indices, None] + positions).where(is_token, 0)
        tokens = arrays.ids[token_indices].long().where(is_token, 0)
        token_type_ids = None
        if self.token_types:
            is_second = positions >= arrays.first_lengths[indices, None]
            token_type_ids = (is_second & is_token).long()
        return PackedBatch(
            tokens, arrays.targets[indices], is_token.long(), token_type_ids=token_type_ids
        )
