"""Tensors in safetensors files, read one by one through memory maps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearhead.errors import ClearheadError


class Safetensors:
    """All tensors of some files, by name; a name stands in one file only.

    Each read opens its file anew: pages that were read are given back with the tensor, not kept with the file.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            with _opened(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118 - no dictionary
                    if name in self.files:
                        raise ClearheadError(f"{name} stands in {self.files[name].name} and again in {file.name}.")
                    self.files[name] = file
                    self.shapes[name] = tuple(tensors.get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        with _opened(self.files[name]) as tensors:
            return tensors.get_tensor(name)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """The file with its errors told in a sentence; what is not whole inside is refused by the library."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        raise ClearheadError(
            f"{file} cannot be read as safetensors: {error}; the download may be incomplete."
        ) from None
