"""Write test files, compressed according to their suffix."""

import gzip
import lzma
import sys
from pathlib import Path

import pytest


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(
        compressor(path.suffix)(content if isinstance(content, bytes) else content.encode())
    )
    return path


def compressor(suffix: str):
    if suffix in (".zst", ".zstd"):
        module = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        return pytest.importorskip(module).compress
    return {".gz": gzip.compress, ".xz": lzma.compress}.get(suffix, bytes)
