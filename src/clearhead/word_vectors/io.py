"""Vectors of words in files: a folder of our own, or word2vec's text (.txt, .vec) and binary (.bin) formats.

Both of word2vec's begin with a line of two numbers, words and width. Then, for each word: the word, a space, and its
numbers, written out up to the end of the line or as 32-bit floats.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from clearhead.config.parse import read_config_file
from clearhead.data.readers import open_input
from clearhead.errors import ClearheadError, reraise_as
from clearhead.io import write_atomic
from clearhead.weights.checkpoint import SafetensorsReader

WORDS_FILE = "words.json"
VECTORS_FILE = "vectors.safetensors"
TEXT_SUFFIXES = (".txt", ".vec")
BINARY_SUFFIX = ".bin"


@dataclass(frozen=True)
class VectorTable:
    """A vector for each word."""

    words: list[str]
    vectors: Tensor  # word width

    def __post_init__(self) -> None:
        if len(set(self.words)) != len(self.words):
            twice = Counter(self.words).most_common(1)[0][0]
            raise ClearheadError(f"{twice!r} has two vectors; each word may have one.")
        if self.vectors.dim() != 2 or len(self.vectors) != len(self.words):
            raise ClearheadError(
                f"there are {len(self.words)} words for vectors of {tuple(self.vectors.shape)}."
            )
        if not bool(self.vectors.isfinite().all()):
            raise ClearheadError("some vectors hold numbers that are not finite.")


def has_word_vectors(path: Path) -> bool:
    """Whether there is a table of vectors rather than a model."""
    if path.is_file():
        return path.suffix in (*TEXT_SUFFIXES, BINARY_SUFFIX)
    return (path / WORDS_FILE).is_file() or (path / VECTORS_FILE).is_file()


def read_vectors(path: Path) -> VectorTable:
    """From a folder of ours, or a file of word2vec's by its ending."""
    if path.is_dir():
        with reraise_as(f"{path} holds no vectors of words"):
            vectors = SafetensorsReader([path / VECTORS_FILE]).get_tensor("vectors").float()
            with safe_open(path / VECTORS_FILE, "pt") as stored:
                kept = (stored.metadata() or {}).get("words")
            words = (
                json.loads(kept)
                if kept is not None
                else read_config_file(path / WORDS_FILE)["words"]
            )  # of an older version
            return VectorTable(list(map(str, words)), vectors)
    with open_input(path) as file:
        head, _, rest = file.read().partition(b"\n")
    if not _is_word2vec_header(head):
        raise ClearheadError(
            f"{path} must begin with two numbers, words and width, as files of word2vec do."
        )
    count, width = map(int, head.split())
    with reraise_as(f"{path} is not a whole file of word2vec's"):
        return (
            _parse_binary(rest, count, width)
            if path.suffix == BINARY_SUFFIX
            else _parse_text(rest, count, width)
        )


def prepare_output(path: Path) -> None:
    """A folder for vectors, which take the place of nothing but vectors. Better told now than after an hour's work."""
    with _reraise_write_errors(path):
        free = (
            has_word_vectors(path)
            or not path.exists()
            or (path.is_dir() and not any(path.iterdir()))
        )
        if path.is_file() and free:
            with path.open("rb") as held:
                free = _is_word2vec_header(held.readline(99))
        if not free:
            raise ClearheadError(
                f"{path} is there and holds no vectors; choose another place for them."
            )
        (path.parent if path.suffix in (*TEXT_SUFFIXES, BINARY_SUFFIX) else path).mkdir(
            parents=True, exist_ok=True
        )


def write_vectors(
    path: Path, table: VectorTable, metadata: dict[str, object] | None = None
) -> None:
    """As a folder, with a note of how the vectors were made; or as a file of word2vec's where the ending says so."""
    prepare_output(path)
    with _reraise_write_errors(path):
        if path.suffix in (*TEXT_SUFFIXES, BINARY_SUFFIX):
            write_atomic(
                path, b"".join(_word2vec_lines(table, binary=path.suffix == BINARY_SUFFIX))
            )
            return
        kept = {
            "words": json.dumps(table.words, ensure_ascii=False)
        }  # with their vectors, so that both change at once
        write_atomic(path / VECTORS_FILE, save({"vectors": table.vectors.contiguous()}, kept))
        write_atomic(
            path / WORDS_FILE,
            json.dumps({"words": table.words, "made": metadata or {}}, ensure_ascii=False).encode(),
        )


@contextmanager
def _reraise_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClearheadError(f"{path} cannot be written: {error.strerror}.") from None


def _is_word2vec_header(line: bytes) -> bool:
    """Whether it is the first line of a file of word2vec's."""
    sizes = line.split()
    return len(sizes) == 2 and all(size.isdigit() for size in sizes)


def _word2vec_lines(table: VectorTable, binary: bool) -> list[bytes]:
    lines = [f"{len(table.words)} {table.vectors.shape[1]}\n".encode()]
    for word, row in zip(table.words, table.vectors.numpy(), strict=True):
        if not word or word != "".join(word.split()):
            raise ClearheadError(
                f"{word!r} holds a space, which word2vec's format cannot; save as a folder."
            )
        numbers = (
            row.astype("<f4").tobytes() if binary else " ".join(map(str, row.tolist())).encode()
        )
        lines.append(word.encode() + b" " + numbers + b"\n")
    return lines


def _parse_text(rest: bytes, count: int, width: int) -> VectorTable:
    lines = rest.decode().split("\n")[:count]
    if len(lines) < count:
        raise ClearheadError(f"the file promises {count:,} words and holds {len(lines):,}.")
    words = []
    vectors = np.empty((count, width), np.float32)
    for number, line in enumerate(lines):
        word, *numbers = line.rstrip().split(" ")
        if len(numbers) != width:
            raise ClearheadError(
                f"line {number + 2} has {len(numbers)} numbers after its word, not {width}."
            )
        words.append(word)
        vectors[number] = numbers
    return VectorTable(words, torch.from_numpy(vectors))


def _parse_binary(rest: bytes, count: int, width: int) -> VectorTable:
    words = []
    vectors = np.empty((count, width), np.float32)
    at = 0
    for number in range(count):
        space = rest.find(b" ", at)
        if space < 0 or space + 1 + 4 * width > len(rest):
            raise ClearheadError(f"the file promises {count:,} words and ends after {number:,}.")
        words.append(
            rest[at:space].lstrip(b"\n").decode()
        )  # some writers end each row with a new line, some do not
        vectors[number] = np.frombuffer(rest, "<f4", width, space + 1)
        at = space + 1 + 4 * width
    return VectorTable(words, torch.from_numpy(vectors))
