"""Files that are there as a whole or as they were before, also after the plug is pulled."""

import ctypes
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from safetensors import SafetensorError

from clearhead.config.parse import read_config_file
from clearhead.errors import ClearheadError

# ---- files: Files that are there as a whole or as they were before, also after the plug is pulled.


def write_atomic(path: Path, content: bytes) -> None:
    """The content takes the place of what the file held, in one step."""
    with open_atomic(path) as file:
        file.write(content)


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """What is written takes the place of what the file held, in one step, unless something goes wrong.

    Of a link, what it leads to is replaced; a pipe or a device is written to as it is.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    real = path.resolve()
    draft = temporary_path(real)
    try:
        with draft.open("wb") as file:
            yield file
        if real.exists():
            draft.chmod(real.stat().st_mode)
        commit_temporary(real)
    except OSError as error:
        if error.filename == str(draft):  # of which nobody has heard
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """Where to write what `place` then puts into its place."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def commit_temporary(path: Path) -> None:
    draft = temporary_path(path)
    fsync(draft)
    draft.replace(path)


def fsync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: object, indent: int | None = 2) -> None:
    write_atomic(path, (json.dumps(value, indent=indent) + "\n").encode())


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, if there is one; half a line, of a program that was killed while it wrote, is none."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


# ---- alone: One process at a time in one place.


@contextmanager
def file_lock(lock: Path, busy_message: str = "") -> Iterator[None]:
    """While a file is locked: others wait, or are told `busy` at once; the lock of one that is killed is open again."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = _open_locked(lock, busy_message)
        while not _is_same_file(
            file, lock
        ):  # whoever held it took the file away, so it locks nothing any more
            file.close()
            file = _open_locked(lock, busy_message)
    except OSError as error:
        raise ClearheadError(
            f"what belongs into {lock.parent} cannot be saved: {error.strerror or error}."
        ) from None
    with file:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _open_locked(lock: Path, busy: str) -> IO[str]:
    file = lock.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
    except BlockingIOError:
        file.close()
        raise ClearheadError(busy) from None
    except OSError:
        file.close()
        raise
    return file


def _is_same_file(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


# ---- whole: Folders that are written whole or not at all: at any moment the name holds the earlier model or the new one.

# The files that a model is written as, in any format. A folder that holds others is not replaced.
MODEL_FILES = {
    "1_Pooling", "chat_template.jinja", "clearhead.json", "clearhead_export.json", "config.json", "decoder_model.onnx",
    "decoder_model.onnx.data", "encoder_model.onnx", "encoder_model.onnx.data", "generation_config.json", "model.bin",
    "model.gguf", "model.onnx", "model.onnx.data", "model.safetensors", "modules.json", "onnx_config.json",
    "preprocessor_config.json", "sentence_bert_config.json", "shared_vocabulary.json", "source_tokenizer.json",
    "source_vocabulary.json", "special_tokens_map.json", "target_tokenizer.json", "target_vocabulary.json",
    "tokenizer.json", "tokenizer_config.json", "vocabulary.json",
}  # fmt: skip


# what tells that a folder was written here
NATIVE_CONFIG_FILE = "clearhead.json"
EXPORT_FILE = "clearhead_export.json"


@contextmanager
def atomic_model_folder(folder: str | Path, kind: str = "clearhead") -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` when all is in it."""
    folder = Path(folder).resolve()
    try:
        check_replaceable(folder, kind)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as there:
            new = Path(there) / "new"
            new.mkdir()
            yield new
            if kind != "clearhead":
                more = read_config_file(new / EXPORT_FILE) if (new / EXPORT_FILE).is_file() else {}
                (new / EXPORT_FILE).write_text(
                    json.dumps({"format": kind, **more}) + "\n", encoding="utf-8"
                )
            for file in (*new.rglob("*"), new):
                if file.is_file():  # some libraries write for the owner's eyes only
                    file.chmod(new.stat().st_mode & 0o666)
                fsync(file)
            _replace_folder(new, folder)  # what was there goes with the temporary folder
            fsync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise ClearheadError(
            f"{folder} cannot be saved: {getattr(error, 'strerror', None) or error}."
        ) from None


def check_replaceable(folder: Path, kind: str = "clearhead") -> None:
    """A model may take the place of nothing, or of a model that was written here in the same format."""
    for place in (folder, *folder.absolute().parents):
        if place.exists() and not place.is_dir():
            raise ClearheadError(f"{place} is a file; choose another name for the model's folder.")
    inside = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if others := inside - MODEL_FILES:
        raise ClearheadError(
            f"{folder} holds {min(others)}, which is no part of a model; choose another name."
        )
    if inside and export_format(folder) != kind:
        held = export_format(folder) or "foreign"
        raise ClearheadError(
            f"{folder} holds a {held} model, which is not replaced by another; choose another name."
        )


def export_format(folder: Path) -> str:
    """The format in which a folder was written here; empty if it was not."""
    if (folder / NATIVE_CONFIG_FILE).is_file():
        return "clearhead"
    try:
        return str(json.loads((folder / EXPORT_FILE).read_text(encoding="utf-8"))["format"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _replace_folder(new: Path, folder: Path) -> None:
    """`new` takes the place of `folder`; where both exist the system exchanges them in one step."""
    if not folder.exists():
        new.rename(folder)
        return
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    # AT_FDCWD, RENAME_EXCHANGE
    here = -100
    both_stay = 2
    if (
        exchange is None
        or exchange(here, os.fsencode(new), here, os.fsencode(folder), both_stay) != 0
    ):
        old = new.with_name("old")
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise
