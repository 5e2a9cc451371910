"""Pictures and sounds, as numbers or as files that hold them, become what the network reads."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, warn
from clearhead.tokens import pictures
from clearhead.tokens import sound as sounds

BRIGHT = 2.0  # deviations of a point, above the mean of what a model expects, that a whole picture may have
SILENT = 1e-4  # of full loudness (-80 dB): rooms in which nobody speaks are louder


def read(x: object, reads: c.Pictures | c.Sound | c.Spectrogram) -> tuple[Tensor, bool]:
    """Pictures as channels × height × width and sound as samples, one or a batch; or files of them."""
    if not isinstance(x, Tensor):
        files: list[Any] = list(x) if isinstance(x, list | tuple) else [x]
        single = not isinstance(x, list | tuple)
        if not files:
            raise ClearheadError(f"at least one file of {reads.kind} is needed.")
        if isinstance(reads, c.Pictures):
            seen = pictures.batch(files, reads)
            _warn(_doubtful_picture(file, picture, reads) for file, picture in zip(files, seen, strict=True))
            return seen, single
        if not all(isinstance(file, str | Path) for file in files):
            kind = next(type(file).__name__ for file in files if not isinstance(file, str | Path))
            raise ClearheadError(f"{reads.kind} must be a tensor of samples or the name of a file, not {kind}.")
        heard, doubts = list[Tensor](), list[str]()
        for file in files:
            samples = sounds.read(file, reads)
            heard.append(sounds.log_mel(samples, reads))
            doubts.append(_doubtful_sound(file, samples, reads))
        _warn(doubts)
        return torch.cat(heard), single
    one = 3 if isinstance(reads, c.Pictures) else 1
    if not x.is_floating_point() or x.dim() not in (one, one + 1):
        sizes = f"{one} dimensions, or {one + 1} for a batch"
        raise ClearheadError(f"{reads.kind} must be floating-point numbers of {sizes}, not {x.dim()}-D {x.dtype}.")
    if not x.numel() or not bool(x.isfinite().all()):
        raise ClearheadError(f"the tensor of {reads.kind} is empty, or holds values that are no finite numbers.")
    single = x.dim() == one
    x = x[None] if single else x
    return x if isinstance(reads, c.Pictures) else sounds.log_mel(x.float(), reads), single


def _warn(doubts: Iterable[str]) -> None:
    """Of many, one tells enough."""
    for doubt in filter(None, doubts):
        warn(doubt)
        return


def _doubtful_picture(file: object, picture: Tensor, reads: c.Pictures) -> str:
    """Whether nothing is to be seen, or it is far brighter than those that the model learned from."""
    name = file if isinstance(file, str | Path) else "the picture"
    if bool((picture == picture[:, :1, :1]).all()):
        return f"{name} is of one colour: there is nothing to see, whatever the answer."
    if picture.mean() > BRIGHT:
        bright = f"{name} is far brighter than what this model expects (about {reads.mean[0]:.2f} of white)"
        return f"{bright}; what it reads may have to be light on dark."
    return ""


def _doubtful_sound(file: str | Path, samples: Tensor, reads: c.Mel) -> str:
    """Whether its end is not heard, or nothing is to be heard in what is."""
    heard = samples[: reads.frames * reads.hop]
    silent = bool(heard.std(correction=0) < SILENT)
    whole, part = (f"{seconds:.1f} s" for seconds in (sounds.lasts(file), len(heard) / reads.rate))
    if whole != part and len(samples) > len(heard):
        end = ", and that is silent: there is nothing to hear, whatever the answer" if silent else ""
        return f"{file} lasts {whole}; only its first {part} is heard{end}."
    return f"{file} is silent: there is nothing to hear, whatever the answer." if silent else ""
