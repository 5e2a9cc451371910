"""`clearhead embed`: one vector for each text."""

from pathlib import Path

import typer

from clearhead.cli import hints
from clearhead.cli.flags import MODEL
from clearhead.cli.lines import INPUT, answered, read_texts


def embed(
    model: str = MODEL,
    text: str = typer.Argument(None, help="One text.", show_default=False),
    file: str = INPUT,
    output: Path = typer.Option(Path("vectors.npy"), help="Where the vectors go: texts × width, for numpy.load."),
    pooling: str = typer.Option("", help="mean or first; as the model was made for without it.", show_default=False),
) -> None:
    """Turn texts into vectors."""
    import io

    import numpy as np
    import torch

    from clearhead import api
    from clearhead.files import overwrite
    from clearhead.lens.view import check_folder

    check_folder(output)
    hints.if_file(text)
    blocks, loaded = read_texts(text, file), api.load(model)
    found = answered(blocks, file, lambda some: loaded.embed(some, pooling).float().cpu())
    vectors = torch.stack([vector for _, vector in found]).numpy()
    held = io.BytesIO()
    np.save(held, vectors)
    overwrite(output, held.getvalue())
    typer.echo(f"{len(vectors):,} vector{'s' * (len(vectors) != 1)} of {vectors.shape[1]} numbers in {output}")
