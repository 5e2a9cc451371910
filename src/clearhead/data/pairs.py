"""Sentence pairs: read parallel texts, tables, TMX and PO files, and pack pairs into rows."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.config.model import InferenceConfig
from clearhead.data.dataset import shuffled_indices
from clearhead.data.encoding import encode_records
from clearhead.data.packed_batch import IGNORE_INDEX, PackedBatch
from clearhead.data.readers import (
    MAX_RECORD_BYTES,
    DataReport,
    decode_lossless,
    is_valid_unicode,
    open_input,
    read_byte_lines,
    read_records,
    uncompressed_suffix,
)
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer

Columns = tuple[str, str]
TABLE_COLUMNS: dict[str, Columns] = {
    ".csv": ("0", "1"),
    ".tsv": ("0", "1"),
    ".jsonl": ("source", "target"),
}
PAIR_TYPES = (*TABLE_COLUMNS, ".po", ".tmx")
COLUMN_HINT = "--data.source_column=0 --data.target_column=1"


class SentencePair(NamedTuple):
    source: str
    target: str
    location: str  # file:line


class InvalidPair(NamedTuple):
    """Why a record is not used; `is_error` is False if the file itself is fine."""

    reason: str
    is_error: bool = True


LocatedPair = tuple[str, tuple[object, object] | InvalidPair]


def read_pairs(
    paths: Sequence[str | Path], report: DataReport, *, columns: Columns | None = None
) -> Iterator[SentencePair]:
    """The pairs of two parallel texts, or of any number of .csv, .tsv, .jsonl, .tmx or .po files.

    `columns` names the source and the target: columns of a table (names, or numbers from 0), fields
    of .jsonl, or languages of .tmx. Texts are stripped of surrounding spaces.
    """
    if isinstance(paths, str):
        raise ClearheadError(f"paths must be a list, got {paths!r}; write [{paths!r}].")
    for location, texts in _read_files([Path(path) for path in paths], report, columns):
        pair = texts if isinstance(texts, InvalidPair) else _validate_pair(texts, location)
        if isinstance(pair, SentencePair):
            report.num_read += 1
            yield pair
        elif pair.is_error:
            report.skip(location, pair.reason)
        else:
            report.record(location, pair.reason)


def _read_files(
    paths: Sequence[Path], report: DataReport, columns: Columns | None
) -> Iterator[LocatedPair]:
    file_types = [uncompressed_suffix(path) for path in paths]
    if set(PAIR_TYPES).isdisjoint(file_types) and len(paths) >= 2:
        if len(paths) > 2:
            raise ClearheadError(
                f"expected two parallel texts, source and target, got {len(paths)} files: "
                f"{' '.join(map(str, paths))}."
            )
        _reject_columns(columns, paths[0])
        if paths[0].resolve() == paths[1].resolve():
            raise ClearheadError(f"{paths[0]} is both source and target; name two files.")
        yield from _read_parallel_texts(*paths)
        return
    for path, file_type in zip(paths, file_types, strict=True):
        if file_type in TABLE_COLUMNS:
            records = read_records(
                path,
                report,
                columns or TABLE_COLUMNS[file_type],
                reject_extra_columns=columns is None,
                column_hint=COLUMN_HINT,
            )
            yield from ((location, (source, target)) for location, (source, target) in records)
        elif file_type == ".tmx":
            yield from _read_tmx(path, columns)
        elif file_type == ".po":
            _reject_columns(columns, path)
            yield from _read_po(path)
        else:
            raise ClearheadError(
                f"{path} does not contain pairs; name two parallel texts, "
                f"or files of type {', '.join(PAIR_TYPES)}."
            )


def _reject_columns(columns: Columns | None, path: Path) -> None:
    if columns is not None:
        raise ClearheadError(
            f"{path} has no columns, fields or languages to choose from; "
            f"leave out the columns {columns[0]!r} and {columns[1]!r}."
        )


def _validate_pair(texts: tuple[object, object], location: str) -> SentencePair | InvalidPair:
    for side, text in zip(("source", "target"), texts, strict=True):
        if not isinstance(text, str):
            return InvalidPair(f"the {side} is not a string")
        if not text.strip():
            return InvalidPair(f"the {side} is empty")
        if not is_valid_unicode(text):
            return InvalidPair(f"the {side} is not valid UTF-8")
    source, target = (str(text).strip() for text in texts)
    return SentencePair(source, target, location)


# --- parallel texts
def _read_parallel_texts(first: Path, second: Path) -> Iterator[LocatedPair]:
    num_first = 0
    num_second = 0
    lines = zip_longest(read_byte_lines(first), read_byte_lines(second))
    for number, (source, target) in enumerate(lines, 1):
        num_first += source is not None
        num_second += target is not None
        if source and target:
            yield f"{first}:{number}", (decode_lossless(source), decode_lossless(target))
    if num_first != num_second:
        raise ClearheadError(
            f"{first} has {num_first} lines and {second} has {num_second}; "
            "parallel texts must have the same number of lines."
        )


# --- TMX
MARKUP_TAGS = ("bpt", "ept", "it", "ph", "ut")  # contain markup of other programs, not text
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def _read_tmx(path: Path, columns: Columns | None) -> Iterator[LocatedPair]:
    if columns is None:
        raise ClearheadError(
            f"{path} may contain several languages; choose two, "
            "as in --data.source_column=en --data.target_column=de."
        )
    parent = None  # of the translation units; emptied as they are read
    number = 0
    try:
        with open_input(path) as file:
            reader = _RecordReader(file)
            for event, element in ElementTree.iterparse(reader, events=("start", "end")):
                tag = _local_name(element)
                if event == "start" and tag == "body":
                    parent = element
                elif event == "end" and tag == "tu":
                    number += 1
                    reader.record_bytes = 0
                    texts = _unit_texts(element)
                    source, target = (_text_in_language(texts, code) for code in columns)
                    yield f"{path}, unit {number}", (source, target)
                    if parent is not None:
                        parent.clear()
    except ElementTree.ParseError as error:
        raise ClearheadError(f"{path} is not valid XML: {error}.") from None


class _RecordReader:
    """Reads an XML file, and fails if there is too much of it in one translation unit."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.record_bytes = 0  # read since the last unit

    def read(self, size: int = -1) -> bytes:
        part = self.file.read(size)
        self.record_bytes += len(part)
        if self.record_bytes > MAX_RECORD_BYTES:
            raise OSError(f"a translation unit is longer than {MAX_RECORD_BYTES:,} bytes")
        return part


