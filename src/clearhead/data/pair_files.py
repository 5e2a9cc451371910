"""Sentence pairs out of files: two aligned texts, tables, TMX or gettext's PO, each of which may be compressed."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from clearhead.data.packed import Report
from clearhead.data.tables import records
from clearhead.data.unpacked import escaped, kind_of, lines, readable
from clearhead.errors import ClearheadError, understood

Sides = tuple[str, str]
TABLES: dict[str, Sides] = {".csv": ("0", "1"), ".tsv": ("0", "1"), ".jsonl": ("source", "target")}
CODES = ("bpt", "ept", "it", "ph", "ut")  # inside these, TMX holds the markup of another program, not words
PO_LINE = re.compile(rb'(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*)?"((?:[^"\\]|\\.)*)"')
PO_START = re.compile(rb"#|msgctxt\b|msgid\b")
PO_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([0-3]?[0-7]{1,2})|(.))")
PO_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


class Pair(NamedTuple):
    source: str
    target: str
    where: str  # file:line


class Fault(NamedTuple):
    """Why there is no pair; not every reason means that the file is broken."""

    why: str
    broken: bool = True


Row = tuple[str, tuple[object, object] | Fault]  # where, and the two sides


def pairs(paths: Sequence[str | Path], report: Report, *, sides: Sides | None = None) -> Iterator[Pair]:
    """The pairs of two texts whose lines belong together, or of any number of .csv, .tsv, .jsonl, .tmx and .po files.

    `sides` are the columns of a table (numbers from 0, or names), the fields of .jsonl, the languages of .tmx.
    Spaces around a text are cut off.
    """
    if isinstance(paths, str):
        raise ClearheadError(f"pairs are read from a list of paths; write [{paths!r}].")
    for where, row in _rows([Path(path) for path in paths], report, sides):
        found = row if isinstance(row, Fault) else _pair(row, where)
        if isinstance(found, Pair):
            report.read += 1
            yield found
        elif found.broken:
            report.skip(where, found.why)
        else:
            report.note(where, found.why)


def _rows(paths: Sequence[Path], report: Report, sides: Sides | None) -> Iterator[Row]:
    kinds = [kind_of(path) for path in paths]
    known = {*TABLES, ".tmx", ".po"}
    if known.isdisjoint(kinds) and len(paths) == 2:
        _no_sides(sides, paths[0])
        if paths[0].resolve() == paths[1].resolve():
            raise ClearheadError(f"{paths[0]} is given as both sides; the second must be what the first becomes.")
        yield from _aligned(*paths)
        return
    if known.isdisjoint(kinds) and len(paths) > 2:
        names = " ".join(map(str, paths))
        raise ClearheadError(f"two texts are wanted, what is read and what it becomes, not {len(paths)}: {names}.")
    for path, kind in zip(paths, kinds, strict=True):
        if kind in TABLES:
            chosen = sides or TABLES[kind]
            read = records(path, report, chosen, only=sides is None, by_number="--data.sides 0 1")
            yield from ((where, (found[0], found[1])) for where, found in read)
        elif kind == ".tmx":
            yield from _tmx(path, sides)
        elif kind == ".po":
            _no_sides(sides, path)
            yield from _po(path)
        else:
            raise ClearheadError(f"{path} holds no pairs; give two texts, or files of {', '.join(sorted(known))}.")


def _no_sides(sides: Sides | None, path: Path) -> None:
    if sides is not None:
        raise ClearheadError(f"{path} has no columns, fields or languages to choose, so sides = {sides} cannot be.")


def _pair(row: tuple[object, object], where: str) -> Pair | Fault:
    for side, text in zip(("source", "target"), row, strict=True):
        if not isinstance(text, str):
            return Fault(f"the {side} is no text")
        if not text.strip():
            return Fault(f"the {side} is empty")
        try:
            text.encode()
        except UnicodeEncodeError:  # lone surrogates stand for bytes that are no character
            return Fault(f"the {side} is not UTF-8")
    source, target = (str(text).strip() for text in row)
    return Pair(source, target, where)


# ---------------------------------------------------------------- two texts
def _aligned(first: Path, second: Path) -> Iterator[Row]:
    counts = [0, 0]
    for number, (ours, theirs) in enumerate(zip_longest(lines(first), lines(second)), 1):
        counts = [counts[0] + (ours is not None), counts[1] + (theirs is not None)]
        if ours and theirs:
            yield f"{first}:{number}", (escaped(ours), escaped(theirs))
    if counts[0] != counts[1]:
        have = f"{first} has {counts[0]} lines and {second} has {counts[1]}"
        raise ClearheadError(f"{have}; line by line they must belong together.")


# ---------------------------------------------------------------- TMX
def _tmx(path: Path, sides: Sides | None) -> Iterator[Row]:
    if sides is None:
        raise ClearheadError(f"{path} may hold many languages; tell which two, as in sides = ('en', 'de').")
    units = _Units(path)
    for chunk in chain(_chunks(path), [b""]):
        with understood(f"{path} is not valid XML"):
            units.parser.Parse(chunk, not chunk)
        for line, texts in units.done:
            yield f"{path}:{line}", (_in_language(texts, sides[0]), _in_language(texts, sides[1]))
        units.done.clear()


def _chunks(path: Path) -> Iterator[bytes]:
    with readable(path) as file:
        while chunk := file.read(1 << 16):
            yield chunk


def _in_language(texts: dict[str, str], code: str) -> str:
    """'en' is also found as en-GB; the first of several is taken."""
    own = code.lower().replace("_", "-") + "-"
    return next((text for language, text in texts.items() if f"{language}-".startswith(own)), "")


class _Units:
    """The translation units of a TMX file as it streams by. A tree would not tell the lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: list[tuple[int, dict[str, str]]] = []  # line, and the text of each language
        self.line, self.language, self.hidden, self.inside = 0, "", 0, False
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
        raise ClearheadError(f"{where}: a DOCTYPE may declare entities, so it is not read; take that line out.")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self.line, self.texts = self.parser.CurrentLineNumber, {}
        elif name == "tuv":
            self.language = attributes.get("xml:lang", attributes.get("lang", "")).lower().replace("_", "-")
        elif name == "seg":
            self.text, self.inside = [], True
        self.hidden += name in CODES

    def _end(self, name: str) -> None:
        if name == "tu":
            self.done.append((self.line, self.texts))
        elif name == "seg":
            self.inside = False
            self.texts.setdefault(self.language, "".join(self.text))
        self.hidden -= name in CODES

    def _characters(self, text: str) -> None:
        if self.inside and not self.hidden:
            self.text.append(text)


