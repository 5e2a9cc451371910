"""Images and audio from folders, arrays and idx files, and errors for invalid ones."""

import io
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import soundfile
import torch
from compressed_files import compressor
from media_files import COLOR, GRAY, MEL, dataset, idx, media_examples, pixels, wav
from PIL import Image

from clearhead.data import media_dataset
from clearhead.data.media_dataset import exclude_valid_media, load_media
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError
from clearhead.tokenizers.media import log_mel, read_audio, read_image


def test_validation_files_are_excluded_from_the_training_folder(tmp_path):
    for number in range(4):
        wav(tmp_path / ("valid" if number > 2 else ".") / f"{number % 2}_x{number}.wav")
    report = DataReport()
    train, valid = (
        load_media(path, MEL, report, label="stem") for path in (tmp_path, tmp_path / "valid")
    )
    assert [Path(where).name for where in exclude_valid_media(train, valid, report).locations] == [
        "0_x0.wav",
        "0_x2.wav",
        "1_x1.wav",
    ]
    assert report.locations["the file belongs to data.valid"] == [
        str(tmp_path / "valid" / "1_x3.wav")
    ]
    assert exclude_valid_media(valid, media_examples(3), report) is valid
    with pytest.raises(ClearheadError, match=r"no training files are left"):
        exclude_valid_media(valid, train, report)


def test_folders_arrays_and_idx_files_give_the_same_images(tmp_path):
    images = pixels(6, 4, 4)
    labels = np.array([0, 0, 0, 1, 1, 1], np.uint8)
    for i, image in enumerate(images):
        folder = tmp_path / "folder" / str(labels[i])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    np.savez(tmp_path / "x.npz", images=images, labels=labels)
    np.savez_compressed(tmp_path / "y.npz", images=images[..., None], labels=labels.astype(str))
    idx(tmp_path / "t-images-idx3-ubyte", images)
    idx(tmp_path / "t-labels-idx1-ubyte", labels)
    idx(tmp_path / "t-images-idx3-ubyte.gz", images, compress=True)
    idx(tmp_path / "t-labels-idx1-ubyte.gz", labels, compress=True)
    for name in ("folder", "x.npz", "y.npz", "t-images-idx3-ubyte", "t-images-idx3-ubyte.gz"):
        report = DataReport()
        read = load_media(tmp_path / name, GRAY, report)
        assert read.data.dtype == torch.uint8
        assert torch.equal(read.data[:, 0], torch.from_numpy(images))
        assert list(read.labels) == [*"000111"]
        assert report.num_read == 6


@pytest.mark.parametrize(
    ("source", "shape"), [(GRAY, (4, 4)), (COLOR, (4, 4, 3)), (GRAY, (4, 4, 3)), (COLOR, (6, 5))]
)
def test_images_from_arrays_equal_inference_images(tmp_path, source, shape):
    images = pixels(3, *shape)
    np.savez(tmp_path / "x.npz", images=images, labels=["a", "b", "a"])
    read = load_media(tmp_path / "x.npz", source, DataReport())
    batch = next(dataset(read, read, config=source).valid_batches())
    assert torch.equal(batch.tokens, torch.stack([read_image(image, source) for image in images]))


