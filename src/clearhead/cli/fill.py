"""`clearhead fill`: words for the gaps of texts."""

import json
from dataclasses import asdict

import typer

from clearhead.cli.common import (
    ABLATE_HEAD_OPTION,
    INPUT_OPTION,
    MODEL_ARGUMENT,
    ablate_heads,
    map_batches,
    read_text_batches,
    warn_if_file_name,
)


def fill(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(
        None, help="A text with [MASK] where a word is missing.", show_default=False
    ),
    file: str = INPUT_OPTION,
    top_k: int = typer.Option(5, help="How many words to tell for each gap."),
    ablate_head: list[str] = ABLATE_HEAD_OPTION,
    as_json: bool = typer.Option(False, "--json", help="As JSON, a line for each text."),
) -> None:
    """Tell the likeliest words for [MASK]."""
    from clearhead.api import load

    warn_if_file_name(text)
    blocks = read_text_batches(text, file)
    loaded = load(model)
    changes = ablate_heads(loaded, ablate_head)
    lines = ([line] for some in blocks for line in some)
    for line, found in map_batches(
        lines, file, lambda one: [loaded.fill(one[0], top_k, edits=changes)]
    ):
        gaps = found if isinstance(found[0], list) else [found]
        if as_json:
            typer.echo(
                json.dumps([[asdict(word) for word in gap] for gap in gaps], ensure_ascii=False)
            )
            continue
        lists = ["\n".join(f"{word.probability:6.1%}  {word.word}" for word in gap) for gap in gaps]
        told = (
            "\n\n".join(f"gap {i}\n{words}" for i, words in enumerate(lists, 1))
            if len(lists) > 1
            else lists[0]
        )
        typer.echo(f"{line}\n{told}\n" if file else told)
