"""Where a value can be seen or replaced.

Every value worth a name passes through `tap(name, value)` on its way. `Silent` hands it on, and the compiler
removes even the call. `Watch` keeps what was asked for and edits what was to be edited; it is an ordinary
object handed down as an argument, because the compiler ignores module hooks and cannot trace context variables.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Self

from torch import Tensor

Edit = Callable[[Tensor, str], Tensor]
Select = Callable[[Tensor], Tensor]

DEEP = ("scores", "masked", "pattern")  # values that a fused attention kernel never writes down


class Silent:
    """Nobody looks."""

    deep = False  # whether this scope needs attention written out

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def at(self, *path: str | int) -> Self:
        """The tap for names below `path`."""
        return self

    def edited(self, edits: "Mapping[str, Edit]") -> "Watch":
        return Watch(edits=edits)


SILENT = Silent()


class Watch:
    """Keeps values by name, and edits them first.

    Names may hold `*` (one part of the path) and `**` (any number of parts): `blocks.*.attn.pattern`.
    `keep` may map a name to a function that keeps less than the whole value: `{"…pattern": lambda p: p[:, 3]}`.
    """

    def __init__(
        self, keep: Iterable[str] | Mapping[str, Select] = (), edits: Mapping[str, Edit] | None = None
    ) -> None:
        self._keep = keep if isinstance(keep, Mapping) else dict.fromkeys(keep, _whole)
        self._edits = {**(edits or {})}
        self._scope = ""
        self.values: dict[str, Tensor] = {}

    def at(self, *path: str | int) -> "Tap":
        scope = f"{self._scope}{'.'.join(map(str, path))}."
        if not reaches((*self._keep, *self._edits), scope):
            return SILENT  # most of a pass, which has no time on a GPU to be asked about every value
        inner = Watch.__new__(Watch)
        inner._keep, inner._edits, inner._scope, inner.values = self._keep, self._edits, scope, self.values
        return inner

    def edited(self, edits: Mapping[str, Edit]) -> Self:
        """This tap, which edits these values too."""
        self._edits |= edits
        return self

    @property
    def deep(self) -> bool:
        return any(meant((*self._keep, *self._edits), self._scope + name) for name in DEEP)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        path = self._scope + name
        for pattern in meant(tuple(self._edits), path):
            value = self._edits[pattern](value, path)
        for pattern in meant(tuple(self._keep), path):
            self.values[path] = _kept(value, self._keep[pattern])
        return value


Tap = Silent | Watch


def _whole(value: Tensor) -> Tensor:
    return value


def _kept(value: Tensor, select: Select) -> Tensor:
    """What is selected, and no more: a view would keep the whole value alive."""
    part = select(value)
    return part.clone() if select is not _whole and part.untyped_storage().nbytes() > part.nbytes else part


@lru_cache(maxsize=1 << 14)
def meant(patterns: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Those of some patterns that mean a path."""
    return tuple(pattern for pattern in patterns if compile_pattern(pattern).fullmatch(path))


@lru_cache(maxsize=1 << 12)
def reaches(patterns: tuple[str, ...], scope: str) -> bool:
    """Whether any of some patterns may mean a path below a scope, which ends in a dot."""
    return any(_begins(pattern.split("."), scope.split(".")[:-1]) for pattern in patterns)


def _begins(pattern: list[str], scope: list[str]) -> bool:
    for asked, part in zip(pattern, scope, strict=False):
        if "**" in asked:
            return True
        if not compile_pattern(asked).fullmatch(part):
            return False
    return len(pattern) > len(scope)


@lru_cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """`*` is one part of a dotted path, `**` any number of them."""
    parts = re.split(r"(\*\*|\*)", pattern)
    return re.compile("".join({"**": ".*", "*": "[^.]*"}.get(part, re.escape(part)) for part in parts))
