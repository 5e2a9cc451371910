"""clearhead: the Transformer of the lectures as real software.

    import clearhead as ch
    model = ch.new("lecture-lm", seed=0)
    seen = model.watch([1, 2, 3], ["blocks.*.attn.pattern"])

Names are fetched when they are used: importing clearhead does not import torch.
"""

from typing import TYPE_CHECKING, Any

from clearhead.config.presets import (
    presets,  # here, because the module of that name would hide the dictionary later
)

if TYPE_CHECKING:
    from clearhead import lens
    from clearhead.api import Model, load, new, save
    from clearhead.config.model import Config
    from clearhead.errors import ClearheadError
    from clearhead.evaluate.evaluate import evaluate
    from clearhead.evaluate.invariants import verify
    from clearhead.lab.compare import compare
    from clearhead.lens.context import context
    from clearhead.lens.edits import ablate, replace, scale
    from clearhead.tokenizers.tokenizer import Tokenizer
    from clearhead.train.train import train
    from clearhead.word_vectors.vectors import vectors

__version__ = "0.2.0"

_MODULES = {
    "ClearheadError": "clearhead.errors",
    "Config": "clearhead.config.model",
    "Model": "clearhead.api",
    "Tokenizer": "clearhead.tokenizers.tokenizer",
    "ablate": "clearhead.lens.edits",
    "compare": "clearhead.lab.compare",
    "context": "clearhead.lens.context",
    "evaluate": "clearhead.evaluate",
    "lens": "clearhead.lens",
    "load": "clearhead.api",
    "new": "clearhead.api",
    "replace": "clearhead.lens.edits",
    "save": "clearhead.api",
    "scale": "clearhead.lens.edits",
    "train": "clearhead.train",
    "vectors": "clearhead.word_vectors.vectors",
    "verify": "clearhead.evaluate.invariants",
}

__all__ = [
    "ClearheadError",
    "Config",
    "Model",
    "Tokenizer",
    "ablate",
    "compare",
    "context",
    "evaluate",
    "lens",
    "load",
    "new",
    "presets",
    "replace",
    "save",
    "scale",
    "train",
    "vectors",
    "verify",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}")
    home = import_module(_MODULES[name])
    value = home if _MODULES[name] == f"clearhead.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
