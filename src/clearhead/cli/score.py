"""`clearhead score`: how likely a model finds a text."""

import json
from functools import partial

import typer

from clearhead.cli import hints
from clearhead.cli.flags import DTYPE, MODEL
from clearhead.cli.lines import INPUT, answered, read_texts


def score(
    model: str = MODEL,
    text: str = typer.Argument(None, help="A text.", show_default=False),
    file: str = INPUT,
    overflow: str = typer.Option(
        "refuse", help="What becomes of a text that exceeds the context: refuse, or slide (read piece by piece)."
    ),
    dtype: str = DTYPE,
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line, with each token's log-probability."),
) -> None:
    """Tell log-probability and perplexity of texts."""
    from clearhead import api

    hints.if_file(text)
    blocks, loaded = read_texts(text, file), api.load(model, dtype=dtype)
    for line, made in answered(blocks, file, partial(loaded.score, overflow=overflow)):
        if as_json:
            told = made.perplexity if made.logprobs else None  # of one token nothing can be told
            tree = {"text": line, "logprob": made.total, "perplexity": told, "logprobs": made.logprobs}
            typer.echo(json.dumps(tree, ensure_ascii=False))
        else:
            perplexity = f"{made.perplexity:.3f}" if made.logprobs else "–"
            typer.echo(f"log p {made.total:.3f}  perplexity {perplexity}  {line}")
