"""The one kind of error a user meets: a mistake in what was given, told in a sentence."""

import difflib
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from inspect import currentframe
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from types import UnionType

MAX_COMPARED_NAMES = 10_000  # names; of more, only those with the same first letter are compared, or it would take minutes
MAX_COMPARED_FILES = 1_000  # files of a folder; among more, none is looked for


class ClearheadError(ValueError):
    """What was wrong, the value, what would be right. The command line prints it and exits with 2."""


class NonFiniteError(ClearheadError):
    """What a model computed is no number: not what was given is wrong, but the model."""

    def __init__(self, what: str = "the logits") -> None:
        super().__init__(f"{what} hold no numbers; the weights of the model may be broken.")


class ClearheadWarning(UserWarning):
    """What was probably meant otherwise, told in a sentence; the answer stays as it is."""


def warn(sentence: str) -> None:
    """At the line of whoever called us."""
    levels = enumerate(walk_stack(currentframe()), 1)
    level = next(
        (
            n
            for n, (frame, _) in levels
            if frame.f_globals.get("__name__", "").split(".")[0] != "clearhead"
        ),
        1,
    )
    warnings.warn(sentence, ClearheadWarning, stacklevel=level)


class InputTextError(ClearheadError):
    """A text that a model cannot read: which of several, from 0, and what is wrong, as the rest of a sentence."""

    def __init__(self, number: int | None, why: str) -> None:
        super().__init__(f"{'the text' if number is None else f'text {number + 1:,}'} {why}")
        self.index = number or 0
        self.problem = why


@contextmanager
def with_index(number: int | None) -> Iterator[None]:
    """A text that cannot be read is told as that one of several."""
    try:
        yield
    except InputTextError as error:
        raise InputTextError(number, error.problem) from None


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: the closest name where there is one, else the names there are."""
    known = list(known)
    if close := _closest(name, known, 0.5):
        return f"did you mean {close[0]!r}?"
    return (
        "known: " + ", ".join(known)
        if len(known) <= 24
        else f"there are {len(known)} to choose from"
    )


def _closest(name: str, known: list[str], cutoff: float) -> list[str]:
    begins = [k for k in known if k.startswith(name)] if name else []
    alike = known if len(known) <= MAX_COMPARED_NAMES else [k for k in known if k[:1] == name[:1]]
    return begins or difflib.get_close_matches(name, alike, n=1, cutoff=cutoff)


def cannot_read(path: object, error: Exception) -> ClearheadError:
    """How it is told, wherever a file is read, that it cannot be."""
    return ClearheadError(f"{path} cannot be read: {os_error_reason(error, path)}.")


def os_error_reason(error: Exception, path: object) -> str:
    """Why something could not be done with a file: the end of a sentence."""
    if isinstance(error, FileNotFoundError):
        return f"there is no such file{suggest_file(path)}"
    return str(getattr(error, "strerror", None) or error).removesuffix(".")


def suggest_file(path: object) -> str:
    """What may be meant instead of a file that is not there: one beside it, in brackets, or nothing."""
    wanted = Path(str(path))
    with suppress(OSError, ValueError), os.scandir(wanted.parent) as beside:
        names = sorted(file.name for file in islice(beside, MAX_COMPARED_FILES + 1))
        if (
            wanted.name not in names
            and len(names) <= MAX_COMPARED_FILES
            and (close := _closest(wanted.name, names, 0.75))
        ):
            return f" (did you mean {str(wanted.with_name(close[0]))!r}?)"
    return ""


def check_type(value: object, kind: type | UnionType, what: str) -> None:
    """Refuses what is of another kind than an argument must be."""
    if not isinstance(value, kind):
        raise ClearheadError(f"{what} is needed, not {type(value).__name__}.")


def check_int(name: str, value: object, least: int = 0, most: float = math.inf) -> None:
    """Refuses what is no whole number, too small, or too large."""
    if type(value) is not int or not least <= value <= most:
        right = f"of at least {least}" if most == math.inf else f"from {least} to {most:,}"
        shown = (
            "…" if isinstance(value, int) and abs(value) >= 10**60 else f"{value!r:.60}"
        )  # too long to repr
        raise ClearheadError(f"{name} = {shown} must be a whole number {right}.")


@contextmanager
def reraise_as(mistake: str) -> Iterator[None]:
    """For files of others: whatever goes wrong while they are read is told after `mistake`, in one sentence."""
    try:
        yield
    except (ClearheadError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # libraries raise anything, and panics are not even an Exception
        reason = str(error).strip().split("\n")[0].removesuffix(".") or type(error).__name__
        raise ClearheadError(f"{mistake}: {reason}.") from None