def _local_name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _unit_texts(unit: ElementTree.Element) -> dict[str, str]:
    """The first segment of each language of a translation unit."""
    texts: dict[str, str] = {}
    for variant in unit.iterfind("{*}tuv"):
        language = variant.get(XML_LANG, variant.get("lang", "")).lower().replace("_", "-")
        for segment in variant.iterfind("{*}seg"):
            texts.setdefault(language, _plain_text(segment))
    return texts


def _plain_text(element: ElementTree.Element) -> str:
    parts = [element.text or ""]
    for child in element:
        if _local_name(child) not in MARKUP_TAGS:
            parts.append(_plain_text(child))
        parts.append(child.tail or "")
    return "".join(parts)


def _text_in_language(texts: dict[str, str], code: str) -> str:
    """The first text in a language; `en` also matches `en-GB`."""
    prefix = code.lower().replace("_", "-") + "-"
    return next((text for language, text in texts.items() if f"{language}-".startswith(prefix)), "")


# --- PO
PO_LINE = re.compile(rb'(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*)?"((?:[^"\\]|\\.)*)"')
PO_ENTRY_START = re.compile(rb"#|msgctxt\b|msgid\b")
PO_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([0-3]?[0-7]{1,2})|(.))")
PO_ESCAPED_CHARS = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}


