"""Whether a run goes on with the data that it began with."""

import glob
import hashlib
from collections.abc import Iterable
from pathlib import Path

from clearhead import reader
from clearhead.data.pictured import PICTURES, SOUNDS
from clearhead.data.sources import TEXTS
from clearhead.errors import ClearheadError
from clearhead.recipe import Data

FILE = "data.json"


def fingerprints(data: Data, out: Path, held: bool) -> reader.Tree:
    """What each path holds now: a hash of names, sizes and times, and one of the content.

    A run that is held in `out`, to be gone on with, refuses what has changed. Content is only read anew where a name,
    size or time is not as it was: a file that was copied back is the same. What comes through a pipe is kept in the
    folder of the run.
    """
    known = reader.load(out / FILE) if held and (out / FILE).is_file() else {}
    found: reader.Tree = {}
    for path in (*data.train, *data.valid):
        files = _files(path, out)
        states = [(file, file.stat()) for file in files]
        listing = _hash(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\0".encode() for file, state in states)
        before = known.get(path, {})
        content = before["content"] if before.get("listing") == listing else _hash(_digest(file) for file in files)
        if files and before and content != before["content"]:
            raise ClearheadError(f"{path} has changed since the run in {out} began; choose another --out.")
        found[path] = {"listing": listing, "content": content}
    return found


def _files(path: str, out: Path) -> list[Path]:
    """The files that a path stands for; of a folder those that may be data, and none of the run's own."""
    place = Path(path)
    if place.is_file():
        return [place]
    if not place.is_dir():
        return sorted(Path(file) for file in glob.glob(path, recursive=True) if Path(file).is_file())  # noqa: PTH207
    inside = (file for file in place.rglob("*") if file.name.lower().endswith((*TEXTS, *PICTURES, *SOUNDS)))
    return sorted(file for file in inside if file.is_file() and out.resolve() not in file.resolve().parents)


def _digest(file: Path) -> bytes:
    """Of its name, which may be a label, and its content."""
    try:
        with file.open("rb") as content:
            return str(file).encode() + hashlib.file_digest(content, "sha256").digest()
    except OSError:  # whoever reads it as data will tell
        return b""


def _hash(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()
