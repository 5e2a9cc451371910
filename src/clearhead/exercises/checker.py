"""Compare the functions of a student's file with clearhead's own (`clearhead check`)."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Literal, Self

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, suggest, suggest_file
from clearhead.exercises.exercises import EXERCISES, Case, Exercise
from clearhead.exercises.reference import RESULT, Result
from clearhead.exercises.worker import to_argument

Status = Literal["passed", "different", "failed", "not written", "not found"]
Event = dict[str, Any]

RELATIVE_TOLERANCE = 1e-4  # of float32, with room for another order of summation
ABSOLUTE_TOLERANCE = 1e-4
MAX_START_SECONDS = 120.0  # importing torch can be slow on a busy machine
DEFAULT_TIME_LIMIT = 10.0
MAX_TIME_LIMIT = 3600.0
WORKER_MODULE = "clearhead.exercises.worker"


@dataclass(frozen=True)
class CheckResult:
    """How one function of a file compares with clearhead's own."""

    function: str
    status: Status
    message: str  # the first difference, or what went wrong
    hint: str = ""  # the mistake that gives exactly these results
    traceback: tuple[str, ...] = ()  # lines of the file

    @property
    def passed(self) -> bool:
        """Whether the function is right."""
        return self.status == "passed"

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        mark = {"passed": "✓", "not written": "·", "not found": "·"}.get(self.status, "✗")
        lines = [f"{mark} {self.function}: {self.message}"]
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        lines += [f"    {line}" for line in self.traceback]
        return "\n".join(lines)


def check(
    path: str | Path, only: Sequence[str] = (), *, time_limit: float = DEFAULT_TIME_LIMIT
) -> list[CheckResult]:
    """Compare the functions of a Python file with those that clearhead's models use.

    Runs the file, so check only code that you would run yourself. `clearhead check --list` lists
    the functions.

    Args:
        path: a file that defines some of the functions.
        only: their names; by default all that the file defines.
        time_limit: seconds for each call.
    """
    return list(iter_checks(path, only, time_limit=time_limit))


def iter_checks(
    path: str | Path, only: Sequence[str] = (), *, time_limit: float = DEFAULT_TIME_LIMIT
) -> Iterator[CheckResult]:
    """Check one function after another; those that the file does not define come last."""
    check_names(only)
    if not 0 < time_limit <= MAX_TIME_LIMIT:
        raise ClearheadError(
            f"the time limit must be a positive number up to {MAX_TIME_LIMIT:g}, got {time_limit}."
        )
    if Path(path).is_dir():
        raise ClearheadError(f"{path} is a folder; check one Python file at a time.")
    if not Path(path).is_file():
        raise ClearheadError(f"{path} cannot be read: no such file{suggest_file(path)}.")
    if Path(path).suffix == ".ipynb":
        raise ClearheadError(
            f"{path} is a notebook; convert it with `jupyter nbconvert --to script {path}`."
        )
    if Path(path).suffix != ".py":
        raise ClearheadError(f"{path} is not a Python file; its name must end with .py.")
    wanted = list(only) or list(EXERCISES)
    with _FileProcess(Path(path).resolve(), time_limit) as process:
        process.start(wanted)
        found = [name for name in EXERCISES if name in process.found and name in wanted]
        for number, name in enumerate(found):
            if not process.is_running:
                process.start(found[number:])
            yield _check_function(process, EXERCISES[name])
    for name in wanted:
        if name not in found:
            yield CheckResult(name, "not found", f"not found in {Path(path).name}.")


def check_names(names: Sequence[str]) -> None:
    """Raise unless these are names of exercises."""
    for name in names:
        if name not in EXERCISES:
            raise ClearheadError(f"{name!r} is not an exercise; {suggest(name, EXERCISES)}")


def _check_function(process: "_FileProcess", exercise: Exercise) -> CheckResult:
    """Receive the results of one function, and compare them."""
    name = exercise.name
    with _one_thread():
        cases = exercise.cases()
    results: list[Event] = []
    event = process.next_event(MAX_START_SECONDS)
    while "done" not in event:
        if "started" not in event:
            results.append(event)
        event = process.next_event()
        case = cases[min(len(results), len(cases) - 1)]
        if "late" in event:
            message = f"takes longer than {process.time_limit:g} seconds ({case}); an endless loop?"
            return CheckResult(name, "failed", message)
        if "ended" in event:
            return CheckResult(name, "failed", f"ended the process ({case}).")
    last = results[-1]
    case = cases[len(results) - 1]
    if "not_written" in last:
        return CheckResult(name, "not written", "not written yet (raises NotImplementedError).")
    if "unexpected" in last:
        message = f"returned {last['unexpected']}, expected {exercise.returns}"
        return CheckResult(name, "failed", message)
    if "problem" in last:
        return CheckResult(name, "failed", last["problem"])
    if "error" in last:
        error = last["error"]
        message = f"raised {error['message']} ({case})"
        return CheckResult(name, "failed", message, traceback=tuple(error["traceback"]))
    with _one_thread():
        return compare(exercise, cases, results)


