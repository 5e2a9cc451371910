"""`clearhead export`: a model in the format of another engine."""

import sys
from pathlib import Path

import typer

from clearhead.cli.common import MODEL_ARGUMENT

Folder = typer.Argument(
    help="Where it goes; the folder is written whole or not at all.", show_default=False
)
Kind = typer.Option("hf", "--format", help="clearhead, hf, gguf, ctranslate2 or onnx.")
Dtype = typer.Option(
    "stored",
    help="float32, float16 or bfloat16; stored = as the weights are, quantised ones in 32 bits.",
)


def export(
    model: str = MODEL_ARGUMENT, folder: Path = Folder, kind: str = Kind, dtype: str = Dtype
) -> None:
    """Write a model for another engine.

    Its tokenizer and chat template go with it. What a format cannot express is refused with the reason.
    """
    from clearhead.api import load, save

    loaded = load(model, device="cpu", dtype=dtype)
    if sys.stderr.isatty():  # it may take a minute
        typer.echo(f"writing {loaded!r} as {kind} …", err=True)
    save(loaded, folder, kind)
    sizes = sorted(
        (path.stat().st_size, str(path.relative_to(folder)))
        for path in folder.rglob("*")
        if path.is_file()
    )
    for size, name in reversed(sizes):
        typer.echo(f"{size:>14,}  {folder / name}")
