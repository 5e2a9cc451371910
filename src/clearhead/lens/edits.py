"""Changes to a value on its way, for `edits={"blocks.2.attn.z": ablate(head=3)}`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, check_type
from clearhead.hooks import Edit
from clearhead.lens.activations import ActivationCache, check_arguments

EditIndex = tuple[slice | int, ...]


@dataclass(frozen=True)
class ActivationEdit:
    """A change of one head, of one token, or of the whole value. Tokens count from 0, or from the end below 0."""

    new_value: Callable[
        [Tensor, Tensor, str], Tensor
    ]  # the part to change, the whole value, its name
    head: int | None
    position: int | None
    is_per_token: bool = True  # whether it changes each token by itself, whatever the others are
    uses_text_mean: bool = (
        False  # whether it counts all tokens of a text, so that none may be padding
    )

    def __call__(self, value: Tensor, name: str) -> Tensor:
        where = self._where(value, name)
        changed = value.clone()
        changed[where] = self.new_value(value[where], value, name)
        return changed

    def _where(self, value: Tensor, name: str) -> EditIndex:
        by_head = value.dim() == 4
        if self.position is not None and value.dim() == 2:
            raise ClearheadError(
                f"{name} is one row for the whole text; leave out token={self.position}."
            )
        if self.head is not None and not by_head:
            raise ClearheadError(f"{name} is not split by head; leave out head={self.head}.")
        for word, index, size in (
            ("head", self.head, value.shape[1]),
            ("token", self.position, value.shape[-2]),
        ):
            if index is not None and (not isinstance(index, int) or not -size <= index < size):
                raise ClearheadError(f"{name} has {size} {word}s; there is no {word} {index!r}.")
        token = slice(None) if self.position is None else self.position
        if not by_head:
            return (slice(None), token)
        return (slice(None), slice(None) if self.head is None else self.head, token)


@check_arguments
def ablate(
    head: int | None = None,
    position: int | None = None,
    *,
    mean: bool | Mapping[str, Tensor] = False,
) -> ActivationEdit:
    """Set to zero: one head of it, one token, or all of it.

    With `mean`, to the mean over the tokens of this text, or over all tokens of another run (its `seen` values).
    """

    check_type(mean, bool | Mapping, "mean as True, or as the values of another run,")

    def new(part: Tensor, value: Tensor, name: str) -> Tensor:
        if not mean:
            return torch.zeros_like(part)
        if isinstance(mean, Mapping):
            over = _token_mean(mean, name).to(value)
            if over.shape[1:-2] != value.shape[1:-2] or over.shape[-1] != value.shape[-1]:
                raise ClearheadError(
                    f"{name} is {_shape_text(value)} here; the mean of the other run is {_shape_text(over)}."
                )
        else:
            over = value.mean(dim=-2, keepdim=True)
        return over.expand_as(value)[change._where(value, name)]

    change = ActivationEdit(
        new,
        head,
        position,
        is_per_token=position is None and mean is not True,
        uses_text_mean=mean is True,
    )
    return change


@check_arguments
def scale(factor: float, head: int | None = None, position: int | None = None) -> ActivationEdit:
    """Multiply by `factor`: one head of it, one token, or all of it."""
    check_type(factor, int | float | Tensor, "a number to multiply by")
    return ActivationEdit(
        lambda part, value, name: part * factor, head, position, is_per_token=position is None
    )


@check_arguments
def replace(
    with_: Mapping[str, Tensor] | Tensor, head: int | None = None, position: int | None = None
) -> ActivationEdit:
    """Put in what another run had there: its `seen` values, or a tensor of the same shape."""
    check_type(with_, Mapping | Tensor, "what another run has seen, or a tensor,")

    def new(part: Tensor, value: Tensor, name: str) -> Tensor:
        other = with_ if isinstance(with_, Tensor) else _lookup(with_, name)
        if other.dim() == value.dim() > 2 and other.shape[-2] != value.shape[-2]:
            here = value.shape[-2]
            there = other.shape[-2]
            raise ClearheadError(
                f"{name} is of {here} tokens here and of {there} in the other run; they need as many."
            )
        if other.shape[1:] != value.shape[1:] or len(other) not in (1, len(value)):
            raise ClearheadError(
                f"{name} is {_shape_text(value)} here and {_shape_text(other)} in the other run; they need one shape."
            )
        return other.to(value)[change._where(other, name)]

    change = ActivationEdit(new, head, position, is_per_token=False)
    return change


def chain_edits(changes: Sequence[ActivationEdit]) -> ActivationEdit:
    """Several changes of one value, each of what the one before has left."""

    def new(part: Tensor, value: Tensor, name: str) -> Tensor:
        for change in changes:
            value = change(value, name)
        return value

    alone = all(change.is_per_token for change in changes)
    over_text = any(change.uses_text_mean for change in changes)
    return ActivationEdit(new, None, None, alone, over_text)


def _token_mean(seen: Mapping[str, Tensor], name: str) -> Tensor:
    """Over all tokens of all texts but padding."""
    value = _lookup(seen, name)
    if value.dim() == 2:  # one row for each text
        return value.mean(dim=0, keepdim=True)
    tokens = value.movedim(-2, 1)
    real = seen.token_mask(name) if isinstance(seen, ActivationCache) else None
    if real is None:
        return tokens.flatten(0, 1).mean(dim=0)[None].unsqueeze(-2)
    if tokens.shape[1] != real.shape[1]:
        raise ClearheadError(
            f"the other run kept a part of {name}, and which of it is padding is not known."
        )
    return tokens.expand(len(real), *tokens.shape[1:])[real].mean(dim=0)[None].unsqueeze(-2)


def _lookup(seen: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in seen:
        raise ClearheadError(f"the other run did not keep {name}; watch it there first.")
    return seen[name]


def checked_edit(function: Callable[..., Tensor]) -> Edit:
    """Any function of a tensor, or one of the changes above, held to the value's shape.

    It gets a copy: what it does in place must not reach other values that share the memory.
    """
    if not callable(function):
        raise ClearheadError(
            f"an edit is a function of a tensor, or ablate, scale, replace; not {type(function).__name__}."
        )

    def edit(value: Tensor, name: str) -> Tensor:
        changed = (
            function(value, name)
            if isinstance(function, ActivationEdit)
            else function(value.clone())
        )
        if not isinstance(changed, Tensor) or changed.shape != value.shape:
            got = _shape_text(changed) if isinstance(changed, Tensor) else type(changed).__name__
            raise ClearheadError(
                f"the edit of {name} must return a tensor of {_shape_text(value)}, not {got}."
            )
        return changed

    return edit


def _shape_text(value: Tensor) -> str:
    return " x ".join(map(str, value.shape))
