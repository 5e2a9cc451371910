"""Saved benchmark results in bench/results: what was measured, when, on which machine and versions.

With --save, a benchmark writes bench/results/NAME.MACHINE.json, a list of runs with their rows. A
run replaces an earlier one of the same command. benchmark_tables.py makes the page of benchmarks
from these files.
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
from typing import Any

RESULTS = Path(__file__).parent / "results"
LOAD_AVERAGE = os.getloadavg()[0]  # before the benchmark starts
ENVIRONMENT = ("OMP_NUM_THREADS", "KMP_BLOCKTIME")  # variables that are part of a command

Average = Callable[[Sequence[float]], float]
Measurement = tuple[float | None, ...]  # middle, lowest, highest; or the middle only


@dataclass(frozen=True)
class Row:
    """One workload: our measurement, and that of a peer."""

    workload: str
    unit: str
    ours: Measurement = ()
    peer: str = ""
    theirs: Measurement = ()
    ratio: Measurement = ()  # above 1 means ours is better
    rounds: int | None = None
    quartiles: bool = False  # instead of lowest and highest


@dataclass(frozen=True)
class Run:
    """One execution of a benchmark."""

    date: str
    command: str
    machine: str
    versions: dict[str, str]
    rows: tuple[Row, ...]
    load: float | None = None  # load average before the run
    source: str = ""  # where the numbers were copied from, if no script wrote them


def measure(workload: str, unit: str, values: Sequence[float], average: Average = median) -> Row:
    """A row for our rounds, without a peer."""
    return Row(workload, unit, _summarize(values, average), rounds=len(values))


def compare(
    workload: str, unit: str, sides: Mapping[str, Sequence[float]], average: Average = median
) -> list[Row]:
    """A row for each peer beside ours. For rates (…/s) more is better, otherwise less."""
    ours = sides["ours"]
    rows = []
    for peer, theirs in sides.items():
        if peer == "ours":
            continue
        numerator, denominator = (ours, theirs) if unit.endswith("/s") else (theirs, ours)
        by_round = [a / b for a, b in zip(numerator, denominator, strict=True)]
        spread = (min(by_round), max(by_round)) if len(by_round) > 1 else ()
        rows.append(
            Row(
                workload,
                unit,
                _summarize(ours, average),
                peer,
                _summarize(theirs, average),
                measurement(average(numerator) / average(denominator), *spread),
                rounds=len(ours),
            )
        )
    return rows


def _summarize(values: Sequence[float], average: Average) -> Measurement:
    if len(values) == 1:
        return measurement(values[0])
    return measurement(average(values), min(values), max(values))


def measurement(*values: float) -> Measurement:
    """Round to five significant digits."""
    return tuple(float(f"{value:.5g}") for value in values)


def add_save_argument(parser: ArgumentParser) -> None:
    """Add --save to a benchmark's options."""
    parser.add_argument("--save", action="store_true", help="save the results in bench/results")


def save(rows: Iterable[Row], *packages: str, device: str = "cpu", **versions: str) -> None:
    """Save this run, with the versions of the packages it used."""
    from clearhead import __version__

    machine_id, machine = _machine(device)
    all_versions = {"python": platform.python_version(), "clearhead": __version__}
    all_versions |= {name: version(name) for name in ("torch", *packages)} | versions
    run = Run(
        f"{datetime.now(UTC):%Y-%m-%d}",
        _command(),
        machine,
        all_versions,
        tuple(rows),
        round(LOAD_AVERAGE, 1),
    )
    path = RESULTS / f"{Path(sys.argv[0]).stem}.{machine_id}.json"
    others = read_runs(path) if path.exists() else []
    others = [other for other in others if other.command != run.command]
    RESULTS.mkdir(exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(format_runs([*others, run]), encoding="utf-8")
    temporary.replace(path)
    print(f"saved in {path.relative_to(RESULTS.parents[1])}")


def format_runs(runs: Iterable[Run]) -> str:
    """The content of a results file, one line per row."""

    def to_line(fields: dict[str, Any]) -> str:
        is_set = {k: v for k, v in fields.items() if v not in (None, "", ()) and v is not False}
        return json.dumps(is_set, ensure_ascii=False)

    texts = []
    for run in runs:
        fields = asdict(run)
        rows = ",\n  ".join(map(to_line, fields.pop("rows")))
        texts.append(f'{to_line(fields)[:-1]}, "rows": [\n  {rows}\n]}}')
    return f"[{', '.join(texts)}]\n"


def read_runs(path: Path) -> list[Run]:
    """The runs of a results file, oldest first."""

    def read_row(fields: dict[str, Any]) -> Row:
        return Row(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})

    return [
        Run(**{**fields, "rows": tuple(map(read_row, fields["rows"]))})
        for fields in json.loads(path.read_text(encoding="utf-8"))
    ]


def _machine(device: str) -> tuple[str, str]:
    """A short name for the file, and a description."""
    import torch

    if device == "cuda":
        name = torch.cuda.get_device_name()
        return re.sub(r"\W+", "-", name.removeprefix("NVIDIA ")).lower(), name
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text("utf-8") if cpuinfo.exists() else ""
    match = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    name = match[1] if match else platform.machine()
    return "cpu", f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads"


def _command() -> str:
    """The command line, without --save and without folders of this machine."""
    words = [
        Path(word).name if word.startswith(("/", "~", "..")) else word
        for word in sys.argv[1:]
        if word != "--save"
    ]
    variables = [f"{name}={os.environ[name]}" for name in ENVIRONMENT if name in os.environ]
    return shlex.join([*variables, "python", f"bench/{Path(sys.argv[0]).name}", *words])
