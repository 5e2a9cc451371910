"""Atomic writes of files and folders, file locks, and logs."""

import ctypes
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from clearhead.errors import ClearheadError, reraise_as

TEMPORARY_SUFFIX = r"\.tmp_[0-9a-f]{8}"
# constants of Linux's renameat2
AT_FDCWD = -100
RENAME_EXCHANGE = 2

POLL_SECONDS = 0.005  # between attempts to lock a file that another process holds for a moment


class LockedError(ClearheadError):
    """Another process holds the lock."""


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file's content in one step."""
    with open_atomic(path) as file:
        file.write(content)


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing; the old content is replaced in one step unless an error occurs.

    Symbolic links are followed. Pipes and devices are written to directly.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield an empty temporary file; what is written there replaces `path` on success."""
    target = path.resolve()
    try:
        with _create_temporary(target, is_folder=False) as temporary:
            yield temporary
            if target.exists():
                temporary.chmod(target.stat().st_mode)
            fsync(temporary)
            temporary.replace(target)
    except OSError as error:
        if is_temporary(Path(str(error.filename))):  # the user knows only the final name
            error.filename = str(path)
        raise


# --- temporary files and folders, locked by the process that writes them
def is_temporary(path: Path) -> bool:
    """Whether a path is a temporary file or folder, perhaps of a process that was killed."""
    return bool(re.fullmatch(rf"\..+{TEMPORARY_SUFFIX}", path.name))


@contextmanager
def _create_temporary(target: Path, *, is_folder: bool) -> Iterator[Path]:
    """Create a locked file or folder beside the target; remove those of killed processes."""
    _remove_stale_files(target)
    handle = None
    while handle is None:
        temporary = target.with_name(f".{target.name}.tmp_{secrets.token_hex(4)}")
        if is_folder:
            temporary.mkdir(0o700)
        else:
            temporary.touch(exist_ok=False)
        handle = _lock(temporary)
    try:
        yield temporary
    finally:
        _remove(temporary)
        os.close(handle)


def _lock(path: Path) -> int | None:
    """Lock a path until the handle is closed; None if another process has just removed it."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # not all file systems have locks
        fcntl.flock(handle, fcntl.LOCK_EX)
    if path.exists():
        return handle
    os.close(handle)
    return None


def _remove_stale_files(target: Path) -> None:
    """Remove temporary files of the same target that no process has locked."""
    pattern = re.escape(f".{target.name}") + TEMPORARY_SUFFIX
    with suppress(OSError), os.scandir(target.parent) as entries:
        paths = [Path(entry.path) for entry in entries if re.fullmatch(pattern, entry.name)]
        for temporary in paths:
            if (temporary / "old").exists() and not target.exists():
                continue  # killed while the folders were exchanged
            with suppress(OSError):
                handle = os.open(temporary, os.O_RDONLY | os.O_NONBLOCK)  # it may be a pipe
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if it is locked
                    _remove(temporary)
                finally:
                    os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: object, indent: int | None = 2) -> None:
    write_atomic(path, (json.dumps(value, indent=indent) + "\n").encode())


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a JSON Lines log; a missing file is empty, an incomplete line is skipped."""
    if not path.exists():
        return []
    records = []
    with reraise_as(f"{path} is damaged"):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the writing process was killed
                records.append(json.loads(line))
    if not all(isinstance(record, dict) for record in records):
        raise ClearheadError(f"{path} is damaged: every line must be a table.")
    return records


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the reports of a training run: numbers, among them a step and a loss."""
    reports = read_json_lines(path)
    for report in reports:
        is_numeric = all(isinstance(value, int | float) for value in report.values())
        if not is_numeric or not report.keys() >= {"step", "loss"}:
            raise ClearheadError(
                f"{path} is damaged: every line must have a step, a loss and only numbers."
            )
    return reports


@contextmanager
def file_lock(path: Path, busy_message: str = "") -> Iterator[None]:
    """Hold a lock file; wait for it, or raise LockedError with `busy_message` if one is given."""
    from filelock import FileLock, Timeout  # here, because it takes 30 ms to import

    lock = FileLock(path, timeout=0 if busy_message else -1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(poll_interval=POLL_SECONDS)
    except Timeout:
        raise LockedError(busy_message) from None
    except OSError as error:
        reason = error.strerror or error
        raise ClearheadError(f"cannot write to {path.parent}: {reason}.") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # processes that wait notice and create it again
        lock.release()


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` atomically when the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _create_temporary(folder, is_folder=True) as temporary:
        new = temporary / "new"
        new.mkdir()
        yield new
        for path in (*new.rglob("*"), new):
            if path.is_file():  # some libraries create files that only their owner can read
                path.chmod(new.stat().st_mode & 0o666)
            fsync(path)
        _replace_folder(new, folder)  # the old folder is deleted with the temporary one
        fsync(folder.parent)


def _replace_folder(new: Path, folder: Path) -> None:
    """Move `new` to `folder`; if both exist, the kernel exchanges them atomically where it can."""
    if not folder.exists():
        new.rename(folder)
        return
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = (AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(folder))
    if renameat2 is None or renameat2(*paths, RENAME_EXCHANGE) != 0:
        old = new.with_name("old")
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise
