"""`clearhead export`: save a model in the format of another engine."""

import sys
from pathlib import Path
from typing import Literal

import typer

from clearhead.cli.common import MODEL_ARGUMENT, echo
from clearhead.errors import ClearheadError

ExportFormat = Literal["clearhead", "hf", "gguf", "ctranslate2", "onnx"]


def export(
    model: str = MODEL_ARGUMENT,
    folder: Path = typer.Argument(metavar="FOLDER", help="Output folder.", show_default=False),
    kind: ExportFormat = typer.Option("hf", "--format", help="Output format; hf: Hugging Face."),
    dtype: str = typer.Option(
        "stored",
        help="float32, float16 or bfloat16; stored = unchanged, quantized weights as float32.",
    ),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace the model of the same format in the folder."
    ),
) -> None:
    """Save a model in the format of another engine.

    Includes the tokenizer and the chat template. Fails if the format cannot represent the model.
    """
    from clearhead.api import load, save
    from clearhead.weights.checkpoint import check_replaceable

    check_replaceable(folder, kind)
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise ClearheadError(
            f"{folder} contains a model already. Choose another folder, or replace it with "
            "--overwrite."
        )
    loaded = load(model, device="cpu", dtype=dtype)
    if sys.stderr.isatty():
        echo(f"exporting {loaded!r} as {kind} …", err=True)
    save(loaded, folder, kind)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (-path.stat().st_size, path)):
        echo(f"{path.stat().st_size:>14,}  {path}")
