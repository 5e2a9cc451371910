"""Figures that are kept: what a benchmark measured, when, where and with what, in bench/results.

Every benchmark takes --keep and then writes bench/results/WHAT.MACHINE.json: a list of runs, each with its rows. A run
replaces an earlier one of the same command. The page of benchmarks is made of these files (standing.py).
"""

import json
import os
import platform
import re
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"
BUSY = os.getloadavg()[0]  # before the benchmark itself begins
EMPTY = (None, "", ())
SWITCHES = ("OMP_NUM_THREADS", "KMP_BLOCKTIME")

Middle = Callable[[Sequence[float]], float]
Figure = tuple[
    float | None, ...
]  # middle, lowest, highest; the middle alone where the spread is not known


@dataclass(frozen=True)
class Row:
    """One piece of work: our figure, and beside it one peer's."""

    work: str
    unit: str
    ours: Figure = ()
    peer: str = ""
    theirs: Figure = ()
    ratio: Figure = ()  # of the middles, and the spread of rounds; above 1 means ours is better
    rounds: int | None = None
    quartiles: bool = False  # instead of lowest and highest


@dataclass(frozen=True)
class Run:
    """One call of a benchmark."""

    date: str
    command: str
    machine: str
    versions: dict[str, str]
    rows: tuple[Row, ...]
    load: float | None = None  # how many processes wanted to run before it began
    source: str = ""  # where a figure was copied from that no script wrote


def row(work: str, unit: str, values: Sequence[float], middle: Middle = median) -> Row:
    """What our rounds come to, where there is no peer."""
    return Row(work, unit, _summary(values, middle), rounds=len(values))


def rows(
    work: str, unit: str, sides: Mapping[str, Sequence[float]], middle: Middle = median
) -> list[Row]:
    """The same beside every other side. Of a rate more is better, of all else less."""
    ours = sides["ours"]
    found = []
    for name, theirs in sides.items():
        if name != "ours":
            up, down = (ours, theirs) if unit.endswith("/s") else (theirs, ours)
            by_round = [a / b for a, b in zip(up, down, strict=True)]
            spread = (min(by_round), max(by_round)) if len(by_round) > 1 else ()
            ratio = figure(middle(up) / middle(down), *spread)
            figures = _summary(ours, middle), name, _summary(theirs, middle), ratio
            found.append(Row(work, unit, *figures, rounds=len(ours)))
    return found


def _summary(values: Sequence[float], middle: Middle) -> Figure:
    return (
        figure(middle(values), min(values), max(values)) if len(values) > 1 else figure(values[0])
    )


def figure(*values: float) -> Figure:
    """With as many digits as are worth keeping."""
    return tuple(float(f"{value:.5g}") for value in values)


def offer(parser: ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="write the figures to bench/results")


def write(rows: Iterable[Row], *peers: str, device: str = "cpu", **versions: str) -> None:
    """Adds this run to its file, with the versions of the packages that it was run with."""
    from clearhead import __version__

    short, machine = _machine(device)
    known = {"python": platform.python_version(), "clearhead": __version__}
    known |= {name: version(name) for name in ("torch", *peers)} | versions
    run = Run(
        f"{datetime.now(UTC):%Y-%m-%d}", _command(), machine, known, tuple(rows), round(BUSY, 1)
    )
    file = RESULTS / f"{Path(sys.argv[0]).stem}.{short}.json"
    others = (
        [other for other in read(file) if other.command != run.command] if file.exists() else []
    )
    RESULTS.mkdir(exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(text([*others, run]), encoding="utf-8")
    new.replace(file)
    print(f"kept in {file.relative_to(RESULTS.parents[1])}")


def text(runs: Iterable[Run]) -> str:
    """The file of some runs: a line for each row."""

    def line(tree: dict[str, object]) -> str:
        known = {
            key: value for key, value in tree.items() if value not in EMPTY and value is not False
        }
        return json.dumps(known, ensure_ascii=False)

    told = []
    for run in runs:
        tree = asdict(run)
        rows = ",\n  ".join(map(line, tree.pop("rows")))
        told.append(f'{line(tree)[:-1]}, "rows": [\n  {rows}\n]}}')
    return f"[{', '.join(told)}]\n"


def _machine(device: str) -> tuple[str, str]:
    """A short name for files, and in words."""
    import torch

    if device == "cuda":
        name = torch.cuda.get_device_name()
        return re.sub(r"\W+", "-", name.removeprefix("NVIDIA ")).lower(), name
    about = Path("/proc/cpuinfo")
    told = re.search(
        r"^model name\s*: (.+)$", about.read_text("utf-8") if about.exists() else "", re.MULTILINE
    )
    name = told[1] if told else platform.machine()
    return "cpu", f"{name}, {os.cpu_count()} cores, threads of torch: {torch.get_num_threads()}"


def _command() -> str:
    """As it was typed, but for --keep and for where this machine has its files."""
    words = [
        Path(word).name if word.startswith(("/", "~", "..")) else word
        for word in sys.argv[1:]
        if word != "--keep"
    ]
    switches = [f"{name}={os.environ[name]}" for name in SWITCHES if name in os.environ]
    return shlex.join([*switches, "python", f"bench/{Path(sys.argv[0]).name}", *words])


def read(file: Path) -> list[Run]:
    """The runs of a file, oldest first."""

    def row(tree: dict[str, object]) -> Row:
        return Row(
            **{
                key: tuple(value) if isinstance(value, list) else value
                for key, value in tree.items()
            }
        )  # type: ignore[arg-type]

    return [
        Run(**{**tree, "rows": tuple(map(row, tree["rows"]))})
        for tree in json.loads(file.read_text(encoding="utf-8"))
    ]
