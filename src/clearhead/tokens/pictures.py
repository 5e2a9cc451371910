"""A picture becomes numbers, about −1 to 1, in the one size that the model cuts into patches (L6.4)."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from clearhead.config import Pictures
from clearhead.errors import ClearheadError, check_kind, unreadable

Picture = str | Path | Image.Image | NDArray[np.uint8]


def read(picture: Picture, source: Pictures) -> Float[Tensor, "channel height width"]:
    """One picture as a person sees it: upright, clear parts on white; stretched to the square, grey or in colour."""
    if source.channels not in (1, 3):
        raise ClearheadError(f"pictures have 1 channel (grey) or 3 (colour), not {source.channels}.")
    image = _image(picture).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if source.channels == 1 else "RGB")
    image = image.resize((source.size, source.size), Image.Resampling[source.smooth.upper()])
    pixels = torch.from_numpy(np.array(image)).view(source.size, source.size, source.channels)
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (source.mean, source.deviation))
    return (pixels.permute(2, 0, 1).contiguous() / 255 - mean) / deviation


def batch(pictures: Iterable[Picture], source: Pictures) -> Float[Tensor, "batch channel height width"]:
    """Several pictures, for the model to read at once."""
    read_ones = [read(picture, source) for picture in pictures]
    if not read_ones:
        raise ClearheadError("a batch needs at least one picture; none was given.")
    return torch.stack(read_ones)


def _image(picture: Picture) -> Image.Image:
    if isinstance(picture, np.ndarray):
        return _from_array(picture)
    check_kind(picture, str | Path | Image.Image, "the name of a picture's file, an image or an array")
    name = "the picture" if isinstance(picture, Image.Image) else str(picture)
    try:
        image = picture if isinstance(picture, Image.Image) else Image.open(picture)
        image = ImageOps.exif_transpose(image)
    except UnidentifiedImageError:
        raise ClearheadError(f"{name} is not a picture; a PNG, JPEG, GIF, WebP or the like is needed.") from None
    except Exception as error:  # pillow's decoders raise whatever they stumble over
        raise unreadable(name, error) from None
    if image.mode[0] in "IF":  # pillow would turn all but the darkest pixels white
        raise ClearheadError(f"{name} has deep pixels (mode {image.mode}); save it with 8 bits a colour.")
    return image


def _from_array(array: NDArray[np.uint8]) -> Image.Image:
    grey, colour = array.ndim == 2, array.ndim == 3 and array.shape[2] in (1, 3, 4)
    if array.dtype != np.uint8 or not (grey or colour) or not array.size:
        got = f"{array.dtype} of {' x '.join(map(str, array.shape)) or 'no size'}"
        raise ClearheadError(f"an array must be uint8 of height x width, or with 1, 3 or 4 channels last, not {got}.")
    return Image.fromarray(array[:, :, 0] if array.shape[2:] == (1,) else array)
