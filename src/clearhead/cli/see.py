"""`clearhead see`: an attention head as a picture."""

from pathlib import Path

import typer

from clearhead.cli.flags import MODEL


def see(
    model: str = MODEL,
    text: str = typer.Argument(help="What the model reads.", show_default=False),
    layer: int = typer.Option(0, help="Which block, from 0."),
    head: int = typer.Option(0, help="Which head, from 0."),
    out: Path = typer.Option(
        None, help="Save as .png or .svg; without it the picture is drawn here.", show_default=False
    ),
) -> None:
    """Show where each token looks."""
    from rich.console import Console

    from clearhead import api
    from clearhead.errors import ClearheadError
    from clearhead.lens.plots import attention_figure, attention_text

    if out is not None and out.suffix not in (".png", ".svg"):
        raise ClearheadError(f"{out} must end in .png or .svg.")
    seen = api.load(model).watch(text, ["blocks.*.attn.pattern"])
    if out is None:
        Console().print(attention_text(seen, layer, head), soft_wrap=True)
        return
    attention_figure(seen, layer, head).savefig(out, dpi=160)
    typer.echo(f"saved {out}")
