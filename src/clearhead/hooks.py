"""Hooks: observe and replace any named activation of a forward pass.

Every named activation passes through `hooks(name, value)`. `NoHooks` returns the value, and
the compiler removes even the call. `Recorder` applies edits, then stores what was asked for. Hooks
are an ordinary argument of `forward`, because `torch.compile` ignores module hooks and cannot trace
context variables.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from clearhead.errors import ClearheadError

Edit = Callable[[Tensor, str], Tensor]
Selector = Callable[[Tensor], Tensor]

SCORE_NAMES = ("scores", "masked_scores", "pattern")  # never materialized by fused attention


class NoHooks:
    """Observes and edits nothing."""

    needs_scores = False  # whether attention must materialize scores and pattern

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def scope(self, *path: str | int) -> Self:
        """Hooks for the names below `path`."""
        return self

    def with_edits(self, edits: "Mapping[str, Edit]") -> "Recorder":
        return Recorder(edits=edits)


NO_HOOKS = NoHooks()


class Recorder:
    """Edits and records activations by name.

    Names are patterns like `blocks.*.attn.pattern`: `*` matches one part, `**` any number of parts.
    `names` may map a pattern to a function that selects what to keep of each value:
    `{"blocks.*.attn.pattern": lambda p: p[:, 3]}`.
    """

    def __init__(
        self,
        names: Iterable[str] | Mapping[str, Selector] = (),
        edits: Mapping[str, Edit] | None = None,
    ) -> None:
        self._selectors = names if isinstance(names, Mapping) else dict.fromkeys(names, select_all)
        self._edits = dict(edits or {})
        self._matcher = _matcher(tuple(self._selectors), tuple(self._edits), "")
        self.values: dict[str, Tensor] = {}

    def scope(self, *path: str | int) -> "Hooks":
        """Hooks for the names below `path`; NO_HOOKS where no pattern can match."""
        matcher = self._matcher.below(path)
        if matcher is None:
            return NO_HOOKS  # no lookup per activation: the GPU would wait for it
        inner = copy(self)  # shares `values`
        inner._matcher = matcher
        return inner

    def with_edits(self, edits: Mapping[str, Edit]) -> Self:
        """Add edits to this recorder."""
        self._edits |= edits
        self._matcher = _matcher(tuple(self._selectors), tuple(self._edits), self._matcher.scope)
        return self

    @property
    def needs_scores(self) -> bool:
        return self._matcher.needs_scores

    def __call__(self, name: str, value: Tensor) -> Tensor:
        edit_patterns, record_patterns, path = self._matcher.patterns_for(name)
        for pattern in edit_patterns:
            value = self._edits[pattern](value, path)
        has_several = len(record_patterns) > 1
        if has_several and len({self._selectors[pattern] for pattern in record_patterns}) > 1:
            patterns = " and ".join(map(repr, record_patterns))
            raise ClearheadError(
                f"{path} matches {patterns}, which select different parts of it. Use one pattern."
            )
        for pattern in record_patterns:
            self.values[path] = _select(value, self._selectors[pattern])
        return value


Hooks = NoHooks | Recorder


def force_eager() -> AbstractContextManager[object]:
    """Context in which compiled networks run eagerly, as observed passes must."""
    # Otherwise nothing is compiled, and importing dynamo takes seconds.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return _STANCE.force_eager()


class _CompilerStance:
    """torch.compile's global stance, shared by threads: eager while any of them needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._stance = ExitStack()

    @contextmanager
    def force_eager(self) -> Iterator[None]:
        with self._lock:
            if not self._num_users:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))
            self._num_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_users -= 1
                if not self._num_users:
                    self._stance.close()


_STANCE = _CompilerStance()


def select_all(value: Tensor) -> Tensor:
    """Selector that keeps the whole activation."""
    return value


def _select(value: Tensor, selector: Selector) -> Tensor:
    """The selected part, copied if it is a view that would keep the whole activation in memory."""
    part = selector(value)
    if not isinstance(part, Tensor):
        raise ClearheadError(f"a selector must return a tensor, got {type(part).__name__}.")
    is_partial_view = selector is not select_all and part.untyped_storage().nbytes() > part.nbytes
    return part.clone() if is_partial_view else part


class _Matcher:
    """Which patterns match which names below a scope; cached, because a GPU would wait for it."""

    def __init__(self, record: tuple[str, ...], edit: tuple[str, ...], scope: str) -> None:
        self._record_patterns = record
        self._edit_patterns = edit
        self.scope = scope
        self._below: dict[tuple[str | int, ...], _Matcher | None] = {}
        self._patterns: dict[str, tuple[list[str], list[str], str]] = {}
        self.needs_scores = any(
            matches(pattern, scope + name) for pattern in (*record, *edit) for name in SCORE_NAMES
        )

    def below(self, path: tuple[str | int, ...]) -> "_Matcher | None":
        """The matcher of an inner scope; None if no pattern can match anything in it."""
        if path not in self._below:
            scope = f"{self.scope}{'.'.join(map(str, path))}."
            record = tuple(p for p in self._record_patterns if _can_match_below(p, scope))
            edit = tuple(p for p in self._edit_patterns if _can_match_below(p, scope))
            self._below[path] = _Matcher(record, edit, scope) if record or edit else None
        return self._below[path]

    def patterns_for(self, name: str) -> tuple[list[str], list[str], str]:
        """The patterns that edit and those that record an activation, and its full path."""
        if name not in self._patterns:
            path = self.scope + name
            edit = [pattern for pattern in self._edit_patterns if matches(pattern, path)]
            record = [pattern for pattern in self._record_patterns if matches(pattern, path)]
            self._patterns[name] = edit, record, path
        return self._patterns[name]


_matcher = lru_cache(maxsize=256)(_Matcher)


def _can_match_below(pattern: str, scope: str) -> bool:
    """Whether a pattern can match names in a scope, such as `blocks.0.`."""
    if "*" not in pattern:
        return pattern.startswith(scope)
    pieces = pattern.split(".")
    parts = scope.split(".")[:-1]
    for piece, part in zip(pieces, parts, strict=False):
        if "**" in piece:
            return True
        if not matches(piece, part):
            return False
    return len(pieces) > len(parts)


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a dotted path: `*` matches within one part, `**` across parts.

    Tracks all reachable positions at once, so the time is polynomial; a backtracking regular
    expression is not.
    """
    if "*" not in pattern:
        return pattern == path
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
