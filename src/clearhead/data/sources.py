"""Files become documents, a little at a time: plain text, lines of JSON, packed by gzip, xz or zstd.

- A text file is one document. A line that is `<|endoftext|>` or a form feed, and nothing else, ends a document and
  belongs to none. Each line of a `.jsonl` file is a document: the text in one of its fields.
- A folder stands for the files in it, at any depth, whose names end in .txt, .text, .md or .jsonl, packed or not, in
  the order of their names; hidden ones are left out. A glob stands for the files that it matches, whatever their names.
- `-` is standard input, read as a text file.
- Text is UTF-8, and line ends stay as they are. A mark of UTF-8 that opens a file (U+FEFF) is not part of its text.
"""

import glob
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from clearhead.data.packed import Report
from clearhead.data.unpacked import PACKED, STDIN, UNREADABLE, UTF16, opened, raw_lines
from clearhead.errors import ClearheadError, reason
from clearhead.files import draft_of
from clearhead.files import place as put

SEPARATORS = ("<|endoftext|>", "\f")
TEXTS = tuple(name + packed for name in (".txt", ".text", ".md", ".jsonl") for packed in ("", *PACKED))
JSON = tuple(".jsonl" + packed for packed in ("", *PACKED))
PIECE = 2**16  # characters, after which a document is given in pieces: a tokenizer takes 200 bytes for each of them
CUT = re.compile(r"\S(?= )|\S\n(?=\S)")  # before a space, or after a line: there most tokenizers cut in any case


@dataclass(frozen=True)
class Document:
    """A document, or a piece of one that is too long to be held at once."""

    text: str
    where: str  # file:line of its first line
    begins: bool = True  # False where it goes on with the piece before it


def documents(paths: Sequence[str], report: Report, field: str = "text") -> Iterator[Document]:
    """The documents of files, folders and globs, in order; `field` is that of lines of JSON."""
    inside = files(paths, report)
    for path in inside:
        alone = len(inside) == 1
        found, skipped = 0, report.skipped.total()
        for document in (
            _from_json(path, field, report, alone) if path.endswith(JSON) else _from_text(path, report, alone)
        ):
            found += 1
            report.read += document.begins
            yield document
        if not found and skipped == report.skipped.total():
            report.skip(path, "there is no text in it", alone=alone)


def files(paths: Sequence[str], report: Report) -> list[str]:
    """The files that `paths` stand for, each once."""
    if isinstance(paths, str):
        raise ClearheadError(f"texts are read from a list of paths; write [{paths!r}].")
    found: dict[Path, str] = {}
    for path in paths:
        try:
            inside = _files_of(path)
        except OSError as error:
            report.skip(path, f"it cannot be read: {reason(error, path)}", alone=len(paths) == 1)
            continue
        if not inside:
            ends = ", ".join(name for name in TEXTS if not name.endswith(PACKED))
            empty = f"the folder holds no texts: no name ends in {ends}"
            why = empty if Path(path).is_dir() else f"it cannot be read: {reason(FileNotFoundError(), path)}"
            report.skip(path, why, alone=len(paths) == 1)
        for file in inside:
            if (place := Path(file).resolve()) in found:
                report.skip(file, "the file is given twice")
            found.setdefault(place, file)
    return list(found.values())


def without(train: Sequence[str], valid: Sequence[str], out: Path, report: Report) -> Sequence[str]:
    """What `train` stands for, less what its folders and globs merely hold of `valid` and of the run in `out`."""
    held = {Path(file).resolve() for file in files(valid, Report(report.broken))}
    check_apart(train, (*valid, *map(str, held)))
    found = {file: Path(file).resolve() for file in files(train, Report(report.broken))}
    own = {file for file, place in found.items() if out.resolve() in place.parents and file not in train}
    left = [file for file, place in found.items() if place not in held and file not in own]
    if found and not left:
        raise ClearheadError("every file of data.train is one of data.valid or of the run itself; nothing is left.")
    for file, place in found.items():
        if place in held:
            report.note(file, "the file is one of data.valid")
    return left if len(left) < len(found) else train


def check_apart(train: Sequence[str], valid: Sequence[str]) -> None:
    """Refuses what is named both to be learned from and to be held out."""
    held = {Path(path).resolve() for path in valid}
    for path in train:
        if Path(path).resolve() in held:
            raise ClearheadError(f"{path} is in data.train and in data.valid; what is held out is not trained on.")


def kept(paths: Sequence[str], name: str, ready: bool) -> Sequence[str]:
    """The same paths, but files called `name`… for what can be read only once: standard input, and pipes.

    Where it is `ready`, the file of an earlier start stands for it; standard input must be that text, or nothing.
    """
    return [_kept(path, f"{name}-{i}", ready) for i, path in enumerate(paths)]


