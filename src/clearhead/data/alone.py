"""One process at a time in one place."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from clearhead.errors import ClearheadError


@contextmanager
def alone(lock: Path, busy: str = "") -> Iterator[None]:
    """While a file is locked: others wait, or are told `busy` at once; the lock of one that is killed is open again."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(lock, busy)
        while not _same(file, lock):  # whoever held it took the file away, so it locks nothing any more
            file.close()
            file = _locked(lock, busy)
    except OSError as error:
        raise ClearheadError(f"what belongs into {lock.parent} cannot be saved: {error.strerror or error}.") from None
    with file:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _locked(lock: Path, busy: str) -> IO[str]:
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


def _same(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
