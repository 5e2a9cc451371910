"""Laws of pictures: what a person sees, from −1 to 1, in the one size asked for."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clearhead.config.model import Images
from clearhead.errors import ClearheadError
from clearhead.tokenizers.media import read_image, read_images

GREY = Images(image_size=4, patch_size=2, num_channels=1)
COLOUR = Images(image_size=4, patch_size=2, num_channels=3)
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)


def test_black_is_minus_one_and_white_is_one() -> None:
    for value, expected in ((0, -1.0), (255, 1.0)):
        read = read_image(np.full((7, 5), value, np.uint8), GREY)
        assert torch.equal(read, torch.full((1, 4, 4), expected))


def test_a_picture_of_the_right_size_keeps_every_pixel() -> None:
    expected = torch.from_numpy(PIXELS.astype(np.float32) / 255).permute(2, 0, 1) * 2 - 1
    torch.testing.assert_close(read_image(PIXELS, COLOUR), expected)


def test_paths_images_and_arrays_are_the_same_picture(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    path = tmp_path / "a.png"
    batch = read_images([path, str(path), Image.open(path), PIXELS], COLOUR)
    assert batch.shape == (4, 3, 4, 4)
    assert batch.dtype == torch.float32
    assert all(torch.equal(one, batch[0]) for one in batch)


def test_resizing_is_pillows_bicubic() -> None:
    large = np.random.default_rng(1).integers(0, 256, (9, 6, 3), dtype=np.uint8)
    small = np.asarray(Image.fromarray(large).resize((4, 4), Image.Resampling.BICUBIC))
    assert torch.equal(read_image(large, COLOUR), read_image(small, COLOUR))


def test_grey_and_colour_read_each_other() -> None:
    grey = PIXELS[:, :, 0]
    assert torch.equal(read_image(grey, COLOUR), read_image(grey, GREY).expand(3, 4, 4))
    assert torch.equal(read_image(grey[:, :, None], GREY), read_image(grey, GREY))
    expected = PIXELS @ np.array([0.299, 0.587, 0.114]) / 127.5 - 1
    np.testing.assert_allclose(read_image(PIXELS, GREY)[0], expected, atol=1 / 127.5)


def test_clear_parts_are_white() -> None:
    ink = np.zeros((4, 4, 4), np.uint8)  # black all over, drawn only where alpha says
    ink[0, 0, 3] = 255
    read = read_image(ink, GREY)
    assert read[0, 0, 0] == -1
    assert (read.flatten()[1:] == 1).all()


def test_a_photo_taken_sideways_stands_upright(tmp_path: Path) -> None:
    turned = Image.fromarray(np.rot90(PIXELS))
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me clockwise to see me"
    turned.save(tmp_path / "a.png", exif=exif)
    assert torch.equal(read_image(tmp_path / "a.png", COLOUR), read_image(PIXELS, COLOUR))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            lambda: read_image(PIXELS, Images(num_channels=2)),
            r"1 channel \(grey\) or 3 \(colour\), not 2\.",
        ),
        (lambda: read_image(PIXELS / 255, COLOUR), r"must be uint8 .*, not float64 of 4 x 4 x 3\."),
        (
            lambda: read_image(PIXELS.T[:2].T, COLOUR),
            r"1, 3 or 4 channels last, not uint8 of 4 x 4 x 2\.",
        ),
        (lambda: read_image(PIXELS[:0], COLOUR), r"not uint8 of 0 x 4 x 3\."),
        (lambda: read_image(PIXELS[0, 0], COLOUR), r"not uint8 of 3\."),
        (
            lambda: read_image(Image.new("I;16", (4, 4)), GREY),
            r"the picture has deep pixels \(mode I;16\); save",
        ),
        (
            lambda: read_image("/no/such.png", GREY),
            r"/no/such\.png cannot be read: there is no such file\.",
        ),
        (lambda: read_images([], GREY), r"a batch needs at least one picture; none was given\."),
    ],
)
def test_a_mistake_is_told_in_a_sentence(wrong: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ClearheadError, match=sentence):
        wrong()


def test_a_file_that_is_no_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("not a picture")
    with pytest.raises(ClearheadError, match=r"a\.png is not a picture; a PNG"):
        read_image(tmp_path / "a.png", COLOUR)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_a_damaged_file_is_read_or_named(kind: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    chance = np.random.default_rng(2)
    Image.fromarray(chance.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(file, kind)
    refused = 0
    for _ in range(60):
        damaged = np.frombuffer(file.getvalue(), np.uint8).copy()
        damaged[chance.integers(0, min(300, len(damaged)), 3)] = chance.integers(0, 256, 3)
        (tmp_path / "a").write_bytes(damaged[: chance.integers(1, 2 * len(damaged))].tobytes())
        try:
            assert read_image(tmp_path / "a", COLOUR).shape == (3, 4, 4)
        except ClearheadError as error:
            assert str(tmp_path / "a") in str(error)  # noqa: PT017
            refused += 1
    assert refused