def _read_po(path: Path) -> Iterator[LocatedPair]:
    """msgid and msgstr of each entry but the header; obsolete entries are comments."""
    entry = _PoEntry()
    for number, raw in enumerate(chain(read_byte_lines(path), [b"#"]), 1):
        line = raw.strip()
        is_complete = b"msgid" in entry.parts or entry.is_invalid
        if is_complete and PO_ENTRY_START.match(line):
            is_header = not entry.is_invalid and not entry.parts[b"msgid"]
            if not is_header:
                yield entry.location, entry.to_pair()
            entry = _PoEntry()
        entry.add_line(f"{path}:{number}", line)


class _PoEntry:
    """An entry of a PO file, built line by line."""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}  # keyword -> string
        self.location = ""
        self.last_keyword = b""
        self.is_fuzzy = False
        self.is_invalid = False

    def add_line(self, location: str, line: bytes) -> None:
        if line.startswith(b"#"):
            self.is_fuzzy |= line.startswith(b"#,") and b"fuzzy" in line
        elif line and not self.is_invalid:
            match = PO_LINE.fullmatch(line)
            keyword = match and (match[1] or self.last_keyword)
            if not match or not keyword or match[1] in self.parts:
                self.location = location
                self.is_invalid = True
            else:
                self.location = self.location or location
                self.last_keyword = keyword
                self.parts[keyword] = self.parts.get(keyword, b"") + match[2]

    def to_pair(self) -> tuple[str, str] | InvalidPair:
        if self.is_invalid:
            return InvalidPair("invalid PO syntax")
        if b"msgid_plural" in self.parts:
            return InvalidPair("the entry has plural forms", is_error=False)
        if self.is_fuzzy:
            return InvalidPair("the entry is fuzzy", is_error=False)
        if b"msgstr" not in self.parts:
            return InvalidPair("msgstr is missing")
        if not self.parts[b"msgstr"]:
            return InvalidPair("the entry is not translated", is_error=False)
        return _unescape_po(self.parts[b"msgid"]), _unescape_po(self.parts[b"msgstr"])


def _unescape_po(raw: bytes) -> str:
    def replacement(match: re.Match[bytes]) -> bytes:
        hexadecimal, octal, character = match.groups()
        if character:
            return PO_ESCAPED_CHARS.get(character, character)
        return bytes([int(hexadecimal, 16) if hexadecimal else int(octal, 8)])

    return decode_lossless(PO_ESCAPE.sub(replacement, raw))


# --- token ids
class EncodedPair(NamedTuple):
    """A pair as token ids, with special tokens: `bos … sep` and `decoder_start … eos`."""

    source: Sequence[int]
    target: Sequence[int]
    location: str = ""


def encode_pairs(
    pairs: Iterable[SentencePair],
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer,
    inference: InferenceConfig,
    report: DataReport,
    *,
    max_tokens: int = 0,
    max_length_ratio: float = 0.0,
) -> Iterator[tuple[SentencePair, EncodedPair]]:
    """Tokenize pairs, without those that exceed `max_tokens` per side or `max_length_ratio`."""
    if not inference.decoder_start_tokens:
        raise ClearheadError(
            "inference.decoder_start_tokens is empty; a translation must start with a token."
        )
    tokenizers = (source_tokenizer, tokenizer)
    encoded = encode_records(pairs, lambda pair: (pair.source, pair.target), tokenizers, report)
    for pair, (source, target) in encoded:
        short, long = sorted((len(source), len(target)))
        if not short:
            report.skip(pair.location, "one side has no tokens")
        elif max_tokens and long > max_tokens:
            report.record(pair.location, f"one side has more than {max_tokens} tokens")
        elif max_length_ratio and long > max_length_ratio * short:
            reason = f"one side is more than {max_length_ratio:g} times as long as the other"
            report.record(pair.location, reason)
        else:
            source_ids = [*inference.bos_tokens, *source, *inference.sep_tokens]
            target_ids = [*inference.decoder_start_tokens, *target, *inference.eos_tokens[:1]]
            yield pair, EncodedPair(source_ids, target_ids, pair.location)


# --- packing
PACKING_POOL = 512  # candidates for the next pair of a row
ROWS_PER_SPARE_ROW = 512  # spare rows let almost every epoch fit into the same number of rows
Numbers = NDArray[np.int64]
TokenPair = EncodedPair | tuple[Sequence[int], Sequence[int]]


