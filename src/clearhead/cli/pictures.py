"""What becomes of a picture on the command line: it is saved, or drawn here."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

if TYPE_CHECKING:
    from clearhead.lens.view import View


def give(view: "View", out: Path | None) -> None:
    if out is None:
        Console(highlight=False).print(view.terminal(), soft_wrap=True, end="")
    else:
        view.save(out)
        typer.echo(f"saved {out}")
