"""Files as bytes and as lines, whether they are packed by gzip, xz or zstd or not: their names tell."""

import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from clearhead.errors import ClearheadError, unreadable

STDIN = "-"
MARK = "\ufeff".encode()  # of UTF-8, with which some programs open a file
UTF16 = b"\xff\xfe", b"\xfe\xff"  # the marks of another encoding
PACKED = (".gz", ".xz", ".zst", ".zstd")
UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)  # what goes wrong while a file is read


def kind_of(path: Path) -> str:
    """How a name ends, apart from the way the file is packed: `.tsv` of `a.tsv.gz`."""
    return (path.with_suffix("") if path.suffix in PACKED else path).suffix


def opened(path: str | Path) -> AbstractContextManager[IO[bytes]]:
    """What a file, or standard input, holds when it is unpacked; one that is broken raises what UNREADABLE names."""
    if str(path) == STDIN:
        return nullcontext(sys.stdin.buffer)
    match Path(path).suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".xz":
            return lzma.open(path)
        case ".zst" | ".zstd":
            return cast(IO[bytes], io.BufferedReader(_Unpacked(_frames(path, *_zstd(path)))))
        case _:
            return Path(path).open("rb")


@contextmanager
def readable(path: str | Path) -> Iterator[IO[bytes]]:
    """The same, for files that must be read whole: what is broken is told in a sentence."""
    try:
        with opened(path) as file:
            yield file
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def raw_lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file with their ends, and without the mark that may open it."""
    for number, line in enumerate(file):
        yield line if number else line.removeprefix(MARK)


def lines(path: str | Path) -> Iterator[bytes]:
    """The same of a file that must be read whole."""
    with readable(path) as file:
        for number, line in enumerate(raw_lines(file)):
            if not number and line.startswith(UTF16):
                raise ClearheadError(f"{path} is UTF-16; save it as UTF-8.")
            yield line


def text_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text that somebody gave, without their ends; it must be UTF-8."""
    for number, line in enumerate(lines(path), 1):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise ClearheadError(f"{path}:{number}: the line is not UTF-8.") from None
        yield text.rstrip("\r\n")


def escaped(raw: bytes) -> str:
    """Text as it is; bytes that are not UTF-8 become lone surrogates, which no text may hold."""
    return raw.decode(errors="surrogateescape")


def _zstd(path: str | Path) -> tuple[Callable[[], Any], type[Exception]]:
    """What makes a reader of one frame, and the error of the library that does."""
    window = 31  # bits: what zstd --long can ask for
    try:
        if sys.version_info >= (3, 14):
            zstd = import_module("compression.zstd")
            options = {zstd.DecompressionParameter.window_log_max: window}
            return lambda: zstd.ZstdDecompressor(options=options), zstd.ZstdError
        zstandard = import_module("zstandard")
    except ImportError:
        raise ClearheadError(f"{path} needs zstandard; pip install 'clearhead[zstd]'.") from None
    return zstandard.ZstdDecompressor(max_window_size=2**window).decompressobj, zstandard.ZstdError


def _frames(path: str | Path, new_frame: Callable[[], Any], broken: type[Exception]) -> Iterator[bytes]:
    """What the frames of a file hold. The library's own readers take a file that breaks off for a whole one."""
    frame = None
    with Path(path).open("rb") as file:
        while packed := file.read(2**14):
            while packed:
                frame = frame or new_frame()
                try:
                    plain = frame.decompress(packed)
                except broken as error:
                    raise OSError(str(error)) from None
                if plain:
                    yield plain
                packed, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError("the file breaks off")


class _Unpacked(io.RawIOBase):
    """Chunks of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        self._left = self._left or memoryview(next(self._chunks, b""))
        size = min(len(room), len(self._left))
        room[:size], self._left = self._left[:size], self._left[size:]
        return size
