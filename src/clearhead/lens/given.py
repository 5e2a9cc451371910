"""Arguments by name: those that functions of the lens hand on to `model.watch`, and those that nobody knows."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

from clearhead.errors import ClearheadError, nearest

READ = ("source", "pictures", "sound")
HANDED_ON = {"read": READ, "given": (*READ, "edits")}  # by the name of the parameter that gathers them

P = ParamSpec("P")
R = TypeVar("R")


def check_model(model: object) -> None:
    if not hasattr(model, "net"):
        raise ClearheadError(f"a model is needed, not {type(model).__name__}; clearhead.load gives one.")


def known_names(function: Callable[P, R]) -> Callable[P, R]:
    """Refuses what is no model, and arguments that neither the function nor what it hands on to has."""
    taken = signature(function).parameters.values()
    known = [name for p in taken for name in (HANDED_ON[p.name] if p.kind is Parameter.VAR_KEYWORD else [p.name])]

    @wraps(function)
    def checked(*args: P.args, **named: P.kwargs) -> R:
        for name in named:
            if name not in known:
                raise ClearheadError(f"{function.__name__} has no {name!r}; {nearest(name, known)}")
        if known[0] == "model":
            check_model(args[0] if args else named.get("model"))
        return function(*args, **named)

    return checked
