"""Pictures and sounds as tokens: what the model makes of them before it reads them, and how they are cut (L6.4)."""

from typing import Any

import torch
from fastapi import APIRouter
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.lens.view import Axis, View
from clearhead.serve.pages import uploads
from clearhead.serve.pages.asked import Asked
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.wire import sent
from clearhead.tokens import pictures
from clearhead.tokens import sound as sounds


class Look(Asked):
    """A file in base64, as a browser reads it."""

    picture: str | None = None
    sound: str | None = None


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/patches")
    async def patches(asked: Look) -> dict[str, Any]:
        """What the model reads of a picture or a sound, and the grid of its patches."""
        return await desk.answer(asked, looked, asked.picture, asked.sound)

    return router


def looked(model: Model, picture: str | None, sound: str | None) -> dict[str, Any]:
    """What there is to see, how it came to be in words, and where each token lies in it."""
    m = model.config.model
    reads = m.reads
    rows, columns, first = grid(reads)
    if isinstance(reads, c.Pictures) and picture is not None:
        image = uploads.picture(picture)
        shown, steps = _seen(pictures.read(image, reads), reads), _pictured(image.width, image.height, reads)
    elif isinstance(reads, c.Sound | c.Spectrogram) and sound is not None:
        samples = uploads.sound(sound, reads)
        shown, steps = _heard(samples, reads), _sounded(len(samples), reads)
    else:
        raise ClearheadError(f"this model reads {reads.kind}; none was sent.")
    return {"view": sent(shown), "steps": steps, "rows": rows, "columns": columns, "first": first}


def grid(reads: c.Input) -> tuple[int, int, bool]:
    """Patches from top to bottom and from left to right, and whether a learned token stands before them."""
    match reads:
        case c.Pictures():
            return reads.size // reads.patch, reads.size // reads.patch, reads.first_token
        case c.Spectrogram():
            return reads.mels // reads.patch_mels, reads.frames // reads.patch_frames, reads.first_token
        case c.Sound():
            return 1, c.tokens_of(reads), False
        case c.Tokens():
            raise ClearheadError("this model reads text, which is not cut into patches.")


def _seen(values: Tensor, reads: c.Pictures) -> View:
    """The picture as it is cut, each colour from 0 to 1."""
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (reads.mean, reads.deviation))
    colours = ("grey",) if reads.channels == 1 else ("red", "green", "blue")
    axes = Axis.of("colour", colours), Axis.of("row", reads.size), Axis.of("column", reads.size)
    return View(values * deviation + mean, axes, "what the model sees", "brightness", most=1.0)


def _pictured(wide: int, high: int, reads: c.Pictures) -> list[str]:
    mean, deviation = (", ".join(f"{value:g}" for value in each) for each in (reads.mean, reads.deviation))
    count, numbers = c.tokens_of(reads) - reads.first_token, reads.patch**2 * reads.channels
    return [
        f"{wide} × {high} pixels, upright, in {'grey' if reads.channels == 1 else 'colour'}, clear parts on white",
        f"stretched to {reads.size} × {reads.size} pixels ({reads.smooth})",
        f"values from 0 to 1, less {mean}, divided by {deviation}",
        f"cut into {count} patches of {reads.patch} × {reads.patch} pixels",
        f"the {numbers} numbers of a patch times one matrix are a token",
    ]


def _heard(samples: Tensor, reads: c.Sound | c.Spectrogram) -> View:
    bands = [str(band) for band in reversed(range(reads.mels))]  # high pitches on top
    axes = Axis.of("band", bands), Axis.of("frame", reads.frames)
    middle = "4" if isinstance(reads, c.Sound) else "4 - loudest"
    note = f"how loud each band of pitches is, frame by frame: log10, at most 8 below the loudest, (x + {middle}) / 4"
    return View(sounds.log_mel(samples, reads)[0].flip(0), axes, "what the model hears", "loudness", True, note=note)


def _sounded(samples: int, reads: c.Sound | c.Spectrogram) -> list[str]:
    rows, columns, _ = grid(reads)
    patches = (
        "two convolutions, the second with every other frame: a token for two frames"
        if isinstance(reads, c.Sound)
        else f"cut into {rows} × {columns} patches; the numbers of a patch times one matrix are a token"
    )
    heard = reads.frames * reads.hop
    seconds = f"{samples / reads.rate:.2f} s" if samples <= heard else f"more than {heard / reads.rate:.2f} s"
    return [
        f"{seconds}, channels mixed, at {reads.rate:,} samples a second",
        f"cut, or filled with silence, to {heard / reads.rate:.2f} s",
        f"{reads.frames} frames, one every {1000 * reads.hop / reads.rate:g} ms, of {reads.mels} bands of pitches",
        patches,
    ]
