"""Changes to a value on its way, for `edits={"blocks.2.attn.z": ablate(head=3)}`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, check_kind
from clearhead.lens.given import known_names
from clearhead.lens.seen import Seen
from clearhead.tap import Edit

Index = tuple[slice | int, ...]


@dataclass(frozen=True)
class Change:
    """A change of one head, of one token, or of the whole value. Tokens count from 0, or from the end below 0."""

    new: Callable[[Tensor, Tensor, str], Tensor]  # the part to change, the whole value, its name
    head: int | None
    token: int | None
    alone: bool = True  # whether it changes each token by itself, whatever the others are
    over_text: bool = False  # whether it counts all tokens of a text, so that none may be padding

    def __call__(self, value: Tensor, name: str) -> Tensor:
        where = self._where(value, name)
        changed = value.clone()
        changed[where] = self.new(value[where], value, name)
        return changed

    def _where(self, value: Tensor, name: str) -> Index:
        by_head = value.dim() == 4
        if self.token is not None and value.dim() == 2:
            raise ClearheadError(f"{name} is one row for the whole text; leave out token={self.token}.")
        if self.head is not None and not by_head:
            raise ClearheadError(f"{name} is not split by head; leave out head={self.head}.")
        for word, index, size in (("head", self.head, value.shape[1]), ("token", self.token, value.shape[-2])):
            if index is not None and (not isinstance(index, int) or not -size <= index < size):
                raise ClearheadError(f"{name} has {size} {word}s; there is no {word} {index!r}.")
        token = slice(None) if self.token is None else self.token
        if not by_head:
            return (slice(None), token)
        return (slice(None), slice(None) if self.head is None else self.head, token)


@known_names
def ablate(head: int | None = None, token: int | None = None, *, mean: bool | Mapping[str, Tensor] = False) -> Change:
    """Set to zero: one head of it, one token, or all of it.

    With `mean`, to the mean over the tokens of this text, or over all tokens of another run (its `seen` values).
    """

    check_kind(mean, bool | Mapping, "mean as True, or as the values of another run,")

    def new(part: Tensor, value: Tensor, name: str) -> Tensor:
        if not mean:
            return torch.zeros_like(part)
        if isinstance(mean, Mapping):
            over = _mean(mean, name).to(value)
            if over.shape[1:-2] != value.shape[1:-2] or over.shape[-1] != value.shape[-1]:
                raise ClearheadError(f"{name} is {_x(value)} here; the mean of the other run is {_x(over)}.")
        else:
            over = value.mean(dim=-2, keepdim=True)
        return over.expand_as(value)[change._where(value, name)]

    change = Change(new, head, token, alone=token is None and mean is not True, over_text=mean is True)
    return change


@known_names
def scale(factor: float, head: int | None = None, token: int | None = None) -> Change:
    """Multiply by `factor`: one head of it, one token, or all of it."""
    check_kind(factor, int | float | Tensor, "a number to multiply by")
    return Change(lambda part, value, name: part * factor, head, token, alone=token is None)


@known_names
def replace(with_: Mapping[str, Tensor] | Tensor, head: int | None = None, token: int | None = None) -> Change:
    """Put in what another run had there: its `seen` values, or a tensor of the same shape."""
    check_kind(with_, Mapping | Tensor, "what another run has seen, or a tensor,")

    def new(part: Tensor, value: Tensor, name: str) -> Tensor:
        other = with_ if isinstance(with_, Tensor) else _from(with_, name)
        if other.dim() == value.dim() > 2 and other.shape[-2] != value.shape[-2]:
            here, there = value.shape[-2], other.shape[-2]
            raise ClearheadError(f"{name} is of {here} tokens here and of {there} in the other run; they need as many.")
        if other.shape[1:] != value.shape[1:] or len(other) not in (1, len(value)):
            raise ClearheadError(f"{name} is {_x(value)} here and {_x(other)} in the other run; they need one shape.")
        return other.to(value)[change._where(other, name)]

    change = Change(new, head, token, alone=False)
    return change


def in_turn(changes: Sequence[Change]) -> Change:
    """Several changes of one value, each of what the one before has left."""

    def new(part: Tensor, value: Tensor, name: str) -> Tensor:
        for change in changes:
            value = change(value, name)
        return value

    alone, over_text = all(change.alone for change in changes), any(change.over_text for change in changes)
    return Change(new, None, None, alone, over_text)


def _mean(seen: Mapping[str, Tensor], name: str) -> Tensor:
    """Over all tokens of all texts but padding."""
    value = _from(seen, name)
    if value.dim() == 2:  # one row for each text
        return value.mean(dim=0, keepdim=True)
    tokens, real = value.movedim(-2, 1), seen.real(name) if isinstance(seen, Seen) else None
    if real is None:
        return tokens.flatten(0, 1).mean(dim=0)[None].unsqueeze(-2)
    if tokens.shape[1] != real.shape[1]:
        raise ClearheadError(f"the other run kept a part of {name}, and which of it is padding is not known.")
    return tokens.expand(len(real), *tokens.shape[1:])[real].mean(dim=0)[None].unsqueeze(-2)


def _from(seen: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in seen:
        raise ClearheadError(f"the other run did not keep {name}; watch it there first.")
    return seen[name]


def as_edit(function: Callable[..., Tensor]) -> Edit:
    """Any function of a tensor, or one of the changes above, held to the value's shape.

    It gets a copy: what it does in place must not reach other values that share the memory.
    """
    if not callable(function):
        raise ClearheadError(
            f"an edit is a function of a tensor, or ablate, scale, replace; not {type(function).__name__}."
        )

    def edit(value: Tensor, name: str) -> Tensor:
        changed = function(value, name) if isinstance(function, Change) else function(value.clone())
        if not isinstance(changed, Tensor) or changed.shape != value.shape:
            got = _x(changed) if isinstance(changed, Tensor) else type(changed).__name__
            raise ClearheadError(f"the edit of {name} must return a tensor of {_x(value)}, not {got}.")
        return changed

    return edit


def _x(value: Tensor) -> str:
    return " x ".join(map(str, value.shape))
