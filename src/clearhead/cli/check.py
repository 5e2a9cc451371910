"""`clearhead check`: compare a student's own attention, layer norm … with clearhead's."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from clearhead.exercises.checker import CheckResult

STYLES = {"passed": "green", "different": "red", "failed": "red"}
MARKS = {"passed": "✓", "different": "✗", "failed": "✗"}


def check(
    file: Path | None = typer.Argument(
        None,
        metavar="FILE",
        help="A Python file that defines some of the functions of --list.",
        show_default=False,
    ),
    only: list[str] = typer.Option(
        [],
        "--only",
        metavar="FUNCTION",
        help="Check only this function. May be repeated.",
        show_default=False,
    ),
    list_functions: bool = typer.Option(
        False, "--list", help="List the functions, their arguments and equations."
    ),
    template: Path | None = typer.Option(
        None,
        "--template",
        metavar="FILE",
        help="Write a file with all functions to complete.",
        show_default=False,
    ),
    time_limit: float = typer.Option(10.0, help="Seconds for each call of a function."),
    json_output: bool = typer.Option(False, "--json", help="Print JSON, one line per function."),
) -> None:
    """Compare your own attention, layer norm … with clearhead's.

    Each function is called with random arguments of many sizes. For the first value that differs,
    prints where it is, and which common mistake gives exactly these results. Rows and columns count
    from 0.

    FILE is run as a program, with your rights: check only code that you would run yourself. What it
    prints goes to standard error. The exit status is 0 if all functions are right, 1 if one is not.
    """
    from clearhead.cli.common import echo
    from clearhead.errors import ClearheadError
    from clearhead.exercises.checker import check_names, iter_checks
    from clearhead.exercises.exercises import EXERCISES

    if sum((file is not None, list_functions, template is not None)) != 1:
        raise ClearheadError("give a Python file, --list, or --template FILE.")
    check_names(only)
    if list_functions:
        for exercise in [EXERCISES[name] for name in only] or EXERCISES.values():
            echo(f"{exercise.description}\n")
        return
    if template is not None:
        _write_template(template, only)
        echo(f"wrote {template}; complete its functions, then run `clearhead check {template}`.")
        return
    assert file is not None
    results = []
    for result in iter_checks(file, only, time_limit=time_limit):
        results.append(result)
        if json_output:
            echo(json.dumps(result.to_dict(), ensure_ascii=False))
        elif result.status != "not found" or only:
            _print(result)
    if not json_output:
        _print_summary(results, file, is_selection=bool(only))
    if not all(result.passed or (result.status == "not found" and not only) for result in results):
        raise typer.Exit(1)


def _print(result: "CheckResult") -> None:
    """One line, and indented lines with a hint or a traceback."""
    from rich.console import Console
    from rich.text import Text

    from clearhead.errors import escape_controls

    style = STYLES.get(result.status, "dim")
    line = Text.assemble(
        (f"{MARKS.get(result.status, '·')} {result.function:<20}", style),
        escape_controls(result.message),
    )
    console = Console(highlight=False)
    console.print(line, soft_wrap=True)
    details = [f"hint: {result.hint}"] if result.hint else []
    for detail in [*details, *result.traceback]:
        console.print(Text(escape_controls(f"    {detail}")), soft_wrap=True)


def _print_summary(results: "list[CheckResult]", file: Path, is_selection: bool) -> None:
    from clearhead.cli.common import echo

    missing = [result.function for result in results if result.status == "not found"]
    counts = {
        "passed": sum(result.passed for result in results),
        "failed": sum(result.status in ("different", "failed") for result in results),
        "not written": sum(result.status == "not written" for result in results),
        "not found": len(missing),
    }
    echo("\n" + ", ".join(f"{count} {name}" for name, count in counts.items() if count) + ".")
    if missing and not is_selection:
        echo(f"Not in {file}: {', '.join(missing)}.")


def _write_template(path: Path, only: list[str]) -> None:
    """Write the stubs, or some of them, to a new file."""
    import ast
    import inspect

    from clearhead.errors import ClearheadError, os_error_reason
    from clearhead.exercises import template

    source = inspect.getsource(template)
    lines = source.splitlines(keepends=True)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and only and node.name not in only:
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)
    text = re.sub(r"\n{4,}", "\n\n\n", "".join(lines))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ClearheadError(f"{path} exists already; choose another name.") from None
    except OSError as error:
        raise ClearheadError(f"{path} cannot be written: {os_error_reason(error, path)}.") from None
