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

from clearhead.config import Mel, Pictures
from clearhead.data.classes import class_names, class_number, split
from clearhead.data.packed import Packed, Report, chance, draw
from clearhead.data.unpacked import readable
from clearhead.errors import ClearheadError, understood, unreadable
from clearhead.tokens import pictures, sound

PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3")


@dataclass(frozen=True)
class Things:
    """Pictures, or the mel frames of sounds, with the class of each and where it is from."""

    data: Tensor  # bytes of batch × channel × height × width, or floats of batch × mel × frame
    labels: Sequence[str]
    where: Sequence[str]


# ---------------------------------------------------------------- files
def load(
    path: str | Path,
    source: Pictures | Mel,
    report: Report,
    *,
    label: Literal["folder", "stem"] = "folder",
) -> Things:
    """What a path holds: a folder with a folder of files for each class; for pictures also .npz and idx files.

    With label "stem", the class is what a file's name has before its first `_`.
    The labels of an idx file stand beside it: `train-images-idx3-ubyte` has its own in `train-labels-idx1-ubyte`.
    """
    path = Path(path)
    if path.is_dir():
        things = _folder(path, source, report, label)
    elif not path.exists():
        raise unreadable(path, FileNotFoundError())
    elif isinstance(source, Pictures) and path.suffix == ".npz":
        things = _npz(path, source)
    elif isinstance(source, Pictures) and "images" in path.name and "idx3" in path.name:
        things = _idx_pair(path, source)
    else:
        kinds = "a folder, an .npz or an …images-idx3… file" if isinstance(source, Pictures) else "a folder"
        raise ClearheadError(f"{path} must be {kinds}.")
    report.read += len(things.labels)
    return things


def _folder(path: Path, source: Pictures | Mel, report: Report, label: str) -> Things:
    read, labels, where = [], [], []
    known = PICTURES if isinstance(source, Pictures) else SOUNDS
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        parts = file.relative_to(path).parts
        if any(part.startswith(".") for part in parts):
            continue
        if file.suffix.lower() not in known:
            report.note(str(file), f"the name does not end in {', '.join(known)}")
        elif label == "folder" and len(parts) == 1:
            instead = "data.label = stem takes the class from names such as cat_1, or give the folder above"
            report.skip(str(file), f"the file is not in the folder of a class; {instead}")
        else:
            try:
                with understood(f"{file} cannot be read"):
                    read.append(_pixels(file, source) if isinstance(source, Pictures) else _frames(file, source))
            except ClearheadError as error:
                report.skip(str(file), str(error).removeprefix(f"{file} ").removesuffix("."))
                continue
            labels.append(parts[0] if label == "folder" else file.stem.split("_")[0])
            where.append(str(file))
    if not read:
        what, why = "picture" if known is PICTURES else "sound", ", ".join(report.skipped)
        raise ClearheadError(f"{path} holds no {what} with a class{f': {why}' if why else ''}.")
    return Things(torch.stack(read), labels, where)


def _pixels(picture: pictures.Picture, source: Pictures) -> Tensor:
    """The bytes that `pictures.read` scales: kept so, they take a quarter of the memory."""
    return (pictures.read(picture, replace(source, mean=(0.0,), deviation=(1.0,))) * 255).round().byte()


def _frames(file: Path, source: Mel) -> Tensor:
    return sound.log_mel(sound.read(file, source), source)[0]


def _npz(path: Path, source: Pictures) -> Things:
    with understood(f"{path} cannot be read"), np.load(path, allow_pickle=False) as file:
        if missing := [name for name in ("images", "labels") if name not in file]:
            raise ClearheadError(f"{path} has no array {missing[0]!r}; it has {', '.join(file)}.")
        images, labels = file["images"], file["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU" or len(labels) != len(images):
        got = f"{labels.dtype} of {labels.shape} for {len(images)} pictures"
        raise ClearheadError(f"{path}: labels must be whole numbers or texts, one for each picture, not {got}.")
    return _from_arrays(path, images, labels, source)


def labels_of(path: Path) -> Path:
    """Where the labels of an idx file's pictures stand."""
    return path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))


