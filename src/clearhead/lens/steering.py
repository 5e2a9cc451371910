"""Steering: a direction from pairs of prompts, added to a value to push what the model says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, check_type
from clearhead.lens.activations import check_arguments, check_no_nan, check_token, matching_names

if TYPE_CHECKING:
    from clearhead.api import Model


@dataclass(frozen=True, eq=False, repr=False)
class SteeringVector:
    """A vector that goes onto the value `name` at every token: `model.logits(x, edits=steering.edits(2.0))`."""

    name: str
    vector: Tensor

    def __repr__(self) -> str:
        return f"<steering of {self.name}: {len(self.vector)} numbers, length {float(self.vector.norm()):.3g}>"

    def edits(self, strength: float = 1.0) -> "dict[str, AddVector]":
        """For edits= of logits, watch, hidden and generate."""
        return {self.name: AddVector(self.vector * strength)}


@dataclass(frozen=True)
class AddVector:
    """Adds a vector to every token of a value."""

    vector: Tensor

    def __call__(self, value: Tensor) -> Tensor:
        if value.shape[-1] != len(self.vector):
            raise ClearheadError(
                f"a steering vector of {len(self.vector)} numbers was put onto {value.shape[-1]}."
            )
        return value + self.vector.to(value)


@check_arguments
def steering(
    model: "Model", pairs: Sequence[tuple[Any, Any]], name: str, *, position: int = -1
) -> SteeringVector:
    """The mean difference of the value `name` at a token, the last one, between the texts of each pair.

    Pairs are (what to go towards, what to go away from); their texts need not be equally long. Where a model reads
    more than a text, each is {"x": …, "source": …}.
    """
    listed = isinstance(pairs, list | tuple) and bool(pairs)
    if not listed or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ClearheadError("steering needs pairs of prompts: [(towards, away from), …].")
    check_type(name, str, "the name of a value")
    found = matching_names(model.config.model, name)
    if len(found) != 1:
        raise ClearheadError(
            f"{name!r} names {len(found)} values; a steering vector belongs to one."
        )

    def at(text: Any) -> Tensor:
        value = check_no_nan(
            model.watch(**(text if isinstance(text, Mapping) else {"x": text}), names=name)
        )[name][0]
        if value.dim() != 2:
            raise ClearheadError(
                f"{name} is not one vector for each token; steer a stream, such as blocks.0.resid_post."
            )
        return value[check_token(position, len(value))].detach().float().cpu()

    return SteeringVector(
        name, torch.stack([at(towards) - at(away) for towards, away in pairs]).mean(dim=0)
    )
