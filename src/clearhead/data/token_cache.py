"""Cache of tokenized text: token ids in a memory-mapped file.

The cache records what it was made from, and is rebuilt when the files or the tokenizer change. It
also records checksums and is rebuilt if it is damaged; checking them takes about 1 s per GB.
"""

import hashlib
import json
import os
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from clearhead.data.encoding import batch_by_size, try_encode_batch
from clearhead.data.readers import (
    MAX_LOCATIONS_PER_REASON,
    DataReport,
    Document,
    find_files,
    read_documents,
)
from clearhead.errors import ClearheadError
from clearhead.io import atomic_folder, file_lock, write_json
from clearhead.tokenizers.tokenizer import Tokenizer

FORMAT_VERSION = 3
TOKENS_FILE = "tokens.bin"
DOCUMENT_STARTS_FILE = "documents.npy"
METADATA_FILE = "cache.json"
CHECKSUM_BYTES = 2**24  # read at a time
CACHE_FILES = {TOKENS_FILE, DOCUMENT_STARTS_FILE, METADATA_FILE}
SYSTEM_FILES = {".DS_Store", "Thumbs.db", "desktop.ini"}  # file managers leave these in any folder
TokenArray = NDArray[np.uint16] | NDArray[np.uint32]
CachedTokens = tuple[dict[str, Any], TokenArray, NDArray[np.int64]]  # metadata, ids, starts
EncodedDocument = tuple[Document, TokenArray | str]  # token ids, or why there are none


@dataclass(frozen=True)
class TokenizedCorpus:
    """The token ids of all documents, concatenated."""

    ids: TokenArray
    document_starts: NDArray[np.int64]
    bos_token: int | None = None  # at the start of every document
    report: DataReport = field(default_factory=DataReport)


def tokenize_corpus(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    cache_dir: str | Path,
    *,
    report: DataReport,
    text_column: str = "text",
    bos_token: int | None = None,
    parse_special_tokens: bool = False,
    num_workers: int | None = None,
) -> TokenizedCorpus:
    """The tokens of files, from `cache_dir` if it is up to date, else tokenized by threads.

    `bos_token` is put before every document. With `parse_special_tokens`, names of special tokens
    in texts become these tokens. A change of any file or of the tokenizer invalidates the cache.
    """
    cache_dir = Path(cache_dir).absolute()
    fingerprint = _fingerprint(
        paths, tokenizer, text_column, bos_token, parse_special_tokens, report
    )
    cached = _load_if_current(cache_dir, fingerprint, report)
    if cached is None:
        with file_lock(cache_dir.with_name(f".{cache_dir.name}.lock")):
            # Another process may have written the cache while this one waited for the lock.
            cached = _load_if_current(cache_dir, fingerprint, report)
            if cached is None:
                _check_replaceable(cache_dir)
                cache_report = DataReport(report.on_error)
                max_id = max(tokenizer.backend.get_vocab().values())
                dtype = "uint16" if max_id < 2**16 else "uint32"
                documents = read_documents(paths, cache_report, text_column)
                num_workers = num_workers or os.cpu_count() or 1
                encoded = _encode_documents(
                    documents, tokenizer, parse_special_tokens, dtype, num_workers, cache_report
                )
                metadata = _write_cache(
                    cache_dir, encoded, bos_token, dtype, cache_report, fingerprint
                )
                cached = _open_cache(cache_dir, metadata)
    metadata, ids, starts = cached
    report.num_read += metadata["report"]["num_read"]
    report.skipped.update(metadata["report"]["skipped"])
    report.special_tokens.update(metadata["report"]["special_tokens"])
    report.special_token_location = (
        report.special_token_location or metadata["report"]["special_token_location"]
    )
    for reason, locations in metadata["report"]["locations"].items():
        merged = report.locations.get(reason, []) + locations
        report.locations[reason] = merged[:MAX_LOCATIONS_PER_REASON]
    return TokenizedCorpus(ids, starts, bos_token, report)


def _fingerprint(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    text_column: str,
    bos_token: int | None,
    parse_special_tokens: bool,
    report: DataReport,
) -> dict[str, Any]:
    """Everything the tokens depend on."""
    if bos_token is not None:
        tokenizer.id_to_token(bos_token)  # raises if there is no such token
    files = []
    for name in find_files(paths, DataReport(report.on_error)):
        path = Path(name).absolute()
        files.append([str(path), path.stat().st_size, path.stat().st_mtime_ns])
    return {
        "format": FORMAT_VERSION,
        "files": files,
        "tokenizer": hashlib.sha256(tokenizer.backend.to_str().encode()).hexdigest(),
        "text_column": text_column,
        "bos_token": bos_token,
        "parse_special_tokens": parse_special_tokens,
    }


