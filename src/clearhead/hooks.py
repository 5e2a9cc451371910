"""Where a value can be seen or replaced.

Every value worth a name passes through `tap(name, value)` on its way. `Silent` hands it on, and the compiler
removes even the call. `Watch` keeps what was asked for and edits what was to be edited; it is an ordinary
object handed down as an argument, because the compiler ignores module hooks and cannot trace context variables.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from clearhead.errors import ClearheadError

Edit = Callable[[Tensor, str], Tensor]
Selector = Callable[[Tensor], Tensor]

SCORE_NAMES = (
    "scores",
    "masked_scores",
    "pattern",
)  # values that a fused attention kernel never writes down


class NoHooks:
    """Nobody looks."""

    needs_scores = False  # whether this scope needs attention written out

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def scope(self, *path: str | int) -> Self:
        """The tap for names below `path`."""
        return self

    def with_edits(self, edits: "Mapping[str, Edit]") -> "Recorder":
        return Recorder(edits=edits)


NO_HOOKS = NoHooks()


class Recorder:
    """Keeps values by name, and edits them first.

    Names may hold `*` (one part of the path) and `**` (any number of parts): `blocks.*.attn.pattern`.
    `keep` may map a name to a function that keeps less than the whole value: `{"…pattern": lambda p: p[:, 3]}`.
    """

    def __init__(
        self,
        names: Iterable[str] | Mapping[str, Selector] = (),
        edits: Mapping[str, Edit] | None = None,
    ) -> None:
        self._keep = names if isinstance(names, Mapping) else dict.fromkeys(names, select_all)
        self._edits = {**(edits or {})}
        self._plan = _plan(tuple(self._keep), tuple(self._edits), "")
        self.values: dict[str, Tensor] = {}

    def scope(self, *path: str | int) -> "Hooks":
        plan = self._plan.below(path)
        if plan is None:
            return (
                NO_HOOKS  # most of a pass, which has no time on a GPU to be asked about every value
            )
        inner = Recorder.__new__(Recorder)
        inner._keep = self._keep
        inner._edits = self._edits
        inner._plan = plan
        inner.values = self.values
        return inner

    def with_edits(self, edits: Mapping[str, Edit]) -> Self:
        """This tap, which edits these values too."""
        self._edits |= edits
        self._plan = _plan(tuple(self._keep), tuple(self._edits), self._plan.scope)
        return self

    @property
    def needs_scores(self) -> bool:
        return self._plan.needs_scores

    def __call__(self, name: str, value: Tensor) -> Tensor:
        edits, keep, path = self._plan.about(name)
        for pattern in edits:
            value = self._edits[pattern](value, path)
        if len(keep) > 1 and len({self._keep[pattern] for pattern in keep}) > 1:
            both = " and ".join(map(repr, keep))
            raise ClearheadError(
                f"{path} is meant by {both}, each time another part of it; ask for it once."
            )
        for pattern in keep:
            self.values[path] = _kept(value, self._keep[pattern])
        return value


Hooks = NoHooks | Recorder


def force_eager() -> AbstractContextManager[object]:
    """The block in which a pass that is watched runs: it is not compiled."""
    if (
        "torch._dynamo" not in sys.modules
    ):  # nobody has compiled anything, and to fetch the compiler takes seconds
        return nullcontext()
    return _STANCE.eager()


class _Stance:
    """The compiler's, one for all threads: who comes first makes it eager, who leaves last puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._changed = ExitStack()

    @contextmanager
    def eager(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                self._changed.enter_context(torch.compiler.set_stance("force_eager"))
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._changed.close()


_STANCE = _Stance()


def select_all(value: Tensor) -> Tensor:
    """What selects all of a value."""
    return value


def _kept(value: Tensor, select: Selector) -> Tensor:
    """What is selected, and no more: a view would keep the whole value alive."""
    part = select(value)
    if not isinstance(part, Tensor):
        raise ClearheadError(
            f"what keeps a part of a value must return a tensor, not {type(part).__name__}."
        )
    return (
        part.clone()
        if select is not select_all and part.untyped_storage().nbytes() > part.nbytes
        else part
    )


class _Plan:
    """What patterns mean below a scope, found once for all passes that ask for the same: a GPU waits for the answer."""

    def __init__(self, keep: tuple[str, ...], edits: tuple[str, ...], scope: str) -> None:
        self._keep = keep
        self._edits = edits
        self.scope = scope
        self._below: dict[tuple[str | int, ...], _Plan | None] = {}
        self._about: dict[str, tuple[list[str], list[str], str]] = {}
        self.needs_scores = any(
            matches(pattern, scope + name) for pattern in (*keep, *edits) for name in SCORE_NAMES
        )

    def below(self, path: tuple[str | int, ...]) -> "_Plan | None":
        """The plan of a scope inside this one; None where no pattern may mean anything in it."""
        if path not in self._below:
            scope = f"{self.scope}{'.'.join(map(str, path))}."
            reached = any(
                _begins(pattern.split("."), scope.split(".")[:-1])
                for pattern in (*self._keep, *self._edits)
            )
            self._below[path] = _Plan(self._keep, self._edits, scope) if reached else None
        return self._below[path]

    def about(self, name: str) -> tuple[list[str], list[str], str]:
        """The patterns by which a value is edited and kept, and its path."""
        if name not in self._about:
            path = self.scope + name
            edits, keep = (
                [pattern for pattern in some if matches(pattern, path)]
                for some in (self._edits, self._keep)
            )
            self._about[name] = edits, keep, path
        return self._about[name]


@lru_cache(maxsize=256)
def _plan(keep: tuple[str, ...], edits: tuple[str, ...], scope: str) -> _Plan:
    return _Plan(keep, edits, scope)


def _begins(pattern: list[str], scope: list[str]) -> bool:
    for asked, part in zip(pattern, scope, strict=False):
        if "**" in asked:
            return True
        if not matches(asked, part):
            return False
    return len(pattern) > len(scope)


def matches(pattern: str, path: str) -> bool:
    """`*` is one part of a dotted path or a piece of it, `**` any number of parts.

    It follows all places of the path that are reached at once; a regular expression would try every way to get there.
    """
    reached = {0}
    for piece in re.findall(r"\*+|[^*]+", pattern):
        if piece == "*":
            reached = {
                end for start in reached for end in range(start, f"{path}.".index(".", start) + 1)
            }
        elif piece[0] == "*":
            reached = {*range(min(reached), len(path) + 1)}
        else:
            reached = {start + len(piece) for start in reached if path.startswith(piece, start)}
        if not reached:
            return False
    return len(path) in reached
