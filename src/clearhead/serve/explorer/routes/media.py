"""Images and audio as patches (L6.4): the preprocessed input and the grid of its tokens."""

import torch
from fastapi import APIRouter
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.lens.view import View, label_axes
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.requests import ExplorerRequest, decode_audio, decode_image
from clearhead.serve.explorer.serialize import view_to_dict
from clearhead.tokenizers.media import log_mel, read_image


class MediaRequest(ExplorerRequest):
    """A base64 file."""

    image: str | None = None
    audio: str | None = None


def media_routes(executor: ExplorerExecutor) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/patches")
    async def patches(request: MediaRequest) -> JSONDict:
        """The preprocessed image or spectrogram, and the grid of its patches."""
        return await executor.call(request, describe_media, request.image, request.audio)

    return router


def describe_media(model: Model, image: str | None, audio: str | None) -> JSONDict:
    """A view of the model's input, the preprocessing steps in words, and the patch grid."""
    media_input = model.config.model.main_input
    rows, cols, cls_token = patch_grid(media_input)
    if isinstance(media_input, c.Images) and image is not None:
        pil_image = decode_image(image)
        view = _image_view(read_image(pil_image, media_input), media_input)
        steps = _image_steps(pil_image.width, pil_image.height, media_input)
    elif isinstance(media_input, c.Audio | c.Spectrogram) and audio is not None:
        samples = decode_audio(audio, media_input)
        view = _audio_view(samples, media_input)
        steps = _audio_steps(len(samples), media_input)
    else:
        raise ClearheadError(f"This model needs {media_input.kind} as input.")
    return {
        "view": view_to_dict(view),
        "steps": steps,
        "rows": rows,
        "cols": cols,
        "cls_token": cls_token,
    }


def patch_grid(media_input: c.Input) -> tuple[int, int, bool]:
    """Rows and columns of patches, and whether a class token precedes them."""
    match media_input:
        case c.Images():
            size = media_input.image_size // media_input.patch_size
            return size, size, media_input.cls_token
        case c.Spectrogram():
            rows = media_input.n_mels // media_input.patch_mels
            cols = media_input.n_frames // media_input.patch_frames
            return rows, cols, media_input.cls_token
        case c.Audio():
            return 1, c.num_input_tokens(media_input), False
        case c.Tokens():
            raise ClearheadError("This model reads text, which has no patches.")


def _image_view(values: Tensor, media_input: c.Images) -> View:
    """The resized image, each channel from 0 to 1."""
    mean = torch.tensor(media_input.mean)[:, None, None]
    std = torch.tensor(media_input.std)[:, None, None]
    channels = ("gray",) if media_input.num_channels == 1 else ("red", "green", "blue")
    axes = label_axes(
        {"channel": channels, "row": media_input.image_size, "column": media_input.image_size}
    )
    return View(values * std + mean, axes, "model input", "brightness", vmax=1.0)


def _image_steps(width: int, height: int, media_input: c.Images) -> list[str]:
    size = media_input.image_size
    patch_size = media_input.patch_size
    mean = ", ".join(f"{value:g}" for value in media_input.mean)
    std = ", ".join(f"{value:g}" for value in media_input.std)
    num_patches = c.num_input_tokens(media_input) - media_input.cls_token
    num_values = patch_size**2 * media_input.num_channels
    color = "grayscale" if media_input.num_channels == 1 else "RGB"
    return [
        f"{width} × {height} pixels, upright, {color}, transparency on white",
        f"resized to {size} × {size} pixels ({media_input.resample})",
        f"values from 0 to 1, minus mean {mean}, divided by std {std}",
        f"split into {num_patches} patches of {patch_size} × {patch_size} pixels",
        f"the {num_values} values of a patch times one matrix give a token",
    ]


def _audio_view(samples: Tensor, media_input: c.Audio | c.Spectrogram) -> View:
    bands = [str(band) for band in reversed(range(media_input.n_mels))]  # high frequencies on top
    axes = label_axes({"band": bands, "frame": media_input.n_frames})
    offset = "4" if isinstance(media_input, c.Audio) else "4 − maximum"
    note = f"log10 mel spectrogram, clipped to 8 below its maximum, (x + {offset}) / 4"
    values = log_mel(samples, media_input)[0].flip(0)
    return View(values, axes, "model input", "loudness", signed=True, note=note)


def _audio_steps(num_samples: int, media_input: c.Audio | c.Spectrogram) -> list[str]:
    rows, cols, _ = patch_grid(media_input)
    rate = media_input.sample_rate
    max_samples = media_input.n_frames * media_input.hop_length
    is_longer = num_samples > max_samples
    duration = f"{'more than ' if is_longer else ''}{min(num_samples, max_samples) / rate:.2f} s"
    hop_milliseconds = 1000 * media_input.hop_length / rate
    if isinstance(media_input, c.Audio):
        tokens = "two convolutions, the second with stride 2: one token per two frames"
    else:
        tokens = f"split into {rows} × {cols} patches; a patch times one matrix gives a token"
    return [
        f"{duration}, mono, at {rate:,} samples per second",
        f"truncated or padded with silence to {max_samples / rate:.2f} s",
        f"{media_input.n_frames} frames, one every {hop_milliseconds:g} ms, "
        f"of {media_input.n_mels} mel bands",
        tokens,
    ]
