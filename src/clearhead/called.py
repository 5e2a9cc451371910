"""Modules of the name of what they do, as `clearhead.train` is a module and a function."""

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


def make_callable(module: str, home: str) -> None:
    """Calling the module calls the function of its name in `home`, which is imported only then."""

    def function() -> Any:
        return getattr(import_module(home), module.rpartition(".")[2])

    class Callable(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function()(*args, **kwargs)

        @property
        def __signature__(self) -> Signature:
            return signature(function())

    sys.modules[module].__class__ = Callable
