"""Pictures and sounds that a browser sends, in base64, as what `model.logits` takes."""

import base64
import binascii
import io
from tempfile import NamedTemporaryFile
from typing import Any

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.tokens import sound as sounds

MOST_PIXELS = 40_000_000
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")  # pillow knows more, and hands some of them to other programs


def decoded(written: str) -> bytes:
    """The bytes of base64, or of a data: URL."""
    try:
        return base64.b64decode(written.partition(";base64,")[2] or written, validate=True)
    except (binascii.Error, ValueError):
        raise ClearheadError("what was sent is not base64.") from None


def picture(written: str) -> Any:
    """As pillow has it; one that would unfold to something huge is refused before it is unfolded."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(decoded(written)), formats=FORMATS)
    except UnidentifiedImageError:
        raise ClearheadError("what was sent is not a picture; a PNG, JPEG, GIF or WebP is needed.") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ClearheadError(f"the picture cannot be read: {error}.") from None
    if image.width * image.height > MOST_PIXELS:
        raise ClearheadError(f"the picture has {image.width} × {image.height} pixels; {MOST_PIXELS:,} are the most.")
    return image


def sound(written: str, reads: c.Mel) -> Any:
    """As samples at the model's rate."""
    with NamedTemporaryFile(prefix="clearhead.", suffix=".sound") as file:
        file.write(decoded(written))
        file.flush()
        try:
            return sounds.read(file.name, reads)
        except ClearheadError as error:
            raise ClearheadError(str(error).replace(file.name, "what was sent")) from None