def balanced_source_seq_len(pairs: Iterable[EncodedPair], seq_len: int) -> int:
    """The source row length, a multiple of 8, at which both sides fill up together."""
    lengths = np.array([(len(pair.source), len(pair.target) - 1) for pair in pairs]).reshape(-1, 2)
    num_source, num_target = lengths.sum(axis=0)
    return int(-(-seq_len * num_source // max(8 * num_target, 1)) * 8)


class TranslationDataset:
    """Rows of whole pairs: `source_seq_len` source tokens beside `seq_len` target tokens.

    Each epoch is shuffled and packed into the same number of rows, which are shuffled as well;
    every pair occurs once. The decoder reads a target without its last token, and predicts it
    without its first `num_start_tokens` tokens.
    """

    def __init__(
        self,
        train: Iterable[TokenPair],
        valid: Iterable[TokenPair],
        report: DataReport,
        *,
        batch_size: int,
        seq_len: int,
        source_seq_len: int,
        seed: int,
        num_start_tokens: int = 1,
    ) -> None:
        self.report = report
        self.batch_size = batch_size
        self.seed = seed
        self.num_start_tokens = num_start_tokens
        self.row_size = (source_seq_len, seq_len)
        self._train = self._arrays(train)
        self._valid = self._arrays(valid)
        num_pairs = len(self._train.sizes)
        if not num_pairs:
            raise ClearheadError(
                f"no training pair fits into rows of {source_seq_len} source and {seq_len} target "
                "tokens; increase train.seq_len."
            )
        self._first_epoch_rows = self._pack(0)
        num_rows = len(self._first_epoch_rows)
        self._num_rows = min(num_rows + num_rows // ROWS_PER_SPARE_ROW, num_pairs)
        self._current_epoch: tuple[int, list[Numbers]] = (-1, [])  # the epoch, and its rows
        self.batches_per_epoch = self._num_rows / batch_size
        room = self._num_rows * sum(self.row_size)
        self.packing_efficiency = float(self._train.sizes.sum() / room)

    def batch(self, step: int) -> PackedBatch:
        rows = []
        for row in range(step * self.batch_size, (step + 1) * self.batch_size):
            epoch, index = divmod(row, self._num_rows)
            rows.append(self._rows_of_epoch(epoch)[index])
        return self._batch(self._train, rows)

    def valid_batches(self) -> Iterator[PackedBatch]:
        """Packed in the order of the file; the last batch is filled up with empty rows."""
        rows = pack_pairs(self._valid.sizes, self.row_size, np.arange(len(self._valid.sizes)))
        for start in range(0, len(rows), self.batch_size):
            yield self._batch(self._valid, rows[start : start + self.batch_size])

    def _rows_of_epoch(self, epoch: int) -> list[Numbers]:
        """The pairs of each row of an epoch."""
        cached_epoch, cached_rows = self._current_epoch
        if cached_epoch == epoch:
            return cached_rows
        rows = self._first_epoch_rows if epoch == 0 else self._pack(epoch)
        if len(rows) > self._num_rows:  # rare: reuse the first epoch's rows in another order
            rows = self._first_epoch_rows
        rows = list(rows)
        while len(rows) < self._num_rows:  # an empty row could be a batch without targets
            fullest = max(range(len(rows)), key=lambda i: len(rows[i]))
            rows[fullest : fullest + 1] = np.array_split(rows[fullest], 2)
        order = shuffled_indices(self._num_rows, self.seed, epoch)
        shuffled = [rows[i] for i in order.tolist()]
        self._current_epoch = (epoch, shuffled)
        return shuffled

    def _pack(self, epoch: int) -> list[Numbers]:
        sizes = self._train.sizes
        order = shuffled_indices(len(sizes), self.seed, epoch)
        return pack_pairs(sizes, self.row_size, order.numpy())

    def _arrays(self, pairs: Iterable[TokenPair]) -> "_PairArrays":
        """The pairs that fit into a row."""
        source_room, target_room = self.row_size
        fitting = []
        for number, pair in enumerate(pairs, 1):
            source, target, location = EncodedPair(*pair)
            location = location or f"pair {number}"
            if not source or len(target) <= self.num_start_tokens:
                self.report.skip(location, "the source or the target is empty")
            elif len(source) > source_room or len(target) - 1 > target_room:
                reason = (
                    f"the pair does not fit into a row of {source_room} source "
                    f"and {target_room} target tokens"
                )
                self.report.record(location, reason)
            else:
                fitting.append((source, target))
        lengths = [(len(source), len(target)) for source, target in fitting]
        counts = np.array(lengths, np.int64).reshape(-1, 2)
        sources, targets = (
            np.fromiter(chain.from_iterable(pair[side] for pair in fitting), np.int32)
            for side in (0, 1)
        )
        starts = np.cumsum(counts, axis=0) - counts
        return _PairArrays(sources, targets, counts - np.array((0, 1)), starts)

    def _batch(self, arrays: "_PairArrays", rows: Sequence[Numbers]) -> PackedBatch:
        pairs = np.concatenate(rows)
        pairs_per_row = [len(row) for row in rows]
        row = np.repeat(np.arange(len(rows)), pairs_per_row)
        segment = np.concatenate([np.arange(1, n + 1) for n in pairs_per_row])
        tensors = []
        for side, ids in enumerate((arrays.sources, arrays.targets)):
            size = arrays.sizes[pairs, side]
            start = np.cumsum(size) - size
            row_start = start[np.cumsum(pairs_per_row) - pairs_per_row]
            within = np.arange(size.sum()) - np.repeat(start, size)  # position in its pair
            to_index = np.repeat(row * self.row_size[side] + start - row_start[row], size) + within
            from_index = np.repeat(arrays.starts[pairs, side], size) + within
            is_start = within < self.num_start_tokens - 1
            predicted = np.where(is_start, IGNORE_INDEX, ids[from_index + side])
            for values, padding in (
                (ids[from_index], 0),
                (np.repeat(segment, size), 0),
                (predicted, IGNORE_INDEX),
            ):
                filled = np.full(self.batch_size * self.row_size[side], padding)
                filled[to_index] = values
                tensors.append(torch.from_numpy(filled.reshape(self.batch_size, -1)))
        source, source_segment_ids, _, tokens, segment_ids, targets = tensors
        return PackedBatch(tokens, targets, segment_ids, source, source_segment_ids)


class _PairArrays(NamedTuple):
    """All pairs: their concatenated ids, and sizes and starts per pair and side."""

    sources: NDArray[np.int32]
    targets: NDArray[np.int32]
    sizes: Numbers  # tokens that the pair needs in a row; the last target token is only predicted
    starts: Numbers


def pack_pairs(sizes: Numbers, row_size: tuple[int, int], order: Numbers) -> list[Numbers]:
    """Pack pairs that arrive in the given order into rows; return the pairs of each row.

    A row starts with the pair that has waited longest in a pool of the next few hundred. Then the
    pair that leaves the least room on both sides is added, until none fits.
    """
    never_fits = np.full((PACKING_POOL, 2), 9.0)
    queue = np.concatenate([sizes[order] / np.array(row_size), never_fits])
    source_sizes, target_sizes = queue[:PACKING_POOL].T.copy()
    pool = np.arange(PACKING_POOL)  # indices into `order`
    next_index = PACKING_POOL
    rows = []
    while pool.min() < len(order):
        row = []
        source_room = 1 + 1e-9  # sums of fractions are not exact
        target_room = 1 + 1e-9
        best = pool.argmin()
        fits = True
        while fits:
            row.append(pool[best])
            source_room -= source_sizes[best]
            target_room -= target_sizes[best]
            source_sizes[best], target_sizes[best] = queue[next_index]
            pool[best] = next_index
            next_index += 1
            source_rest = source_room - source_sizes
            target_rest = target_room - target_sizes
            min_rest = np.minimum(source_rest, target_rest)
            max_rest = np.maximum(source_rest, target_rest)
            best = np.where(min_rest < 0, 99.0, max_rest).argmin()
            fits = bool(min_rest[best] >= 0)
        rows.append(order[row])
    return rows
