"""The records of a .csv, .tsv or .jsonl file, each with its line, which may be compressed."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from clearhead.data.packed import Report
from clearhead.data.unpacked import escaped, kind_of, lines
from clearhead.errors import ClearheadError, nearest


def records(
    path: Path, report: Report, columns: Sequence[str], *, only: bool = False
) -> Iterator[tuple[str, list[object]]]:
    """Where a record is, and what it has in each of `columns`.

    Columns are names, which the first line gives, or numbers from 0; where all are numbers there is no such line.
    With `only`, a table that has other columns too is refused: which are meant must be told.
    In .csv, "…" may hold commas and line ends; in .tsv, as GLUE's, a quote is a letter like others.
    """
    kind = kind_of(path)
    if kind not in (".csv", ".tsv", ".jsonl"):
        raise ClearheadError(
            f"{path} must be a .csv, .tsv or .jsonl file, or one of those with .gz, .xz or .zst after it."
        )
    return _objects(path, report, columns) if kind == ".jsonl" else _table(path, report, columns, kind == ".tsv", only)


def _table(
    path: Path, report: Report, columns: Sequence[str], tabbed: bool, only: bool
) -> Iterator[tuple[str, list[object]]]:
    texts = map(escaped, lines(path))
    reader = csv.reader(texts, delimiter="\t", quoting=csv.QUOTE_NONE) if tabbed else csv.reader(texts, strict=True)
    named = not all(column.isdecimal() for column in columns)
    at: list[int] = []
    width = 0
    while True:
        where = f"{path}:{reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if not width:
                raise ClearheadError(f"{where}: the first line tells the columns, and it is broken: {error}.") from None
            report.skip(where, str(error))
            continue
        if not cells:
            continue
        if not width and only and len(cells) > len(columns):
            which = f"{len(cells)} columns: {', '.join(f'{cell!r:.30}' for cell in cells)}"
            raise ClearheadError(f"{where} has {which}; choose two by name or number, as in --data.sides 0 1.")
        if not width and only:
            pair = " and ".join(f"{cell!r:.40}" for cell in cells)
            report.told.append(
                f"{path}: every line is a pair, the first too: {pair}; if it names them, give data.sides"
            )
        if not width:
            width, at = len(cells), [_column(column, cells, named, where) for column in columns]
            if named:
                continue
        if len(cells) != width:
            report.skip(f"{where} ({len(cells)})", f"the number of columns is not {width}, as in the first line")
            continue
        yield where, [cells[i] for i in at]


def _column(column: str, cells: Sequence[str], named: bool, where: str) -> int:
    if column in cells and named:
        return cells.index(column)
    if column.isdecimal() and int(column) < len(cells):
        return int(column)
    known = nearest(column, cells) if named else f"there are {len(cells)}, from 0"
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
