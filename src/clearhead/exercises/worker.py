"""The process that runs a student's file.

`python -m clearhead.exercises.worker FILE SECONDS NAME…` calls these functions of the file.

It writes one line of JSON per event to its standard output: `ready`, the `functions` of the file,
and for each of them `started`, the result of each call, and `done`. What the file prints goes to
standard error.
"""

import ast
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.exercises.exercises import EXERCISES, Exercise

MODULE_NAME = "clearhead_exercise_file"
MAX_VALUES = 100_000
ORPHAN_SECONDS = 10  # after the time limit, in case nobody ends this process
MAX_ERROR_CHARS = 300
MAX_SHOWN_FRAMES = 4


def import_file(path: Path) -> ModuleType:
    """Import the file as a module, with its folder on the path for its own imports."""
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def imports_torch(path: Path) -> bool:
    """Whether a file imports torch anywhere."""
    modules = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return "torch" in {module.split(".")[0] for module in modules}


def find_functions(module: ModuleType, path: Path) -> list[str]:
    """The exercises in a module, except functions from elsewhere than its own folder."""

    def is_own(value: object) -> bool:
        if not isinstance(value, FunctionType | BuiltinFunctionType | type):
            return True  # made here, such as a partial
        package = (value.__module__ or "").split(".")[0]
        if package == MODULE_NAME:
            return True
        in_folder = path.parent / package
        return bool(package) and (in_folder.is_dir() or in_folder.with_suffix(".py").is_file())

    return [name for name in EXERCISES if hasattr(module, name) and is_own(getattr(module, name))]


def to_argument(value: Any, as_tensors: bool) -> Any:
    """An argument as the student expects it: tensors in float32, or NumPy arrays."""
    if isinstance(value, Tensor):
        if not as_tensors:
            return value.numpy().copy()
        return value.float() if value.is_floating_point() else value.clone()
    if isinstance(value, dict):
        return {name: to_argument(item, as_tensors) for name, item in value.items()}
    if isinstance(value, list):
        return [*value]
    if callable(value):
        return _as_plain_function(value, as_tensors)
    return value


def _as_plain_function(
    function: Callable[[list[int]], Tensor], as_tensors: bool
) -> Callable[[list[int]], Any]:
    def next_logprobs(tokens: list[int]) -> Any:
        return to_argument(function([int(token) for token in tokens]), as_tensors)

    return next_logprobs


def to_json(value: Any) -> dict[str, Any]:
    """A result: an `array`, a `list`, `steps`, or something `unexpected`."""
    if isinstance(value, dict):
        return {"steps": {str(name): to_json(item) for name, item in value.items()}}
    if value is None:
        return {"unexpected": "None"}
    if isinstance(value, list | tuple) and _is_plain(value):
        return {"list": value}
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # a ragged list, or tensors in a list
        array = np.asarray(None)
    if array.dtype.kind not in "fiu":
        kinds = {"b": "booleans", "c": "complex numbers"}
        kind = kinds.get(array.dtype.kind, f"a value of type {type(value).__name__}")
        return {"unexpected": kind}
    shape = list(array.shape)
    if array.size > MAX_VALUES:
        return {"shape": shape, "array": None}
    return {"shape": shape, "array": array.astype(np.float64).ravel().tolist()}


def _is_plain(values: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list holds strings, pairs of strings, or integers, as those of BPE and search."""
    for value in values:
        items = value if isinstance(value, list | tuple) else [value]
        if isinstance(value, list | tuple) and not all(isinstance(item, str) for item in items):
            return False
        if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in items):
            return False
    return True


def describe_error(error: BaseException, path: Path) -> dict[str, Any]:
    """The message, and the frames of the traceback that lie in the student's file."""
    lines = []
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path
    ]
    shown = [*frames[:1], *frames[1:][-MAX_SHOWN_FRAMES + 1 :]]
    for frame in shown:
        lines.append(f"{path.name}, line {frame.lineno}, in {frame.name}")
        if frame.line:
            lines.append(f"  {frame.line}")
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(f"{path.name}, line {error.lineno}")
        lines.append(f"  {(error.text or '').strip()}")
        message = error.msg
    else:
        message = str(error).strip().split("\n")[0]
    name = type(error).__name__
    message = f"{name}: {message}" if message else name
    return {"message": message[:MAX_ERROR_CHARS], "traceback": lines}


def check_signature(exercise: Exercise, function: Any, arguments: list[Any]) -> str:
    """What is wrong with a function's parameters, or an empty string."""
    if not callable(function):
        return f"is not a function, but a value of type {type(function).__name__}."
    with suppress(ValueError):  # a function written in C
        signature = inspect.signature(function)
        try:
            signature.bind(*arguments)
        except TypeError:
            return f"has the parameters {signature}, expected {exercise.signature}."
    return ""


def call(exercise: Exercise, function: Any, arguments: list[Any], path: Path) -> dict[str, Any]:
    """The result of one call, for JSON."""
    if problem := check_signature(exercise, function, arguments):
        return {"problem": problem}
    try:
        return to_json(function(*arguments))
    except NotImplementedError:
        return {"not_written": True}
    except BaseException as error:  # the student's code can raise anything, also SystemExit
        return {"error": describe_error(error, path)}


def main() -> None:
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)  # the check itself shows NaN and infinity
    path = Path(sys.argv[1])
    max_seconds = ceil(float(sys.argv[2])) + ORPHAN_SECONDS
    names = sys.argv[3:]
    send({"ready": True})
    signal.alarm(max_seconds)  # ends this process if the one that started it was killed
    try:
        module = import_file(path)
    except BaseException as error:  # as in `call`
        send({"error": describe_error(error, path)})
        return
    as_tensors = imports_torch(path)
    functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    found = find_functions(module, path)
    send({"functions": functions, "found": found})
    for name in found:
        if name in names:
            exercise = EXERCISES[name]
            signal.alarm(0)
            cases = exercise.cases()
            send({"started": name})
            for case in cases:
                arguments = [to_argument(value, as_tensors) for value in case.arguments.values()]
                signal.alarm(max_seconds)
                result = call(exercise, getattr(module, name), arguments, path)
                signal.alarm(0)
                send(result)
                if not {"array", "list", "steps"} & result.keys():
                    break
            send({"done": name})


if __name__ == "__main__":
    main()