@contextmanager
def _one_thread() -> Iterator[None]:
    """More threads make computations of this size slower."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


# --- comparison
def compare(exercise: Exercise, cases: Sequence[Case], results: Sequence[Event]) -> CheckResult:
    """Compare the results of all cases, as the worker sends them, with clearhead's own."""
    differences = []
    for case, result in zip(cases, results, strict=True):
        if difference := _first_difference(exercise, case, result):
            differences.append((case, difference))
    if not differences:
        return CheckResult(exercise.name, "passed", f"{len(cases)} configurations.")
    case, difference = differences[0]
    message = f"{difference} ({case}); {len(differences)} of {len(cases)} configurations differ."
    return CheckResult(exercise.name, "different", message, _find_mistake(exercise, cases, results))


def _first_difference(exercise: Exercise, case: Case, result: Event) -> str:
    """The first value that differs, in the first step that differs; or an empty string."""
    expected = exercise.steps(case)
    final = [*expected][-1]
    if "steps" not in result:
        return _difference(final, expected[final], result)
    steps: dict[str, Event] = result["steps"]
    for name in steps:
        if name not in expected:
            return f"returns the step {name!r}; {suggest(name, expected)}"
    for name in expected:
        if name in steps and (difference := _difference(name, expected[name], steps[name])):
            return difference
    return "" if final in steps else f"returns steps without {final!r}, the result"


def _difference(name: str, expected: Result, actual: Event) -> str:
    prefix = "" if name == RESULT else f"{name}, "
    if "unexpected" in actual:
        return f"{prefix}expected numbers, got {actual['unexpected']}"
    if not isinstance(expected, Tensor):
        return f"{prefix}{text}" if (text := _list_difference(expected, actual)) else ""
    shape = actual.get("shape", [len(actual.get("list", []))])
    if shape != [*expected.shape]:
        return f"{prefix}{_shape_difference([*expected.shape], shape)}"
    values = _as_tensor(actual)
    if values is None:
        return f"{prefix}returned a list of {_kinds(actual)}, expected numbers"
    wrong = ~_close(values, expected.double())
    if not wrong.any():
        return ""
    index = tuple(wrong.nonzero()[0].tolist())
    numbers = _distinct(float(expected[index]), float(values[index]))
    axes = {0: (), 1: ("element",), 2: ("row", "column"), 3: ("head", "row", "column")}
    where = "".join(
        f"{axis} {i}, " for axis, i in zip(axes[len(index)], index, strict=True)
    ).removesuffix(", ")
    return f"{prefix}{where}{': ' if where else ''}expected {numbers[0]}, got {numbers[1]}"


def _as_tensor(actual: Event) -> Tensor | None:
    values = actual.get("array", actual.get("list"))
    if values is None or not all(isinstance(value, int | float) for value in values):
        return None
    return torch.tensor(values, dtype=torch.float64).view(actual.get("shape", -1))


def _kinds(actual: Event) -> str:
    return "strings" if any(isinstance(v, str) for v in actual.get("list", [])) else "lists"


def _list_difference(expected: Sequence[object], actual: Event) -> str:
    if "list" not in actual and actual.get("array") is not None and len(actual["shape"]) == 1:
        actual = {"list": [int(v) if float(v).is_integer() else v for v in actual["array"]]}
    if "list" not in actual:
        return "returned an array, expected a list"
    values = [tuple(value) if isinstance(value, list) else value for value in actual["list"]]
    for index, (wanted, value) in enumerate(zip(expected, values, strict=False)):
        if wanted != value:
            return f"element {index}: expected {wanted!r}, got {value!r:.60}"
    if len(values) != len(expected):
        return f"expected {len(expected)} elements, got {len(values)}"
    return ""


