"""Pictures or sounds with a class each: from folders, arrays and idx files to batches of one shape."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.config.model import Images, MelSpectrogram
from clearhead.data.batch import DataReport, PackedBatch, seeded_generator, select_rows
from clearhead.data.classification import label_id, label_names, stratified_split
from clearhead.data.readers import open_input
from clearhead.errors import ClearheadError, cannot_read, reraise_as
from clearhead.tokenizers.media import ImageInput, log_mel, read_audio, read_image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")


@dataclass(frozen=True)
class MediaExamples:
    """Pictures, or the mel frames of sounds, with the class of each and where it is from."""

    data: Tensor  # bytes of batch × channel × height × width, or floats of batch × mel × frame
    labels: Sequence[str]
    locations: Sequence[str]


# ---------------------------------------------------------------- files
def load_media(
    path: str | Path,
    source: Images | MelSpectrogram,
    report: DataReport,
    *,
    label: Literal["folder", "stem"] = "folder",
) -> MediaExamples:
    """What a path holds: a folder with a folder of files for each class; for pictures also .npz and idx files.

    With label "stem", the class is what a file's name has before its first `_`.
    The labels of an idx file stand beside it: `train-images-idx3-ubyte` has its own in `train-labels-idx1-ubyte`.
    """
    path = Path(path)
    if path.is_dir():
        things = _load_folder(path, source, report, label)
    elif not path.exists():
        raise cannot_read(path, FileNotFoundError())
    elif isinstance(source, Images) and path.suffix == ".npz":
        things = _load_npz(path, source)
    elif isinstance(source, Images) and "images" in path.name and "idx3" in path.name:
        things = _load_idx(path, source)
    else:
        kinds = (
            "a folder, an .npz or an …images-idx3… file"
            if isinstance(source, Images)
            else "a folder"
        )
        raise ClearheadError(f"{path} must be {kinds}.")
    report.num_read += len(things.labels)
    return things


def _load_folder(
    path: Path, source: Images | MelSpectrogram, report: DataReport, label: str
) -> MediaExamples:
    read = []
    labels = []
    where = []
    known = IMAGE_SUFFIXES if isinstance(source, Images) else AUDIO_SUFFIXES
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        parts = file.relative_to(path).parts
        if any(part.startswith(".") for part in parts):
            continue
        if file.suffix.lower() not in known:
            report.record(str(file), f"the name does not end in {', '.join(known)}")
        elif label == "folder" and len(parts) == 1:
            instead = "data.label_column = stem takes the class from names such as cat_1, or give the folder above"
            report.skip(str(file), f"the file is not in the folder of a class; {instead}")
        else:
            try:
                with reraise_as(f"{file} cannot be read"):
                    read.append(
                        _image_bytes(file, source)
                        if isinstance(source, Images)
                        else _audio_frames(file, source)
                    )
            except ClearheadError as error:
                report.skip(str(file), str(error).removeprefix(f"{file} ").removesuffix("."))
                continue
            labels.append(parts[0] if label == "folder" else file.stem.split("_")[0])
            where.append(str(file))
    if not read:
        what = "picture" if known is IMAGE_SUFFIXES else "sound"
        why = ", ".join(report.skipped)
        raise ClearheadError(f"{path} holds no {what} with a class{f': {why}' if why else ''}.")
    return MediaExamples(torch.stack(read), labels, where)


def _image_bytes(image: ImageInput, source: Images) -> Tensor:
    """The bytes that `pictures.read` scales: kept so, they take a quarter of the memory."""
    return (read_image(image, replace(source, mean=(0.0,), std=(1.0,))) * 255).round().byte()


def _audio_frames(file: Path, source: MelSpectrogram) -> Tensor:
    return log_mel(read_audio(file, source), source)[0]


def _load_npz(path: Path, source: Images) -> MediaExamples:
    with reraise_as(f"{path} cannot be read"), np.load(path, allow_pickle=False) as file:
        if missing := [name for name in ("images", "labels") if name not in file]:
            raise ClearheadError(f"{path} has no array {missing[0]!r}; it has {', '.join(file)}.")
        images = file["images"]
        labels = file["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU" or len(labels) != len(images):
        got = f"{labels.dtype} of {labels.shape} for {len(images)} pictures"
        raise ClearheadError(
            f"{path}: labels must be whole numbers or texts, one for each picture, not {got}."
        )
    return _from_arrays(path, images, labels, source)


def idx_labels_path(path: Path) -> Path:
    """Where the labels of an idx file's pictures stand."""
    return path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))


