"""Training. The module itself can be called, and returns the best model of the run:

    model = clearhead.train("lm-small", "run", data__train="texts/", train__steps=500)

The first argument is a preset, a run.toml or a Config, the second the folder of the run (default "run"), which is gone
on with if it holds one. Two underscores are a dot; an option without a section belongs to the model. Also resume=False,
device="cpu", compiled=False, tensorboard=True, microscope=True, quiet=True. What is left behind (log.jsonl with all
losses, report.html, checkpoints) is in the folder; docs/training.md tells more.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module of the name of what it does, as `clearhead.train` is both."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_module("clearhead.learn").train(*args, **kwargs)  # which stands above this part


sys.modules[__name__].__class__ = _Callable