def _shape_difference(expected: list[int], shape: list[int]) -> str:
    def text(sizes: list[int]) -> str:
        return " × ".join(map(str, sizes)) if sizes else "a single number"

    transposed = " (transposed?)" if shape == expected[::-1] and len(shape) > 1 else ""
    return f"expected the shape {text(expected)}, got {text(shape)}{transposed}"


def _close(values: Tensor, expected: Tensor) -> Tensor:
    return torch.isclose(
        values, expected, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE, equal_nan=True
    )


def _distinct(expected: float, actual: float) -> tuple[str, str]:
    """Two numbers with as few digits as show that they differ."""
    for digits in range(4, 18):
        texts = f"{expected:.{digits}g}", f"{actual:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def _find_mistake(exercise: Exercise, cases: Sequence[Case], results: Sequence[Event]) -> str:
    """The common mistake that gives the student's results in all cases, or an empty string."""
    final = [*exercise.steps(cases[0])][-1]
    answers = [result.get("steps", {final: result}).get(final, {}) for result in results]
    for description, make_mistake in exercise.mistakes.items():
        # They may overflow in float32 only.
        if any(_explains(make_mistake, cases, answers, in_float32) for in_float32 in (False, True)):
            return f"the results are those of {description}."
    return ""


@torch.no_grad()
def _explains(
    make_mistake: Callable[..., Result],
    cases: Sequence[Case],
    answers: Sequence[Event],
    in_float32: bool,
) -> bool:
    for case, answer in zip(cases, answers, strict=True):
        arguments = [*case.arguments.values()]
        if in_float32:
            arguments = [to_argument(value, as_tensors=True) for value in arguments]
        if not answer or _difference(RESULT, make_mistake(*arguments), answer):
            return False
    return True


# --- the process
class _FileProcess:
    """The process that runs the file; it is killed when a function takes too long."""

    def __init__(self, file: Path, time_limit: float) -> None:
        self.file = file
        self.time_limit = time_limit
        self.found: list[str] = []
        self.is_running = False
        self._process: subprocess.Popen[str] | None = None
        self._events = Queue[Event]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def start(self, names: Sequence[str]) -> None:
        """Import the file and run these functions, in a new process."""
        self._stop()
        path = os.pathsep.join(filter(None, sys.path))
        limit = str(self.time_limit)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER_MODULE, str(self.file), limit, *names],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C interrupts only this process
            )
        except OSError as error:
            raise ClearheadError(f"cannot start a process: {error.strerror}.") from None
        self.is_running = True
        self._events = Queue()
        threading.Thread(
            target=_read_events, args=(self._process, self._events), daemon=True
        ).start()
        if "ready" not in self.next_event(MAX_START_SECONDS):
            raise ClearheadError(f"cannot start a process to run {self.file.name}.")
        self._import(self.next_event())

    def _import(self, event: Event) -> None:
        """Raise unless the file could be imported and defines an exercise."""
        name = self.file.name
        if "error" in event:
            where = "".join(f"\n    {line}" for line in event["error"]["traceback"])
            raise ClearheadError(f"{name} cannot be run: {event['error']['message']}{where}")
        if "late" in event:
            raise ClearheadError(
                f"{name} takes longer than {self.time_limit:g} seconds to import; put code that is "
                'not in a function under `if __name__ == "__main__":`.'
            )
        if "ended" in event:
            raise ClearheadError(f"{name} ended the process while it was imported.")
        self.found = event["found"]
        if self.found:
            return
        for function in event["functions"]:
            if "did you mean" in (hint := suggest(function, EXERCISES)):
                raise ClearheadError(f"{name} defines {function}, which is no exercise; {hint}")
        raise ClearheadError(
            f"{name} defines none of the functions that `clearhead check --list` lists."
        )

    def _stop(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # and what the file has started
            self._process.wait()
            self._process = None

    def next_event(self, seconds: float = 0.0) -> Event:
        """What the process sends next; `late` after the time limit, `ended` if it has ended."""
        try:
            event = self._events.get(timeout=seconds or self.time_limit)
        except Empty:
            event = {"late": True}
        self.is_running = self.is_running and not {"late", "ended"} & event.keys()
        return event


def _read_events(process: subprocess.Popen[str], events: Queue[Event]) -> None:
    assert process.stdout is not None
    with process.stdout as stream:
        for line in stream:
            with suppress(json.JSONDecodeError):  # the process was killed while it wrote
                events.put(json.loads(line))
    events.put({"ended": True})
