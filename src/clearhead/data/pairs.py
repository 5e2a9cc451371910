"""Sentence pairs out of files: two aligned texts, tables, TMX or gettext's PO, each of which may be compressed."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.config.model import InferenceConfig
from clearhead.data.batch import IGNORE_INDEX, DataReport, PackedBatch, shuffled_indices
from clearhead.data.encoding import encode_texts
from clearhead.data.readers import (
    decode_lossless,
    open_input,
    read_byte_lines,
    read_records,
    uncompressed_suffix,
)
from clearhead.errors import ClearheadError, reraise_as
from clearhead.tokenizers.tokenizer import Tokenizer

# ---- pair_files: Sentence pairs out of files: two aligned texts, tables, TMX or gettext's PO, each of which may be compressed.

Columns = tuple[str, str]
TABLE_COLUMNS: dict[str, Columns] = {
    ".csv": ("0", "1"),
    ".tsv": ("0", "1"),
    ".jsonl": ("source", "target"),
}
MARKUP_TAGS = (
    "bpt",
    "ept",
    "it",
    "ph",
    "ut",
)  # inside these, TMX holds the markup of another program, not words
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


class SentencePair(NamedTuple):
    source: str
    target: str
    location: str  # file:line


class InvalidPair(NamedTuple):
    """Why there is no pair; not every reason means that the file is broken."""

    reason: str
    is_error: bool = True


LocatedPair = tuple[str, tuple[object, object] | InvalidPair]  # where, and the two sides


def read_pairs(
    paths: Sequence[str | Path], report: DataReport, *, columns: Columns | None = None
) -> Iterator[SentencePair]:
    """The pairs of two texts whose lines belong together, or of any number of .csv, .tsv, .jsonl, .tmx and .po files.

    `sides` are the columns of a table (numbers from 0, or names), the fields of .jsonl, the languages of .tmx.
    Spaces around a text are cut off.
    """
    if isinstance(paths, str):
        raise ClearheadError(f"pairs are read from a list of paths; write [{paths!r}].")
    for where, row in _read_rows([Path(path) for path in paths], report, columns):
        found = row if isinstance(row, InvalidPair) else _validate_pair(row, where)
        if isinstance(found, SentencePair):
            report.num_read += 1
            yield found
        elif found.is_error:
            report.skip(where, found.reason)
        else:
            report.record(where, found.reason)


def _read_rows(
    paths: Sequence[Path], report: DataReport, columns: Columns | None
) -> Iterator[LocatedPair]:
    kinds = [uncompressed_suffix(path) for path in paths]
    known = {*TABLE_COLUMNS, ".tmx", ".po"}
    if known.isdisjoint(kinds) and len(paths) == 2:
        _reject_columns(columns, paths[0])
        if paths[0].resolve() == paths[1].resolve():
            raise ClearheadError(
                f"{paths[0]} is given as both sides; the second must be what the first becomes."
            )
        yield from _read_parallel_texts(*paths)
        return
    if known.isdisjoint(kinds) and len(paths) > 2:
        names = " ".join(map(str, paths))
        raise ClearheadError(
            f"two texts are wanted, what is read and what it becomes, not {len(paths)}: {names}."
        )
    for path, kind in zip(paths, kinds, strict=True):
        if kind in TABLE_COLUMNS:
            chosen = columns or TABLE_COLUMNS[kind]
            read = read_records(
                path,
                report,
                chosen,
                reject_extra_columns=columns is None,
                column_hint="--data.source_column 0 --data.target_column 1",
            )
            yield from ((where, (found[0], found[1])) for where, found in read)
        elif kind == ".tmx":
            yield from _read_tmx(path, columns)
        elif kind == ".po":
            _reject_columns(columns, path)
            yield from _read_po(path)
        else:
            raise ClearheadError(
                f"{path} holds no pairs; give two texts, or files of {', '.join(sorted(known))}."
            )


def _reject_columns(columns: Columns | None, path: Path) -> None:
    if columns is not None:
        raise ClearheadError(
            f"{path} has no columns, fields or languages to choose, so sides = {columns} cannot be."
        )


def _validate_pair(row: tuple[object, object], location: str) -> SentencePair | InvalidPair:
    for side, text in zip(("source", "target"), row, strict=True):
        if not isinstance(text, str):
            return InvalidPair(f"the {side} is no text")
        if not text.strip():
            return InvalidPair(f"the {side} is empty")
        try:
            text.encode()
        except UnicodeEncodeError:  # lone surrogates stand for bytes that are no character
            return InvalidPair(f"the {side} is not UTF-8")
    source, target = (str(text).strip() for text in row)
    return SentencePair(source, target, location)


# ---------------------------------------------------------------- two texts
def _read_parallel_texts(first: Path, second: Path) -> Iterator[LocatedPair]:
    counts = [0, 0]
    for number, (ours, theirs) in enumerate(
        zip_longest(read_byte_lines(first), read_byte_lines(second)), 1
    ):
        counts = [counts[0] + (ours is not None), counts[1] + (theirs is not None)]
        if ours and theirs:
            yield f"{first}:{number}", (decode_lossless(ours), decode_lossless(theirs))
    if counts[0] != counts[1]:
        have = f"{first} has {counts[0]} lines and {second} has {counts[1]}"
        raise ClearheadError(f"{have}; line by line they must belong together.")


# ---------------------------------------------------------------- TMX
def _read_tmx(path: Path, columns: Columns | None) -> Iterator[LocatedPair]:
    if columns is None:
        raise ClearheadError(
            f"{path} may hold many languages; tell which two, as in sides = ('en', 'de')."
        )
    units = _TmxParser(path)
    for chunk in chain(_read_chunks(path), [b""]):
        with reraise_as(f"{path} is not valid XML"):
            units.parser.Parse(chunk, not chunk)
        for line, texts in units.done:
            yield (
                f"{path}:{line}",
                (_text_in_language(texts, columns[0]), _text_in_language(texts, columns[1])),
            )
        units.done.clear()


def _read_chunks(path: Path) -> Iterator[bytes]:
    with open_input(path) as file:
        while chunk := file.read(1 << 16):
            yield chunk


def _text_in_language(texts: dict[str, str], code: str) -> str:
    """'en' is also found as en-GB; the first of several is taken."""
    own = code.lower().replace("_", "-") + "-"
    return next((text for language, text in texts.items() if f"{language}-".startswith(own)), "")


class _TmxParser:
    """The translation units of a TMX file as it streams by. A tree would not tell the lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: list[tuple[int, dict[str, str]]] = []  # line, and the text of each language
        self.line = 0
        self.language = ""
        self.hidden = 0
        self.inside = False
        self.texts: dict[str, str] = {}
        self.text: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def _refuse(self, *_: object) -> None:
        # Entities are declared nowhere else, and a few of them can grow into gigabytes.
        where = f"{self.path}:{self.parser.CurrentLineNumber}"
        raise ClearheadError(
            f"{where}: a DOCTYPE may declare entities, so it is not read; take that line out."
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self.line = self.parser.CurrentLineNumber
            self.texts = {}
        elif name == "tuv":
            self.language = (
                attributes.get("xml:lang", attributes.get("lang", "")).lower().replace("_", "-")
            )
        elif name == "seg":
            self.text = []
            self.inside = True
        self.hidden += name in MARKUP_TAGS

    def _end(self, name: str) -> None:
        if name == "tu":
            self.done.append((self.line, self.texts))
        elif name == "seg":
            self.inside = False
            self.texts.setdefault(self.language, "".join(self.text))
        self.hidden -= name in MARKUP_TAGS

    def _characters(self, text: str) -> None:
        if self.inside and not self.hidden:
            self.text.append(text)


# ---------------------------------------------------------------- PO
def _read_po(path: Path) -> Iterator[LocatedPair]:
    """msgid and msgstr of each entry. What is obsolete stands in comments, and what has no msgid is the header."""
    entry = _PoEntry()
    for number, raw in enumerate(chain(read_byte_lines(path), [b"#"]), 1):
        line = raw.strip()
        if PO_ENTRY_START.match(line) and (b"msgid" in entry.parts or entry.is_invalid):
            if entry.is_invalid or entry.parts[b"msgid"]:
                yield entry.location, entry.to_pair()
            entry = _PoEntry()
        entry.add_line(f"{path}:{number}", line)


class _PoEntry:
    """The parts of one entry: msgid, msgstr …"""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}
        self.location = ""
        self.last_keyword = b""
        self.is_fuzzy = False
        self.is_invalid = False

    def add_line(self, location: str, line: bytes) -> None:
        if line.startswith(b"#"):
            self.is_fuzzy |= line.startswith(b"#,") and b"fuzzy" in line
        elif line and not self.is_invalid:
            match = PO_LINE.fullmatch(line)
            key = match and (match[1] or self.last_keyword)
            if not match or not key or match[1] in self.parts:
                self.location = location
                self.is_invalid = True
            else:
                self.location = self.location or location
                self.last_keyword = key
                self.parts[key] = self.parts.get(key, b"") + match[2]

    def to_pair(self) -> tuple[str, str] | InvalidPair:
        if self.is_invalid:
            return InvalidPair("the line does not belong into a PO file")
        if b"msgid_plural" in self.parts:
            return InvalidPair("the entry has plural forms", is_error=False)
        if self.is_fuzzy:
            return InvalidPair("the entry is fuzzy", is_error=False)
        if b"msgstr" not in self.parts:
            return InvalidPair("the entry has no msgstr")
        if not self.parts[b"msgstr"]:
            return InvalidPair("the entry is not translated", is_error=False)
        return _unescaped(self.parts[b"msgid"]), _unescaped(self.parts[b"msgstr"])


