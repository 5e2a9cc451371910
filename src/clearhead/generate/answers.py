"""What models answer that do not write: a vector for a text."""

import torch
from torch import Tensor

from clearhead.errors import ClearheadError
from clearhead.model.heads import pool_mean


def pooled(hidden: Tensor, segments: Tensor | None, pooling: str, unit: bool) -> Tensor:
    """One vector for each row: the mean of its hidden states, or the first; scaled to length 1 if asked for."""
    if pooling not in ("mean", "first"):
        raise ClearheadError(f"pooling {pooling!r} is unknown; it is mean or first.")
    vectors = pool_mean(hidden, segments) if pooling == "mean" else hidden[:, 0]
    return torch.nn.functional.normalize(vectors, dim=-1) if unit else vectors
