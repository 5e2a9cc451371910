"""clearhead: one Transformer that reads like the lecture, runs fast and can be observed anywhere.

    import clearhead as ch
    model = ch.load("story")
    cache = model.watch("Once upon a time", ["blocks.*.attn.pattern"])

Names are imported on first use: `import clearhead` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The functions `train` and `evaluate` share their names with packages. Importing a package binds
# its name here, but only the first time: done now, it cannot hide the functions later.
for _package in ("train", "evaluate"):
    import_module(f"clearhead.{_package}")
    del globals()[_package]

if TYPE_CHECKING:  # `import x as x` exports x
    from clearhead import lens as lens
    from clearhead.api import Model as Model
    from clearhead.api import load as load
    from clearhead.api import new as new
    from clearhead.api import save as save
    from clearhead.config.model import Config as Config
    from clearhead.config.presets import presets as presets
    from clearhead.errors import ClearheadError as ClearheadError
    from clearhead.evaluate.evaluate import evaluate as evaluate
    from clearhead.evaluate.invariants import verify as verify
    from clearhead.exercises.checker import check as check
    from clearhead.lab.compare import compare as compare
    from clearhead.lens.edits import ablate as ablate
    from clearhead.lens.edits import replace as replace
    from clearhead.lens.edits import scale as scale
    from clearhead.lens.word_in_context import context as context
    from clearhead.tokenizers.tokenizer import Tokenizer as Tokenizer
    from clearhead.train.train import train as train
    from clearhead.word_vectors.vectors import vectors as vectors

__version__ = "0.2.0"

_MODULES = {
    "ClearheadError": "clearhead.errors",
    "Config": "clearhead.config.model",
    "Model": "clearhead.api",
    "Tokenizer": "clearhead.tokenizers.tokenizer",
    "ablate": "clearhead.lens.edits",
    "check": "clearhead.exercises.checker",
    "compare": "clearhead.lab.compare",
    "context": "clearhead.lens.word_in_context",
    "evaluate": "clearhead.evaluate.evaluate",
    "lens": "clearhead.lens",
    "load": "clearhead.api",
    "new": "clearhead.api",
    "presets": "clearhead.config.presets",
    "replace": "clearhead.lens.edits",
    "save": "clearhead.api",
    "scale": "clearhead.lens.edits",
    "train": "clearhead.train.train",
    "vectors": "clearhead.word_vectors.vectors",
    "verify": "clearhead.evaluate.invariants",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}")
    module = import_module(_MODULES[name])
    value = module if _MODULES[name] == f"clearhead.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
