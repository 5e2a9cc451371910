"""Errors and warnings that users see, and helpers that word them consistently."""

import difflib
import math
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from inspect import currentframe
from itertools import islice
from lzma import LZMAError
from pathlib import Path
from traceback import walk_stack
from types import UnionType

MAX_COMPARED_NAMES = 10_000  # beyond this, only names with the same first letter are compared
MAX_COMPARED_FILES = 1_000  # in a larger folder, no similar file name is suggested
MAX_LISTED_NAMES = 24
CONTROL_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    # Bidirectional controls, which change the order in which text is shown.
    **dict.fromkeys((0x061C, 0x200E, 0x200F), 0xFFFD),
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}
MAX_SHOWN_INT = 10**60  # larger integers are not printed

# What parsers raise on malformed data. Others, such as TypeError, are bugs of the reading code.
DATA_ERRORS: tuple[type[BaseException], ...] = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    RecursionError,
    struct.error,
    zlib.error,
    LZMAError,
    zipfile.BadZipFile,
)


class ClearheadError(ValueError):
    """A problem with the user's input. The command line prints it and exits with status 2."""


class NonFiniteError(ClearheadError):
    """A model computed NaN or infinity."""

    def __init__(self, values: str = "the logits") -> None:
        super().__init__(f"{values} contain NaN or infinity; the model's weights may be corrupted.")


class InputTextError(ClearheadError):
    """A text the model cannot read: its index (None for a single text) and the problem."""

    def __init__(self, index: int | None, problem: str) -> None:
        name = "the text" if index is None else f"text {index + 1:,}"
        super().__init__(f"{name} {problem}")
        self.index = index or 0
        self.problem = problem


class ClearheadWarning(UserWarning):
    """Likely a mistake, but the result is still computed as requested."""


def warn(message: str) -> None:
    """Issue a ClearheadWarning at the line of the caller outside this package."""
    outside = (
        level
        for level, (frame, _) in enumerate(walk_stack(currentframe()), 1)
        if frame.f_globals.get("__name__", "").split(".")[0] != "clearhead"
    )
    warnings.warn(message, ClearheadWarning, stacklevel=next(outside, 1))


def escape_controls(text: str) -> str:
    """Text without control characters that a terminal would obey, except tabs and line ends.

    Each is replaced by one visible character, such as ␛.
    """
    return text.translate(CONTROL_PICTURES)


@contextmanager
def with_index(index: int | None) -> Iterator[None]:
    """Re-raise an InputTextError with this index."""
    try:
        yield
    except InputTextError as error:
        raise InputTextError(index, error.problem) from None


def suggest(name: str, known: Iterable[str]) -> str:
    """Finish an error message with the closest known name, or with all of them."""
    known = list(known)
    if close := _closest(name, known, 0.5):
        return f"did you mean {close[0]!r}?"
    if len(known) <= MAX_LISTED_NAMES:
        return "known: " + ", ".join(known)
    return f"there are {len(known)} to choose from"


def _closest(name: str, known: list[str], cutoff: float) -> list[str]:
    if name and (matches := [k for k in known if k.startswith(name)]):
        return matches
    if len(known) > MAX_COMPARED_NAMES:
        known = [k for k in known if k[:1] == name[:1]]
    return difflib.get_close_matches(name, known, n=1, cutoff=cutoff)


def cannot_read(path: object, error: Exception) -> ClearheadError:
    """The error for a file that cannot be read."""
    return ClearheadError(f"{path} cannot be read: {os_error_reason(error, path)}.")


def os_error_reason(error: Exception, path: object) -> str:
    """Why a file operation failed, to finish an error message."""
    if isinstance(error, FileNotFoundError):
        return f"no such file{suggest_file(path)}"
    return str(getattr(error, "strerror", None) or error).removesuffix(".")


def suggest_file(path: object) -> str:
    """A similarly named file in the same folder, in parentheses, or an empty string."""
    path = Path(str(path))
    with suppress(OSError, ValueError), os.scandir(path.parent) as entries:
        names = sorted(entry.name for entry in islice(entries, MAX_COMPARED_FILES + 1))
        if path.name in names or len(names) > MAX_COMPARED_FILES:
            return ""
        if close := _closest(path.name, names, 0.75):
            return f" (did you mean {str(path.with_name(close[0]))!r}?)"
    return ""


def check_type(value: object, expected: type | UnionType, description: str) -> None:
    """Raise unless the value has the expected type."""
    if not isinstance(value, expected):
        raise ClearheadError(f"expected {description}, got {type(value).__name__}.")


def check_int(name: str, value: object, minimum: int = 0, maximum: float = math.inf) -> None:
    """Raise unless the value is an integer within the bounds."""
    if type(value) is int and minimum <= value <= maximum:
        return
    if maximum != math.inf:
        expected = f"an integer from {minimum} to {maximum:,}"
    elif minimum in (0, 1):
        expected = "a positive integer" if minimum else "a non-negative integer"
    else:
        expected = f"an integer of at least {minimum}"
    is_huge = isinstance(value, int) and abs(value) >= MAX_SHOWN_INT
    raise ClearheadError(f"{name} must be {expected}, got {'…' if is_huge else f'{value!r:.60}'}.")


@contextmanager
def reraise_as(message: str, *library_errors: type[BaseException]) -> Iterator[None]:
    """Turn errors that malformed data causes into a ClearheadError; everything else passes through.

    `library_errors` are the exceptions of the library that parses the data, besides DATA_ERRORS.
    """
    try:
        yield
    except ClearheadError:
        raise
    except BaseException as error:
        # Rust extensions raise a bare Exception, or panic.
        is_rust_error = type(error) is Exception or _is_rust_panic(error)
        if not (is_rust_error or isinstance(error, (*DATA_ERRORS, *library_errors))):
            raise
        reason = str(error).strip().split("\n")[0].removesuffix(".") or type(error).__name__
        raise ClearheadError(f"{message}: {reason}.") from error


@contextmanager
def rust_panics_as(message: str) -> Iterator[None]:
    """Turn a panic of a Rust extension into a ClearheadError."""
    try:
        yield
    except BaseException as error:
        if not _is_rust_panic(error):
            raise
        raise ClearheadError(f"{message}: {error}.") from None


def _is_rust_panic(error: BaseException) -> bool:
    """Whether this is PyO3's PanicException, which cannot be imported."""
    return type(error).__name__ == "PanicException"
