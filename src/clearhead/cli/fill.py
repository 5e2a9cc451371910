"""`clearhead fill`: predict masked words."""

import json
from dataclasses import asdict

import typer

from clearhead.cli.common import (
    ABLATE_HEAD_OPTION,
    INPUT_OPTION,
    MODEL_ARGUMENT,
    ablate_heads,
    echo,
    map_batches,
    read_text_batches,
    warn_if_file_name,
)


def fill(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(
        None,
        metavar="TEXT",
        help="A text with [MASK] for each missing word.",
        show_default=False,
    ),
    file: str = INPUT_OPTION,
    top_k: int = typer.Option(5, help="Number of predictions per mask."),
    ablate_head: list[str] = ABLATE_HEAD_OPTION,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON array per text."),
) -> None:
    """Predict the words for [MASK]."""
    from clearhead.api import load

    warn_if_file_name(text)
    batches = read_text_batches(text, file)
    loaded = load(model)
    edits = ablate_heads(loaded, ablate_head)
    single_lines = ([line] for batch in batches for line in batch)  # prints results as they come
    results = map_batches(single_lines, file, lambda lines: loaded.fill(lines, top_k, edits=edits))
    for line, result in results:
        if as_json:
            masks = [[asdict(word) for word in words] for words in result.masks]
            echo(json.dumps(masks, ensure_ascii=False))
            continue
        if file:
            echo(line)
        for number, words in enumerate(result.masks, 1):
            if len(result.masks) > 1:
                echo(f"mask {number}")
            for word in words:
                echo(f"{word.probability:6.1%}  {word.word}")
            if number < len(result.masks) or file:
                echo()
