"""Hints on stderr, where something else was probably meant; the answer stays as it is."""

import re
import shlex
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from clearhead.errors import ClearheadError, ClearheadWarning

NAME = r"\S+\.(txt|text|md|tsv|csv|jsonl?|gz)"  # what nobody writes but for a file


def if_file(text: str | None, instead: str = "--input {} reads its lines") -> None:
    """Where a text is the name of a file, or looks like one: that it was read as a text, and how the file is read."""
    if text is None:
        return
    if _names_a_file(text):
        from clearhead.data.pictured import PICTURES, SOUNDS

        if text.lower().endswith((*PICTURES, *SOUNDS)):
            raise ClearheadError(f"{text} is a picture or a sound; this model reads texts.")
        how = instead.format(shlex.quote(text))
        typer.echo(f"{text} is the name of a file, and was read as a text; {how}.", err=True)
    elif re.fullmatch(NAME, text):
        typer.echo(f"{text} looks like the name of a file, but there is none; it was read as a text.", err=True)


def _names_a_file(text: str) -> bool:
    with suppress(OSError, ValueError):  # of texts that could name none
        return Path(text).is_file()
    return False


def shown() -> None:
    """From now on, our warnings are lines on stderr, as the shell has them."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ClearheadWarning):
            typer.echo(str(message), err=True)
        else:
            others(message, category, *where, **more)

    warnings.showwarning = show
    warnings.simplefilter("default", ClearheadWarning)
