"""Labeled images and audio clips: read folders, arrays and idx files into batches of one shape."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.config.model import Images, MelSpectrogram
from clearhead.data.classification import label_id, label_names, stratified_split
from clearhead.data.dataset import seeded_generator, select_rows
from clearhead.data.packed_batch import PackedBatch
from clearhead.data.readers import (
    COMPRESSED_SUFFIXES,
    DataReport,
    open_input,
    read_at_most,
    visible_files,
)
from clearhead.errors import ClearheadError, cannot_read, reraise_as
from clearhead.tokenizers.media import log_mel, normalize_pixels, read_audio, read_pixels

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
MAX_UNPACKED_BYTES = 2**32  # of a compressed file
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")


@dataclass(frozen=True)
class MediaExamples:
    """Images, or mel frames of audio clips, with their labels and locations."""

    data: Tensor  # uint8 [batch, channel, height, width] or float [batch, mel, frame]
    labels: Sequence[str]
    locations: Sequence[str]


# --- files
def load_media(
    path: str | Path,
    config: Images | MelSpectrogram,
    report: DataReport,
    *,
    label: Literal["folder", "stem"] = "folder",
) -> MediaExamples:
    """Read a folder with one subfolder per class; for images also an .npz or an idx file.

    With label="stem", the class is the part of a file's name before the first `_`. The labels of
    `train-images-idx3-ubyte` are in `train-labels-idx1-ubyte` in the same folder.
    """
    path = Path(path)
    if path.is_dir():
        examples = _load_folder(path, config, report, label)
    elif not path.exists():
        raise cannot_read(path, FileNotFoundError())
    elif not isinstance(config, Images):
        raise ClearheadError(f"{path} must be a folder of audio files.")
    elif path.suffix == ".npz":
        examples = _load_npz(path, config)
    elif "images" in path.name and "idx3" in path.name:
        examples = _load_idx(path, config)
    else:
        raise ClearheadError(f"{path} must be a folder, an .npz or an …images-idx3… file.")
    report.num_read += len(examples.labels)
    return examples


def _load_folder(
    path: Path, config: Images | MelSpectrogram, report: DataReport, label: str
) -> MediaExamples:
    suffixes = IMAGE_SUFFIXES if isinstance(config, Images) else AUDIO_SUFFIXES
    data = []
    labels = []
    locations = []
    for file in visible_files(path):
        parts = file.relative_to(path).parts
        if file.suffix.lower() not in suffixes:
            report.record(str(file), f"the file name does not end in {', '.join(suffixes)}")
        elif label == "folder" and len(parts) == 1:
            report.skip(
                str(file),
                "the file is not in the folder of a class; give the parent folder, or set "
                "data.label_column = stem to take the class from names such as cat_1",
            )
        else:
            try:
                with reraise_as(f"{file} cannot be read"):
                    if isinstance(config, Images):
                        data.append(read_pixels(file, config))
                    else:
                        data.append(log_mel(read_audio(file, config), config)[0])
            except ClearheadError as error:
                report.skip(str(file), str(error).removeprefix(f"{file} ").removesuffix("."))
                continue
            labels.append(parts[0] if label == "folder" else file.stem.split("_")[0])
            locations.append(str(file))
    if not data:
        medium = "images" if isinstance(config, Images) else "audio files"
        reasons = f": {', '.join(report.skipped)}" if report.skipped else ""
        raise ClearheadError(f"{path} contains no labeled {medium}{reasons}.")
    return MediaExamples(torch.stack(data), labels, locations)


def _load_npz(path: Path, config: Images) -> MediaExamples:
    # A TypeError: the file is an .npy, which np.load does not return as a context manager.
    # A MemoryError: an array declares more than it contains.
    with (
        reraise_as(f"{path} cannot be read", TypeError, MemoryError),
        np.load(path, allow_pickle=False) as file,
    ):
        if missing := [name for name in ("images", "labels") if name not in file]:
            raise ClearheadError(f"{path} has no array {missing[0]!r}; it has {', '.join(file)}.")
        with ZipFile(path) as archive:
            _check_unpacked_size(path, sum(member.file_size for member in archive.infolist()))
        images = file["images"]
        labels = file["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU" or len(labels) != len(images):
        raise ClearheadError(
            f"{path}: labels must be integers or strings, one per image, "
            f"got {labels.dtype} of shape {labels.shape} for {len(images)} images."
        )
    return _from_arrays(path, images, labels, config)


def _check_unpacked_size(path: Path, num_bytes: int) -> None:
    """Raise if a file unpacks to too much; deflate makes a gigabyte of a megabyte."""
    if num_bytes > max(MAX_UNPACKED_BYTES, path.stat().st_size):
        raise ClearheadError(
            f"{path} unpacks to {num_bytes / 2**30:,.1f} GiB; compressed arrays may have at most "
            f"{MAX_UNPACKED_BYTES / 2**30:g} GiB. Save it uncompressed, or as a folder of images."
        )


def idx_labels_path(path: Path) -> Path:
    """The path of the labels of an idx file of images."""
    return path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))


def _load_idx(path: Path, config: Images) -> MediaExamples:
    labels_path = idx_labels_path(path)
    images = _read_idx(path, 3)
    labels = _read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise ClearheadError(
            f"{path} has {len(images)} images, but {labels_path} has {len(labels)} labels."
        )
    return _from_arrays(path, images, labels, config)


def _read_idx(path: Path, num_dimensions: int) -> NDArray[np.uint8]:
    """The array of an idx file (the format of MNIST): magic number, shape, bytes."""
    magic = bytes((0, 0, 8, num_dimensions))
    header_size = 4 + 4 * num_dimensions
    with open_input(path) as file:
        header = file.read(header_size)
        shape = [int.from_bytes(header[i : i + 4], "big") for i in range(4, header_size, 4)]
        if path.suffix in COMPRESSED_SUFFIXES:
            _check_unpacked_size(path, math.prod(shape))
        content = read_at_most(file, math.prod(shape))
    if len(header) < header_size or header[:4] != magic or len(content) != math.prod(shape):
        raise ClearheadError(
            f"{path} is not a complete idx file of {num_dimensions} dimensions, which starts with "
            f"{magic.hex(' ')} and the shape."
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _from_arrays(
    path: Path, images: NDArray[Any], labels: NDArray[Any], config: Images
) -> MediaExamples:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not images.size:
        raise ClearheadError(
            f"{path}: images must be uint8 of shape [number, height, width] or "
            f"[number, height, width, channels], got {images.dtype} of shape {images.shape}."
        )
    with_channels = images if images.ndim == 4 else images[..., None]
    if with_channels.shape[1:] == (config.image_size, config.image_size, config.num_channels):
        data = torch.from_numpy(with_channels.transpose(0, 3, 1, 2).copy())  # nothing to resize
    else:
        data = torch.stack([read_pixels(image, config) for image in images])
    locations = [f"{path}[{i}]" for i in range(len(labels))]
    return MediaExamples(data, [str(label) for label in labels], locations)


def exclude_valid_media(
    train: MediaExamples, valid: MediaExamples, report: DataReport
) -> MediaExamples:
    """The training examples without validation files, which may be in the same folder."""
    valid_files = {Path(location).resolve() for location in valid.locations}
    indices = []
    for i, location in enumerate(train.locations):
        if Path(location).resolve() in valid_files:
            report.record(location, "the file belongs to data.valid")
        else:
            indices.append(i)
    if not indices:
        raise ClearheadError("no training files are left: all of data.train belong to data.valid.")
    return train if len(indices) == len(train.locations) else _select(train, indices)


# --- batches
class MediaDataset:
    """One image or audio clip per row, all of one shape, with one label per row.

    `valid` is the validation data, or the fraction of each class to hold out. Training images are
    shifted at random by up to `random_shift` pixels, repeating their border.
    """

    packing_efficiency = 1.0

    def __init__(
        self,
        train: MediaExamples,
        valid: MediaExamples | float,
        config: Images | MelSpectrogram,
        report: DataReport,
        *,
        batch_size: int,
        seed: int,
        random_shift: int = 0,
    ) -> None:
        if random_shift and not isinstance(config, Images):
            raise ClearheadError(
                f"data.random_shift needs images and must be 0 for audio, got {random_shift}."
            )
        self.config = config
        self.report = report
        self.batch_size = batch_size
        self.seed = seed
        self.random_shift = random_shift
        if not isinstance(valid, MediaExamples):
            keys = [
                hashlib.blake2b(example.numpy().tobytes(), digest_size=16).digest()
                for example in train.data
            ]
            splits = stratified_split(train.labels, keys, valid, seed)
            train, valid = (_select(train, indices) for indices in splits)
        self.labels = label_names(train.labels)
        self._train = self._with_label_ids(train)
        self._valid = self._with_label_ids(valid)
        self.batches_per_epoch = len(self._train[1]) / batch_size

    def batch(self, step: int) -> PackedBatch:
        data, label_ids = self._train
        rows = select_rows(step, self.batch_size, len(label_ids), self.seed)
        indices = torch.tensor([index for _, index in rows])
        inputs = self._apply_random_shift(data[indices], step)
        return PackedBatch(normalize_media(inputs, self.config), label_ids[indices])

    def valid_batches(self) -> Iterator[PackedBatch]:
        """In order; the last batch may be smaller."""
        data, label_ids = self._valid
        for start in range(0, len(label_ids), self.batch_size):
            rows = slice(start, start + self.batch_size)
            yield PackedBatch(normalize_media(data[rows], self.config), label_ids[rows])

    def _with_label_ids(self, examples: MediaExamples) -> tuple[Tensor, Tensor]:
        ids_by_name = {name: i for i, name in enumerate(self.labels)}
        indices = []
        label_ids = []
        for i, (label, location) in enumerate(
            zip(examples.labels, examples.locations, strict=True)
        ):
            class_id = label_id(label, ids_by_name, location, self.report)
            if class_id is not None:
                indices.append(i)
                label_ids.append(class_id)
        data = examples.data if len(indices) == len(examples.labels) else examples.data[indices]
        return data, torch.tensor(label_ids, dtype=torch.long)

    def _apply_random_shift(self, images: Tensor, step: int) -> Tensor:
        if not self.random_shift:
            return images
        shift = torch.randint(
            -self.random_shift,
            self.random_shift + 1,
            (2, len(images), 1),
            generator=seeded_generator(self.seed, step),
        )
        size = images.shape[-1]
        y, x = (torch.arange(size) + shift).clamp(0, size - 1)
        row = torch.arange(len(images))[:, None, None]
        return images.movedim(1, -1)[row, y[:, :, None], x[:, None, :]].movedim(-1, 1)


def normalize_media(data: Tensor, config: Images | MelSpectrogram) -> Tensor:
    """The model's input from the `data` of MediaExamples."""
    return normalize_pixels(data, config) if isinstance(config, Images) else data


def _select(examples: MediaExamples, indices: Sequence[int]) -> MediaExamples:
    return MediaExamples(
        examples.data[torch.tensor(indices, dtype=torch.long)],
        [examples.labels[i] for i in indices],
        [examples.locations[i] for i in indices],
    )
