"""Documents become tokens once: a folder that is mapped into memory, and knows what it was made from."""

import dataclasses
import hashlib
import json
import os
import tempfile
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from clearhead.data.alone import alone
from clearhead.data.encode import batches, ids_or_why
from clearhead.data.packed import Report
from clearhead.data.sources import Document, documents, files
from clearhead.data.unpacked import STDIN
from clearhead.errors import ClearheadError
from clearhead.files import sync
from clearhead.tokens.text import Tokenizer

FORMAT = 1
TOKENS, STARTS, ABOUT = "tokens.bin", "documents.npy", "cache.json"
Ids = NDArray[np.uint16] | NDArray[np.uint32]
Held = tuple[dict[str, Any], Ids, NDArray[np.int64]]  # what is told of the tokens, they, and where documents start
Encoded = tuple[Document, Ids | str]  # the ids, or what went wrong


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of all documents, one after another, and where each document starts."""

    ids: Ids
    documents: NDArray[np.int64]
    begin: int | None = None  # the id that opens every document
    report: Report = dataclasses.field(default_factory=Report)


def tokenised(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    report: Report,
    field: str = "text",
    begin: int | None = None,
    workers: int | None = None,
) -> Tokens:
    """The tokens of files, from `folder` if it holds them, else made by `workers` threads and kept there.

    `begin` is put before every document. Sources are read again when one of them, or the tokenizer, has changed.
    """
    folder = Path(folder).absolute()
    made_from = _made_from(paths, tokenizer, field, begin, report)
    held = _held(folder, made_from, report)
    if held is None:
        with alone(folder.with_name(f".{folder.name}.lock")):
            held = _held(folder, made_from, report)  # who waited finds what another process has made meanwhile
            if held is None:
                _check_free(folder)
                own = Report(report.broken)
                kind = "uint16" if max(tokenizer._inner.get_vocab().values()) < 2**16 else "uint32"
                found = _encoded(documents(paths, own, field), tokenizer, kind, workers or os.cpu_count() or 1)
                held = _opened(folder, _written(folder, found, begin, kind, own, made_from))
    about, ids, starts = held
    told = about["report"]
    report.read += told["read"]
    report.skipped.update(told["skipped"])
    for why, places in told["places"].items():
        report.places[why] = (report.places.get(why, []) + places)[:3]
    return Tokens(ids, starts, begin, report)


def _made_from(
    paths: Sequence[str], tokenizer: Tokenizer, field: str, begin: int | None, report: Report
) -> dict[str, Any]:
    """All that the tokens depend on."""
    if begin is not None:
        tokenizer.decode([begin])  # which refuses what is no token
    sources: list[list[Any]] = []
    for file in files(paths, Report(report.broken)):
        path = Path(file).absolute()
        state = path.stat() if file != STDIN and path.is_file() else None  # None: a pipe
        sources.append([str(path), state and state.st_size, state and state.st_mtime_ns])
    tokenizer_hash = hashlib.sha256(tokenizer._inner.to_str().encode()).hexdigest()
    return {"format": FORMAT, "files": sources, "tokenizer": tokenizer_hash, "field": field, "begin": begin}


def _held(folder: Path, made_from: dict[str, Any], report: Report) -> Held | None:
    """What a folder holds, if it is what is wanted."""
    if any(size is None for _, size, _ in made_from["files"]):
        return None  # what came through a pipe may be another text next time
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["made_from"] != made_from or (about["report"]["skipped"] and report.broken == "refuse"):
            return None
        held = _opened(folder, about)
        return held if len(held[1]) == about["tokens"] else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _opened(folder: Path, about: dict[str, Any]) -> Held:
    return about, np.memmap(folder / TOKENS, about["kind"], "r"), np.load(folder / STARTS)


def _encoded(found: Iterable[Document], tokenizer: Tokenizer, kind: str, workers: int) -> Iterator[Encoded]:
    """The ids of documents, in order. Threads do, since the library lets go of Python while it works."""

    def encode(batch: list[Document]) -> list[Encoded]:
        found = ids_or_why(tokenizer, [document.text for document in batch])
        return [(d, i if isinstance(i, str) else np.array(i, kind)) for d, i in zip(batch, found, strict=True)]

    waiting: deque[Future[list[Encoded]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for batch in batches(found, lambda document: len(document.text)):
            waiting.append(pool.submit(encode, batch))
            if len(waiting) > workers:  # one more than can be worked on; the files wait for the threads
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _check_free(folder: Path) -> None:
    """Tokens may take the place of nothing, or of tokens."""
    if folder.exists() and not folder.is_dir():
        raise ClearheadError(f"{folder} is a file; choose another name for the folder of tokens.")
    if folder.exists() and (others := {path.name for path in folder.iterdir()} - {TOKENS, STARTS, ABOUT}):
        raise ClearheadError(f"{folder} holds {min(others)}, which is no part of a text's tokens; choose another name.")


def _written(
    folder: Path, found: Iterator[Encoded], begin: int | None, kind: str, own: Report, made_from: dict[str, Any]
) -> dict[str, Any]:
    """Tokens go to a folder beside, which takes the name when all is in it: no one ever finds half of them."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as there:
            new = Path(there) / "new"
            new.mkdir()
            with (new / TOKENS).open("wb") as file:
                starts, count = _join(found, begin, kind, own, file)
            if not count:
                names = ", ".join(path for path, _, _ in made_from["files"])
                raise ClearheadError(f"there is no text in {names or 'what was given'}.")
            np.save(new / STARTS, np.frombuffer(starts, np.int64))
            told = {"read": own.read, "skipped": own.skipped, "places": own.places}
            about = {"made_from": made_from, "kind": kind, "documents": len(starts), "tokens": count, "report": told}
            (new / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
            for path in new.iterdir():
                sync(path)
            if folder.exists():
                folder.rename(Path(there) / "old")  # goes with the temporary folder
            new.rename(folder)
    except OSError as error:
        raise ClearheadError(f"{folder} cannot be saved: {error.strerror or error}.") from None
    return about


def _join(found: Iterator[Encoded], begin: int | None, kind: str, own: Report, file: IO[bytes]) -> tuple[Any, int]:
    """Writes the tokens of documents one after another; where each starts, and how many tokens there are."""
    opening = np.array([] if begin is None else [begin], kind)
    starts, count, begins = array("q"), 0, True
    for document, ids in found:
        begins = begins or document.begins  # also when the piece that opened the document was left out
        if isinstance(ids, str):
            own.skip(document.where, ids)
        elif len(ids):
            if begins:
                starts.append(count)
                ids = np.concatenate([opening, ids])
                begins = False
            count += file.write(ids.tobytes()) // ids.itemsize
    return starts, count
