"""Laws of images: upright, on white, resized, normalized to -1 … 1."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from clearhead.config.model import Images
from clearhead.errors import ClearheadError
from clearhead.tokenizers.media import open_image, read_image, read_media

GRAY = Images(image_size=4, patch_size=2, num_channels=1)
COLOR = Images(image_size=4, patch_size=2, num_channels=3)
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)


def test_pixels_are_normalized_to_minus_one_to_one() -> None:
    for value, expected in ((0, -1.0), (255, 1.0)):
        read = read_image(np.full((7, 5), value, np.uint8), GRAY)
        assert torch.equal(read, torch.full((1, 4, 4), expected))


def test_image_of_the_model_size_is_not_resampled() -> None:
    expected = torch.from_numpy(PIXELS.astype(np.float32) / 255).permute(2, 0, 1) * 2 - 1
    torch.testing.assert_close(read_image(PIXELS, COLOR), expected)


def test_paths_images_and_arrays_give_the_same_tensor(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    path = tmp_path / "a.png"
    batch, _ = read_media([path, str(path), Image.open(path), PIXELS], COLOR)
    assert batch.shape == (4, 3, 4, 4)
    assert batch.dtype == torch.float32
    assert all(torch.equal(one, batch[0]) for one in batch)


def test_resizing_equals_pillow() -> None:
    large = np.random.default_rng(1).integers(0, 256, (9, 6, 3), dtype=np.uint8)
    small = np.asarray(Image.fromarray(large).resize((4, 4), Image.Resampling.BICUBIC))
    assert torch.equal(read_image(large, COLOR), read_image(small, COLOR))


def test_gray_and_color_are_converted() -> None:
    gray = PIXELS[:, :, 0]
    assert torch.equal(read_image(gray, COLOR), read_image(gray, GRAY).expand(3, 4, 4))
    assert torch.equal(read_image(gray[:, :, None], GRAY), read_image(gray, GRAY))
    expected = PIXELS @ np.array([0.299, 0.587, 0.114]) / 127.5 - 1
    np.testing.assert_allclose(read_image(PIXELS, GRAY)[0], expected, atol=1 / 127.5)


def test_transparent_pixels_are_white() -> None:
    ink = np.zeros((4, 4, 4), np.uint8)  # black all over, drawn only where alpha says
    ink[0, 0, 3] = 255
    read = read_image(ink, GRAY)
    assert read[0, 0, 0] == -1
    assert (read.flatten()[1:] == 1).all()


@pytest.mark.parametrize("orientation", range(1, 10))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(PIXELS).save(tmp_path / "a.png", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "a.png"))
    assert torch.equal(read_image(tmp_path / "a.png", COLOR), read_image(upright, COLOR))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: read_image(PIXELS, Images(num_channels=2)),
            r"1 \(gray\) or 3 \(color\), got 2",
        ),
        (lambda: read_image(PIXELS / 255, COLOR), r"must be uint8 .*, got float64"),
        (
            lambda: read_image(PIXELS.T[:2].T, COLOR),
            r"1, 3 or 4 channels, got uint8 of shape \(4, 4, 2\)",
        ),
        (lambda: read_image(PIXELS[:0], COLOR), r"got uint8 of shape \(0, 4, 3\)"),
        (lambda: read_image(PIXELS[0, 0], COLOR), r"got uint8 of shape \(3,\)"),
        (
            lambda: read_image(Image.new("I;16", (4, 4)), GRAY),
            r"more than 8 bits per channel \(mode I;16\)",
        ),
        (
            lambda: read_image("/no/such.png", GRAY),
            r"/no/such\.png cannot be read",
        ),
        (lambda: read_media([], GRAY), r"list of images is empty"),
    ],
)
def test_invalid_images_are_rejected(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ClearheadError, match=message):
        call()


def test_files_of_other_formats_are_rejected_as_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("not an image")
    with pytest.raises(ClearheadError, match=r"a\.png is not an image"):
        read_image(tmp_path / "a.png", COLOR)


def test_postscript_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.eps")
    file = (tmp_path / "a.eps").rename(tmp_path / "cat.png")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", pytest.fail)
    with pytest.raises(ClearheadError, match=r"cat\.png is not an image"):
        read_image(file, COLOR)


def test_images_of_too_many_pixels_are_rejected_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("1", (13_000, 13_000)).save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size < 25_000
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", pytest.fail)
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(ClearheadError, match="13000 × 13000"),
    ):
        read_image(tmp_path / "a.png", COLOR)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP"])
def test_damaged_images_are_read_or_rejected(kind: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    rng = np.random.default_rng(2)
    Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(file, kind)
    num_rejected = 0
    for _ in range(60):
        damaged = np.frombuffer(file.getvalue(), np.uint8).copy()
        damaged[rng.integers(0, min(300, len(damaged)), 3)] = rng.integers(0, 256, 3)
        (tmp_path / "a").write_bytes(damaged[: rng.integers(1, 2 * len(damaged))].tobytes())
        try:
            assert read_image(tmp_path / "a", COLOR).shape == (3, 4, 4)
        except ClearheadError as error:
            assert str(tmp_path / "a") in str(error)  # noqa: PT017
            num_rejected += 1
    assert num_rejected


def progressive_jpeg(size: tuple[int, int], num_copies: int, kind: str = "JPEG") -> bytes:
    """A JPEG whose last scan is stored several times more."""
    file = io.BytesIO()
    picture = Image.new("RGB", size)
    if kind == "MPO":  # opened as such, not as JPEG
        picture.save(file, kind, save_all=True, append_images=[picture], progressive=True)
    else:
        picture.save(file, kind, progressive=True)
    content = file.getvalue()
    end = content.index(b"\xff\xd9")
    last_scan = content[content.rindex(b"\xff\xda", 0, end) : end]
    return content[:end] + num_copies * last_scan + content[end:]


@pytest.mark.parametrize("kind", ["JPEG", "MPO"])
def test_jpegs_of_many_scans_are_rejected_before_decoding(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = io.BytesIO(progressive_jpeg((4000, 3000), 0))
    assert open_image(photo, "a.jpg", max_pixels=12_000_000).getpixel((0, 0)) == (0, 0, 0)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", pytest.fail)
    for size, num_copies, message in (
        ((16, 16), 200, "21. scans; at most 100"),
        ((4000, 3000), 30, "too many scans .* 4000 × 3000"),
    ):
        file = io.BytesIO(progressive_jpeg(size, num_copies, kind))
        with pytest.raises(ClearheadError, match=message):
            open_image(file, "a.jpg", max_pixels=16_000_000)


def test_scans_hidden_behind_markers_that_libjpeg_skips_are_counted() -> None:
    content = progressive_jpeg((16, 16), 200)
    first_scan = content.index(b"\xff\xda")
    skipped = b"\xff\x02\xff\xff\xff\xd0\xff\x00\xff"  # no segment, restart, data, padding
    with pytest.raises(ClearheadError, match="scans"):
        open_image(io.BytesIO(content[: first_scan + 20] + skipped + content[first_scan:]), "a")


def test_thumbnails_and_what_follows_the_end_do_not_count_as_scans() -> None:
    thumbnail = b"Exif\0\0" + 300 * b"\xff\xda\0\x08\x03\xff\xc9"
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    content = progressive_jpeg((16, 16), 0)
    file = content[:2] + segment + content[2:] + content[2:] * 30
    open_image(io.BytesIO(file), "a.jpg").load()


def test_jpegs_with_arithmetic_coding_are_rejected(tmp_path: Path) -> None:
    for kind in (0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF):
        content = progressive_jpeg((16, 16), 0).replace(b"\xff\xc2", bytes([0xFF, kind]))
        (tmp_path / "a.jpg").write_bytes(content)
        with pytest.raises(ClearheadError, match="arithmetic"):
            read_image(tmp_path / "a.jpg", COLOR)
