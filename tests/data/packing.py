"""Files for tests, packed as their names tell."""

import gzip
import lzma
from pathlib import Path

import pytest


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(
        packer(path.suffix)(content if isinstance(content, bytes) else content.encode())
    )
    return path


def packer(suffix: str):
    if suffix in (".zst", ".zstd"):
        return pytest.importorskip("zstandard").ZstdCompressor().compress
    return {".gz": gzip.compress, ".xz": lzma.compress}.get(suffix, bytes)
