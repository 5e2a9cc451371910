"""Read text, JSON lines and tables from files, compressed files, standard input and folders.

Documents, for language models:

- A text file is one document. A line that consists only of `<|endoftext|>` or a form feed separates
  documents. Each line of a `.jsonl` file is a document: the text in one of its fields.
- A folder is searched recursively for files that end in .txt, .text, .md or .jsonl (compressed or
  not), sorted by name, without hidden ones. A glob stands for the files it matches, whatever their
  names.
- `-` is standard input, read as a text file.
- Text is UTF-8. Line endings are kept; a byte order mark at the start of a file is dropped.
"""

import csv
import glob
import gzip
import json
import lzma
import re
import sys
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Literal, cast

from clearhead.errors import ClearheadError, cannot_read, os_error_reason, suggest

OnError = Literal["fail", "skip"]
MAX_LOCATIONS_PER_REASON = 3


@dataclass
class DataReport:
    """How many records were read, and which were skipped or truncated and why."""

    on_error: OnError = "fail"
    num_read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # reason -> number of records
    locations: dict[str, list[str]] = field(default_factory=dict)  # reason -> its first locations
    messages: list[str] = field(default_factory=list)  # choices made on the user's behalf
    special_tokens: Counter[str] = field(default_factory=Counter)  # name in texts -> occurrences
    special_token_location: str = ""  # of the first one

    def skip(self, location: str, reason: str, *, only_input: bool = False) -> None:
        """Record an invalid input, or raise if `on_error` is "fail".

        With `only_input` nothing would be left after skipping, so the error does not suggest it.
        """
        if self.on_error == "fail":
            hint = "" if only_input else "; skip invalid data with --data.on_error=skip"
            raise ClearheadError(f"{location}: {reason}{hint}.")
        self.record(location, reason)

    def record(self, location: str, reason: str) -> None:
        """Count a record that was truncated or filtered on purpose, whatever `on_error` says."""
        self.skipped[reason] += 1
        locations = self.locations.setdefault(reason, [])
        if len(locations) < MAX_LOCATIONS_PER_REASON:
            locations.append(location)

    def count_special_tokens(self, location: str, names: Sequence[str]) -> None:
        """Count names of special tokens that occur in a text."""
        if names:
            self.special_tokens.update(names)
            self.special_token_location = self.special_token_location or location

    def __str__(self) -> str:
        lines = [f"{self.num_read:,} read, {self.skipped.total():,} skipped or truncated"]
        for reason, count in self.skipped.items():
            locations = self.locations[reason]
            more = " …" if count > len(locations) else ""
            lines.append(f"  {count:,} × {reason}: {', '.join(locations)}{more}")
        return "\n".join(lines)


# --- bytes and lines
STDIN = "-"
UTF8_BOM = "\ufeff".encode()
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst", ".zstd")
READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)  # raised while a file is read
MAX_RECORD_BYTES = 2**28  # of a line; compressed, a few kilobytes could hold gigabytes
READ_BYTES = 2**20  # at a time
ZSTD_WINDOW_LOG = 31  # the largest window that `zstd --long` can ask for
ZSTD_BACKPORT = "backports.zstd"  # of the module of Python 3.14


def uncompressed_suffix(path: Path) -> str:
    """The file type without the compression: `.tsv` for `a.tsv.gz`."""
    return (path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path).suffix


def open_compressed(path: str | Path) -> AbstractContextManager[IO[bytes]]:
    """Open a plain or compressed file, or standard input; corrupt data raises READ_ERRORS."""
    if str(path) == STDIN:
        return nullcontext(sys.stdin.buffer)
    match Path(path).suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".xz":
            return lzma.open(path)
        case ".zst" | ".zstd":
            return _open_zstd(path)
        case _:
            return Path(path).open("rb")


@contextmanager
def open_input(path: str | Path) -> Iterator[IO[bytes]]:
    """Like `open_compressed`, but failures to read raise a ClearheadError."""
    try:
        with open_compressed(path) as file:
            yield file
    except READ_ERRORS as error:
        raise cannot_read(path, error) from None


