"""Texts for the commands that take many: one on the command line, or a file of lines, or stdin."""

import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from clearhead.errors import ClearheadError

INPUT = typer.Option("", "--input", help="A file with a text on each line; - is stdin.", show_default=False)
MOST = 1_000_000  # lines
SOME = 256  # lines that are worked on together, and shown when they are done


def read_lines(text: str, file: str) -> list[str]:
    """The text, or the lines of the file; never both, never none."""
    if bool(text) == bool(file):
        raise ClearheadError("give a text, or --input with a file of lines, and not both.")
    if text:
        return [text]
    try:
        source = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ClearheadError(f"{file} is not UTF-8 (byte {error.start:,}).") from None
    lines = source.removesuffix("\n").split("\n") if source else []
    if not lines or len(lines) > MOST:
        raise ClearheadError(f"{file} has {len(lines):,} lines; there must be from 1 to {MOST:,}.")
    return lines


def shown_lines(blocks: Iterator[list[str]], file: str, quiet: bool) -> Iterator[list[str]]:
    """Blocks of a file's lines with a bar of how far they are done; `quiet` where results go to the same terminal."""
    if file == "-" or (quiet and sys.stdout.isatty()):
        return blocks
    from clearhead.lens.progress import shown

    try:
        with Path(file).open("rb") as source:
            total = sum(part.count(b"\n") for part in iter(lambda: source.read(1 << 20), b""))
    except OSError:
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
