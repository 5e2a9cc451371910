"""Documents become tokens once: a folder that is mapped into memory, and knows what it was made from."""

import dataclasses
import hashlib
import json
import os
import tempfile
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.data.batch import (
    IGNORE_INDEX,
    DataReport,
    PackedBatch,
    select_rows,
    shuffled_indices,
)
from clearhead.data.encoding import batch_by_size, try_encode_batch
from clearhead.data.readers import STDIN, Document, find_files, read_documents
from clearhead.errors import ClearheadError
from clearhead.io import file_lock, fsync
from clearhead.tokenizers.tokenizer import Tokenizer

# ---- cache: Documents become tokens once: a folder that is mapped into memory, and knows what it was made from.

FORMAT_VERSION = 1
TOKENS_FILE = "tokens.bin"
DOCUMENT_STARTS_FILE = "documents.npy"
METADATA_FILE = "cache.json"
TokenArray = NDArray[np.uint16] | NDArray[np.uint32]
CachedTokens = tuple[
    dict[str, Any], TokenArray, NDArray[np.int64]
]  # what is told of the tokens, they, and where documents start
EncodedDocument = tuple[Document, TokenArray | str]  # the ids, or what went wrong


@dataclasses.dataclass(frozen=True)
class TokenizedCorpus:
    """The tokens of all documents, one after another, and where each document starts."""

    ids: TokenArray
    document_starts: NDArray[np.int64]
    bos_token: int | None = None  # the id that opens every document
    report: DataReport = dataclasses.field(default_factory=DataReport)


def tokenize_corpus(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    cache_dir: str | Path,
    *,
    report: DataReport,
    text_column: str = "text",
    bos_token: int | None = None,
    num_workers: int | None = None,
) -> TokenizedCorpus:
    """The tokens of files, from `folder` if it holds them, else made by `workers` threads and kept there.

    `begin` is put before every document. Sources are read again when one of them, or the tokenizer, has changed.
    """
    cache_dir = Path(cache_dir).absolute()
    made_from = _fingerprint(paths, tokenizer, text_column, bos_token, report)
    held = _load_if_current(cache_dir, made_from, report)
    if held is None:
        with file_lock(cache_dir.with_name(f".{cache_dir.name}.lock")):
            held = _load_if_current(
                cache_dir, made_from, report
            )  # who waited finds what another process has made meanwhile
            if held is None:
                _check_replaceable(cache_dir)
                own = DataReport(report.on_error)
                kind = "uint16" if max(tokenizer.backend.get_vocab().values()) < 2**16 else "uint32"
                found = _encode_documents(
                    read_documents(paths, own, text_column),
                    tokenizer,
                    kind,
                    num_workers or os.cpu_count() or 1,
                )
                held = _open_cache(
                    cache_dir, _write_cache(cache_dir, found, bos_token, kind, own, made_from)
                )
    about, ids, starts = held
    told = about["report"]
    report.num_read += told["read"]
    report.skipped.update(told["skipped"])
    for why, places in told["places"].items():
        report.locations[why] = (report.locations.get(why, []) + places)[:3]
    return TokenizedCorpus(ids, starts, bos_token, report)


def _fingerprint(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    text_column: str,
    bos_token: int | None,
    report: DataReport,
) -> dict[str, Any]:
    """All that the tokens depend on."""
    if bos_token is not None:
        tokenizer.decode([bos_token])  # which refuses what is no token
    sources: list[list[Any]] = []
    for file in find_files(paths, DataReport(report.on_error)):
        path = Path(file).absolute()
        state = path.stat() if file != STDIN and path.is_file() else None  # None: a pipe
        sources.append([str(path), state and state.st_size, state and state.st_mtime_ns])
    tokenizer_hash = hashlib.sha256(tokenizer.backend.to_str().encode()).hexdigest()
    return {
        "format": FORMAT_VERSION,
        "files": sources,
        "tokenizer": tokenizer_hash,
        "field": text_column,
        "begin": bos_token,
    }


def _load_if_current(
    folder: Path, fingerprint: dict[str, Any], report: DataReport
) -> CachedTokens | None:
    """What a folder holds, if it is what is wanted."""
    if any(size is None for _, size, _ in fingerprint["files"]):
        return None  # what came through a pipe may be another text next time
    try:
        about = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
        if about["made_from"] != fingerprint or (
            about["report"]["skipped"] and report.on_error == "fail"
        ):
            return None
        held = _open_cache(folder, about)
        return held if len(held[1]) == about["tokens"] else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _open_cache(folder: Path, metadata: dict[str, Any]) -> CachedTokens:
    return (
        metadata,
        np.memmap(folder / TOKENS_FILE, metadata["kind"], "r"),
        np.load(folder / DOCUMENT_STARTS_FILE),
    )


