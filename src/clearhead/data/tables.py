"""The records of a .csv, .tsv or .jsonl file, each with its line, which may be compressed."""

import csv
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from clearhead.data.packed import Report
from clearhead.data.unpacked import escaped, kind_of, lines
from clearhead.errors import ClearheadError, nearest

SEPARATORS = ";,\t"
QUOTED = re.compile(r'"(?:[^"]*"")+[^"]*"')  # a text that holds quotes, as spreadsheets write it


def records(
    path: Path, report: Report, columns: Sequence[str], *, only: bool = False, by_number: str
) -> Iterator[tuple[str, list[object]]]:
    """Where a record is, and what it has in each of `columns`.

    Columns are names, which the first line gives, or numbers from 0; where all are numbers there is no such line.
    With `only`, a table that has other columns too is refused: which are meant must be told, as in `by_number`.
    In .csv, "…" may hold commas and line ends; in .tsv, as GLUE's, a quote is a letter like others, unless all quotes
    between the first and the last letter of a text, which are quotes too, are doubled.
    """
    kind = kind_of(path)
    if kind not in (".csv", ".tsv", ".jsonl"):
        raise ClearheadError(
            f"{path} must be a .csv, .tsv or .jsonl file, or one of those with .gz, .xz or .zst after it."
        )
    if kind == ".jsonl":
        return _objects(path, report, columns)
    return _table(path, report, columns, kind == ".tsv", only, by_number)


class _Lines:
    """The lines of a table, of which those after the first of a broken record can be read again."""

    def __init__(self, path: Path) -> None:
        self._ahead, self._rest = deque[str](), map(escaped, lines(path))
        self.number, self.taken = 1, list[str]()  # where a record begins, and its lines so far

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.taken.append(self._ahead.popleft() if self._ahead else next(self._rest))
        return self.taken[-1]

    def end_record(self) -> None:
        self.number, self.taken = self.number + len(self.taken), []

    def end_line(self) -> None:
        self._ahead.extendleft(reversed(self.taken[1:]))
        self.number, self.taken = self.number + 1, []


def _table(
    path: Path, report: Report, columns: Sequence[str], tabbed: bool, only: bool, by_number: str
) -> Iterator[tuple[str, list[object]]]:
    texts = _Lines(path)
    reader = csv.reader(texts, delimiter="\t", quoting=csv.QUOTE_NONE) if tabbed else csv.reader(texts, strict=True)
    named = not all(column.isdecimal() for column in columns)
    at: list[int] = []
    width = 0
    while True:
        where = f"{path}:{texts.number}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            why = _why(error, len(texts.taken))
            if not width:
                raise ClearheadError(f"{where}: the first line tells the columns, and it is broken: {why}.") from None
            texts.end_line()
            report.skip(where, why)
            continue
        texts.end_record()
        if tabbed:
            cells = [cell[1:-1].replace('""', '"') if QUOTED.fullmatch(cell) else cell for cell in cells]
        if not cells:
            continue
        if not width and only and len(cells) > len(columns):
            which = f"{len(cells)} columns: {', '.join(f'{cell!r:.30}' for cell in cells)}"
            raise ClearheadError(f"{where} has {which}; choose two by name or number, as in {by_number}.")
        if not width and only:
            pair = " and ".join(f"{cell!r:.40}" for cell in cells)
            report.told.append(
                f"{path}: every line is a pair, the first too: {pair}; if it names them, give data.sides"
            )
        if not width:
            width, at = len(cells), [_column(column, cells, named, where, by_number) for column in columns]
            if named:
                continue
        if len(cells) != width:
            count = f"{len(cells)} column{'s' * (len(cells) > 1)}"
            report.skip(f"{where} ({count})", f"the number of columns is not {width}, as in the first line")
            continue
        yield where, [cells[i] for i in at]


def _why(error: csv.Error, count: int) -> str:
    """What is wrong with a record of so many lines."""
    if count > 1 and "limit" in str(error):
        return f"a quote is opened there and not closed within {csv.field_size_limit():,} characters"
    return "a quote is opened there and never closed" if count > 1 or "end of data" in str(error) else str(error)


def _column(column: str, cells: Sequence[str], named: bool, where: str, by_number: str) -> int:
    if column in cells and named:
        return cells.index(column)
    if column.isdecimal() and int(column) < len(cells):
        return int(column)
    known = nearest(column, [f"{cell:.40}" for cell in cells]) if named else f"there are {len(cells)}, from 0"
    if len(cells) == 1 and (other := next((mark for mark in SEPARATORS if mark in cells[0]), "")):
        known = f"columns seem to be separated by {other!r}, where a .csv has commas and a .tsv tabs."
    elif named and not known.startswith("did you mean"):
        flags = " and ".join(word for word in by_number.split() if word.startswith("--"))
        known += f"; choose with {flags}, by number where those are no names: {by_number}."
    raise ClearheadError(f"{where}: there is no column {column!r}; {known}")


def _objects(path: Path, report: Report, columns: Sequence[str]) -> Iterator[tuple[str, list[object]]]:
    for number, line in enumerate(map(escaped, lines(path)), 1):
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
