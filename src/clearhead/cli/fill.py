"""`clearhead fill`: words for the gaps of texts."""

import json
from dataclasses import asdict

import typer

from clearhead.cli import hints
from clearhead.cli.flags import MODEL
from clearhead.cli.lines import INPUT, answered, read_texts
from clearhead.cli.without import WITHOUT, edits


def fill(
    model: str = MODEL,
    text: str = typer.Argument(None, help="A text with [MASK] where a word is missing.", show_default=False),
    file: str = INPUT,
    top: int = typer.Option(5, help="How many words to tell for each gap."),
    without: list[str] = WITHOUT,
    as_json: bool = typer.Option(False, "--json", help="As JSON, a line for each text."),
) -> None:
    """Tell the likeliest words for [MASK]."""
    from clearhead import api

    hints.if_file(text)
    blocks, loaded = read_texts(text, file), api.load(model)
    changes = edits(loaded, without)
    lines = ([line] for some in blocks for line in some)
    for line, found in answered(lines, file, lambda one: [loaded.fill(one[0], top, edits=changes)]):
        gaps = found if isinstance(found[0], list) else [found]
        if as_json:
            typer.echo(json.dumps([[asdict(word) for word in gap] for gap in gaps], ensure_ascii=False))
            continue
        lists = ["\n".join(f"{word.probability:6.1%}  {word.word}" for word in gap) for gap in gaps]
        told = "\n\n".join(f"gap {i}\n{words}" for i, words in enumerate(lists, 1)) if len(lists) > 1 else lists[0]
        typer.echo(f"{line}\n{told}\n" if file else told)
