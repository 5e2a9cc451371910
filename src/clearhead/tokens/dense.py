"""Pictures and sounds, as numbers or as files that hold them, become what the network reads."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.tokens import pictures
from clearhead.tokens import sound as sounds


def read(x: object, reads: c.Pictures | c.Sound | c.Spectrogram) -> tuple[Tensor, bool]:
    """Pictures as channels × height × width and sound as samples, one or a batch; or files of them."""
    if not isinstance(x, Tensor):
        files: list[Any] = list(x) if isinstance(x, list | tuple) else [x]
        single = not isinstance(x, list | tuple)
        if not files:
            raise ClearheadError(f"at least one file of {reads.kind} is needed.")
        if isinstance(reads, c.Pictures):
            return pictures.batch(files, reads), single
        if not all(isinstance(file, str | Path) for file in files):
            raise ClearheadError(f"{reads.kind} must be a tensor of samples or the name of a file.")
        heard = [sounds.log_mel(sounds.read(file, reads), reads) for file in files]
        return torch.cat(heard), single
    one = 3 if isinstance(reads, c.Pictures) else 1
    if not x.is_floating_point() or x.dim() not in (one, one + 1):
        sizes = f"{one} dimensions, or {one + 1} for a batch"
        raise ClearheadError(f"{reads.kind} must be floating-point numbers of {sizes}, not {x.dim()}-D {x.dtype}.")
    single = x.dim() == one
    x = x[None] if single else x
    return x if isinstance(reads, c.Pictures) else sounds.log_mel(x.float(), reads), single