def _kept(path: str, name: str, ready: bool) -> str:
    if path != STDIN and not Path(path).is_fifo():
        return path
    place = Path(name + ("".join(Path(path).suffixes) or ".txt"))  # which tells how it is read
    if ready and place.is_file():
        if path == STDIN and not _gone_on_with(place):
            other = f"standard input is not the text that this run learns from, which it keeps in {place}"
            raise ClearheadError(f"{other}; pipe the same or nothing, or start anew with another --out.")
        return str(place)
    draft = draft_of(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with nullcontext(sys.stdin.buffer) if path == STDIN else Path(path).open("rb") as old, draft.open("wb") as new:
            shutil.copyfileobj(old, new)
        if path == STDIN and not draft.stat().st_size:
            raise ClearheadError("standard input (-) is empty; pipe a text into it, or name a file.")
        put(place)
    except OSError as error:
        raise ClearheadError(f"{place} cannot be saved: {error.strerror or error}.") from None
    finally:
        draft.unlink(missing_ok=True)
    return str(place)


def _gone_on_with(place: Path) -> bool:
    """Whether standard input is what an earlier start kept, or says nothing: it is empty, or a terminal."""
    new, read = sys.stdin.buffer, 0
    with place.open("rb") as old:
        while not new.isatty() and (piece := new.read(PIECE)):
            read += len(piece)
            if piece != old.read(len(piece)):
                return False
    return read in (0, place.stat().st_size)


def _files_of(path: str) -> list[str]:
    place = Path(path)
    if path == STDIN or (place.exists() and not place.is_dir()):
        return [path]
    if place.is_dir():
        inside = [file.relative_to(place) for file in place.rglob("*") if file.is_file() and file.name.endswith(TEXTS)]
        return [str(place / file) for file in sorted(inside) if not any(part[0] == "." for part in file.parts)]
    return sorted(file for file in glob.glob(path, recursive=True) if Path(file).is_file())  # noqa: PTH207


def _from_text(path: str, report: Report, alone: bool) -> Iterator[Document]:
    lines: list[str] = []
    first, size, begins = 1, 0, True
    for number, line in _lines(path, report, alone):
        separates = line.rstrip("\r\n") in SEPARATORS
        for part in _parts(line):
            if lines and (separates or _may_cut(size, lines[-1], part)):
                yield Document("".join(lines), f"{path}:{first}", begins)
                lines, size, begins = [], 0, False
            if separates:
                begins = True
                continue
            first = first if lines else number
            lines.append(part)
            size += len(part)
    if lines:
        yield Document("".join(lines), f"{path}:{first}", begins)


def _parts(text: str) -> Iterator[str]:
    """A text that is too long to be tokenised at once, cut where most tokenizers do; anywhere if there is no space."""
    start = 0
    while len(text) - start > 2 * PIECE:
        cut = CUT.search(text, start + PIECE, start + 2 * PIECE)
        end = cut.end() if cut else start + 2 * PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def _may_cut(size: int, above: str, below: str) -> bool:
    """Between lines, or parts of a long one, and rather where no run of spaces is torn."""
    return size >= 2 * PIECE or (size >= PIECE and CUT.search(above[-2:] + below[0]) is not None)


def _from_json(path: str, field: str, report: Report, alone: bool) -> Iterator[Document]:
    for number, line in _lines(path, report, alone):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        text, mistake = _field(line, field)
        if mistake:
            report.skip(where, mistake)
        elif text:
            for number, part in enumerate(_parts(text)):
                yield Document(part, where, begins=not number)


def _field(line: str, field: str) -> tuple[str, str]:
    """The text in a line of JSON, or what is wrong with it."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return "", "the line is not JSON"
    if not isinstance(found, dict):
        return "", "the line is not a JSON object"
    if field not in found:
        return "", f"there is no field {field!r}"
    text = found[field]
    if not isinstance(text, str):
        return "", f"field {field!r} is not text"
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell one half of a pair of surrogates
        return "", f"field {field!r} holds half a character"
    return text, ""


def _lines(path: str, report: Report, alone: bool) -> Iterator[tuple[int, str]]:
    """The lines of a file, with their numbers and their ends; those that are not UTF-8 are left out.

    A file that begins with such a line, and holds zeros there, is no text: all of it is left out.
    """
    number, before = 0, 0
    try:
        with opened(path) as file:
            for number, line in enumerate(raw_lines(file), 1):
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    if number == 1 and line.startswith(UTF16):
                        report.skip(path, "it is UTF-16; save it as UTF-8", alone=alone)
                        return
                    if not before and b"\0" in line:
                        report.skip(path, f"it is no text (byte {error.start} is not UTF-8)", alone=alone)
                        return
                    report.skip(f"{path}:{number}", "the line is not UTF-8")
                    continue
                before += 1
                if text:
                    yield number, text
    except UNREADABLE as error:
        report.skip(f"{path}:{number + 1}", f"it cannot be read: {reason(error, path)}")
