"""Steering: a direction from pairs of prompts, added to a value to push what the model says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, check_kind
from clearhead.lens.given import known_names
from clearhead.lens.names import matching
from clearhead.lens.parts import check_token, numbers

if TYPE_CHECKING:
    from clearhead.inside import Inside


@dataclass(frozen=True, eq=False, repr=False)
class Steering:
    """A vector that goes onto the value `name` at every token: `model.logits(x, edits=steering.edits(2.0))`."""

    name: str
    vector: Tensor

    def __repr__(self) -> str:
        return f"<steering of {self.name}: {len(self.vector)} numbers, length {float(self.vector.norm()):.3g}>"

    def edits(self, strength: float = 1.0) -> "dict[str, Push]":
        """For edits= of logits, watch, hidden and generate."""
        return {self.name: Push(self.vector * strength)}


@dataclass(frozen=True)
class Push:
    """Adds a vector to every token of a value."""

    vector: Tensor

    def __call__(self, value: Tensor) -> Tensor:
        if value.shape[-1] != len(self.vector):
            raise ClearheadError(f"a steering vector of {len(self.vector)} numbers was put onto {value.shape[-1]}.")
        return value + self.vector.to(value)


@known_names
def steering(model: "Inside", pairs: Sequence[tuple[Any, Any]], name: str, *, token: int = -1) -> Steering:
    """The mean difference of the value `name` at a token, the last one, between the texts of each pair.

    Pairs are (what to go towards, what to go away from); their texts need not be equally long. Where a model reads
    more than a text, each is {"x": …, "source": …}.
    """
    listed = isinstance(pairs, list | tuple) and bool(pairs)
    if not listed or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ClearheadError("steering needs pairs of prompts: [(towards, away from), …].")
    check_kind(name, str, "the name of a value")
    found = matching(model.config.model, name)
    if len(found) != 1:
        raise ClearheadError(f"{name!r} names {len(found)} values; a steering vector belongs to one.")

    def at(text: Any) -> Tensor:
        value = numbers(model.watch(**(text if isinstance(text, Mapping) else {"x": text}), names=name))[name][0]
        if value.dim() != 2:
            raise ClearheadError(f"{name} is not one vector for each token; steer a stream, such as blocks.0.post.")
        return value[check_token(token, len(value))].detach().float().cpu()

    return Steering(name, torch.stack([at(towards) - at(away) for towards, away in pairs]).mean(dim=0))