def _unescaped(raw: bytes) -> str:
    return decode_lossless(PO_ESCAPE.sub(_escape, raw))


def _escape(match: re.Match[bytes]) -> bytes:
    if match[3]:
        return PO_ESCAPED_CHARS.get(match[3], match[3])
    return bytes([int(match[1], 16) if match[1] else int(match[2], 8)])


# ---- pairs: Sentence pairs as batches: several pairs share a row, both sides of each under the same number.

PACKING_POOL = 512  # pairs of which the next one of a row is chosen
ROWS_PER_SPARE_ROW = (
    512  # one row in so many is spare, so that almost every epoch fits the same number of rows
)
Numbers = NDArray[np.int64]


class EncodedPair(NamedTuple):
    """A pair as ids, with what stands around them: `begin … end`, and `start … stop`."""

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
    """Pairs and their ids. Texts of more than `most` tokens, or `ratio` times as long as the other, are left out."""
    if not inference.decoder_start_tokens:
        raise ClearheadError(
            "inference.decoder_start_tokens is empty, but what a translator writes must start with some token."
        )
    found = encode_texts(
        pairs, lambda pair: (pair.source, pair.target), (source_tokenizer, tokenizer), report
    )
    for pair, (source, target) in found:
        short, long = sorted((len(source), len(target)))
        if not short:
            report.skip(pair.location, "one of the sides has no tokens")
        elif max_tokens and long > max_tokens:
            report.record(pair.location, f"more than {max_tokens} tokens on a side")
        elif max_length_ratio and long > max_length_ratio * short:
            report.record(
                pair.location,
                f"one side is more than {max_length_ratio:g} times as long as the other",
            )
        else:
            around = (
                [*inference.bos_tokens, *source, *inference.sep_tokens],
                [*inference.decoder_start_tokens, *target, *inference.eos_tokens[:1]],
            )
            yield pair, EncodedPair(*around, pair.location)


