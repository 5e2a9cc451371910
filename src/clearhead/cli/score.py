"""`clearhead score`: how likely a model finds a text."""

import json
from functools import partial

import typer

from clearhead.cli.common import (
    DTYPE_OPTION,
    INPUT_OPTION,
    MODEL_ARGUMENT,
    map_batches,
    read_text_batches,
    warn_if_file_name,
)


def score(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(None, help="A text.", show_default=False),
    file: str = INPUT_OPTION,
    overflow: str = typer.Option(
        "error",
        help="What becomes of a text that exceeds the context: error, or slide (read piece by piece).",
    ),
    dtype: str = DTYPE_OPTION,
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object a line, with each token's log-probability."
    ),
) -> None:
    """Tell log-probability and perplexity of texts."""
    from clearhead.api import load

    warn_if_file_name(text)
    blocks = read_text_batches(text, file)
    loaded = load(model, dtype=dtype)
    for line, made in map_batches(blocks, file, partial(loaded.score, overflow=overflow)):
        if as_json:
            told = made.perplexity if made.logprobs else None  # of one token nothing can be told
            tree = {
                "text": line,
                "logprob": made.total,
                "perplexity": told,
                "logprobs": made.logprobs,
            }
            typer.echo(json.dumps(tree, ensure_ascii=False))
        else:
            perplexity = f"{made.perplexity:.3f}" if made.logprobs else "–"
            typer.echo(f"log p {made.total:.3f}  perplexity {perplexity}  {line}")
