"""`clearhead score`: how likely a model finds a text."""

import json

import typer

from clearhead.cli.flags import MODEL
from clearhead.cli.lines import INPUT, read_lines


def score(
    model: str = MODEL,
    text: str = typer.Argument("", help="A text.", show_default=False),
    file: str = INPUT,
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line, with each token's log-probability."),
) -> None:
    """Tell log-probability and perplexity of texts."""
    from clearhead import api

    loaded = api.load(model)
    for line in read_lines(text, file):
        made = loaded.score(line)
        if as_json:
            tree = {"text": line, "logprob": made.total, "perplexity": made.perplexity, "logprobs": made.logprobs}
            typer.echo(json.dumps(tree, ensure_ascii=False))
        else:
            typer.echo(f"log p {made.total:.3f}  perplexity {made.perplexity:.3f}  {line}")
