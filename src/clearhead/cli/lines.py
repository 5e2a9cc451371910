"""Texts for the commands that take many: one on the command line, or a file of lines, or stdin."""

import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from clearhead.data.unpacked import UNREADABLE, opened, text_lines
from clearhead.errors import ClearheadError

INPUT = typer.Option("", "--input", help="A file with a text on each line; - is stdin.", show_default=False)
MOST = 1_000_000  # lines
SOME = 256  # lines that are worked on together, and shown when they are done


def check_given(text: str, file: str, what: str = "a text") -> None:
    """Never both, never none."""
    if bool(text) == bool(file):
        raise ClearheadError(f"give {what}, or --input with a file that has one on each line, and not both.")


def read_lines(text: str, file: str) -> list[str]:
    """The text, or the lines of the file."""
    check_given(text, file)
    if text:
        return [text]
    lines = list(text_lines(file))
    if not lines or len(lines) > MOST:
        raise ClearheadError(f"{file} has {len(lines):,} lines; there must be from 1 to {MOST:,}.")
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


def read_texts(text: str, file: str) -> Iterator[list[str]]:
    """The same, some lines at a time, for commands to which an empty line says nothing."""
    lines = read_lines(text, file)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            where = f"line {number:,} of {file}" if file else "the text"
            raise ClearheadError(f"{where} is empty; there must be something to read.")
    blocks = (lines[start : start + SOME] for start in range(0, len(lines), SOME))
    return shown_lines(blocks, file, quiet=True) if file else blocks
