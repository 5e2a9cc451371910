"""`clearhead generate`: what follows a prompt."""

import typer

from clearhead.cli.flags import MODEL


def generate(
    model: str = MODEL,
    prompt: str = typer.Argument(help="What the text begins with.", show_default=False),
    max_tokens: int = typer.Option(40, help="How many tokens to write."),
    temperature: float = typer.Option(0.8, help="0 always takes the likeliest token; higher spreads the chance."),
    top_k: int = typer.Option(0, help="Draw only from the k likeliest tokens; 0 = all."),
    seed: int = typer.Option(0, help="The same seed gives the same text."),
) -> None:
    """Write on from a prompt."""
    from clearhead import api

    result = api.load(model).generate(prompt, max_tokens, temperature, top_k, seed)
    typer.echo(prompt + result.text)
