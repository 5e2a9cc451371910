"""`clearhead export`: a model in the format of another engine."""

from pathlib import Path

import typer

from clearhead.cli.flags import MODEL

Folder = typer.Argument(help="Where it goes; the folder is written whole or not at all.", show_default=False)
Kind = typer.Option("hf", "--format", help="clearhead, hf, gguf, ctranslate2 or onnx.")


def export(model: str = MODEL, folder: Path = Folder, kind: str = Kind) -> None:
    """Write a model for another engine, with its tokenizer and chat template.

    What a format cannot express is refused with the reason.
    """
    from clearhead import api

    api.save(api.load(model, device="cpu", dtype="stored"), folder, kind)
    sizes = sorted((path.stat().st_size, str(path.relative_to(folder))) for path in folder.rglob("*") if path.is_file())
    for size, name in reversed(sizes):
        typer.echo(f"{size:>14,}  {folder / name}")