def _encode_documents(
    found: Iterable[Document], tokenizer: Tokenizer, dtype: str, num_workers: int
) -> Iterator[EncodedDocument]:
    """The ids of documents, in order. Threads do, since the library lets go of Python while it works."""

    def encode(batch: list[Document]) -> list[EncodedDocument]:
        found = try_encode_batch(tokenizer, [document.text for document in batch])
        return [
            (d, i if isinstance(i, str) else np.array(i, dtype))
            for d, i in zip(batch, found, strict=True)
        ]

    waiting: deque[Future[list[EncodedDocument]]] = deque()
    with ThreadPoolExecutor(num_workers) as pool:
        for batch in batch_by_size(found, lambda document: len(document.text)):
            waiting.append(pool.submit(encode, batch))
            if (
                len(waiting) > num_workers
            ):  # one more than can be worked on; the files wait for the threads
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _check_replaceable(folder: Path) -> None:
    """Tokens may take the place of nothing, or of tokens."""
    if folder.exists() and not folder.is_dir():
        raise ClearheadError(f"{folder} is a file; choose another name for the folder of tokens.")
    if folder.exists() and (
        others := {path.name for path in folder.iterdir()}
        - {TOKENS_FILE, DOCUMENT_STARTS_FILE, METADATA_FILE}
    ):
        raise ClearheadError(
            f"{folder} holds {min(others)}, which is no part of a text's tokens; choose another name."
        )


