"""`clearhead embed`: one vector for each text."""

from pathlib import Path

import typer

from clearhead.cli.common import (
    INPUT_OPTION,
    MODEL_ARGUMENT,
    map_batches,
    read_text_batches,
    warn_if_file_name,
)


def embed(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(None, help="One text.", show_default=False),
    file: str = INPUT_OPTION,
    output: Path = typer.Option(
        Path("vectors.npy"), help="Where the vectors go: texts × width, for numpy.load."
    ),
    pooling: str = typer.Option(
        "", help="mean or first; as the model was made for without it.", show_default=False
    ),
) -> None:
    """Turn texts into vectors."""
    import io

    import numpy as np
    import torch

    from clearhead.api import load
    from clearhead.io import write_atomic
    from clearhead.lens.view import check_parent_folder

    check_parent_folder(output)
    warn_if_file_name(text)
    blocks = read_text_batches(text, file)
    loaded = load(model)
    found = map_batches(blocks, file, lambda some: loaded.embed(some, pooling).float().cpu())
    vectors = torch.stack([vector for _, vector in found]).numpy()
    held = io.BytesIO()
    np.save(held, vectors)
    write_atomic(output, held.getvalue())
    typer.echo(
        f"{len(vectors):,} vector{'s' * (len(vectors) != 1)} of {vectors.shape[1]} numbers in {output}"
    )
