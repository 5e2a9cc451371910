"""`clearhead bench`: how fast it is beside other implementations, measured on your own machine."""

import ast
import runpy
import sys
from pathlib import Path

import typer

from clearhead.errors import ClearheadError, suggest

FOLDER = Path(__file__).parents[3] / "bench"


def bench(
    context: typer.Context,
    what: str = typer.Argument(
        "", help="Which one; without it, all are listed.", show_default=False
    ),
) -> None:
    """Run a benchmark of the source; options that follow are its own.

    Each measures its peers in the same run, and prints ratios with their spread. Some need a GPU, files or packages of
    their own; the first lines of bench/NAME.py tell, and python bench/NAME.py --help has its options.
    """
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.py"))}
    found = {
        name: ast.get_docstring(ast.parse(text)) or ""
        for name, text in texts.items()
        if "__main__" in text
    }
    if not found:
        raise ClearheadError("benchmarks come with the source of clearhead, not with the package.")
    if not what:
        for name, says in found.items():
            typer.echo(f"{name:<16}{says.splitlines()[0]}")
        return
    if what not in found:
        raise ClearheadError(
            f"there is no benchmark {what!r}: {suggest(what, found)} clearhead bench lists all."
        )
    script = str(FOLDER / f"{what}.py")
    sys.argv, sys.path[:0] = [script, *context.args], [str(FOLDER)]
    try:
        runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as error:
        extras = "the extras bench and peers have what benchmarks need"
        raise ClearheadError(
            f"{what} needs {error.name}, which is not installed; {extras}."
        ) from None
