"""What a published family is: attributes, architectures and weights, as tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clearhead import config as c
from clearhead.weights.fields import Field
from clearhead.weights.rules import Table

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh",
    "silu": "silu", "swish": "silu", "relu2": "relu2",
}  # fmt: skip
GATED = {
    "silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu-tanh", "gelu_new": "geglu-tanh",
}  # fmt: skip
ZERO = {None: 0}  # no value of its own: what follows from the others


@dataclass(frozen=True)
class Family:
    name: str  # the `model_type` of a config.json
    base: c.ModelConfig  # what the attributes do not say
    heads: Mapping[str, c.Head]  # by the name of the architecture, the usual one first
    fields: tuple[Field, ...]
    table: Callable[[c.ModelConfig], Table]
