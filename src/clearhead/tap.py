"""Where a value can be seen or replaced.

Every value worth a name passes through `tap(name, value)` on its way. `Silent` hands it on, and the compiler
removes even the call. `Watch` keeps what was asked for and edits what was to be edited; it is an ordinary
object handed down as an argument, because the compiler ignores module hooks and cannot trace context variables.
"""

import re
from collections.abc import Callable, Iterable, Mapping
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
        selects = keep if isinstance(keep, Mapping) else dict.fromkeys(keep, _whole)
        self._keep = {compile_pattern(pattern): select for pattern, select in selects.items()}
        self._edits = {compile_pattern(pattern): edit for pattern, edit in (edits or {}).items()}
        self._scope = ""
        self.values: dict[str, Tensor] = {}

    def at(self, *path: str | int) -> "Watch":
        inner = Watch.__new__(Watch)
        inner._keep, inner._edits, inner.values = self._keep, self._edits, self.values
        inner._scope = f"{self._scope}{'.'.join(map(str, path))}."
        return inner

    def edited(self, edits: Mapping[str, Edit]) -> Self:
        """This tap, which edits these values too."""
        self._edits |= {compile_pattern(pattern): edit for pattern, edit in edits.items()}
        return self

    @property
    def deep(self) -> bool:
        names = [self._scope + name for name in DEEP]
        return any(p.fullmatch(name) for p in (*self._keep, *self._edits) for name in names)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        path = self._scope + name
        for pattern, edit in self._edits.items():
            if pattern.fullmatch(path):
                value = edit(value, path)
        for pattern, select in self._keep.items():
            if pattern.fullmatch(path):
                kept = select(value)
                if kept.untyped_storage().nbytes() > kept.nbytes and select is not _whole:
                    kept = kept.clone()  # a view would keep the whole value alive
                self.values[path] = kept
        return value


Tap = Silent | Watch


def _whole(value: Tensor) -> Tensor:
    return value


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """`*` is one part of a dotted path, `**` any number of them."""
    parts = re.split(r"(\*\*|\*)", pattern)
    return re.compile("".join({"**": ".*", "*": "[^.]*"}.get(part, re.escape(part)) for part in parts))