def balanced_source_seq_len(pairs: Iterable[EncodedPair], seq_len: int) -> int:
    """How long a source row must be so that both sides fill up together, as a multiple of 8."""
    sizes = (
        np.array([(len(pair.source), len(pair.target) - 1) for pair in pairs])
        .reshape(-1, 2)
        .sum(axis=0)
    )
    return int(-(-seq_len * sizes[0] // max(8 * sizes[1], 1)) * 8)


class TranslationDataset:
    """Rows of `source_length` tokens to read beside rows of `length` tokens to write, of whole pairs.

    Each epoch is shuffled and packed anew, always into the same number of rows, which are then shuffled as well;
    every pair comes once. A batch that an epoch does not fill takes the first rows of the next.
    The decoder reads a target without its last token and learns it without its first `given` tokens, its start.
    """

    def __init__(
        self,
        train: Iterable[EncodedPair | tuple[Sequence[int], Sequence[int]]],
        valid: Iterable[EncodedPair | tuple[Sequence[int], Sequence[int]]],
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
        self._train, self._valid = self._arrays(train), self._arrays(valid)
        count = len(self._train.sizes)
        if not count:
            raise ClearheadError(
                f"there is no pair to train on that fits rows of {source_seq_len} and {seq_len} tokens."
            )
        self._first_epoch_rows = self._pack(0)
        self._num_rows = min(
            len(self._first_epoch_rows) + len(self._first_epoch_rows) // ROWS_PER_SPARE_ROW, count
        )
        self._current_epoch: tuple[int, list[Numbers]] = (-1, [])  # the epoch, and its rows
        self.batches_per_epoch = self._num_rows / batch_size
        self.packing_efficiency = float(
            self._train.sizes.sum() / (self._num_rows * sum(self.row_size))
        )

    def batch(self, step: int) -> PackedBatch:
        places = (
            divmod(place, self._num_rows)
            for place in range(step * self.batch_size, (step + 1) * self.batch_size)
        )
        return self._batch(self._train, [self._rows_of_epoch(epoch)[at] for epoch, at in places])

    def valid_batches(self) -> Iterator[PackedBatch]:
        """Packed in the order given; the last batch is filled up with empty rows."""
        rows = pack_pairs(self._valid.sizes, self.row_size, np.arange(len(self._valid.sizes)))
        for at in range(0, len(rows), self.batch_size):
            yield self._batch(self._valid, rows[at : at + self.batch_size])

    def _rows_of_epoch(self, epoch: int) -> list[Numbers]:
        """The pairs of each row of an epoch."""
        done, mixed = self._current_epoch
        if done != epoch:
            rows = self._first_epoch_rows if epoch == 0 else self._pack(epoch)
            if len(rows) > self._num_rows:  # bad luck: the first epoch's rows, in another order
                rows = self._first_epoch_rows
            rows = list(rows)
            while (
                len(rows) < self._num_rows
            ):  # a row without a pair could be a batch without a target
                most = max(range(len(rows)), key=lambda i: len(rows[i]))
                rows[most : most + 1] = np.array_split(rows[most], 2)
            mixed = [rows[i] for i in shuffled_indices(self._num_rows, self.seed, epoch).tolist()]
            self._current_epoch = epoch, mixed
        return mixed

    def _pack(self, epoch: int) -> list[Numbers]:
        sizes = self._train.sizes
        return pack_pairs(
            sizes, self.row_size, shuffled_indices(len(sizes), self.seed, epoch).numpy()
        )

    def _arrays(
        self, pairs: Iterable[EncodedPair | tuple[Sequence[int], Sequence[int]]]
    ) -> "_PairArrays":
        """The pairs that fit a row, one after another."""
        kept = []
        for number, pair in enumerate(pairs, 1):
            source, target, where = EncodedPair(*pair)
            if not source or len(target) <= self.num_start_tokens:
                self.report.skip(
                    where or f"pair {number}", "there is nothing to read or nothing to write"
                )
            elif len(source) > self.row_size[0] or len(target) - 1 > self.row_size[1]:
                why = f"the pair does not fit a row of {self.row_size[0]} tokens to read and {self.row_size[1]} to write"
                self.report.record(where or f"pair {number}", why)
            else:
                kept.append((source, target))
        counts = np.array(
            [(len(source), len(target)) for source, target in kept], np.int64
        ).reshape(-1, 2)
        sources, targets = (
            np.fromiter(chain.from_iterable(pair[i] for pair in kept), np.int32) for i in (0, 1)
        )
        return _PairArrays(
            sources, targets, counts - np.array((0, 1)), np.cumsum(counts, axis=0) - counts
        )

    def _batch(self, sides: "_PairArrays", rows: Sequence[Numbers]) -> PackedBatch:
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
            to = np.repeat(row * self.row_size[side] + ends - n - before[row], n) + within
            at = np.repeat(sides.starts[pairs, side], n) + within
            learned = np.where(within < self.num_start_tokens - 1, IGNORE_INDEX, ids[at + side])
            for values, empty in ((ids[at], 0), (np.repeat(number, n), 0), (learned, IGNORE_INDEX)):
                filled = np.full(self.batch_size * self.row_size[side], empty)
                filled[to] = values
                made.append(torch.from_numpy(filled.reshape(self.batch_size, -1)))
        source, source_segment_ids, _, tokens, segment_ids, targets = made
        return PackedBatch(tokens, targets, segment_ids, source, source_segment_ids)


class _PairArrays(NamedTuple):
    """All pairs: their ids one after another, how much room each takes (to read, to write), where each begins."""

    sources: NDArray[np.int32]
    targets: NDArray[np.int32]
    sizes: Numbers
    starts: Numbers


def pack_pairs(sizes: Numbers, row_size: tuple[int, int], order: Numbers) -> list[Numbers]:
    """The pairs of each row, when they come in `turn`.

    A row starts with the pair that has waited longest in a pool of the next few hundred. Then always the pair that
    leaves least room is added, one that leaves as much on both sides rather than on one, until none fits.
    """
    never = np.full((PACKING_POOL, 2), 9.0)  # no row has so much room
    queue = np.concatenate([sizes[order] / np.array(row_size), never])
    (reads, writes), who = queue[:PACKING_POOL].T.copy(), np.arange(PACKING_POOL)
    coming = PACKING_POOL
    rows = []
    while who.min() < len(order):
        # sums of fractions are not exact
        row = []
        read_left = 1 + 1e-9
        write_left = 1 + 1e-9
        pick = who.argmin()
        fits = True
        while fits:
            row.append(who[pick])
            read_left -= reads[pick]
            write_left -= writes[pick]
            (reads[pick], writes[pick]), who[pick] = queue[coming], coming
            coming += 1
            read_rest = read_left - reads
            write_rest = write_left - writes
            least = np.minimum(read_rest, write_rest)
            pick = np.where(least < 0, 99.0, np.maximum(read_rest, write_rest)).argmin()
            fits = bool(least[pick] >= 0)
        rows.append(order[row])
    return rows
