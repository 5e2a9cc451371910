"""`clearhead export`: save a model in the format of another engine."""

import sys
from pathlib import Path

import typer

from clearhead.cli.common import MODEL_ARGUMENT


def export(
    model: str = MODEL_ARGUMENT,
    folder: Path = typer.Argument(help="The folder to write.", show_default=False),
    kind: str = typer.Option("hf", "--format", help="clearhead, hf, gguf, ctranslate2 or onnx."),
    dtype: str = typer.Option(
        "stored",
        help="float32, float16 or bfloat16; stored = unchanged, quantized weights as float32.",
    ),
) -> None:
    """Save a model in the format of another engine.

    Includes tokenizer and chat template. Fails with the reason if the format cannot represent the
    model. The write is atomic.
    """
    from clearhead.api import load, save

    loaded = load(model, device="cpu", dtype=dtype)
    if sys.stderr.isatty():
        typer.echo(f"exporting {loaded!r} as {kind} …", err=True)
    save(loaded, folder, kind)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (-path.stat().st_size, path)):
        typer.echo(f"{path.stat().st_size:>14,}  {path}")
