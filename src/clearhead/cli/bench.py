"""`clearhead bench`: run the benchmarks of the repository."""

import ast
import runpy
import sys
from pathlib import Path

import typer

from clearhead.errors import ClearheadError, suggest

FOLDER = Path(__file__).parents[3] / "bench"


def bench(
    context: typer.Context,
    name: str = typer.Argument(
        "", metavar="NAME", help="The benchmark; without it, lists all.", show_default=False
    ),
) -> None:
    """Run a benchmark of the repository.

    Runs other implementations side by side and prints ratios with their spread. Some benchmarks
    need a GPU, files or extra packages; see the top of bench/NAME.py. Other options are passed to
    the benchmark; bench/NAME.py --help lists them.
    """
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.py"))}
    docstrings = {
        stem: ast.get_docstring(ast.parse(source)) or ""
        for stem, source in sources.items()
        if "__main__" in source
    }
    if not docstrings:
        raise ClearheadError("benchmarks are part of the repository, not of the installed package.")
    if not name:
        for stem, docstring in docstrings.items():
            typer.echo(f"{stem:<21}{docstring.splitlines()[0]}")
        return
    if name not in docstrings:
        raise ClearheadError(f"there is no benchmark {name!r}; {suggest(name, docstrings)}")
    script = str(FOLDER / f"{name}.py")
    sys.argv = [script, *context.args]
    sys.path.insert(0, str(FOLDER))
    try:
        runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as error:
        raise ClearheadError(
            f"{name} needs {error.name}; pip install 'clearhead[bench,peers]'."
        ) from None
