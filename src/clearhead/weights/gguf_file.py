"""The GGUF file format: metadata, and tensors that are dequantized when they are read."""

import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGUFValueType
from torch import Tensor

from clearhead.errors import ClearheadError, cannot_read


class GGUFFile:
    """Metadata and lazily read tensors of a .gguf file.

    The header is parsed here, with every length checked against the size of the file, because the
    reader of the `gguf` package takes seconds for a vocabulary. That package dequantizes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # as in torch
        self._tensors: dict[str, tuple[gguf.GGMLQuantizationType, int]] = {}  # type and offset
        try:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                self._read_header(_Cursor(data, path))
        except OSError as error:
            raise cannot_read(path, error) from None

    def _read_header(self, cursor: "_Cursor") -> None:
        if cursor.take(4) != b"GGUF":
            raise ClearheadError(f"{self.path} is not a .gguf file: it does not start with GGUF.")
        (version,) = cursor.unpack("I")
        if version not in (2, 3):
            raise ClearheadError(
                f"{self.path} has GGUF version {version}; clearhead reads versions 2 and 3."
            )
        tensor_count, value_count = cursor.unpack("QQ")
        for _ in range(value_count):
            name = cursor.string()
            self.metadata[name] = cursor.value()
        infos = [self._read_tensor_info(cursor) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ClearheadError(
                f"{self.path}: general.alignment must be a positive integer, got {alignment!r}."
            )
        start = -(-cursor.position // alignment) * alignment
        end = start  # of the previous tensor
        for name, dtype, offset in sorted(infos, key=lambda info: info[2]):
            if start + offset < end:
                raise ClearheadError(f"{self.path}: {name} overlaps another tensor.")
            end = start + offset + self._byte_size(name, dtype)
            if end > len(cursor.data):
                raise ClearheadError(
                    f"{self.path} ends within {name}. The download may be incomplete."
                )
            self._tensors[name] = (dtype, start + offset)

    def _read_tensor_info(self, cursor: "_Cursor") -> tuple[str, gguf.GGMLQuantizationType, int]:
        name = cursor.string()
        (n_dims,) = cursor.unpack("I")
        if n_dims > 4:
            raise ClearheadError(f"{self.path}: {name} has {n_dims} dimensions; at most 4 can be.")
        sizes = cursor.unpack("Q" * n_dims)
        type_id, offset = cursor.unpack("IQ")
        if name in self.shapes:
            raise ClearheadError(f"{self.path} contains {name} twice.")
        self.shapes[name] = tuple(reversed(sizes))
        try:
            return name, gguf.GGMLQuantizationType(type_id), offset
        except ValueError:
            raise ClearheadError(
                f"{self.path}: {name} has the unknown tensor type {type_id}."
            ) from None

    def _byte_size(self, name: str, dtype: gguf.GGMLQuantizationType) -> int:
        block, block_bytes = gguf.GGML_QUANT_SIZES[dtype]
        shape = self.shapes[name]
        if not shape or 0 in shape or shape[-1] % block:
            raise ClearheadError(
                f"{self.path}: the rows of {name}, of shape {shape}, are not a multiple of the"
                f" block size {block}."
            )
        return math.prod(shape) // block * block_bytes

    def get_tensor(self, name: str) -> Tensor:
        """The tensor in its dtype if it is a float, else dequantized to float32."""
        dtype, offset = self._tensors[name]
        shape = self.shapes[name]
        n_rows = math.prod(shape[:-1])
        row_bytes = self._byte_size(name, dtype) // n_rows
        float_dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        if dtype.name in float_dtypes:  # not mapped: the file may be replaced
            numbers = np.fromfile(self.path, np.uint8, n_rows * row_bytes, offset=offset)
            if len(numbers) < n_rows * row_bytes:
                raise ClearheadError(f"{self.path} was truncated while it was read.")
            return torch.from_numpy(numbers).view(float_dtypes[dtype.name]).reshape(shape)
        memmap = np.memmap(self.path, np.uint8, "c", offset, (n_rows, row_bytes))
        data = memmap.view(np.ndarray)  # slicing a memmap is slow
        # separate memory, because dequantizing fragments the heap
        buffer = mmap.mmap(-1, 4 * math.prod(shape), access=mmap.ACCESS_COPY)
        tensor = torch.frombuffer(buffer, dtype=torch.float32).view(-1, shape[-1])
        try:
            for row in range(0, len(tensor), DEQUANTIZE_ROWS):
                rows = slice(row, row + DEQUANTIZE_ROWS)
                tensor[rows] = torch.from_numpy(gguf.dequantize(data[rows], dtype))
        except NotImplementedError:
            raise ClearheadError(
                f"{self.path}: {name} is stored as {dtype.name}, which cannot be dequantized here."
            ) from None
        return tensor.reshape(shape)


# The struct format of each GGUF value type; 8 is a string and 9 an array.
SCALAR_FORMATS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
DEQUANTIZE_ROWS = 512  # rows of a matrix dequantized at a time, to bound temporary memory


class _Cursor:
    """Reads the header value by value, never past the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = 0

    def take(self, count: int) -> bytes:
        self._check_remaining(count)
        self.position += count
        return self.data[self.position - count : self.position]

    def unpack(self, format: str) -> tuple[Any, ...]:
        format = f"<{format}"
        return struct.unpack(format, self.take(struct.calcsize(format)))

    def string(self) -> str:
        (length,) = self.unpack("Q")
        return self.take(length).decode(errors="replace")

    def value(self) -> Any:
        (type_id,) = self.unpack("I")
        if type_id != GGUFValueType.ARRAY:
            return self._scalar_reader(type_id)()
        type_id, count = self.unpack("IQ")
        if type_id in SCALAR_FORMATS:
            dtype = np.dtype(SCALAR_FORMATS[type_id]).newbyteorder("<")
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        self._check_remaining(count)  # every element takes at least a byte
        read = self._scalar_reader(type_id)
        return [read() for _ in range(count)]

    def _scalar_reader(self, type_id: int) -> Callable[[], Any]:
        if type_id == GGUFValueType.STRING:
            return self.string
        if type_id not in SCALAR_FORMATS:
            raise ClearheadError(f"{self.path} contains a value of the unknown type {type_id}.")
        return lambda: self.unpack(SCALAR_FORMATS[type_id])[0]

    def _check_remaining(self, count: int) -> None:
        if count > len(self.data) - self.position:
            raise ClearheadError(
                f"{self.path} ends within its header. The download may be incomplete."
            )
