"""Texts for the commands that take many: one on the command line, or a file of lines, or stdin."""

import sys
from pathlib import Path

import typer

from clearhead.errors import ClearheadError

INPUT = typer.Option("", "--input", help="A file with a text on each line; - is stdin.", show_default=False)
MOST = 1_000_000  # lines


def read_lines(text: str, file: str) -> list[str]:
    """The text, or the lines of the file; never both, never none."""
    if bool(text) == bool(file):
        raise ClearheadError("give a text, or --input with a file of lines.")
    if text:
        return [text]
    try:
        source = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ClearheadError(f"{file} is not UTF-8 (byte {error.start:,}).") from None
    lines = source.splitlines()
    if not lines or len(lines) > MOST:
        raise ClearheadError(f"{file} has {len(lines):,} lines; there must be from 1 to {MOST:,}.")
    return lines
