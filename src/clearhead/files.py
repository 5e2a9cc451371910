"""Files that are there as a whole or as they were before, also after the plug is pulled."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


def overwrite(path: Path, content: bytes) -> None:
    """The content takes the place of what the file held, in one step."""
    with rewritten(path) as file:
        file.write(content)


@contextmanager
def rewritten(path: Path) -> Iterator[BinaryIO]:
    """What is written takes the place of what the file held, in one step, unless something goes wrong.

    Of a link, what it leads to is replaced; a pipe or a device is written to as it is.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    real = path.resolve()
    draft = draft_of(real)
    try:
        with draft.open("wb") as file:
            yield file
        if real.exists():
            draft.chmod(real.stat().st_mode)
        place(real)
    except OSError as error:
        if error.filename == str(draft):  # of which nobody has heard
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


def draft_of(path: Path) -> Path:
    """Where to write what `place` then puts into its place."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def place(path: Path) -> None:
    draft = draft_of(path)
    sync(draft)
    draft.replace(path)


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: object, indent: int | None = 2) -> None:
    overwrite(path, (json.dumps(value, indent=indent) + "\n").encode())


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, if there is one; half a line, of a program that was killed while it wrote, is none."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