def read_at_most(file: IO[bytes], max_bytes: int) -> bytes:
    """The rest of a file; if it is longer, its first bytes and at least one more."""
    content = bytearray()
    while len(content) <= max_bytes and (part := file.read(READ_BYTES)):
        content += part
    return bytes(content)


def _raw_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file with their endings, without a leading UTF-8 byte order mark."""
    read_line = partial(file.readline, MAX_RECORD_BYTES + 1)
    for number, line in enumerate(iter(read_line, b"")):
        if len(line) > MAX_RECORD_BYTES:
            raise OSError(f"a line is longer than {MAX_RECORD_BYTES:,} bytes")
        yield line if number else line.removeprefix(UTF8_BOM)


def read_byte_lines(path: str | Path) -> Iterator[bytes]:
    """The raw lines of a file; failures to read raise a ClearheadError."""
    with open_input(path) as file:
        for number, line in enumerate(_raw_lines(file)):
            if not number and line.startswith(UTF16_BOMS):
                raise ClearheadError(f"{path} is UTF-16; save it as UTF-8.")
            yield line


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 text file without their endings."""
    for number, line in enumerate(read_byte_lines(path), 1):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise ClearheadError(f"{path}:{number}: the line is not valid UTF-8.") from None
        yield text.rstrip("\r\n")


def decode_lossless(raw: bytes) -> str:
    """Decode UTF-8; invalid bytes become lone surrogates, which `is_valid_unicode` finds."""
    return raw.decode(errors="surrogateescape")


