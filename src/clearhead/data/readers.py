"""Files as bytes and as lines, whether they are packed by gzip, xz or zstd or not: their names tell."""

import csv
import glob
import gzip
import io
import json
import lzma
import re
import shutil
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from clearhead.data.batch import DataReport
from clearhead.errors import ClearheadError, cannot_read, os_error_reason, suggest
from clearhead.io import commit_temporary as put
from clearhead.io import temporary_path

# ---- unpacked: Files as bytes and as lines, whether they are packed by gzip, xz or zstd or not: their names tell.

STDIN = "-"
UTF8_BOM = "\ufeff".encode()  # of UTF-8, with which some programs open a file
UTF16_BOMS = b"\xff\xfe", b"\xfe\xff"  # the marks of another encoding
COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst", ".zstd")
READ_ERRORS = (
    OSError,
    EOFError,
    lzma.LZMAError,
    zlib.error,
)  # what goes wrong while a file is read


def uncompressed_suffix(path: Path) -> str:
    """How a name ends, apart from the way the file is packed: `.tsv` of `a.tsv.gz`."""
    return (path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path).suffix


def open_compressed(path: str | Path) -> AbstractContextManager[IO[bytes]]:
    """What a file, or standard input, holds when it is unpacked; one that is broken raises what UNREADABLE names."""
    if str(path) == STDIN:
        return nullcontext(sys.stdin.buffer)
    match Path(path).suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".xz":
            return lzma.open(path)
        case ".zst" | ".zstd":
            return cast(
                IO[bytes],
                io.BufferedReader(_IteratorFile(_decompress_zstd(path, *_zstd_decompressor(path)))),
            )
        case _:
            return Path(path).open("rb")


@contextmanager
def open_input(path: str | Path) -> Iterator[IO[bytes]]:
    """The same, for files that must be read whole: what is broken is told in a sentence."""
    try:
        with open_compressed(path) as file:
            yield file
    except READ_ERRORS as error:
        raise cannot_read(path, error) from None


