"""Pictures and sounds as tokens: what the model makes of them before it reads them, and how they are cut (L6.4)."""

from typing import Any

import torch
from fastapi import APIRouter
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.lens.view import Axis, View
from clearhead.serve.explorer.runs import ExplorerRequest, decode_audio, decode_image
from clearhead.serve.explorer.serialize import view_to_dict
from clearhead.serve.explorer.service import ExplorerService
from clearhead.tokenizers.media import log_mel, read_image


class MediaRequest(ExplorerRequest):
    """A file in base64, as a browser reads it."""

    image: str | None = None
    audio: str | None = None


def media_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/patches")
    async def patches(asked: MediaRequest) -> dict[str, Any]:
        """What the model reads of a picture or a sound, and the grid of its patches."""
        return await desk.call(asked, describe_media, asked.image, asked.audio)

    return router


def describe_media(model: Model, picture: str | None, sound: str | None) -> dict[str, Any]:
    """What there is to see, how it came to be in words, and where each token lies in it."""
    m = model.config.model
    reads = m.main_input
    rows, columns, first = patch_grid(reads)
    if isinstance(reads, c.Images) and picture is not None:
        image = decode_image(picture)
        shown = _seen(read_image(image, reads), reads)
        steps = _pictured(image.width, image.height, reads)
    elif isinstance(reads, c.Audio | c.Spectrogram) and sound is not None:
        samples = decode_audio(sound, reads)
        shown = _heard(samples, reads)
        steps = _sounded(len(samples), reads)
    else:
        raise ClearheadError(f"this model reads {reads.kind}; none was sent.")
    return {
        "view": view_to_dict(shown),
        "steps": steps,
        "rows": rows,
        "columns": columns,
        "first": first,
    }


def patch_grid(reads: c.Input) -> tuple[int, int, bool]:
    """Patches from top to bottom and from left to right, and whether a learned token stands before them."""
    match reads:
        case c.Images():
            return (
                reads.image_size // reads.patch_size,
                reads.image_size // reads.patch_size,
                reads.cls_token,
            )
        case c.Spectrogram():
            return (
                reads.n_mels // reads.patch_mels,
                reads.n_frames // reads.patch_frames,
                reads.cls_token,
            )
        case c.Audio():
            return 1, c.num_input_tokens(reads), False
        case c.Tokens():
            raise ClearheadError("this model reads text, which is not cut into patches.")


def _seen(values: Tensor, reads: c.Images) -> View:
    """The picture as it is cut, each colour from 0 to 1."""
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (reads.mean, reads.std))
    colours = ("grey",) if reads.num_channels == 1 else ("red", "green", "blue")
    axes = (
        Axis.from_labels("colour", colours),
        Axis.from_labels("row", reads.image_size),
        Axis.from_labels("column", reads.image_size),
    )
    return View(values * deviation + mean, axes, "what the model sees", "brightness", vmax=1.0)


def _pictured(wide: int, high: int, reads: c.Images) -> list[str]:
    mean, deviation = (
        ", ".join(f"{value:g}" for value in each) for each in (reads.mean, reads.std)
    )
    count = c.num_input_tokens(reads) - reads.cls_token
    numbers = reads.patch_size**2 * reads.num_channels
    return [
        f"{wide} × {high} pixels, upright, in {'grey' if reads.num_channels == 1 else 'colour'}, clear parts on white",
        f"stretched to {reads.image_size} × {reads.image_size} pixels ({reads.resample})",
        f"values from 0 to 1, less {mean}, divided by {deviation}",
        f"cut into {count} patches of {reads.patch_size} × {reads.patch_size} pixels",
        f"the {numbers} numbers of a patch times one matrix are a token",
    ]


def _heard(samples: Tensor, reads: c.Audio | c.Spectrogram) -> View:
    bands = [str(band) for band in reversed(range(reads.n_mels))]  # high pitches on top
    axes = Axis.from_labels("band", bands), Axis.from_labels("frame", reads.n_frames)
    middle = "4" if isinstance(reads, c.Audio) else "4 - loudest"
    note = f"how loud each band of pitches is, frame by frame: log10, at most 8 below the loudest, (x + {middle}) / 4"
    return View(
        log_mel(samples, reads)[0].flip(0),
        axes,
        "what the model hears",
        "loudness",
        True,
        note=note,
    )


def _sounded(samples: int, reads: c.Audio | c.Spectrogram) -> list[str]:
    rows, columns, _ = patch_grid(reads)
    patches = (
        "two convolutions, the second with every other frame: a token for two frames"
        if isinstance(reads, c.Audio)
        else f"cut into {rows} × {columns} patches; the numbers of a patch times one matrix are a token"
    )
    heard = reads.n_frames * reads.hop_length
    seconds = (
        f"{samples / reads.sample_rate:.2f} s"
        if samples <= heard
        else f"more than {heard / reads.sample_rate:.2f} s"
    )
    return [
        f"{seconds}, channels mixed, at {reads.sample_rate:,} samples a second",
        f"cut, or filled with silence, to {heard / reads.sample_rate:.2f} s",
        f"{reads.n_frames} frames, one every {1000 * reads.hop_length / reads.sample_rate:g} ms, of {reads.n_mels} bands of pitches",
        patches,
    ]