def is_valid_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates: invalid bytes, or half of a pair escaped in JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _open_zstd(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file with any number of zstd frames."""
    try:
        zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else ZSTD_BACKPORT)
    except ImportError:
        raise ClearheadError(
            f"{path} needs the {ZSTD_BACKPORT} package; pip install 'clearhead[zstd]'."
        ) from None
    options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
    try:
        with zstd.open(path, options=options) as file:
            yield file
    except zstd.ZstdError as error:
        raise OSError(str(error)) from None


# --- finding files
TEXT_TYPES = (".txt", ".text", ".md", ".jsonl")
TEXT_SUFFIXES = tuple(name + packed for name in TEXT_TYPES for packed in ("", *COMPRESSED_SUFFIXES))
JSONL_SUFFIXES = tuple(".jsonl" + packed for packed in ("", *COMPRESSED_SUFFIXES))


def find_files(paths: Sequence[str], report: DataReport) -> list[str]:
    """Expand files, folders and globs into a list of distinct files."""
    if isinstance(paths, str):
        raise ClearheadError(f"paths must be a list, got {paths!r}; write [{paths!r}].")
    only_input = len(paths) == 1
    files: dict[Path, str] = {}
    for path in paths:
        try:
            matches = _expand_path(path)
        except OSError as error:
            reason = f"cannot be read: {os_error_reason(error, path)}"
            report.skip(path, reason, only_input=only_input)
            continue
        if not matches:
            if Path(path).is_dir():
                reason = f"the folder contains no file that ends in {', '.join(TEXT_TYPES)}"
            else:
                reason = f"cannot be read: {os_error_reason(FileNotFoundError(), path)}"
            report.skip(path, reason, only_input=only_input)
        for file in matches:
            resolved = Path(file).resolve()
            if resolved in files:
                report.skip(file, "duplicate file")
            files.setdefault(resolved, file)
    return list(files.values())


def _expand_path(name: str) -> list[str]:
    path = Path(name)
    if name == STDIN or (path.exists() and not path.is_dir()):
        return [name]
    if path.is_dir():
        return [str(file) for file in visible_files(path) if file.name.endswith(TEXT_SUFFIXES)]
    return [str(file) for file in glob_files(name)]


def visible_files(folder: Path) -> list[Path]:
    """The files of a folder and its subfolders, sorted, without hidden ones."""
    relative = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return [
        folder / file for file in relative if not any(part.startswith(".") for part in file.parts)
    ]


def glob_files(pattern: str) -> list[Path]:
    """The files that match a pattern, sorted."""
    matches = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207 - may be absolute
    return sorted(file for file in matches if file.is_file())


def exclude_valid_files(
    train: Sequence[str], valid: Sequence[str], output: Path, report: DataReport
) -> Sequence[str]:
    """The training files without validation files and without files in the run's own folder.

    Both may lie in a folder or match a glob of `train`; naming a validation file in `train`
    explicitly is an error.
    """
    valid_files = {Path(file).resolve() for file in find_files(valid, DataReport(report.on_error))}
    check_disjoint(train, (*valid, *map(str, valid_files)))
    train_files = find_files(train, DataReport(report.on_error))
    remaining = []
    for file in train_files:
        resolved = Path(file).resolve()
        if resolved in valid_files:
            report.record(file, "the file belongs to data.valid")
        elif file in train or output.resolve() not in resolved.parents:
            remaining.append(file)
    if train_files and not remaining:
        raise ClearheadError(
            "no training files are left: all of data.train belong to data.valid or to the run."
        )
    return remaining if len(remaining) < len(train_files) else train


def check_disjoint(train: Sequence[str], valid: Sequence[str]) -> None:
    """Reject paths that are named for both training and validation."""
    valid_paths = {Path(path).resolve() for path in valid}
    for path in train:
        if Path(path).resolve() in valid_paths:
            raise ClearheadError(
                f"{path} is in both data.train and data.valid; remove it from one."
            )


# --- documents
DOCUMENT_SEPARATORS = ("<|endoftext|>", "\f")
CHUNK_CHARS = 2**16  # longer documents are split; a tokenizer needs 200 bytes per character
# Split before a space or after a line end, where most tokenizers split anyway.
CHUNK_BOUNDARY = re.compile(r"\S(?= )|\S\n(?=\S)")


@dataclass(frozen=True)
class Document:
    """A document, or one chunk of a long document."""

    text: str
    location: str  # file:line of its first line
    is_start: bool = True  # False for a chunk that continues the previous one


def read_documents(
    paths: Sequence[str], report: DataReport, text_column: str = "text"
) -> Iterator[Document]:
    """The documents of files, folders and globs; `text_column` is the field of JSON lines."""
    files = find_files(paths, report)
    only_input = len(files) == 1
    for path in files:
        num_documents = 0
        num_skipped = report.skipped.total()
        if path.endswith(JSONL_SUFFIXES):
            documents = _read_jsonl_documents(path, text_column, report, only_input)
        else:
            documents = _read_text_documents(path, report, only_input)
        for document in documents:
            num_documents += 1
            report.num_read += document.is_start
            yield document
        if not num_documents and num_skipped == report.skipped.total():
            report.skip(path, "the file contains no text", only_input=only_input)


def _read_text_documents(path: str, report: DataReport, only_input: bool) -> Iterator[Document]:
    lines: list[str] = []
    first_line = 1
    size = 0
    is_start = True
    for number, line in _decoded_lines(path, report, only_input):
        is_separator = line.rstrip("\r\n") in DOCUMENT_SEPARATORS
        for chunk in _chunks(line):
            if lines and (is_separator or _can_split(size, lines[-1], chunk)):
                yield Document("".join(lines), f"{path}:{first_line}", is_start)
                lines = []
                size = 0
                is_start = False
            if is_separator:
                is_start = True
                continue
            first_line = first_line if lines else number
            lines.append(chunk)
            size += len(chunk)
    if lines:
        yield Document("".join(lines), f"{path}:{first_line}", is_start)


def _chunks(text: str) -> Iterator[str]:
    """Split a long text where most tokenizers split anyway; anywhere if it has no spaces."""
    start = 0
    while len(text) - start > 2 * CHUNK_CHARS:
        boundary = CHUNK_BOUNDARY.search(text, start + CHUNK_CHARS, start + 2 * CHUNK_CHARS)
        end = boundary.end() if boundary else start + 2 * CHUNK_CHARS
        yield text[start:end]
        start = end
    yield text[start:]


def _can_split(size: int, before: str, after: str) -> bool:
    """Whether a chunk may end between two lines: preferably not inside a run of spaces."""
    if size >= 2 * CHUNK_CHARS:
        return True
    return size >= CHUNK_CHARS and CHUNK_BOUNDARY.search(before[-2:] + after[0]) is not None


def _read_jsonl_documents(
    path: str, text_column: str, report: DataReport, only_input: bool
) -> Iterator[Document]:
    numbered_lines = _decoded_lines(path, report, only_input)
    for location, (text,) in _parse_jsonl(path, numbered_lines, report, [text_column]):
        if not isinstance(text, str):
            report.skip(location, f"the field {text_column!r} is not a string")
        elif not is_valid_unicode(text):
            report.skip(location, f"the field {text_column!r} contains a lone surrogate")
        elif text:
            for i, chunk in enumerate(_chunks(text)):
                yield Document(chunk, location, is_start=not i)


def _decoded_lines(path: str, report: DataReport, only_input: bool) -> Iterator[tuple[int, str]]:
    """Numbered lines with their endings; lines that are not UTF-8 are skipped.

    A file whose first lines are not UTF-8 and contain zero bytes is binary and skipped.
    """
    number = 0
    num_valid = 0
    try:
        with open_compressed(path) as file:
            for number, line in enumerate(_raw_lines(file), 1):
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    if number == 1 and line.startswith(UTF16_BOMS):
                        reason = "the file is UTF-16; save it as UTF-8"
                        report.skip(path, reason, only_input=only_input)
                        return
                    if not num_valid and b"\0" in line:
                        reason = f"the file is not text (byte {error.start} is not UTF-8)"
                        report.skip(path, reason, only_input=only_input)
                        return
                    report.skip(f"{path}:{number}", "the line is not valid UTF-8")
                    continue
                num_valid += 1
                if text:
                    yield number, text
    except READ_ERRORS as error:
        report.skip(f"{path}:{number + 1}", f"cannot be read: {os_error_reason(error, path)}")


# --- tables
TABLE_TYPES = (".csv", ".tsv", ".jsonl")
COLUMN_SEPARATORS = ";,\t"
# A quoted TSV cell with doubled quotes inside, as spreadsheets write it.
QUOTED_CELL = re.compile(r'"(?:[^"]*"")+[^"]*"')
Record = tuple[str, list[object]]  # location, and the values of the wanted columns


def read_records(
    path: Path,
    report: DataReport,
    columns: Sequence[str],
    *,
    reject_extra_columns: bool = False,
    column_hint: str,
) -> Iterator[Record]:
    """The given columns of each record of a .csv, .tsv or .jsonl file, with its location.

    Columns are names from the header, or numbers from 0; a table whose columns are all given by
    number has no header. `reject_extra_columns` rejects tables with more columns than asked for,
    and `column_hint` shows in errors how to choose them. In .csv, quoted cells may contain commas
    and line ends. In .tsv (as in GLUE) quotes are ordinary characters, except around a cell in
    which all inner quotes are doubled.
    """
    table_type = uncompressed_suffix(path)
    if table_type not in TABLE_TYPES:
        raise ClearheadError(
            f"{path} must end in .csv, .tsv or .jsonl, optionally followed by .gz, .xz or .zst."
        )
    if table_type == ".jsonl":
        numbered_lines = enumerate(map(decode_lossless, read_byte_lines(path)), 1)
        yield from _parse_jsonl(path, numbered_lines, report, columns)
        return
    is_tsv = table_type == ".tsv"
    lines = _LineReader(path)
    if is_tsv:
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, strict=True)
    has_header = not all(column.isdecimal() for column in columns)
    indices: list[int] = []
    num_columns = 0
    while True:
        location = f"{path}:{lines.line_number}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = _csv_error(error, lines)
            if not num_columns:
                raise ClearheadError(f"{location}: the first line is invalid: {reason}.") from None
            lines.end_line()
            report.skip(location, reason)
            continue
        lines.end_record()
        if is_tsv:
            cells = [_unquote(cell) for cell in cells]
        if not cells:
            continue
        if not num_columns:
            if reject_extra_columns:
                _check_two_columns(path, location, cells, report, column_hint)
            num_columns = len(cells)
            indices = [
                _column_index(column, cells, has_header, location, column_hint)
                for column in columns
            ]
            if has_header:
                continue
        if len(cells) != num_columns:
            count = f"{len(cells)} column{'s' * (len(cells) > 1)}"
            report.skip(f"{location} ({count})", f"expected {num_columns} columns")
            continue
        yield location, [cells[i] for i in indices]


class _LineReader:
    """Lines of a table; all but the first line of an invalid record can be read again."""

    def __init__(self, path: Path) -> None:
        self._lines = map(decode_lossless, read_byte_lines(path))
        self._lines_to_reread = deque[str]()
        self.is_exhausted = False  # whether the current record ends with the file
        self.line_number = 1  # of the current record
        self.record_lines = list[str]()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        pending = self._lines_to_reread
        line = pending.popleft() if pending else next(self._lines, None)
        if line is None:
            self.is_exhausted = True
            raise StopIteration
        self.record_lines.append(line)
        return line

    def end_record(self) -> None:
        self.line_number += len(self.record_lines)
        self.record_lines = []

    def end_line(self) -> None:
        """Drop only the first line of the record and read the others again."""
        self._lines_to_reread.extendleft(reversed(self.record_lines[1:]))
        self.line_number += 1
        self.record_lines = []
        self.is_exhausted = False


def _unquote(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if QUOTED_CELL.fullmatch(cell) else cell


def _check_two_columns(
    path: Path, location: str, cells: Sequence[str], report: DataReport, column_hint: str
) -> None:
    """Require two columns where none were chosen, and report that no header is expected."""
    if len(cells) > 2:
        names = ", ".join(f"{cell!r:.30}" for cell in cells)
        raise ClearheadError(
            f"{location} has {len(cells)} columns: {names}; "
            f"choose two by name or number, as in {column_hint}."
        )
    pair = " and ".join(f"{cell!r:.40}" for cell in cells)
    report.messages.append(
        f"{path}: the first line is read as data: {pair}; "
        "if it is a header, set data.source_column and data.target_column"
    )


def _csv_error(error: csv.Error, lines: _LineReader) -> str:
    if len(lines.record_lines) > 1 and sum(map(len, lines.record_lines)) > csv.field_size_limit():
        return f"a quote is not closed within {csv.field_size_limit():,} characters"
    if len(lines.record_lines) > 1 or lines.is_exhausted:
        return "a quote is never closed"
    return str(error)


def _column_index(
    column: str, cells: Sequence[str], has_header: bool, location: str, column_hint: str
) -> int:
    if has_header and column in cells:
        return cells.index(column)
    if column.isdecimal() and int(column) < len(cells):
        return int(column)
    separator = next((mark for mark in COLUMN_SEPARATORS if mark in cells[0]), "")
    if len(cells) == 1 and separator:
        hint = f"columns seem to be separated by {separator!r}; .csv uses commas and .tsv tabs."
    elif has_header:
        hint = suggest(column, [f"{cell:.40}" for cell in cells])
        if not hint.startswith("did you mean"):
            hint += f"; choose columns by name, or by number if there is no header: {column_hint}."
    else:
        hint = f"the table has {len(cells)} columns, numbered from 0."
    raise ClearheadError(f"{location}: no column {column!r}; {hint}")


def _parse_jsonl(
    path: str | Path,
    numbered_lines: Iterable[tuple[int, str]],
    report: DataReport,
    columns: Sequence[str],
) -> Iterator[Record]:
    for number, line in numbered_lines:
        if not line.strip():
            continue
        location = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            report.skip(location, "the line is not a JSON object")
        elif missing := [column for column in columns if record.get(column) is None]:
            report.skip(location, f"the field {missing[0]!r} is missing")
        else:
            yield location, [record[column] for column in columns]
