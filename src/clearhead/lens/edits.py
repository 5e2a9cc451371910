"""Edits of activations during a run: `edits={"blocks.2.attn.z": ablate(head=3)}`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.config.model import ModelConfig
from clearhead.errors import ClearheadError, check_type
from clearhead.hooks import Edit
from clearhead.lens.activation_cache import ActivationCache
from clearhead.lens.argument_checks import check_index
from clearhead.lens.hook_points import matching_names

EditFunction = Callable[..., Tensor]
Edits = Mapping[str, EditFunction | Sequence[EditFunction]]  # several are applied in order
EditIndex = tuple[slice | int | list[int], ...]
Heads = int | Sequence[int] | None


@dataclass(frozen=True)
class ActivationEdit:
    """Edit of heads, one position, or a whole value; negative indices count from the end."""

    new_value: Callable[[Tensor, Tensor, str], Tensor]  # (selected part, whole value, name)
    head: Heads
    position: int | None
    is_per_token: bool = True  # whether the edit of a token depends on nothing but that token
    uses_text_mean: bool = False  # whether it averages over a text, which must not be padded

    def __call__(self, value: Tensor, name: str) -> Tensor:
        index = self.index(value, name)
        edited = value.clone()
        edited[index] = self.new_value(value[index], value, name)
        return edited

    def index(self, value: Tensor, name: str) -> EditIndex:
        """The part of a value that is edited."""
        has_heads = value.dim() == 4
        if self.position is not None and value.dim() == 2:
            raise ClearheadError(
                f"{name} has one row per text, not one per token; omit position={self.position}."
            )
        if self.head is not None and not has_heads:
            raise ClearheadError(f"{name} is not split by head; omit head={self.head}.")
        heads: slice | int | list[int] = slice(None)
        positions: slice | int = slice(None)
        if isinstance(self.head, list | tuple | range):
            heads = [check_index(head, value.shape[1], "head", name) for head in self.head]
            if not heads:
                raise ClearheadError("head must be a head or a list of heads, got an empty list.")
        elif self.head is not None:
            heads = check_index(self.head, value.shape[1], "head", name)
        if self.position is not None:
            positions = check_index(self.position, value.shape[-2], "token", name)
        return (slice(None), heads, positions) if has_heads else (slice(None), positions)


def ablate(
    head: Heads = None,
    position: int | None = None,
    *,
    mean: bool | Mapping[str, Tensor] = False,
) -> ActivationEdit:
    """Set one head, several heads, one position, or all of a value to zero.

    With `mean=True`, set it to its mean over the tokens of the text (mean ablation); with another
    run's activations, to the mean over all tokens of that run.
    """
    check_type(mean, bool | Mapping, "mean=True or the activations of another run")

    def new_value(part: Tensor, value: Tensor, name: str) -> Tensor:
        if not mean:
            return torch.zeros_like(part)
        if isinstance(mean, Mapping):
            average = _token_mean(mean, name).to(value)
            if average.shape[1:-2] != value.shape[1:-2] or average.shape[-1] != value.shape[-1]:
                raise ClearheadError(
                    f"{name} has shape {_shape_text(value)}, but its mean over the other run has "
                    f"shape {_shape_text(average)}."
                )
        else:
            average = value.mean(dim=-2, keepdim=True)
        return average.expand_as(value)[edit.index(value, name)]

    edit = ActivationEdit(
        new_value,
        head,
        position,
        is_per_token=position is None and mean is not True,
        uses_text_mean=mean is True,
    )
    return edit


def scale(factor: float, head: Heads = None, position: int | None = None) -> ActivationEdit:
    """Multiply one head, several heads, one position, or all of a value by `factor`."""
    check_type(factor, int | float | Tensor, "a number to multiply by")

    def new_value(part: Tensor, value: Tensor, name: str) -> Tensor:
        return part * factor

    return ActivationEdit(new_value, head, position, is_per_token=position is None)


def replace(
    with_: Mapping[str, Tensor] | Tensor, head: Heads = None, position: int | None = None
) -> ActivationEdit:
    """Replace heads, one position, or all of a value by another run's, or by a tensor."""
    check_type(with_, Mapping | Tensor, "the activations of another run or a tensor")

    def new_value(part: Tensor, value: Tensor, name: str) -> Tensor:
        other = with_ if isinstance(with_, Tensor) else _lookup(with_, name)
        if other.dim() == value.dim() > 2 and other.shape[-2] != value.shape[-2]:
            raise ClearheadError(
                f"{name} has {value.shape[-2]} tokens in this run and {other.shape[-2]} in the "
                "other; both runs need the same number of tokens."
            )
        if other.shape[1:] != value.shape[1:] or len(other) not in (1, len(value)):
            raise ClearheadError(
                f"{name} has shape {_shape_text(value)} in this run and {_shape_text(other)} in "
                "the other run; the shapes must be equal."
            )
        return other.to(value)[edit.index(other, name)]

    edit = ActivationEdit(new_value, head, position, is_per_token=False)
    return edit


