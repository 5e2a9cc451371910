"""Where we stand: every target beside the newest figure that answers it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from kept import RESULTS, Figure, Row, Run, read

TARGETS = Path(__file__).parent / "targets.toml"


@dataclass(frozen=True)
class Target:
    """What is asked of a row: of its ratio or, where there is a unit, of our own figure."""

    area: str
    results: str
    work: str
    peer: str = ""
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None
    why: str = ""

    def answered_by(self, row: Row) -> bool:
        """Where only our own figure is asked for, it does not matter whose stands beside it."""
        return row.work == self.work and (
            row.peer == self.peer or bool(self.unit and not self.peer)
        )

    def figure(self, row: Row) -> Figure:
        return row.ours if self.unit else row.ratio


@dataclass(frozen=True)
class Standing:
    """A target, and what was measured of it last."""

    target: Target
    row: Row | None = None
    run: Run | None = None

    @property
    def reached(self) -> float | None:
        """The figure that is judged; where the middle is not known, the worse end."""
        if self.row is None:
            return None
        middle, *ends = self.target.figure(self.row)
        return ends[self.target.at_most is not None] if middle is None else middle

    @property
    def short(self) -> bool:
        least = self.target.at_least
        most = self.target.at_most
        reached = self.reached
        if reached is None:
            return False
        return (least is not None and reached < least) or (most is not None and reached > most)

    @property
    def misses_aim(self) -> bool:
        aim = self.target.aim
        reached = self.reached
        if reached is None or aim is None:
            return False
        return reached < aim if self.target.at_most is None else reached > aim


def targets() -> list[Target]:
    tree = tomllib.loads(TARGETS.read_text(encoding="utf-8"))
    return [Target(area, **target) for area in areas() for target in tree[area]]


def areas() -> dict[str, str]:
    """What each area is about."""
    about: dict[str, str] = tomllib.loads(TARGETS.read_text(encoding="utf-8"))["about"]
    return about


def results() -> dict[str, list[tuple[Row, Run]]]:
    """Of every file, the newest row of each work and peer; newest last."""
    found = {}
    for file in sorted(RESULTS.glob("*.json")):
        newest: dict[tuple[str, str], tuple[Row, Run]] = {}
        for run in sorted(read(file), key=lambda run: run.date):
            for row in run.rows:
                newest.pop((row.work, row.peer), None)
                newest[row.work, row.peer] = row, run
        found[file.stem] = list(newest.values())
    return found


def standings() -> list[Standing]:
    found = results()

    def of(target: Target) -> Standing:
        answers = [pair for pair in found.get(target.results, []) if target.answered_by(pair[0])]
        return Standing(target, *answers[-1]) if answers else Standing(target)

    return [of(target) for target in targets()]


def unasked() -> list[tuple[str, Row, Run]]:
    """What was measured without a target, each with its file."""
    asked = targets()
    return [
        (name, row, run)
        for name, pairs in results().items()
        for row, run in pairs
        if not any(target.results == name and target.answered_by(row) for target in asked)
    ]
