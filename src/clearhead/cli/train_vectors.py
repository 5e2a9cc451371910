"""`clearhead train vectors`: a vector for each word of a text."""

from collections.abc import Mapping
from pathlib import Path

import typer


def train_vectors(flags: list[str], out: Path, others: Mapping[str, object]) -> None:
    """`flags` are the options of a `Lesson`, as --train.width; `others` are for models: none of them may be set."""
    from clearhead import reader
    from clearhead.cli.flags import dotted
    from clearhead.errors import ClearheadError
    from clearhead.words.learn import Lesson, learn_vectors

    if given := [name for name, value in others.items() if value]:
        raise ClearheadError(f"--{given[0]} is for models; vectors are learned without it.")
    lesson = reader.read(Lesson, reader.override(reader.tree(Lesson()), dotted(flags)))
    learn_vectors(lesson, out, typer.echo)
