"""Whether a run goes on with the data that it began with."""

import glob
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clearhead import reader
from clearhead.data.pictured import PICTURES, SOUNDS, labels_of
from clearhead.data.sources import TEXTS
from clearhead.errors import ClearheadError
from clearhead.training import Data

FILE = "data.json"
PATHS = "data.train", "data.valid", "data.tokenizer", "train.start"


def fingerprints(data: Data, out: Path, held: bool) -> reader.Tree:
    """What each path holds now: a hash of names, sizes and times, and one of the content.

    A run that is held in `out`, to be gone on with, refuses what has changed. Content is only read anew where a name,
    size or time is not as it was: a file that was copied back is the same, and what is away for now is known on. What
    comes through a pipe is kept in the folder of the run.
    """
    kept = reader.load(out / FILE) if held and (out / FILE).is_file() else {}
    known = {_plain(path): state for path, state in kept.items()}
    found: reader.Tree = {}
    for path in map(_plain, (*data.train, *data.valid)):
        files, before = _files(path, out), known.get(path, {})
        if before and not files:
            found[path] = before
            continue
        states = [(file, file.stat()) for file in files]
        listing = _hash(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\0".encode() for file, state in states)
        content = before["content"] if before.get("listing") == listing else _hash(_digest(file) for file in files)
        if before and content != before["content"]:
            raise ClearheadError(f"{path} has changed since the run in {out} began; choose another --out.")
        found[path] = {"listing": listing, "content": content}
    return found


def same_paths(option: str, old: Any, new: Any) -> bool:
    """Whether an option names the same files, spelled otherwise: texts/ and ./texts are texts."""
    if option not in PATHS:
        return False
    first, second = ([value] if isinstance(value, str) else value for value in (old, new))
    return list(map(_plain, first)) == list(map(_plain, second))


def _plain(path: str) -> str:
    return str(Path(path)) if path else ""


def _files(path: str, out: Path) -> list[Path]:
    """The files that a path stands for, with their labels where those stand beside them; of a folder those that may be
    data, and none of the run's own."""
    place = Path(path)
    if place.is_file():
        return [file for file in dict.fromkeys((place, labels_of(place))) if file.is_file()]
    if not place.is_dir():
        return sorted(Path(file) for file in glob.glob(path, recursive=True) if Path(file).is_file())  # noqa: PTH207
    inside = (file for file in place.rglob("*") if file.name.lower().endswith((*TEXTS, *PICTURES, *SOUNDS)))
    seen = (file for file in inside if not any(part[0] == "." for part in file.relative_to(place).parts))
    return sorted(file for file in seen if file.is_file() and out.resolve() not in file.resolve().parents)


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