def _idx_pair(path: Path, source: Pictures) -> Things:
    beside = labels_of(path)
    images, labels = _idx(path, 3), _idx(beside, 1)
    if len(images) != len(labels):
        raise ClearheadError(f"{path} has {len(images)} pictures, but {beside} {len(labels)} labels.")
    return _from_arrays(path, images, labels, source)


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The numbers of an idx file: a magic that tells their type and dimensions, the sizes, and bytes."""
    with readable(path) as file:
        raw = file.read()
    magic, begin = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
    if raw[:4] != magic:
        raise ClearheadError(f"{path} must begin with {magic.hex(' ')}, as idx files do, not {raw[:4].hex(' ')}.")
    sizes = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, begin, 4)]
    if len(raw) != begin + math.prod(sizes):
        want = f"{begin + math.prod(sizes)} bytes for {' x '.join(map(str, sizes))}"
        raise ClearheadError(f"{path} must have {want}, as its head tells, not {len(raw)}; it may be cut short.")
    return np.frombuffer(raw, np.uint8, offset=begin).reshape(sizes)


def _from_arrays(path: Path, images: NDArray[Any], labels: NDArray[Any], source: Pictures) -> Things:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not images.size:
        got = f"{images.dtype} of {' x '.join(map(str, images.shape))}"
        raise ClearheadError(f"{path}: pictures must be uint8 of number x height x width (x channels), not {got}.")
    whole = images if images.ndim == 4 else images[..., None]
    if whole.shape[1:] == (source.size, source.size, source.channels):  # reading one by one would change nothing
        data = torch.from_numpy(whole.transpose(0, 3, 1, 2).copy())
    else:
        data = torch.stack([_pixels(image, source) for image in images])
    return Things(data, [str(label) for label in labels], [f"{path}[{i}]" for i in range(len(labels))])


def without(things: Things, held: Things, report: Report) -> Things:
    """Things less the files that are held out, which their folder may hold as well."""
    theirs = {Path(where).resolve() for where in held.where}
    picks = [i for i, where in enumerate(things.where) if Path(where).resolve() not in theirs]
    if not picks:
        raise ClearheadError("every file of data.train is one of data.valid, so there is nothing to train on.")
    for i in sorted({*range(len(things.where))} - {*picks}):
        report.note(things.where[i], "the file is one of data.valid")
    return things if len(picks) == len(things.where) else _some(things, picks)


# ---------------------------------------------------------------- batches
class Pictured:
    """Things in the order of the seed, one to a row, all of one shape, so nothing is padded.

    `held` is what is held out, or the share of each class to hold out of `train`. Pictures may be shifted at random
    by up to `shift` pixels each way, their border repeated; those that are held out never are.
    """

    share = 1.0

    def __init__(
        self,
        train: Things,
        held: Things | float,
        source: Pictures | Mel,
        report: Report,
        *,
        rows: int,
        seed: int,
        shift: int = 0,
    ) -> None:
        if shift and not isinstance(source, Pictures):
            raise ClearheadError(f"only pictures can be shifted; shift must be 0 for sound, not {shift}.")
        self.source, self.report, self.rows, self.seed, self.shift = source, report, rows, seed, shift
        if not isinstance(held, Things):
            keys = [hashlib.blake2b(one.numpy().tobytes(), digest_size=16).digest() for one in train.data]
            train, held = (_some(train, picks) for picks in split(train.labels, keys, held, seed))
        self.labels = class_names(train.labels)
        self._train, self._held = self._numbered(train), self._numbered(held)
        self.epoch = len(self._train[1]) / rows

    def batch(self, step: int) -> Packed:
        things, classes = self._train
        picks = torch.tensor([number for _, number in draw(step, self.rows, len(classes), self.seed)])
        return Packed(floats(self._shifted(things[picks], step), self.source), classes[picks])

    def held_out(self) -> Iterator[Packed]:
        """In order; the last batch may be smaller, so that each row counts once."""
        things, classes = self._held
        for first in range(0, len(classes), self.rows):
            some = slice(first, first + self.rows)
            yield Packed(floats(things[some], self.source), classes[some])

    def _numbered(self, things: Things) -> tuple[Tensor, Tensor]:
        names = {name: i for i, name in enumerate(self.labels)}
        pairs = zip(things.labels, things.where, strict=True)
        numbers = [class_number(label, names, where, self.report) for label, where in pairs]
        known = [i for i, number in enumerate(numbers) if number is not None]
        data = things.data if len(known) == len(numbers) else things.data[known]
        return data, torch.tensor([number for number in numbers if number is not None], dtype=torch.long)

    def _shifted(self, things: Tensor, step: int) -> Tensor:
        if not self.shift:
            return things
        by = torch.randint(-self.shift, self.shift + 1, (2, len(things), 1), generator=chance(self.seed, step))
        size = things.shape[-1]
        y, x = (torch.arange(size) + by).clamp(0, size - 1)
        row = torch.arange(len(things))[:, None, None]
        return things.movedim(1, -1)[row, y[:, :, None], x[:, None, :]].movedim(-1, 1)


def floats(things: Tensor, source: Pictures | Mel) -> Tensor:
    """What the network reads of the `data` of things."""
    if not isinstance(source, Pictures):
        return things
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (source.mean, source.deviation))
    return (things / 255 - mean) / deviation


def _some(things: Things, picks: Sequence[int]) -> Things:
    labels, where = ([part[i] for i in picks] for part in (things.labels, things.where))
    return Things(things.data[torch.tensor(picks, dtype=torch.long)], labels, where)