def chain_edits(edits: Sequence[ActivationEdit]) -> ActivationEdit:
    """Several edits of one value, applied one after another."""

    def new_value(part: Tensor, value: Tensor, name: str) -> Tensor:
        for edit in edits:
            value = edit(value, name)
        return value

    return ActivationEdit(
        new_value,
        head=None,
        position=None,
        is_per_token=all(edit.is_per_token for edit in edits),
        uses_text_mean=any(edit.uses_text_mean for edit in edits),
    )


def _token_mean(activations: Mapping[str, Tensor], name: str) -> Tensor:
    """The mean over all tokens of all texts, without padding."""
    value = _lookup(activations, name)
    if value.dim() == 2:  # one row for each text
        return value.mean(dim=0, keepdim=True)
    rows = value.movedim(-2, 1)
    mask = activations.token_mask(name) if isinstance(activations, ActivationCache) else None
    if mask is None:
        return rows.flatten(0, 1).mean(dim=0)[None].unsqueeze(-2)
    if rows.shape[1] != mask.shape[1]:
        raise ClearheadError(
            f"only part of {name} was recorded in the other run, so its padding is unknown; "
            "watch it without a selector."
        )
    return rows.expand(len(mask), *rows.shape[1:])[mask].mean(dim=0)[None].unsqueeze(-2)


def _lookup(activations: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in activations:
        raise ClearheadError(f"{name} was not watched in the other run; add it to its names.")
    return activations[name]


def check_edits(
    m: ModelConfig,
    edits: Edits,
    *,
    per_token: bool = False,
    is_padded: bool = False,
) -> dict[str, Edit]:
    """Check edits by name. While generating, they must be `per_token`: tokens come one by one."""
    check_type(edits, Mapping, "edits as {name: edit}")
    functions = {
        name: list(edit) if isinstance(edit, list | tuple) else [edit]
        for name, edit in edits.items()
    }
    for name, many in functions.items():
        matching_names(m, name)  # raises if there is none
        for edit in many:
            if isinstance(edit, ActivationEdit):
                _check_possible(edit, name, per_token, is_padded)
    return {name: _in_order(list(map(checked_edit, many))) for name, many in functions.items()}


def _check_possible(edit: ActivationEdit, name: str, per_token: bool, is_padded: bool) -> None:
    if per_token and not edit.is_per_token:
        raise ClearheadError(
            f"the edit of {name} needs a position, a mean over the text or another run; "
            "while generating, an edit sees one token at a time."
        )
    if is_padded and edit.uses_text_mean:
        raise ClearheadError(
            f"the edit of {name} is the mean of a text, but these texts are padded. "
            "Give one text, or texts of equal length."
        )


def _in_order(edits: Sequence[Edit]) -> Edit:
    """Several edits of one value, applied one after another."""

    def edit(value: Tensor, name: str) -> Tensor:
        for one in edits:
            value = one(value, name)
        return value

    return edit


def checked_edit(function: EditFunction) -> Edit:
    """An edit from any function of a tensor; raises if the function changes the shape.

    The function gets a copy: an in-place change must not reach other values that share memory.
    """
    if not callable(function):
        raise ClearheadError(
            "an edit must be ablate(…), scale(…), replace(…) or a function of a tensor, "
            f"got {type(function).__name__}."
        )
    if not isinstance(function, ActivationEdit):
        _check_takes_one_argument(function)

    def edit(value: Tensor, name: str) -> Tensor:
        if isinstance(function, ActivationEdit):
            edited = function(value, name)
        else:
            edited = function(value.clone())
        if not isinstance(edited, Tensor) or edited.shape != value.shape:
            got = _shape_text(edited) if isinstance(edited, Tensor) else type(edited).__name__
            raise ClearheadError(
                f"the edit of {name} must return a tensor of shape {_shape_text(value)}, got {got}."
            )
        return edited

    return edit


def _check_takes_one_argument(function: EditFunction) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions have no signature
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ClearheadError(
            "an edit function takes one argument, the activation; "
            f"got a function of ({', '.join(signature.parameters)})."
        ) from None


def _shape_text(value: Tensor) -> str:
    return " × ".join(map(str, value.shape))