def test_invalid_images_fail_or_are_skipped_by_name(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(pixels(40, 40)).save(tmp_path / name / "good.PNG")
    (tmp_path / "a" / "cut.png").write_bytes((tmp_path / "a" / "good.PNG").read_bytes()[:600])
    (tmp_path / "b" / "text.png").write_text("no picture")
    (tmp_path / "top.png").write_bytes((tmp_path / "a" / "good.PNG").read_bytes())
    (tmp_path / "b" / ".hidden.png").write_text("")
    (tmp_path / "README").write_text("about")
    with pytest.raises(ClearheadError, match=r"cut\.png: cannot be read.*on_error=skip"):
        load_media(tmp_path, GRAY, DataReport())
    report = DataReport("skip")
    assert [Path(where).name for where in load_media(tmp_path, GRAY, report).locations] == [
        "good.PNG"
    ] * 2
    for words in (
        "cut.png",
        "is not an image",
        "text.png",
        "not in the folder of a class",
        "top.png",
        "README",
    ):
        assert words in str(report)
    assert (report.num_read, sum(report.skipped.values())) == (2, 4)


class Trap:
    """Would run code while it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def test_pickled_arrays_are_rejected(tmp_path):
    np.savez(tmp_path / "x.npz", images=pixels(2, 4, 4), labels=np.array([Trap(), "b"], object))
    with pytest.raises(
        ClearheadError, match=r"x\.npz cannot be read: Object arrays cannot be loaded"
    ):
        load_media(tmp_path / "x.npz", GRAY, DataReport("skip"))


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (
            pixels(2, 4, 4).astype(np.float32),
            [0, 1],
            "must be uint8 .* got float32 of shape \\(2, 4, 4\\)",
        ),
        (pixels(2, 16), [0, 1], r"uint8 of shape \(2, 16\)"),
        (pixels(0, 4, 4), np.array([], int), r"uint8 of shape \(0, 4, 4\)"),
        (pixels(2, 4, 4), [0, 1, 1], r"one per image, got int64 of shape \(3,\) for 2"),
        (pixels(2, 4, 4), [0.5, 1], "integers or strings"),
        (pixels(2, 4, 4), [[0], [1]], "integers or strings"),
        (pixels(2, 4, 4, 2), [0, 1], "1, 3 or 4 channels"),
    ],
)
def test_arrays_of_other_shapes_are_rejected(tmp_path, images, labels, words):
    np.savez(tmp_path / "x.npz", images=images, labels=labels)
    with pytest.raises(ClearheadError, match=words):
        load_media(tmp_path / "x.npz", GRAY, DataReport())


def test_invalid_npz_files_are_rejected(tmp_path):
    np.savez(tmp_path / "x.npz", pictures=pixels(2, 4, 4), labels=[0, 1])
    with pytest.raises(ClearheadError, match="no array 'images'; it has pictures, labels"):
        load_media(tmp_path / "x.npz", GRAY, DataReport())
    whole = (tmp_path / "x.npz").read_bytes()
    np.save(tmp_path / "one.npy", pixels(2, 4, 4))
    for raw in (b"", b"no zip", whole[:-40], (tmp_path / "one.npy").read_bytes()):
        (tmp_path / "x.npz").write_bytes(raw)
        with pytest.raises(ClearheadError, match=r"x\.npz cannot be read"):
            load_media(tmp_path / "x.npz", GRAY, DataReport())


def test_compressed_arrays_are_refused_by_their_size_before_they_are_unpacked(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(media_dataset, "MAX_UNPACKED_BYTES", 10_000)
    images = np.zeros((100, 16, 16), np.uint8)
    labels = np.arange(100, dtype=np.uint8) % 2
    np.savez_compressed(tmp_path / "x.npz", images=images, labels=labels)
    idx(tmp_path / "t-images-idx3-ubyte.gz", images, compress=True)
    idx(tmp_path / "t-labels-idx1-ubyte.gz", labels, compress=True)
    with monkeypatch.context() as patch:
        patch.setattr(np.lib.npyio.NpzFile, "__getitem__", pytest.fail)
        patch.setattr(media_dataset, "read_at_most", pytest.fail)
        for name in ("x.npz", "t-images-idx3-ubyte.gz"):
            with pytest.raises(ClearheadError, match=f"{name} unpacks to .* GiB"):
                load_media(tmp_path / name, GRAY, DataReport())
    np.savez(tmp_path / "x.npz", images=images, labels=labels)  # as large as what it contains
    assert len(load_media(tmp_path / "x.npz", GRAY, DataReport()).labels) == 100


def test_arrays_that_declare_more_than_they_contain_are_rejected(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (10**17,)}
    )
    with ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue() + b"1")
        archive.writestr("labels.npy", header.getvalue() + b"1")
    with pytest.raises(ClearheadError, match=r"x\.npz cannot be read"):
        load_media(tmp_path / "x.npz", GRAY, DataReport())


def test_idx_files_must_match_their_header(tmp_path):
    images = idx(tmp_path / "t-images-idx3-ubyte", pixels(3, 4, 4))
    labels = idx(tmp_path / "t-labels-idx1-ubyte", np.array([0, 1, 1], np.uint8))
    right = images.read_bytes()
    for wrong in [
        right[:-1],
        right + b"x",
        right[:9],
        b"",
        right[:2] + b"\x0d" + right[3:],
        labels.read_bytes(),
        right[:4] + b"\xff" * 12 + right[16:],
    ]:
        images.write_bytes(wrong)
        with pytest.raises(ClearheadError, match="not a complete idx file"):
            load_media(images, GRAY, DataReport("skip"))
    images.write_bytes(right)
    idx(labels, np.array([0, 1], np.uint8))
    with pytest.raises(ClearheadError, match=r"has 3 images, but .* 2 labels"):
        load_media(images, GRAY, DataReport())
    labels.unlink()
    with pytest.raises(ClearheadError, match="labels-idx1-ubyte cannot be read"):
        load_media(images, GRAY, DataReport())
    compress = compressor(".zst")
    for file in (idx(images, pixels(3, 4, 4)), idx(labels, np.array([0, 1, 0], np.uint8))):
        file.with_name(f"{file.name}.zst").write_bytes(compress(file.read_bytes()))
    packed = images.with_name(f"{images.name}.zst")
    assert load_media(packed, GRAY, DataReport()).data.equal(
        load_media(images, GRAY, DataReport()).data
    )
    packed = idx(tmp_path / "t-images-idx3-ubyte.gz", pixels(3, 4, 4), True)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ClearheadError, match=r"ubyte\.gz cannot be read"):
        load_media(packed, GRAY, DataReport())


# --- audio
@pytest.mark.parametrize("label", ["folder", "stem"])
def test_training_audio_equals_inference_audio(tmp_path, label):
    files = [tmp_path / name for name in ("7/7_theo_0.wav", "7/7_theo_1.flac", "8/8_lucas_0.wav")]
    for i, file in enumerate(files):
        wav(file, 0.03 * (i + 1), rate=8000 + 1000 * i)
    report = DataReport()
    read = load_media(tmp_path, MEL, report, label=label)
    assert list(read.labels) == [*"778"]
    expected = torch.cat([log_mel(read_audio(file, MEL), MEL) for file in files])
    batch = next(dataset(read, read, config=MEL).valid_batches())
    assert batch.tokens.dtype == torch.float
    assert torch.equal(batch.tokens, expected)
    assert report.num_read == 3


def test_invalid_audio_fails_or_is_skipped_by_name(tmp_path):
    wav(tmp_path / "1_a.wav")
    wav(tmp_path / "2_a.wav")
    wav(tmp_path / "3_empty.wav", 0)
    soundfile.write(
        tmp_path / "4_nan.wav", np.array([0.0, np.nan], np.float32), 8000, subtype="FLOAT"
    )
    (tmp_path / "5_text.wav").write_text("no sound")
    with pytest.raises(ClearheadError, match=r"3_empty\.wav: is empty"):
        load_media(tmp_path, MEL, DataReport(), label="stem")
    report = DataReport("skip")
    assert list(load_media(tmp_path, MEL, report, label="stem").labels) == ["1", "2"]
    assert all(name in str(report) for name in ("3_empty.wav", "4_nan.wav", "5_text.wav"))


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("none", GRAY, "no such file"),
        ("empty", GRAY, "no labeled images"),
        ("empty", MEL, "no labeled audio"),
        ("x.npz", MEL, "must be a folder"),
        ("x.bin", GRAY, "must be a folder, an .npz or"),
    ],
)
def test_paths_without_media_are_rejected(tmp_path, name, source, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.npz").write_bytes(b"")
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ClearheadError, match=words):
        load_media(tmp_path / name, source, DataReport())


def test_running_out_of_memory_is_not_skipped(tmp_path, monkeypatch):
    def fail(*args):
        raise MemoryError

    (tmp_path / "a").mkdir()
    Image.fromarray(pixels(4, 4)).save(tmp_path / "a" / "good.png")
    monkeypatch.setattr("clearhead.data.media_dataset.read_pixels", fail)
    report = DataReport("skip")
    with pytest.raises(MemoryError):
        load_media(tmp_path, GRAY, report)
    assert not report.skipped
