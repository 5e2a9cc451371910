"""Steering vectors: a direction from contrasting prompts, added to an activation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, check_type
from clearhead.lens.activation_cache import check_no_nan
from clearhead.lens.argument_checks import check_model, check_token
from clearhead.lens.hook_points import matching_names

if TYPE_CHECKING:
    from clearhead.api import Model, TextInput
    from clearhead.lens.argument_checks import ModelInputs


@dataclass(frozen=True, eq=False, repr=False)
class SteeringVector:
    """A vector for the activation `name`: `model.generate(x, edits=steering_vector.edits(1.0))`.

    A strength of 1 is the difference of the prompts; much larger ones break the text.
    """

    name: str
    vector: Tensor

    def __repr__(self) -> str:
        norm = float(self.vector.norm())
        return f"<steering vector for {self.name}: {len(self.vector)} dimensions, norm {norm:.3g}>"

    def edits(self, strength: float = 1.0) -> "dict[str, AddVector]":
        """Edits that add the vector, times `strength`, at every token."""
        return {self.name: AddVector(self.vector * strength)}


@dataclass(frozen=True)
class AddVector:
    """Edit that adds a vector at every token."""

    vector: Tensor

    def __call__(self, value: Tensor) -> Tensor:
        if value.shape[-1] != len(self.vector):
            raise ClearheadError(
                f"the steering vector has {len(self.vector)} dimensions, the activation has "
                f"{value.shape[-1]}."
            )
        return value + self.vector.to(value)


def steering(
    model: "Model",
    pairs: "Sequence[tuple[TextInput | ModelInputs, TextInput | ModelInputs]]",
    name: str,
    *,
    position: int = -1,
) -> SteeringVector:
    """The mean difference of an activation at a position (the last) over pairs of prompts.

    A pair is (prompt to steer toward, prompt to steer away from); lengths may differ. A prompt is
    a text, or {"x": …, "source": …} for an encoder-decoder.
    """
    check_model(model)
    is_list = isinstance(pairs, list | tuple) and bool(pairs)
    if not is_list or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ClearheadError("pairs must be a list of prompts: [(toward, away from), …].")
    check_type(name, str, "the name of an activation")
    names = matching_names(model.config.model, name)
    if len(names) != 1:
        raise ClearheadError(f"{name!r} matches {len(names)} activations; steering needs one.")

    def activation(prompt: "TextInput | ModelInputs") -> Tensor:
        inputs: ModelInputs = prompt if isinstance(prompt, dict) else {"x": prompt}
        value = check_no_nan(model.watch(**inputs, names=name))[name][0]
        if value.dim() != 2:
            raise ClearheadError(
                f"{name} does not have one vector per token; choose a residual stream such as "
                "blocks.0.resid_post."
            )
        return value[check_token(position, len(value))].detach().float().cpu()

    differences = [activation(toward) - activation(away) for toward, away in pairs]
    return SteeringVector(name, torch.stack(differences).mean(dim=0))
