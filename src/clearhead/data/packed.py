"""What training reads: packed batches of static shape, as a pure function of the seed and the step."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol

import torch
from torch import Tensor

from clearhead.errors import ClearheadError

IGNORE = -100  # a target that teaches nothing: padding, or a word that was not hidden
Broken = Literal["refuse", "skip"]


@dataclass(frozen=True)
class Packed:
    """One batch. Several documents or pairs share a row; `segments` number them from 1, and 0 is padding."""

    tokens: Tensor  # ids, or pictures, or mel frames
    targets: Tensor  # an id for each token, IGNORE where nothing is to be learned; or a class or number for each row
    segments: Tensor | None = None
    source: Tensor | None = None
    source_segments: Tensor | None = None
    kinds: Tensor | None = None


def lessons_in(targets: Tensor) -> int:
    """How many targets teach: whole numbers that are not IGNORE; of numbers to be predicted all, whatever they are."""
    return targets.numel() if targets.is_floating_point() else int((targets != IGNORE).sum())


@dataclass
class Report:
    """What was read, and what was left out and why, with the first places."""

    broken: Broken = "refuse"
    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)  # how it was read, where that was not asked for

    def skip(self, where: str, why: str, *, alone: bool = False) -> None:
        """Leaves something out, or refuses to, as the user chose; without what is `alone` nothing would be left."""
        if self.broken == "refuse":
            raise ClearheadError(f"{where}: {why}{'' if alone else '; --data.broken skip would leave it out'}.")
        self.note(where, why)

    def note(self, where: str, why: str) -> None:
        """Counts what was cut or left out on purpose, whatever is done with what is broken."""
        self.skipped[why] += 1
        self.places.setdefault(why, [])
        if len(self.places[why]) < 3:
            self.places[why].append(where)

    def __str__(self) -> str:
        lines = [f"{self.read:,} read, {sum(self.skipped.values()):,} cut or left out"]
        for why, n in self.skipped.items():
            places = self.places[why]
            lines.append(f"  {n:,} × {why}: {', '.join(places)}{' …' * (n > len(places))}")
        return "\n".join(lines)


class Dataset(Protocol):
    """Batches by step, and those that are held out."""

    share: float  # of real tokens
    epoch: float  # batches of one pass; the next begins where it ends, in the middle of a batch if need be
    report: Report

    def batch(self, step: int) -> Packed: ...

    def held_out(self) -> Iterator[Packed]: ...


@lru_cache(maxsize=4)
def order(count: int, seed: int, epoch: int) -> Tensor:
    """The numbers 0 … count − 1 in the order of an epoch."""
    return torch.randperm(count, generator=chance(seed, epoch))


def chance(seed: int, number: int) -> torch.Generator:
    """Random numbers that follow from the seed and the number of an epoch or a step."""
    return torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)


def draw(step: int, rows: int, count: int, seed: int) -> list[tuple[int, int]]:
    """(epoch, number) of each row of a batch: epochs follow one another without a gap."""
    found: list[tuple[int, int]] = []
    while len(found) < rows:
        epoch, at = divmod(step * rows + len(found), count)
        numbers = order(count, seed, epoch)[at : at + rows - len(found)].tolist()
        found.extend((epoch, number) for number in numbers)
    return found
