"""`clearhead translate`: by beam search, a line for each line."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clearhead.cli.flags import MODEL
from clearhead.cli.lines import INPUT, read_lines

if TYPE_CHECKING:
    from clearhead.api import Model

SOME = 32  # sentences that are searched at once


def translate(
    model: str = MODEL,
    text: str = typer.Argument("", help="One sentence.", show_default=False),
    file: str = INPUT,
    output: Path = typer.Option(None, help="Where the lines go instead of the screen.", show_default=False),
    beam: int = typer.Option(5, help="How many translations are followed at once; 1 is greedy."),
    length_penalty: float = typer.Option(1.0, help="More than 1 prefers long ones, less short ones."),
    max_tokens: int = typer.Option(0, help="How long one may get; 0 = as the context allows."),
) -> None:
    """Translate a sentence, or a file line by line."""
    from clearhead import api
    from clearhead.files import overwrite

    loaded, lines = api.load(model), read_lines(text, file)
    made = translated(loaded, lines, beam, max_tokens, length_penalty)
    if output is None:
        typer.echo("\n".join(made))
    else:
        overwrite(output, "".join(f"{line}\n" for line in made).encode())
        typer.echo(f"{len(made):,} lines in {output}")


def translated(model: "Model", lines: list[str], beam: int, max_tokens: int, length_penalty: float) -> list[str]:
    """In their order; sentences of like length are searched together, and empty lines stay empty."""
    order = sorted((i for i, line in enumerate(lines) if line.strip()), key=lambda i: len(lines[i]))
    made = [""] * len(lines)
    for start in range(0, len(order), SOME):
        some = order[start : start + SOME]
        found = model.translate([lines[i] for i in some], beam, max_tokens, length_penalty)
        for i, best in zip(some, found, strict=True):
            made[i] = " ".join(best.text.split())
    return made
