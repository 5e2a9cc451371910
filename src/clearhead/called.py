"""Modules of the name of what they do, as `clearhead.train` is a module and a function."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(module: str, home: str) -> None:
    """Calling the module calls the function of its name in `home`, which is imported only then."""

    class Callable(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(home), module.rpartition(".")[2])(*args, **kwargs)

    sys.modules[module].__class__ = Callable