def _load_idx(path: Path, source: Images) -> MediaExamples:
    beside = idx_labels_path(path)
    images = _read_idx(path, 3)
    labels = _read_idx(beside, 1)
    if len(images) != len(labels):
        raise ClearheadError(
            f"{path} has {len(images)} pictures, but {beside} {len(labels)} labels."
        )
    return _from_arrays(path, images, labels, source)


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The numbers of an idx file: a magic that tells their type and dimensions, the sizes, and bytes."""
    with open_input(path) as file:
        raw = file.read()
    magic = bytes((0, 0, 8, dimensions))
    begin = 4 + 4 * dimensions
    if raw[:4] != magic:
        raise ClearheadError(
            f"{path} must begin with {magic.hex(' ')}, as idx files do, not {raw[:4].hex(' ')}."
        )
    sizes = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, begin, 4)]
    if len(raw) != begin + math.prod(sizes):
        want = f"{begin + math.prod(sizes)} bytes for {' x '.join(map(str, sizes))}"
        raise ClearheadError(
            f"{path} must have {want}, as its head tells, not {len(raw)}; it may be cut short."
        )
    return np.frombuffer(raw, np.uint8, offset=begin).reshape(sizes)


def _from_arrays(
    path: Path, images: NDArray[Any], labels: NDArray[Any], source: Images
) -> MediaExamples:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not images.size:
        got = f"{images.dtype} of {' x '.join(map(str, images.shape))}"
        raise ClearheadError(
            f"{path}: pictures must be uint8 of number x height x width (x channels), not {got}."
        )
    whole = images if images.ndim == 4 else images[..., None]
    if whole.shape[1:] == (
        source.image_size,
        source.image_size,
        source.num_channels,
    ):  # reading one by one would change nothing
        data = torch.from_numpy(whole.transpose(0, 3, 1, 2).copy())
    else:
        data = torch.stack([_image_bytes(image, source) for image in images])
    return MediaExamples(
        data, [str(label) for label in labels], [f"{path}[{i}]" for i in range(len(labels))]
    )


def exclude_valid_media(
    train: MediaExamples, valid: MediaExamples, report: DataReport
) -> MediaExamples:
    """Things less the files that are held out, which their folder may hold as well."""
    theirs = {Path(where).resolve() for where in valid.locations}
    picks = [i for i, where in enumerate(train.locations) if Path(where).resolve() not in theirs]
    if not picks:
        raise ClearheadError(
            "every file of data.train is one of data.valid, so there is nothing to train on."
        )
    for i in sorted({*range(len(train.locations))} - {*picks}):
        report.record(train.locations[i], "the file is one of data.valid")
    return train if len(picks) == len(train.locations) else _select(train, picks)


# ---------------------------------------------------------------- batches
class MediaDataset:
    """Things in the order of the seed, one to a row, all of one shape, so nothing is padded.

    `held` is what is held out, or the share of each class to hold out of `train`. Pictures may be shifted at random
    by up to `shift` pixels each way, their border repeated; those that are held out never are.
    """

    packing_efficiency = 1.0

    def __init__(
        self,
        train: MediaExamples,
        valid: MediaExamples | float,
        source: Images | MelSpectrogram,
        report: DataReport,
        *,
        batch_size: int,
        seed: int,
        random_shift: int = 0,
    ) -> None:
        if random_shift and not isinstance(source, Images):
            raise ClearheadError(
                f"only pictures can be shifted; shift must be 0 for sound, not {random_shift}."
            )
        self.source = source
        self.report = report
        self.batch_size = batch_size
        self.seed = seed
        self.random_shift = random_shift
        if not isinstance(valid, MediaExamples):
            keys = [
                hashlib.blake2b(one.numpy().tobytes(), digest_size=16).digest()
                for one in train.data
            ]
            train, valid = (
                _select(train, picks) for picks in stratified_split(train.labels, keys, valid, seed)
            )
        self.labels = label_names(train.labels)
        self._train, self._valid = self._with_label_ids(train), self._with_label_ids(valid)
        self.batches_per_epoch = len(self._train[1]) / batch_size

    def batch(self, step: int) -> PackedBatch:
        things, classes = self._train
        picks = torch.tensor(
            [number for _, number in select_rows(step, self.batch_size, len(classes), self.seed)]
        )
        return PackedBatch(
            normalize_media(self._apply_random_shift(things[picks], step), self.source),
            classes[picks],
        )

    def valid_batches(self) -> Iterator[PackedBatch]:
        """In order; the last batch may be smaller, so that each row counts once."""
        things, classes = self._valid
        for first in range(0, len(classes), self.batch_size):
            some = slice(first, first + self.batch_size)
            yield PackedBatch(normalize_media(things[some], self.source), classes[some])

    def _with_label_ids(self, things: MediaExamples) -> tuple[Tensor, Tensor]:
        names = {name: i for i, name in enumerate(self.labels)}
        pairs = zip(things.labels, things.locations, strict=True)
        numbers = [label_id(label, names, where, self.report) for label, where in pairs]
        known = [i for i, number in enumerate(numbers) if number is not None]
        data = things.data if len(known) == len(numbers) else things.data[known]
        return data, torch.tensor(
            [number for number in numbers if number is not None], dtype=torch.long
        )

    def _apply_random_shift(self, things: Tensor, step: int) -> Tensor:
        if not self.random_shift:
            return things
        by = torch.randint(
            -self.random_shift,
            self.random_shift + 1,
            (2, len(things), 1),
            generator=seeded_generator(self.seed, step),
        )
        size = things.shape[-1]
        y, x = (torch.arange(size) + by).clamp(0, size - 1)
        row = torch.arange(len(things))[:, None, None]
        return things.movedim(1, -1)[row, y[:, :, None], x[:, None, :]].movedim(-1, 1)


def normalize_media(data: Tensor, source: Images | MelSpectrogram) -> Tensor:
    """What the network reads of the `data` of things."""
    if not isinstance(source, Images):
        return data
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (source.mean, source.std))
    return (data / 255 - mean) / deviation


def _select(examples: MediaExamples, indices: Sequence[int]) -> MediaExamples:
    labels, where = ([part[i] for i in indices] for part in (examples.labels, examples.locations))
    return MediaExamples(examples.data[torch.tensor(indices, dtype=torch.long)], labels, where)
