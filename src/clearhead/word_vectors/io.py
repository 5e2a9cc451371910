"""Load and save word vectors: our own folders, and word2vec's text and binary formats.

A word2vec file starts with a line of two numbers, the number of words and the vector size. Each
word is followed by a space and its vector: in .txt and .vec as decimal numbers up to the end of
the line, in .bin as 32-bit floats.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from clearhead.data.readers import open_input, read_at_most
from clearhead.errors import ClearheadError, reraise_as
from clearhead.io import is_temporary, write_atomic, write_json

WORDS_FILE = "words.json"
VECTORS_FILE = "vectors.safetensors"
TEXT_SUFFIXES = (".txt", ".vec")
BINARY_SUFFIX = ".bin"
MAX_HEADER_BYTES = 99
MAX_WORD_BYTES = 1000  # on average
MAX_NUMBER_BYTES = 32


@dataclass(frozen=True)
class VectorTable:
    """A vector for each word."""

    words: list[str]
    vectors: Tensor  # [word, vector_size]

    def __post_init__(self) -> None:
        if len(set(self.words)) != len(self.words):
            word, _ = Counter(self.words).most_common(1)[0]
            raise ClearheadError(f"the word {word!r} has more than one vector.")
        if self.vectors.dim() != 2 or len(self.vectors) != len(self.words):
            raise ClearheadError(
                f"expected one vector for each of {len(self.words)} words, "
                f"got a tensor of shape {tuple(self.vectors.shape)}."
            )
        if not bool(self.vectors.isfinite().all()):
            raise ClearheadError("the vectors contain NaN or infinity.")


def has_word_vectors(path: Path) -> bool:
    """Whether a path contains word vectors rather than a model."""
    if path.is_file():
        return path.suffix in (*TEXT_SUFFIXES, BINARY_SUFFIX)
    return (path / WORDS_FILE).is_file() or (path / VECTORS_FILE).is_file()


# --- reading
def read_vectors(path: Path) -> VectorTable:
    """Read a folder, or a word2vec file."""
    if path.is_dir():
        with (
            reraise_as(f"{path} contains no word vectors", SafetensorError, TypeError),
            safe_open(path / VECTORS_FILE, "pt") as file,
        ):
            words = json.loads(file.metadata()["words"])
            vectors = file.get_tensor("vectors").to(torch.float32, copy=True)  # not mapped
            return VectorTable(list(map(str, words)), vectors)
    with open_input(path) as stream:
        header = stream.readline(MAX_HEADER_BYTES)
        if not _is_word2vec_header(header):
            raise ClearheadError(
                f"{path} is not a word2vec file: "
                "its first line must be the number of words and the vector size."
            )
        num_words, vector_size = map(int, header.split())
        content = read_at_most(
            stream, num_words * (MAX_WORD_BYTES + vector_size * MAX_NUMBER_BYTES)
        )
    if num_words * vector_size > len(content):
        raise ClearheadError(
            f"{path} is too short for {num_words:,} words of {vector_size:,} numbers."
        )
    parse = _parse_binary if path.suffix == BINARY_SUFFIX else _parse_text
    with reraise_as(f"{path} is not a valid word2vec file"):
        return parse(content, num_words, vector_size)


def _is_word2vec_header(line: bytes) -> bool:
    sizes = line.split()
    return len(sizes) == 2 and all(size.isdigit() for size in sizes)


def _parse_text(content: bytes, num_words: int, vector_size: int) -> VectorTable:
    lines = content.decode().split("\n")[:num_words]
    if len(lines) < num_words:
        raise ClearheadError(f"expected {num_words:,} words, found {len(lines):,}.")
    words = []
    vectors = np.empty((num_words, vector_size), np.float32)
    for i, line in enumerate(lines):
        word, *numbers = line.rstrip().split(" ")
        if len(numbers) != vector_size:
            raise ClearheadError(
                f"line {i + 2}: expected {vector_size} numbers, found {len(numbers)}."
            )
        words.append(word)
        vectors[i] = numbers
    return VectorTable(words, torch.from_numpy(vectors))


def _parse_binary(content: bytes, num_words: int, vector_size: int) -> VectorTable:
    words = []
    vectors = np.empty((num_words, vector_size), np.float32)
    position = 0
    for i in range(num_words):
        space = content.find(b" ", position)
        end = space + 1 + 4 * vector_size
        if space < 0 or end > len(content):
            raise ClearheadError(f"expected {num_words:,} words, found {i:,}.")
        word = content[position:space].lstrip(b"\n")  # some programs end each row with a new line
        words.append(word.decode())
        vectors[i] = np.frombuffer(content, "<f4", vector_size, space + 1)
        position = end
    return VectorTable(words, torch.from_numpy(vectors))


# --- writing
def prepare_output(path: Path) -> None:
    """Create the output folder, and refuse to overwrite anything but word vectors."""
    with _reraise_write_errors(path):
        is_free = not path.exists() or has_word_vectors(path)
        if path.is_dir() and all(map(is_temporary, path.iterdir())):  # of a run that was killed
            is_free = True
        if path.is_file() and is_free:
            with path.open("rb") as file:
                is_free = _is_word2vec_header(file.readline(MAX_HEADER_BYTES))
        if not is_free:
            raise ClearheadError(
                f"{path} exists and does not contain word vectors; choose another output."
            )
        is_file = path.suffix in (*TEXT_SUFFIXES, BINARY_SUFFIX)
        folder = path.parent if is_file else path
        folder.mkdir(parents=True, exist_ok=True)


def write_vectors(path: Path, table: VectorTable, config: dict[str, object] | None = None) -> None:
    """Write a folder that records the training `config`, or a word2vec file by its suffix."""
    prepare_output(path)
    with _reraise_write_errors(path):
        if path.suffix in TEXT_SUFFIXES:
            write_atomic(path, _word2vec_content(table, is_binary=False))
        elif path.suffix == BINARY_SUFFIX:
            write_atomic(path, _word2vec_content(table, is_binary=True))
        else:
            # Words and vectors in one file change at once.
            metadata = {"words": json.dumps(table.words, ensure_ascii=False)}
            content = save({"vectors": table.vectors.contiguous()}, metadata)
            write_atomic(path / VECTORS_FILE, content)
            words = {"words": table.words, "config": config or {}}
            write_json(path / WORDS_FILE, words, indent=None)


@contextmanager
def _reraise_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClearheadError(f"cannot write {path}: {error.strerror}.") from None


def _word2vec_content(table: VectorTable, is_binary: bool) -> bytes:
    lines = [f"{len(table.words)} {table.vectors.shape[1]}\n".encode()]
    for word, vector in zip(table.words, table.vectors.numpy(), strict=True):
        if not word or word != "".join(word.split()):
            raise ClearheadError(
                f"the word {word!r} is empty or contains a space, which word2vec's format does "
                "not support; save a folder instead."
            )
        if is_binary:
            numbers = vector.astype("<f4").tobytes()
        else:
            numbers = " ".join(map(str, vector.tolist())).encode()
        lines.append(word.encode() + b" " + numbers + b"\n")
    return b"".join(lines)
