"""`clearhead fill`: words for the gaps of a text."""

import json
from dataclasses import asdict

import typer

from clearhead.cli.flags import MODEL


def fill(
    model: str = MODEL,
    text: str = typer.Argument(help="A text with [MASK] where a word is missing.", show_default=False),
    top: int = typer.Option(5, help="How many words to tell for each gap."),
    as_json: bool = typer.Option(False, "--json", help="As JSON."),
) -> None:
    """Tell the likeliest words for [MASK]."""
    from clearhead import api

    found = api.load(model).fill(text, top)
    gaps = found if isinstance(found[0], list) else [found]
    if as_json:
        typer.echo(json.dumps([[asdict(word) for word in gap] for gap in gaps], ensure_ascii=False))
        return
    for number, gap in enumerate(gaps):
        if number:
            typer.echo()
        for word in gap:
            typer.echo(f"{word.probability:6.1%}  {word.word}")