def without_bom(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file with their ends, and without the mark that may open it."""
    for number, line in enumerate(file):
        yield line if number else line.removeprefix(UTF8_BOM)


def read_byte_lines(path: str | Path) -> Iterator[bytes]:
    """The same of a file that must be read whole."""
    with open_input(path) as file:
        for number, line in enumerate(without_bom(file)):
            if not number and line.startswith(UTF16_BOMS):
                raise ClearheadError(f"{path} is UTF-16; save it as UTF-8.")
            yield line


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text that somebody gave, without their ends; it must be UTF-8."""
    for number, line in enumerate(read_byte_lines(path), 1):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise ClearheadError(f"{path}:{number}: the line is not UTF-8.") from None
        yield text.rstrip("\r\n")


def decode_lossless(raw: bytes) -> str:
    """Text as it is; bytes that are not UTF-8 become lone surrogates, which no text may hold."""
    return raw.decode(errors="surrogateescape")


def _zstd_decompressor(path: str | Path) -> tuple[Callable[[], Any], type[Exception]]:
    """What makes a reader of one frame, and the error of the library that does."""
    window = 31  # bits: what zstd --long can ask for
    try:
        if sys.version_info >= (3, 14):
            zstd = import_module("compression.zstd")
            options = {zstd.DecompressionParameter.window_log_max: window}
            return lambda: zstd.ZstdDecompressor(options=options), zstd.ZstdError
        zstandard = import_module("zstandard")
    except ImportError:
        raise ClearheadError(f"{path} needs zstandard; pip install 'clearhead[zstd]'.") from None
    return zstandard.ZstdDecompressor(max_window_size=2**window).decompressobj, zstandard.ZstdError


def _decompress_zstd(
    path: str | Path, new_frame: Callable[[], Any], broken: type[Exception]
) -> Iterator[bytes]:
    """What the frames of a file hold. The library's own readers take a file that breaks off for a whole one."""
    frame = None
    with Path(path).open("rb") as file:
        while packed := file.read(2**14):
            while packed:
                frame = frame or new_frame()
                try:
                    plain = frame.decompress(packed)
                except broken as error:
                    raise OSError(str(error)) from None
                if plain:
                    yield plain
                packed, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError("the file breaks off")


class _IteratorFile(io.RawIOBase):
    """Chunks of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        self._rest = self._rest or memoryview(next(self._chunks, b""))
        size = min(len(room), len(self._rest))
        room[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


# ---- sources: Files become documents, a little at a time: plain text, lines of JSON, packed by gzip, xz or zstd.

DOCUMENT_SEPARATORS = ("<|endoftext|>", "\f")
TEXT_SUFFIXES = tuple(
    name + packed
    for name in (".txt", ".text", ".md", ".jsonl")
    for packed in ("", *COMPRESSED_SUFFIXES)
)
JSONL_SUFFIXES = tuple(".jsonl" + packed for packed in ("", *COMPRESSED_SUFFIXES))
CHUNK_CHARS = (
    2**16
)  # characters, after which a document is given in pieces: a tokenizer takes 200 bytes for each of them
CHUNK_BOUNDARY = re.compile(
    r"\S(?= )|\S\n(?=\S)"
)  # before a space, or after a line: there most tokenizers cut in any case


@dataclass(frozen=True)
class Document:
    """A document, or a piece of one that is too long to be held at once."""

    text: str
    location: str  # file:line of its first line
    is_start: bool = True  # False where it goes on with the piece before it


def read_documents(
    paths: Sequence[str], report: DataReport, text_column: str = "text"
) -> Iterator[Document]:
    """The documents of files, folders and globs, in order; `field` is that of lines of JSON."""
    inside = find_files(paths, report)
    for path in inside:
        alone = len(inside) == 1
        found = 0
        skipped = report.skipped.total()
        for document in (
            _read_jsonl_documents(path, text_column, report, alone)
            if path.endswith(JSONL_SUFFIXES)
            else _read_text_documents(path, report, alone)
        ):
            found += 1
            report.num_read += document.is_start
            yield document
        if not found and skipped == report.skipped.total():
            report.skip(path, "there is no text in it", only_input=alone)


def find_files(paths: Sequence[str], report: DataReport) -> list[str]:
    """The files that `paths` stand for, each once."""
    if isinstance(paths, str):
        raise ClearheadError(f"texts are read from a list of paths; write [{paths!r}].")
    found: dict[Path, str] = {}
    for path in paths:
        try:
            inside = _expand_path(path)
        except OSError as error:
            report.skip(
                path,
                f"it cannot be read: {os_error_reason(error, path)}",
                only_input=len(paths) == 1,
            )
            continue
        if not inside:
            ends = ", ".join(
                name for name in TEXT_SUFFIXES if not name.endswith(COMPRESSED_SUFFIXES)
            )
            empty = f"the folder holds no texts: no name ends in {ends}"
            why = (
                empty
                if Path(path).is_dir()
                else f"it cannot be read: {os_error_reason(FileNotFoundError(), path)}"
            )
            report.skip(path, why, only_input=len(paths) == 1)
        for file in inside:
            if (place := Path(file).resolve()) in found:
                report.skip(file, "the file is given twice")
            found.setdefault(place, file)
    return list(found.values())


def exclude_valid_files(
    train: Sequence[str], valid: Sequence[str], out: Path, report: DataReport
) -> Sequence[str]:
    """What `train` stands for, less what its folders and globs merely hold of `valid` and of the run in `out`."""
    held = {Path(file).resolve() for file in find_files(valid, DataReport(report.on_error))}
    check_disjoint(train, (*valid, *map(str, held)))
    found = {file: Path(file).resolve() for file in find_files(train, DataReport(report.on_error))}
    own = {
        file
        for file, place in found.items()
        if out.resolve() in place.parents and file not in train
    }
    left = [file for file, place in found.items() if place not in held and file not in own]
    if found and not left:
        raise ClearheadError(
            "every file of data.train is one of data.valid or of the run itself; nothing is left."
        )
    for file, place in found.items():
        if place in held:
            report.record(file, "the file is one of data.valid")
    return left if len(left) < len(found) else train


def check_disjoint(train: Sequence[str], valid: Sequence[str]) -> None:
    """Refuses what is named both to be learned from and to be held out."""
    held = {Path(path).resolve() for path in valid}
    for path in train:
        if Path(path).resolve() in held:
            raise ClearheadError(
                f"{path} is in data.train and in data.valid; what is held out is not trained on."
            )


def save_streams(paths: Sequence[str], name: str, resume: bool) -> Sequence[str]:
    """The same paths, but files called `name`… for what can be read only once: standard input, and pipes.

    Where it is `ready`, the file of an earlier start stands for it; standard input must be that text, or nothing.
    """
    return [_save_stream(path, f"{name}-{i}", resume) for i, path in enumerate(paths)]


def _save_stream(path: str, name: str, resume: bool) -> str:
    if path != STDIN and not Path(path).is_fifo():
        return path
    place = Path(name + ("".join(Path(path).suffixes) or ".txt"))  # which tells how it is read
    if resume and place.is_file():
        if path == STDIN and not _is_same_stream(place):
            other = f"standard input is not the text that this run learns from, which it keeps in {place}"
            raise ClearheadError(
                f"{other}; pipe the same or nothing, or start anew with another --out."
            )
        return str(place)
    draft = temporary_path(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with (
            nullcontext(sys.stdin.buffer) if path == STDIN else Path(path).open("rb") as old,
            draft.open("wb") as new,
        ):
            shutil.copyfileobj(old, new)
        if path == STDIN and not draft.stat().st_size:
            raise ClearheadError(
                "standard input (-) is empty; pipe a text into it, or name a file."
            )
        put(place)
    except OSError as error:
        raise ClearheadError(f"{place} cannot be saved: {error.strerror or error}.") from None
    finally:
        draft.unlink(missing_ok=True)
    return str(place)


def _is_same_stream(place: Path) -> bool:
    """Whether standard input is what an earlier start kept, or says nothing: it is empty, or a terminal."""
    new = sys.stdin.buffer
    read = 0
    with place.open("rb") as old:
        while not new.isatty() and (piece := new.read(CHUNK_CHARS)):
            read += len(piece)
            if piece != old.read(len(piece)):
                return False
    return read in (0, place.stat().st_size)


def _expand_path(path: str) -> list[str]:
    place = Path(path)
    if path == STDIN or (place.exists() and not place.is_dir()):
        return [path]
    if place.is_dir():
        inside = [
            file.relative_to(place)
            for file in place.rglob("*")
            if file.is_file() and file.name.endswith(TEXT_SUFFIXES)
        ]
        return [
            str(place / file)
            for file in sorted(inside)
            if not any(part[0] == "." for part in file.parts)
        ]
    return sorted(file for file in glob.glob(path, recursive=True) if Path(file).is_file())  # noqa: PTH207


def _read_text_documents(path: str, report: DataReport, only_input: bool) -> Iterator[Document]:
    lines: list[str] = []
    first = 1
    size = 0
    begins = True
    for number, line in _decoded_lines(path, report, only_input):
        separates = line.rstrip("\r\n") in DOCUMENT_SEPARATORS
        for part in _chunks(line):
            if lines and (separates or _can_split(size, lines[-1], part)):
                yield Document("".join(lines), f"{path}:{first}", begins)
                lines = []
                size = 0
                begins = False
            if separates:
                begins = True
                continue
            first = first if lines else number
            lines.append(part)
            size += len(part)
    if lines:
        yield Document("".join(lines), f"{path}:{first}", begins)


def _chunks(text: str) -> Iterator[str]:
    """A text that is too long to be tokenised at once, cut where most tokenizers do; anywhere if there is no space."""
    start = 0
    while len(text) - start > 2 * CHUNK_CHARS:
        cut = CHUNK_BOUNDARY.search(text, start + CHUNK_CHARS, start + 2 * CHUNK_CHARS)
        end = cut.end() if cut else start + 2 * CHUNK_CHARS
        yield text[start:end]
        start = end
    yield text[start:]


def _can_split(size: int, above: str, below: str) -> bool:
    """Between lines, or parts of a long one, and rather where no run of spaces is torn."""
    return size >= 2 * CHUNK_CHARS or (
        size >= CHUNK_CHARS and CHUNK_BOUNDARY.search(above[-2:] + below[0]) is not None
    )


def _read_jsonl_documents(
    path: str, text_column: str, report: DataReport, only_input: bool
) -> Iterator[Document]:
    for number, line in _decoded_lines(path, report, only_input):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        text, mistake = _json_text(line, text_column)
        if mistake:
            report.skip(where, mistake)
        elif text:
            for number, part in enumerate(_chunks(text)):
                yield Document(part, where, is_start=not number)


def _json_text(line: str, text_column: str) -> tuple[str, str]:
    """The text in a line of JSON, or what is wrong with it."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return "", "the line is not JSON"
    if not isinstance(found, dict):
        return "", "the line is not a JSON object"
    if text_column not in found:
        return "", f"there is no field {text_column!r}"
    text = found[text_column]
    if not isinstance(text, str):
        return "", f"field {text_column!r} is not text"
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell one half of a pair of surrogates
        return "", f"field {text_column!r} holds half a character"
    return text, ""


def _decoded_lines(path: str, report: DataReport, only_input: bool) -> Iterator[tuple[int, str]]:
    """The lines of a file, with their numbers and their ends; those that are not UTF-8 are left out.

    A file that begins with such a line, and holds zeros there, is no text: all of it is left out.
    """
    number = 0
    before = 0
    try:
        with open_compressed(path) as file:
            for number, line in enumerate(without_bom(file), 1):
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    if number == 1 and line.startswith(UTF16_BOMS):
                        report.skip(path, "it is UTF-16; save it as UTF-8", only_input=only_input)
                        return
                    if not before and b"\0" in line:
                        report.skip(
                            path,
                            f"it is no text (byte {error.start} is not UTF-8)",
                            only_input=only_input,
                        )
                        return
                    report.skip(f"{path}:{number}", "the line is not UTF-8")
                    continue
                before += 1
                if text:
                    yield number, text
    except READ_ERRORS as error:
        report.skip(f"{path}:{number + 1}", f"it cannot be read: {os_error_reason(error, path)}")


# ---- tables: The records of a .csv, .tsv or .jsonl file, each with its line, which may be compressed.

COLUMN_SEPARATORS = ";,\t"
QUOTED_CELL = re.compile(
    r'"(?:[^"]*"")+[^"]*"'
)  # a text that holds quotes, as spreadsheets write it


def read_records(
    path: Path,
    report: DataReport,
    columns: Sequence[str],
    *,
    reject_extra_columns: bool = False,
    column_hint: str,
) -> Iterator[tuple[str, list[object]]]:
    """Where a record is, and what it has in each of `columns`.

    Columns are names, which the first line gives, or numbers from 0; where all are numbers there is no such line.
    With `only`, a table that has other columns too is refused: which are meant must be told, as in `by_number`.
    In .csv, "…" may hold commas and line ends; in .tsv, as GLUE's, a quote is a letter like others, unless all quotes
    between the first and the last letter of a text, which are quotes too, are doubled.
    """
    kind = uncompressed_suffix(path)
    if kind not in (".csv", ".tsv", ".jsonl"):
        raise ClearheadError(
            f"{path} must be a .csv, .tsv or .jsonl file, or one of those with .gz, .xz or .zst after it."
        )
    if kind == ".jsonl":
        return _read_jsonl(path, report, columns)
    return _read_table(path, report, columns, kind == ".tsv", reject_extra_columns, column_hint)


class _LineReader:
    """The lines of a table, of which those after the first of a broken record can be read again."""

    def __init__(self, path: Path) -> None:
        self._pushed_back = deque[str]()
        self._rest = map(decode_lossless, read_byte_lines(path))
        # where a record begins, and its lines so far
        self.line_number = 1
        self.record_lines = list[str]()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.record_lines.append(
            self._pushed_back.popleft() if self._pushed_back else next(self._rest)
        )
        return self.record_lines[-1]

    def end_record(self) -> None:
        self.line_number = self.line_number + len(self.record_lines)
        self.record_lines = []

    def end_line(self) -> None:
        self._pushed_back.extendleft(reversed(self.record_lines[1:]))
        self.line_number = self.line_number + 1
        self.record_lines = []


def _read_table(
    path: Path,
    report: DataReport,
    columns: Sequence[str],
    is_tsv: bool,
    reject_extra_columns: bool,
    column_hint: str,
) -> Iterator[tuple[str, list[object]]]:
    texts = _LineReader(path)
    reader = (
        csv.reader(texts, delimiter="\t", quoting=csv.QUOTE_NONE)
        if is_tsv
        else csv.reader(texts, strict=True)
    )
    named = not all(column.isdecimal() for column in columns)
    at: list[int] = []
    width = 0
    while True:
        where = f"{path}:{texts.line_number}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            why = _csv_error(error, len(texts.record_lines))
            if not width:
                raise ClearheadError(
                    f"{where}: the first line tells the columns, and it is broken: {why}."
                ) from None
            texts.end_line()
            report.skip(where, why)
            continue
        texts.end_record()
        if is_tsv:
            cells = [
                cell[1:-1].replace('""', '"') if QUOTED_CELL.fullmatch(cell) else cell
                for cell in cells
            ]
        if not cells:
            continue
        if not width and reject_extra_columns and len(cells) > len(columns):
            which = f"{len(cells)} columns: {', '.join(f'{cell!r:.30}' for cell in cells)}"
            raise ClearheadError(
                f"{where} has {which}; choose two by name or number, as in {column_hint}."
            )
        if not width and reject_extra_columns:
            pair = " and ".join(f"{cell!r:.40}" for cell in cells)
            report.messages.append(
                f"{path}: every line is a pair, the first too: {pair}; if it names them, give data.source_column and data.target_column"
            )
        if not width:
            width = len(cells)
            at = [_column_index(column, cells, named, where, column_hint) for column in columns]
            if named:
                continue
        if len(cells) != width:
            count = f"{len(cells)} column{'s' * (len(cells) > 1)}"
            report.skip(
                f"{where} ({count})", f"the number of columns is not {width}, as in the first line"
            )
            continue
        yield where, [cells[i] for i in at]


def _csv_error(error: csv.Error, num_lines: int) -> str:
    """What is wrong with a record of so many lines."""
    if num_lines > 1 and "limit" in str(error):
        return (
            f"a quote is opened there and not closed within {csv.field_size_limit():,} characters"
        )
    return (
        "a quote is opened there and never closed"
        if num_lines > 1 or "end of data" in str(error)
        else str(error)
    )


def _column_index(
    column: str, cells: Sequence[str], has_header: bool, location: str, column_hint: str
) -> int:
    if column in cells and has_header:
        return cells.index(column)
    if column.isdecimal() and int(column) < len(cells):
        return int(column)
    known = (
        suggest(column, [f"{cell:.40}" for cell in cells])
        if has_header
        else f"there are {len(cells)}, from 0"
    )
    if len(cells) == 1 and (
        other := next((mark for mark in COLUMN_SEPARATORS if mark in cells[0]), "")
    ):
        known = (
            f"columns seem to be separated by {other!r}, where a .csv has commas and a .tsv tabs."
        )
    elif has_header and not known.startswith("did you mean"):
        flags = " and ".join(word for word in column_hint.split() if word.startswith("--"))
        known += f"; choose with {flags}, by number where those are no names: {column_hint}."
    raise ClearheadError(f"{location}: there is no column {column!r}; {known}")


def _read_jsonl(
    path: Path, report: DataReport, columns: Sequence[str]
) -> Iterator[tuple[str, list[object]]]:
    for number, line in enumerate(map(decode_lossless, read_byte_lines(path)), 1):
        try:
            value = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            value = line
        if not isinstance(value, dict):
            if line.strip():
                report.skip(f"{path}:{number}", "the line is no JSON object")
        elif missing := [column for column in columns if value.get(column) is None]:
            report.skip(f"{path}:{number}", f"there is no {missing[0]!r}")
        else:
            yield f"{path}:{number}", [value[column] for column in columns]
