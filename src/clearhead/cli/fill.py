"""`clearhead fill`: words for the gaps of texts."""

import json
from dataclasses import asdict

import typer

from clearhead.cli import hints
from clearhead.cli.flags import MODEL
from clearhead.cli.lines import INPUT, read_texts


def fill(
    model: str = MODEL,
    text: str = typer.Argument("", help="A text with [MASK] where a word is missing.", show_default=False),
    file: str = INPUT,
    top: int = typer.Option(5, help="How many words to tell for each gap."),
    as_json: bool = typer.Option(False, "--json", help="As JSON, a line for each text."),
) -> None:
    """Tell the likeliest words for [MASK]."""
    from clearhead import api

    hints.if_file(text)
    blocks, loaded = read_texts(text, file), api.load(model)
    for line in (line for some in blocks for line in some):
        found = loaded.fill(line, top)
        gaps = found if isinstance(found[0], list) else [found]
        if as_json:
            typer.echo(json.dumps([[asdict(word) for word in gap] for gap in gaps], ensure_ascii=False))
            continue
        told = "\n\n".join("\n".join(f"{word.probability:6.1%}  {word.word}" for word in gap) for gap in gaps)
        typer.echo(f"{line}\n{told}\n" if file else told)
