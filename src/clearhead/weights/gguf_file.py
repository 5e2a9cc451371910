"""What lies in a .gguf file: values by name, and tensors that are dequantised as they are read.

The head of the file is read here, with every length held against the size of the file; the `gguf` package knows the
numbers of the formats and how each is quantised. (Its own reader takes seconds for the vocabulary alone.)
"""

import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from clearhead.errors import ClearheadError, unreadable

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
ROWS = 512  # rows of a matrix that are dequantised at a time, so that little is there twice


class GgufFile:
    """Values in `values`; tensors by name, of the shapes torch would give them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._tensors: dict[str, tuple[gguf.GGMLQuantizationType, int]] = {}
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self._read_head(_Cursor(data, path))
        except OSError as error:
            raise unreadable(path, error) from None
        except ValueError as error:
            if isinstance(error, ClearheadError):
                raise
            raise ClearheadError(f"{path} is empty or is no .gguf file ({error}).") from None

    def _read_head(self, at: "_Cursor") -> None:
        if at.take(4) != b"GGUF":
            raise ClearheadError(f"{self.path} is no .gguf file: it does not begin with GGUF.")
        (version,) = at.numbers("I")
        if version not in (2, 3):
            raise ClearheadError(f"{self.path} is of GGUF version {version}; clearhead reads 2 and 3.")
        tensors, values = at.numbers("QQ")
        for _ in range(values):
            name = at.text()
            self.values[name] = at.value()
        infos = [self._read_info(at) for _ in range(tensors)]
        step = self.values.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(step, int) or step < 1:
            raise ClearheadError(f"{self.path}: general.alignment = {step!r} is no length.")
        start = -(-at.place // step) * step
        for name, kind, offset in infos:
            size = self._bytes(name, kind)
            if start + offset + size > len(at.data):
                raise ClearheadError(f"{self.path} ends before {name} does; the download may be incomplete.")
            self._tensors[name] = (kind, start + offset)

    def _read_info(self, at: "_Cursor") -> tuple[str, gguf.GGMLQuantizationType, int]:
        name = at.text()
        (dimensions,) = at.numbers("I")
        if dimensions > 4:
            raise ClearheadError(f"{self.path}: {name} has {dimensions} dimensions.")
        sizes = at.numbers("Q" * dimensions)
        kind, offset = at.numbers("IQ")
        if name in self.shapes:
            raise ClearheadError(f"{self.path} holds {name} twice.")
        self.shapes[name] = tuple(reversed(sizes))
        try:
            return name, gguf.GGMLQuantizationType(kind), offset
        except ValueError:
            raise ClearheadError(f"{self.path}: {name} is of type {kind}, which is not known.") from None

    def _bytes(self, name: str, kind: gguf.GGMLQuantizationType) -> int:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        shape = self.shapes[name]
        if not shape or shape[-1] % block:
            raise ClearheadError(f"{self.path}: rows of {name}, {shape}, are no whole blocks of {block}.")
        return math.prod(shape) // block * size

    def read(self, name: str) -> Tensor:
        """As 16 or 32 bits where it is stored so, else dequantised to 32."""
        kind, offset = self._tensors[name]
        shape, size = self.shapes[name], self._bytes(name, kind)
        mapped = np.memmap(self.path, np.uint8, "c", offset, (math.prod(shape[:-1]), size // math.prod(shape[:-1])))
        stored = mapped.view(np.ndarray)  # what remembers its file is slow to cut
        plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}.get(kind.name)
        if plain is not None:
            return torch.from_numpy(stored).view(plain).reshape(shape)
        room = mmap.mmap(
            -1, 4 * math.prod(shape), access=mmap.ACCESS_COPY
        )  # not among the many small pieces that dequantising leaves behind
        whole = torch.frombuffer(room, dtype=torch.float32).view(-1, shape[-1])
        try:
            for row in range(0, len(whole), ROWS):
                whole[row : row + ROWS] = torch.from_numpy(gguf.dequantize(stored[row : row + ROWS], kind))
        except NotImplementedError:
            raise ClearheadError(f"{self.path}: {name} is stored as {kind.name}, which cannot be read here.") from None
        return whole.reshape(shape)


class _Cursor:
    """A place in the file, which never leaves it."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.place = data, path, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.place:
            raise ClearheadError(f"{self.path} ends too early; it is no whole .gguf file.")
        self.place += count
        return self.data[self.place - count : self.place]

    def numbers(self, form: str) -> tuple[Any, ...]:
        form = f"<{form}"
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def text(self) -> str:
        (length,) = self.numbers("Q")
        return self.take(length).decode(errors="replace")

    def value(self) -> Any:
        (kind,) = self.numbers("I")
        if kind != LIST:
            return self._one(kind)()
        kind, count = self.numbers("IQ")
        if kind in NUMBERS:
            form = np.dtype(NUMBERS[kind]).newbyteorder("<")
            return np.frombuffer(self.take(count * form.itemsize), form).tolist()
        if count > len(self.data) - self.place:  # each takes a byte at least
            raise ClearheadError(f"{self.path} ends too early; it is no whole .gguf file.")
        one = self._one(kind)
        return [one() for _ in range(count)]

    def _one(self, kind: int) -> Callable[[], Any]:
        if kind == TEXT:
            return self.text
        if kind not in NUMBERS:
            raise ClearheadError(f"{self.path} holds a value of type {kind}, which is not known.")
        return lambda: self.numbers(NUMBERS[kind])[0]
