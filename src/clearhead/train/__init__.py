"""Training. The module itself can be called: `clearhead.train("shakespeare-char", data__train="texts/")`."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module of the name of what it does, as `clearhead.train` is both."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_module("clearhead.learn").train(*args, **kwargs)  # which stands above this part


sys.modules[__name__].__class__ = _Callable
