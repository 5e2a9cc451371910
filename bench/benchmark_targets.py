"""Benchmark targets, each with the newest result for it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmark_results import RESULTS, Measurement, Row, Run, read_runs

TARGETS = Path(__file__).parent / "targets.toml"


@dataclass(frozen=True)
class Target:
    """A limit on the ratio of a row or, with a unit, on our own measurement."""

    area: str
    results: str
    workload: str
    peer: str = ""
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None
    why: str = ""

    def matches(self, row: Row) -> bool:
        """Whether a row is a result for this target. Without a ratio, the peer does not matter."""
        has_peer = row.peer == self.peer or bool(self.unit and not self.peer)
        return row.workload == self.workload and has_peer

    def measurement(self, row: Row) -> Measurement:
        """What the limit applies to."""
        return row.ours if self.unit else row.ratio


@dataclass(frozen=True)
class TargetStatus:
    """A target and the newest result for it."""

    target: Target
    row: Row | None = None
    run: Run | None = None

    @property
    def value(self) -> float | None:
        """The measured value; without a middle, the worse end of the spread."""
        if self.row is None:
            return None
        middle, *ends = self.target.measurement(self.row)
        return ends[self.target.at_most is not None] if middle is None else middle

    @property
    def is_missed(self) -> bool:
        """Whether the value violates the limit."""
        if self.value is None:
            return False
        at_least = self.target.at_least
        at_most = self.target.at_most
        is_below = at_least is not None and self.value < at_least
        return is_below or (at_most is not None and self.value > at_most)

    @property
    def misses_aim(self) -> bool:
        """Whether the value falls short of the more ambitious aim."""
        aim = self.target.aim
        if self.value is None or aim is None:
            return False
        return self.value < aim if self.target.at_most is None else self.value > aim


def read_areas() -> dict[str, str]:
    """The areas with their descriptions."""
    areas: dict[str, str] = tomllib.loads(TARGETS.read_text(encoding="utf-8"))["areas"]
    return areas


def read_targets() -> list[Target]:
    """All targets."""
    targets = tomllib.loads(TARGETS.read_text(encoding="utf-8"))
    return [Target(area, **target) for area in read_areas() for target in targets[area]]


def newest_results() -> dict[str, list[tuple[Row, Run]]]:
    """For each results file, the newest row of each workload and peer, newest last."""
    results = {}
    for path in sorted(RESULTS.glob("*.json")):
        newest: dict[tuple[str, str], tuple[Row, Run]] = {}
        for run in sorted(read_runs(path), key=lambda run: run.date):
            for row in run.rows:
                newest.pop((row.workload, row.peer), None)
                newest[row.workload, row.peer] = (row, run)
        results[path.stem] = list(newest.values())
    return results


def target_statuses() -> list[TargetStatus]:
    """The status of every target."""
    results = newest_results()
    statuses = []
    for target in read_targets():
        matches = [pair for pair in results.get(target.results, []) if target.matches(pair[0])]
        statuses.append(TargetStatus(target, *matches[-1]) if matches else TargetStatus(target))
    return statuses


def results_without_target() -> list[tuple[str, Row, Run]]:
    """Results no target refers to, with the stem of their file."""
    targets = read_targets()
    return [
        (name, row, run)
        for name, pairs in newest_results().items()
        for row, run in pairs
        if not any(target.results == name and target.matches(row) for target in targets)
    ]