def _load_if_current(
    folder: Path, fingerprint: dict[str, Any], report: DataReport
) -> CachedTokens | None:
    """The cache in a folder if it is up to date and undamaged."""
    if not (folder / METADATA_FILE).exists():
        return None
    try:
        metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
        if metadata["fingerprint"] != fingerprint:
            return None
        checksums = metadata.pop("checksums")
        if checksums == _checksums(folder, metadata):
            is_usable = not metadata["report"]["skipped"] or report.on_error != "fail"
            return _open_cache(folder, metadata) if is_usable else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass  # damaged, too
    message = f"the token cache {folder} is damaged; tokenized its texts again"
    if message not in report.messages:
        report.messages.append(message)
    return None


def _checksums(folder: Path, metadata: dict[str, Any]) -> dict[str, int]:
    """CRC-32 of the files of a cache, and of its metadata."""
    checksums = {METADATA_FILE: zlib.crc32(json.dumps(metadata).encode())}
    for name in (TOKENS_FILE, DOCUMENT_STARTS_FILE):
        checksum = 0
        with (folder / name).open("rb") as file:
            while chunk := file.read(CHECKSUM_BYTES):
                checksum = zlib.crc32(chunk, checksum)
        checksums[name] = checksum
    return checksums


def _open_cache(folder: Path, metadata: dict[str, Any]) -> CachedTokens:
    ids = np.memmap(folder / TOKENS_FILE, metadata["dtype"], "r")
    return metadata, ids, np.load(folder / DOCUMENT_STARTS_FILE, allow_pickle=False)


def _encode_documents(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    parse_special_tokens: bool,
    dtype: str,
    num_workers: int,
    report: DataReport,
) -> Iterator[EncodedDocument]:
    """Token ids in the order of the documents; the tokenizer releases the GIL, so threads help."""

    def encode(batch: list[Document]) -> list[EncodedDocument]:
        texts = [document.text for document in batch]
        results = try_encode_batch(tokenizer, texts, parse_special_tokens)
        return [
            (document, result if isinstance(result, str) else np.array(result, dtype))
            for document, result in zip(batch, results, strict=True)
        ]

    pending: deque[Future[list[EncodedDocument]]] = deque()
    with ThreadPoolExecutor(num_workers) as pool:
        for batch in batch_by_size(documents, lambda document: len(document.text)):
            for document in batch:
                report.count_special_tokens(
                    document.location, tokenizer.special_pattern.findall(document.text)
                )
            pending.append(pool.submit(encode, batch))
            if len(pending) > num_workers:  # do not read ahead of the threads
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _check_replaceable(folder: Path) -> None:
    """Raise if the folder contains anything but a token cache."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ClearheadError(f"{folder} is a file; choose another folder for the token cache.")
    other_files = {path.name for path in folder.iterdir()} - CACHE_FILES - SYSTEM_FILES
    if other_files:
        raise ClearheadError(
            f"{folder} contains {min(other_files)}, which is not part of a token cache; "
            "choose another folder."
        )


def _write_cache(
    folder: Path,
    encoded: Iterator[EncodedDocument],
    bos_token: int | None,
    dtype: str,
    report: DataReport,
    fingerprint: dict[str, Any],
) -> dict[str, Any]:
    """Write the cache atomically, so that it is never incomplete."""
    try:
        with atomic_folder(folder) as new:
            with (new / TOKENS_FILE).open("wb") as file:
                starts, num_tokens = _write_tokens(encoded, bos_token, dtype, report, file)
            if not num_tokens:
                names = ", ".join(path for path, _, _ in fingerprint["files"])
                raise ClearheadError(f"there is no text in {names or 'the input'}.")
            np.save(new / DOCUMENT_STARTS_FILE, np.frombuffer(starts, np.int64))
            metadata = {
                "fingerprint": fingerprint,
                "dtype": dtype,
                "num_documents": len(starts),
                "num_tokens": num_tokens,
                "report": {
                    "num_read": report.num_read,
                    "skipped": report.skipped,
                    "locations": report.locations,
                    "special_tokens": report.special_tokens,
                    "special_token_location": report.special_token_location,
                },
            }
            checksums = _checksums(new, metadata)
            write_json(new / METADATA_FILE, {**metadata, "checksums": checksums}, 1)
    except OSError as error:
        raise ClearheadError(f"cannot write {folder}: {error.strerror or error}.") from None
    return metadata


def _write_tokens(
    encoded: Iterator[EncodedDocument],
    bos_token: int | None,
    dtype: str,
    report: DataReport,
    file: IO[bytes],
) -> tuple[Any, int]:
    """Write the ids of all documents; return where each starts, and the number of tokens."""
    prefix = np.array([] if bos_token is None else [bos_token], dtype)
    starts = array("q")
    num_tokens = 0
    is_start = True
    for document, ids in encoded:
        is_start = is_start or document.is_start  # also if the first chunk was skipped
        if isinstance(ids, str):
            report.skip(document.location, ids)
        elif len(ids):
            if is_start:
                starts.append(num_tokens)
                ids = np.concatenate([prefix, ids])
                is_start = False
            num_tokens += file.write(ids.tobytes()) // ids.itemsize
    return starts, num_tokens
