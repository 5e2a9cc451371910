"""`clearhead embed`: embed texts as vectors."""

import io
from pathlib import Path
from typing import Literal

import typer

from clearhead.cli.common import (
    INPUT_OPTION,
    MODEL_ARGUMENT,
    count_of,
    echo,
    map_batches,
    read_text_batches,
    warn_if_file_name,
)
from clearhead.errors import ClearheadError


def embed(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(None, metavar="TEXT", help="A text.", show_default=False),
    file: str = INPUT_OPTION,
    output: Path = typer.Option(
        Path("vectors.npy"), metavar="FILE", help="Output .npy or .csv file: texts × dimensions."
    ),
    pooling: Literal["mean", "first"] | None = typer.Option(
        None, help="Average over tokens, or first token. Default: as trained.", show_default=False
    ),
) -> None:
    """Embed texts as vectors."""
    import numpy as np
    import torch

    from clearhead.api import load
    from clearhead.io import write_atomic
    from clearhead.lens.view import check_parent_folder

    if output.suffix not in (".npy", ".csv"):
        raise ClearheadError(f"--output must be a .npy or .csv file, got {output}.")
    check_parent_folder(output)
    warn_if_file_name(text)
    batches = read_text_batches(text, file)
    loaded = load(model)
    results = map_batches(
        batches, file, lambda lines: loaded.embed(lines, pooling or "").float().cpu()
    )
    vectors = torch.stack([vector for _, vector in results]).numpy()
    buffer = io.BytesIO()
    if output.suffix == ".npy":
        np.save(buffer, vectors)
    else:
        np.savetxt(buffer, vectors, "%.9g", delimiter=",")
    write_atomic(output, buffer.getvalue())
    echo(f"saved {count_of(len(vectors), 'vector')} of size {vectors.shape[1]} to {output}")