# ---------------------------------------------------------------- PO
def _po(path: Path) -> Iterator[Row]:
    """msgid and msgstr of each entry. What is obsolete stands in comments, and what has no msgid is the header."""
    entry = _Entry()
    for number, raw in enumerate(chain(lines(path), [b"#"]), 1):
        line = raw.strip()
        if PO_START.match(line) and (b"msgid" in entry.parts or entry.strange):
            if entry.strange or entry.parts[b"msgid"]:
                yield entry.where, entry.sides()
            entry = _Entry()
        entry.take(f"{path}:{number}", line)


class _Entry:
    """The parts of one entry: msgid, msgstr …"""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}
        self.where, self.last, self.fuzzy, self.strange = "", b"", False, False

    def take(self, where: str, line: bytes) -> None:
        if line.startswith(b"#"):
            self.fuzzy |= line.startswith(b"#,") and b"fuzzy" in line
        elif line and not self.strange:
            match = PO_LINE.fullmatch(line)
            key = match and (match[1] or self.last)
            if not match or not key or match[1] in self.parts:
                self.where, self.strange = where, True
            else:
                self.where, self.last = self.where or where, key
                self.parts[key] = self.parts.get(key, b"") + match[2]

    def sides(self) -> tuple[str, str] | Fault:
        if self.strange:
            return Fault("the line does not belong into a PO file")
        if b"msgid_plural" in self.parts:
            return Fault("the entry has plural forms", broken=False)
        if self.fuzzy:
            return Fault("the entry is fuzzy", broken=False)
        if b"msgstr" not in self.parts:
            return Fault("the entry has no msgstr")
        if not self.parts[b"msgstr"]:
            return Fault("the entry is not translated", broken=False)
        return _unescaped(self.parts[b"msgid"]), _unescaped(self.parts[b"msgstr"])


def _unescaped(raw: bytes) -> str:
    return escaped(PO_ESCAPE.sub(_escape, raw))


def _escape(match: re.Match[bytes]) -> bytes:
    if match[3]:
        return PO_LETTERS.get(match[3], match[3])
    return bytes([int(match[1], 16) if match[1] else int(match[2], 8)])
