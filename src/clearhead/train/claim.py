"""The folder of a run belongs to one process at a time, which first clears away what a killed one left half done."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clearhead.data.alone import alone
from clearhead.errors import ClearheadError
from clearhead.train.report import LOG
from clearhead.train.team import Alone

LOCK = ".lock"
FILES = r"run\.json|data\.json|log\.jsonl|facts\.json|report\.html|curve\.png|best|average|(source_)?tokenizer\.json"
DRAFTS = {".": rf"\.({FILES})\.\w+", "steps": r"\.\d{8}\.\w+", "tokens": r"\.(train|valid)\.\w+"}
DRAFTS["piped"] = r"\.(train|valid)-\d+\..+"


@contextmanager
def claimed(out: Path, team: Alone) -> Iterator[None]:
    """For the time of a run; a second one in the same folder is refused."""
    if out.exists() and not out.is_dir():
        raise ClearheadError(f"{out} is a file; choose another --out.")
    if not team.first:
        yield
        return
    fresh = not out.exists()
    try:
        with alone(out / LOCK, f"a run is under way in {out}; wait for its end, or choose another --out."):
            _clear(out)
            try:
                yield
            except ClearheadError:
                if fresh and not (out / LOG).exists():  # it was refused before its first step
                    shutil.rmtree(out, ignore_errors=True)
                raise
    finally:
        with suppress(OSError):  # a run that was refused leaves no empty folder
            out.rmdir()


def _clear(out: Path) -> None:
    for folder, names in DRAFTS.items():
        for path in (out / folder).glob(".*"):
            if re.fullmatch(names, path.name):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
