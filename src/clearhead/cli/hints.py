"""Hints on stderr, where something else was probably meant; the answer stays as it is."""

import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.config import Pictures

NAME = r"\S+\.(txt|text|md|tsv|csv|jsonl?|gz)"  # what nobody writes but for a file
BRIGHT = 2.0  # deviations of a point, above the mean of what a model expects, that a whole picture may have
SILENT = 1e-4  # of full loudness (-80 dB): rooms in which nobody speaks are louder


def if_file(text: str, instead: str = "--input {} reads its lines") -> None:
    """Where a text is the name of a file, or looks like one: that it was read as a text, and how the file is read."""
    with suppress(OSError, ValueError):  # of texts that could name no file
        if Path(text).is_file():
            how = instead.format(shlex.quote(text))
            typer.echo(f"{text} is the name of a file, and was read as a text; {how}.", err=True)
        elif re.fullmatch(NAME, text):
            typer.echo(f"{text} looks like the name of a file, but there is none; it was read as a text.", err=True)


def of_pictures(names: Iterable[str], pictures: Iterable["Tensor"], reads: "Pictures") -> None:
    """On which nothing is to be seen, or which are far brighter than those that the model learned from."""
    for name, picture in zip(names, pictures, strict=True):
        if bool((picture == picture[:, :1, :1]).all()):
            hint = f"{name} is of one colour: there is nothing to see, whatever the answer."
        elif picture.mean() > BRIGHT:
            bright = f"{name} is far brighter than what this model expects (about {reads.mean[0]:.2f} of white)"
            hint = f"{bright}; what it reads may have to be light on dark."
        else:
            continue
        typer.echo(hint, err=True)
        return  # of many, one tells enough


def of_sounds(names: Iterable[str], sounds: Iterable["Tensor"]) -> None:
    """In which nothing is to be heard."""
    for name, samples in zip(names, sounds, strict=True):
        if samples.std(correction=0) < SILENT:
            typer.echo(f"{name} is silent: there is nothing to hear, whatever the answer.", err=True)
            return
