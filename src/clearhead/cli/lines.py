"""Texts for the commands that take many: one on the command line, or a file of lines, or stdin."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

import typer

from clearhead.data.unpacked import STDIN, UNREADABLE, opened, text_lines
from clearhead.errors import ClearheadError, Unreadable

INPUT = typer.Option("", "--input", help="A file with a text on each line; - is stdin.", show_default=False)
MOST = 1_000_000  # lines
SOME = 256  # lines that are worked on together, and shown when they are done
T = TypeVar("T")


def check_given(text: str | None, file: str, what: str = "a text") -> None:
    """Never both, never none, and no text of nothing."""
    if (text is not None) == bool(file):
        raise ClearheadError(f"give {what}, or --input with a file that has one on each line, and not both.")
    if text is not None and not text.strip():
        raise ClearheadError("the text is empty; there must be something to read.")


def stdin() -> str:
    """All of it."""
    with read_as_utf8():
        return sys.stdin.buffer.read().decode()


@contextmanager
def read_as_utf8() -> Iterator[None]:
    """Standard input that is something else is told in a sentence."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ClearheadError(f"standard input is not UTF-8: {error.reason} at byte {error.start}.") from None


def read_lines(text: str | None, file: str) -> list[str]:
    """The text, or the lines of the file."""
    check_given(text, file)
    if text is not None:
        return [text]
    lines = list(islice(text_lines(file), MOST + 1))
    if not lines or len(lines) > MOST:
        many = f"more than {MOST:,}" if lines else "no"
        raise ClearheadError(f"{file} has {many} lines; there must be from 1 to {MOST:,}.")
    return lines


def shown_lines(blocks: Iterator[list[str]], file: str, quiet: bool) -> Iterator[list[str]]:
    """Blocks of a file's lines with a bar of how far they are done; `quiet` where results go to the same terminal."""
    if not Path(file).is_file() or (quiet and sys.stdout.isatty()):  # a pipe can be read once
        return blocks
    from clearhead.lens.progress import shown

    try:
        with opened(file) as source:
            total = sum(part.count(b"\n") for part in iter(lambda: source.read(1 << 20), b""))
    except UNREADABLE:
        return blocks  # whoever reads it says so
    return shown(blocks, total, "lines", len)


def read_texts(text: str | None, file: str) -> Iterator[list[str]]:
    """The same, some lines at a time, for commands to which an empty line says nothing."""
    lines = read_lines(text, file)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise ClearheadError(f"{_where(number, file)} is empty; there must be something to read.")
    blocks = (lines[start : start + SOME] for start in range(0, len(lines), SOME))
    return shown_lines(blocks, file, quiet=True) if file else blocks


def answered(
    blocks: Iterable[list[str]], file: str, work: Callable[[list[str]], Iterable[T]]
) -> Iterator[tuple[str, T]]:
    """Each line with what `work` gives for it."""
    done = 0
    for some in blocks:
        with told_by_line(file, done):
            found = work(some)
        yield from zip(some, found, strict=True)
        done += len(some)


@contextmanager
def told_by_line(file: str, before: int) -> Iterator[None]:
    """A text that cannot be read is told as the line that it is, of which so many came before."""
    try:
        yield
    except Unreadable as error:
        raise ClearheadError(f"{_where(before + error.number + 1, file)} {error.why}") from None


def _where(number: int, file: str) -> str:
    return f"line {number:,}{'' if file == STDIN else f' of {file}'}" if file else "the text"
