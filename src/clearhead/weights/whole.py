"""Folders that are written whole or not at all: at any moment the name holds the earlier model or the new one."""

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from safetensors import SafetensorError

from clearhead.errors import ClearheadError

# The files of a model, in any format written here. A folder that holds others is not replaced.
PARTS = (
    "*.safetensors", "*.gguf", "*.onnx", "*.onnx.data", "*.json", "*.jinja", "vocab.txt", "*.spm", "merges.txt",
    "model.bin", "*vocabulary.txt", "1_Pooling",
)  # fmt: skip


@contextmanager
def whole(folder: str | Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` when all is in it."""
    folder = Path(folder).resolve()
    try:
        check_free(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as there:
            new = Path(there) / "new"
            new.mkdir()
            yield new
            for file in (*new.rglob("*"), new):
                sync(file)
            _move(new, folder)  # what was there goes with the temporary folder
            sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise ClearheadError(f"{folder} cannot be saved: {getattr(error, 'strerror', None) or error}.") from None


def check_free(folder: Path) -> None:
    """A model may take the place of nothing, or of a model."""
    for place in (folder, *folder.absolute().parents):
        if place.exists() and not place.is_dir():
            raise ClearheadError(f"{place} is a file; choose another name for the model's folder.")
    inside = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    for name in inside:
        if not any(fnmatchcase(name, part) for part in PARTS):
            raise ClearheadError(f"{folder} holds {name}, which is no part of a model; choose another name.")


def _move(new: Path, folder: Path) -> None:
    """`new` takes the place of `folder`; where both exist the system exchanges them in one step."""
    if not folder.exists():
        new.rename(folder)
        return
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, both_stay = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if exchange is None or exchange(here, os.fsencode(new), here, os.fsencode(folder), both_stay) != 0:
        old = new.with_name("old")
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