def _write_cache(
    folder: Path,
    encoded: Iterator[EncodedDocument],
    bos_token: int | None,
    dtype: str,
    report: DataReport,
    fingerprint: dict[str, Any],
) -> dict[str, Any]:
    """Tokens go to a folder beside, which takes the name when all is in it: no one ever finds half of them."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as there:
            new = Path(there) / "new"
            new.mkdir()
            with (new / TOKENS_FILE).open("wb") as file:
                starts, count = _write_tokens(encoded, bos_token, dtype, report, file)
            if not count:
                names = ", ".join(path for path, _, _ in fingerprint["files"])
                raise ClearheadError(f"there is no text in {names or 'what was given'}.")
            np.save(new / DOCUMENT_STARTS_FILE, np.frombuffer(starts, np.int64))
            told = {"read": report.num_read, "skipped": report.skipped, "places": report.locations}
            about = {
                "made_from": fingerprint,
                "kind": dtype,
                "documents": len(starts),
                "tokens": count,
                "report": told,
            }
            (new / METADATA_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
            for path in new.iterdir():
                fsync(path)
            if folder.exists():
                folder.rename(Path(there) / "old")  # goes with the temporary folder
            new.rename(folder)
    except OSError as error:
        raise ClearheadError(f"{folder} cannot be saved: {error.strerror or error}.") from None
    return about


def _write_tokens(
    encoded: Iterator[EncodedDocument],
    bos_token: int | None,
    dtype: str,
    report: DataReport,
    file: IO[bytes],
) -> tuple[Any, int]:
    """Writes the tokens of documents one after another; where each starts, and how many tokens there are."""
    opening = np.array([] if bos_token is None else [bos_token], dtype)
    starts = array("q")
    count = 0
    begins = True
    for document, ids in encoded:
        begins = (
            begins or document.is_start
        )  # also when the piece that opened the document was left out
        if isinstance(ids, str):
            report.skip(document.location, ids)
        elif len(ids):
            if begins:
                starts.append(count)
                ids = np.concatenate([opening, ids])
                begins = False
            count += file.write(ids.tobytes()) // ids.itemsize
    return starts, count


# ---- stream: Rows of a language model without waste: all documents in one stream, cut into rows, every token a real one.

Numbers = NDArray[np.int64]


class _TokenStream:
    """Some documents of a corpus as one stream of tokens."""

    def __init__(
        self, tokens: TokenizedCorpus, starts: Numbers, ends: Numbers, eos_token: int | None
    ) -> None:
        starts, ends = starts[ends > starts], ends[ends > starts]
        self._ids = np.asarray(
            tokens.ids
        )  # still mapped, without the cost of numpy's own class for it
        self._eos_token = tokens.bos_token if eos_token is None else eos_token
        self._ends = np.cumsum(ends - starts)
        self._offsets = ends - self._ends  # from a place in the stream to one in the corpus
        self.size = int(self._ends[-1]) if len(ends) else 0

    def rows(self, starts: Numbers, length: int) -> PackedBatch:
        """The rows that start at places of the stream; what lies after its end is padding."""
        places = starts[:, None] + np.arange(length + 1)
        real = places < self.size
        places = np.minimum(places, self.size - 1)
        document = np.searchsorted(self._ends, places, side="right")
        ids = np.where(real, self._ids[places + self._offsets[document]].astype(np.int64), 0)
        last = document[:, 1:] != document[:, :-1]
        learned = real[:, 1:]
        following = ids[:, 1:]
        if self._eos_token is None:
            learned = learned & ~last
        elif len(self._ends) > 1:
            following = np.where(last, self._eos_token, following)
        real = real[:, :-1]
        document = document[:, :-1]
        segment_ids = None
        if len(self._ends) > 1 or not real.all():
            segment_ids = torch.from_numpy(np.where(real, document - document[:, :1] + 1, 0))
        targets = np.where(learned, following, IGNORE_INDEX)
        return PackedBatch(
            torch.from_numpy(ids[:, :-1].copy()), torch.from_numpy(targets), segment_ids
        )


class LanguageModelingDataset:
    """A corpus as rows of `length` tokens, with the token that follows each as its target.

    A row begins where the one before it ended, in the middle of a document if need be; `segments` number the documents
    inside a row, and are None where there is only one. The target of a document's last token is `stop`, or without it
    the token that begins the next: so a model learns to stop. Without either it has no target. Each epoch cuts the
    stream at other places, and has its own order of rows; less than two rows at the ends of the stream are left over.

    `held_out` is the share of the documents, chosen by the seed, that is kept for validation with all their copies: of
    a single document the last share of its tokens. Or `validation` is a corpus of its own.
    """

    packing_efficiency = 1.0

    def __init__(
        self,
        tokens: TokenizedCorpus,
        seq_len: int,
        batch_size: int,
        seed: int = 0,
        valid_fraction: float = 0.0,
        valid: TokenizedCorpus | None = None,
        eos_token: int | None = None,
    ) -> None:
        if not 0 <= valid_fraction < 1:
            raise ClearheadError(
                f"the share that is held out is {valid_fraction}; it must be at least 0 and less than 1."
            )
        if valid_fraction and valid is not None:
            raise ClearheadError(
                "with texts for validation nothing else is held out; leave out the share."
            )
        self.report = tokens.report
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self._train, self._valid = _split_documents(tokens, valid_fraction, seed, eos_token)
        if valid is not None:
            self._valid = _split_documents(valid, 0.0, seed, eos_token)[0]
        if self._train.size <= seq_len:
            few = f"a row needs {seq_len} tokens and one more; there are {self._train.size} to train on"
            raise ClearheadError(f"{few}. Give more text, or a smaller train.seq_len.")
        # The furthest that the first row may start. It is the same in each epoch, and so is the number of rows.
        self._max_offset = min(seq_len, self._train.size - seq_len) - 1
        self._num_rows = (self._train.size - 1 - self._max_offset) // seq_len
        self.batches_per_epoch = self._num_rows / batch_size

    def batch(self, step: int) -> PackedBatch:
        drawn = select_rows(step, self.batch_size, self._num_rows, self.seed)
        phases = {epoch: self._offset(epoch) for epoch in {epoch for epoch, _ in drawn}}
        starts = np.array([phases[epoch] + number * self.seq_len for epoch, number in drawn])
        return self._train.rows(starts, self.seq_len)

    def valid_batches(self) -> Iterator[PackedBatch]:
        """Every token of the held-out part once, in order; the last batch is filled up with padding."""
        if self._valid is not None:
            for start in range(0, self._valid.size, self.batch_size * self.seq_len):
                yield self._valid.rows(
                    start + np.arange(self.batch_size) * self.seq_len, self.seq_len
                )

    def _offset(self, epoch: int) -> int:
        """Where the first row of an epoch starts."""
        return int(np.random.default_rng([self.seed % 2**63, epoch]).integers(self._max_offset + 1))


def _split_documents(
    tokens: TokenizedCorpus, fraction: float, seed: int, eos_token: int | None
) -> tuple[_TokenStream, _TokenStream | None]:
    """What is trained on, and what is held out."""
    starts = np.asarray(tokens.document_starts)
    ends = np.append(tokens.document_starts[1:], len(tokens.ids))
    count = len(starts)
    if not fraction:
        return _TokenStream(tokens, starts, ends, eos_token), None
    if count == 1:
        cut = np.array([min(int(ends[0] * (1 - fraction)), ends[0] - 1)])
        return _TokenStream(tokens, starts, cut, eos_token), _TokenStream(
            tokens, cut, ends, eos_token
        )
    groups = _group_duplicates(tokens, starts, ends)
    different = int(groups.max()) + 1
    if different == 1:
        raise ClearheadError(
            f"all {count} documents are the same, so none can be held out; data.valid_fraction = 0 may be."
        )
    picks = shuffled_indices(different, seed, -1)[
        : min(max(round(fraction * different), 1), different - 1)
    ]
    chosen = np.isin(groups, picks.numpy())
    train, held = (
        _TokenStream(tokens, starts[some], ends[some], eos_token) for some in (~chosen, chosen)
    )
    return train, held


def _group_duplicates(tokens: TokenizedCorpus, starts: Numbers, ends: Numbers) -> Numbers:
    """A number for each document, from 0 as they come, and the same for copies: lest training see what is held out."""
    ids = np.asarray(tokens.ids)
    digests = (
        hashlib.blake2b(ids[a:b].data, digest_size=8).digest()
        for a, b in zip(starts, ends, strict=True)
    )
    keys = np.frombuffer(b"".join(digests), np.uint64)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return first.argsort().argsort()[group]


class MaskedLanguageModelingDataset:
    """The rows of a stream with some of their words hidden, which are the targets (BERT's masked words).

    Of `hidden` of the tokens, 80 % become `mask`, 10 % another word, 10 % stay. No id in `special` is hidden or put in.
    Each step hides anew, as the seed and the step say, and at least one word of a batch, for a batch must teach; what
    is hidden in the held-out part is always the same.
    """

    packing_efficiency = 1.0

    def __init__(
        self,
        dataset: LanguageModelingDataset,
        mask_token: int,
        vocab_size: int,
        special_tokens: Collection[int] = (),
        mask_probability: float = 0.15,
    ) -> None:
        if not 0 < mask_probability <= 1:
            raise ClearheadError(
                f"the share of hidden words is {mask_probability}; it must be more than 0 and at most 1."
            )
        if outside := [i for i in (mask_token, *special_tokens) if not 0 <= i < vocab_size]:
            raise ClearheadError(
                f"there is no token {outside[0]}; ids run from 0 to {vocab_size - 1}."
            )
        self._maskable = np.ones(vocab_size, bool)
        self._maskable[[mask_token, *special_tokens]] = False
        if not self._maskable.any():
            raise ClearheadError(f"all {vocab_size} tokens are special; there is no word to hide.")
        self._replacements = np.flatnonzero(self._maskable)
        self._dataset = dataset
        self._mask_token = mask_token
        self._mask_probability = mask_probability
        self.batches_per_epoch = dataset.batches_per_epoch
        self.report = dataset.report

    def batch(self, step: int) -> PackedBatch:
        return self._mask_tokens(self._dataset.batch(step), 0, step)

    def valid_batches(self) -> Iterator[PackedBatch]:
        for number, packed in enumerate(self._dataset.valid_batches()):
            yield self._mask_tokens(packed, 1, number)

    def _mask_tokens(self, packed: PackedBatch, part: int, number: int) -> PackedBatch:
        chance = np.random.default_rng([self._dataset.seed % 2**63, part, number])
        ids = packed.tokens.numpy()
        free = (
            self._maskable[ids]
            if packed.segment_ids is None
            else self._maskable[ids] & (packed.segment_ids.numpy() > 0)
        )
        fate = (
            np.where(free, chance.random(ids.shape, np.float32), np.inf) / self._mask_probability
        )  # hidden if less than 1
        if free.any() and fate.min() >= 1:
            fate.flat[fate.argmin()] = chance.random()
        tokens = np.where(fate < 0.8, self._mask_token, ids)
        other = (fate >= 0.8) & (fate < 0.9)
        tokens[other] = self._replacements[
            chance.integers(len(self._replacements), size=other.sum())
        ]
        targets = np.where(fate < 1, ids, IGNORE_INDEX)
        return PackedBatch(torch.from_numpy(tokens), torch.from_numpy(targets), packed.segment_ids)
