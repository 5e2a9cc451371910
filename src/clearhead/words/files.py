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

from clearhead import reader
from clearhead.data.unpacked import readable
from clearhead.errors import ClearheadError, understood
from clearhead.files import overwrite
from clearhead.weights.store import Safetensors

WORDS, VECTORS = "words.json", "vectors.safetensors"
TEXT, BINARY = (".txt", ".vec"), ".bin"


@dataclass(frozen=True)
class Table:
    """A vector for each word."""

    words: list[str]
    vectors: Tensor  # word width

    def __post_init__(self) -> None:
        if len(set(self.words)) != len(self.words):
            twice = Counter(self.words).most_common(1)[0][0]
            raise ClearheadError(f"{twice!r} has two vectors; each word may have one.")
        if self.vectors.dim() != 2 or len(self.vectors) != len(self.words):
            raise ClearheadError(f"there are {len(self.words)} words for vectors of {tuple(self.vectors.shape)}.")
        if not bool(self.vectors.isfinite().all()):
            raise ClearheadError("some vectors hold numbers that are not finite.")


def holds_vectors(path: Path) -> bool:
    """Whether there is a table of vectors rather than a model."""
    if path.is_file():
        return path.suffix in (*TEXT, BINARY)
    return (path / WORDS).is_file() or (path / VECTORS).is_file()


def read_table(path: Path) -> Table:
    """From a folder of ours, or a file of word2vec's by its ending."""
    if path.is_dir():
        with understood(f"{path} holds no vectors of words"):
            vectors = Safetensors([path / VECTORS]).read("vectors").float()
            with safe_open(path / VECTORS, "pt") as stored:
                kept = (stored.metadata() or {}).get("words")
            words = json.loads(kept) if kept is not None else reader.load(path / WORDS)["words"]  # of an older version
            return Table(list(map(str, words)), vectors)
    with readable(path) as file:
        head, _, rest = file.read().partition(b"\n")
    if not _begins(head):
        raise ClearheadError(f"{path} must begin with two numbers, words and width, as files of word2vec do.")
    count, width = map(int, head.split())
    with understood(f"{path} is not a whole file of word2vec's"):
        return _binary(rest, count, width) if path.suffix == BINARY else _text(rest, count, width)


def make_place(path: Path) -> None:
    """A folder for vectors, which take the place of nothing but vectors. Better told now than after an hour's work."""
    with _writing(path):
        free = holds_vectors(path) or not path.exists() or (path.is_dir() and not any(path.iterdir()))
        if path.is_file() and free:
            with path.open("rb") as held:
                free = _begins(held.readline(99))
        if not free:
            raise ClearheadError(f"{path} is there and holds no vectors; choose another place for them.")
        (path.parent if path.suffix in (*TEXT, BINARY) else path).mkdir(parents=True, exist_ok=True)


def write_table(path: Path, table: Table, made: dict[str, object] | None = None) -> None:
    """As a folder, with a note of how the vectors were made; or as a file of word2vec's where the ending says so."""
    make_place(path)
    with _writing(path):
        if path.suffix in (*TEXT, BINARY):
            overwrite(path, b"".join(_lines(table, binary=path.suffix == BINARY)))
            return
        kept = {"words": json.dumps(table.words, ensure_ascii=False)}  # with their vectors, so that both change at once
        overwrite(path / VECTORS, save({"vectors": table.vectors.contiguous()}, kept))
        overwrite(path / WORDS, json.dumps({"words": table.words, "made": made or {}}, ensure_ascii=False).encode())


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClearheadError(f"{path} cannot be written: {error.strerror}.") from None


def _begins(line: bytes) -> bool:
    """Whether it is the first line of a file of word2vec's."""
    sizes = line.split()
    return len(sizes) == 2 and all(size.isdigit() for size in sizes)


def _lines(table: Table, binary: bool) -> list[bytes]:
    lines = [f"{len(table.words)} {table.vectors.shape[1]}\n".encode()]
    for word, row in zip(table.words, table.vectors.numpy(), strict=True):
        if not word or word != "".join(word.split()):
            raise ClearheadError(f"{word!r} holds a space, which word2vec's format cannot; save as a folder.")
        numbers = row.astype("<f4").tobytes() if binary else " ".join(map(str, row.tolist())).encode()
        lines.append(word.encode() + b" " + numbers + b"\n")
    return lines


def _text(rest: bytes, count: int, width: int) -> Table:
    lines = rest.decode().split("\n")[:count]
    if len(lines) < count:
        raise ClearheadError(f"the file promises {count:,} words and holds {len(lines):,}.")
    words, vectors = [], np.empty((count, width), np.float32)
    for number, line in enumerate(lines):
        word, *numbers = line.rstrip().split(" ")
        if len(numbers) != width:
            raise ClearheadError(f"line {number + 2} has {len(numbers)} numbers after its word, not {width}.")
        words.append(word)
        vectors[number] = numbers
    return Table(words, torch.from_numpy(vectors))


def _binary(rest: bytes, count: int, width: int) -> Table:
    words, vectors, at = [], np.empty((count, width), np.float32), 0
    for number in range(count):
        space = rest.find(b" ", at)
        if space < 0 or space + 1 + 4 * width > len(rest):
            raise ClearheadError(f"the file promises {count:,} words and ends after {number:,}.")
        words.append(rest[at:space].lstrip(b"\n").decode())  # some writers end each row with a new line, some do not
        vectors[number] = np.frombuffer(rest, "<f4", width, space + 1)
        at = space + 1 + 4 * width
    return Table(words, torch.from_numpy(vectors))
