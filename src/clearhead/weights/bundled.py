"""The models that come with clearhead, each with its card: what it is, what it learned from, how good it is.

A folder of `clearhead/bundled` holds the files of a model, or of vectors of words, and `card.json`.
"""

import dataclasses
import hashlib
import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from clearhead import reader
from clearhead.errors import ClearheadError, nearest
from clearhead.files import overwrite

ROOT = Path(__file__).parents[1] / "bundled"
NAMES = ("story", "en-de", "fill", "mood", "digits", "spoken-digits", "words")
CARD = "card.json"
HERE = "{here}"  # in commands of a card: the folder of the model


@dataclass(frozen=True)
class Data:
    """Something a model learned from."""

    name: str
    licence: str
    source: str  # where it is published
    attribution: str = ""  # whom its licence wants named


@dataclass(frozen=True)
class Figure:
    """Something that was measured, with its 95 % interval and the command that measures it again."""

    name: str
    value: float
    interval: tuple[float, ...]
    on: str
    command: str

    def __post_init__(self) -> None:
        if len(self.interval) != 2 or not self.interval[0] <= self.value <= self.interval[1]:
            raise ClearheadError(f"the figure {self.name} = {self.value} is not within its interval {self.interval}.")


@dataclass(frozen=True)
class Sample:
    """What was given, and what came: the first, not the best."""

    given: str
    came: str


@dataclass(frozen=True)
class Card:
    title: str
    says: str  # one sentence
    tries: tuple[str, ...]  # commands that show what it does
    data: tuple[Data, ...]
    recipe: tuple[str, ...]  # commands that make it again
    limits: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    samples: tuple[Sample, ...] = ()
    seeds: tuple[int, ...] = ()
    made_on: str = ""  # the machine, and how long it took
    made_with: tuple[str, ...] = ()  # versions
    date: str = ""
    kind: str = ""  # from here on `seal` counts
    parameters: int = 0
    bytes: int = 0  # of all files but the card
    sha256: str = ""  # of the weights


def names() -> list[str]:
    """The models that are here."""
    return [name for name in NAMES if any((ROOT / name).glob("*.safetensors"))]


def find(name: str) -> Path | None:
    """The folder of a model by its name."""
    return ROOT / name if name in names() else None


def card(name: str) -> Card:
    """What is told about a model."""
    folder = find(name)
    if folder is None:
        raise ClearheadError(f"{name!r} is no bundled model, and only those have cards; {nearest(name, names())}")
    return read_card(folder)


def read_card(folder: Path) -> Card:
    """The card in a folder."""
    return _understood(folder, reader.load(folder / CARD))


def _understood(folder: Path, written: reader.Tree) -> Card:
    """Every field held to its type; what stands for the folder is filled in."""
    try:
        found = reader.read(Card, written)
    except (ClearheadError, TypeError) as error:  # a TypeError tells which fields are missing
        raise ClearheadError(f"{folder / CARD} is no card: {str(error).removesuffix('.')}.") from None
    return dataclasses.replace(found, tries=tuple(line.replace(HERE, shlex.quote(str(folder))) for line in found.tries))


def seal(folder: str | Path, **told: object) -> Card:
    """Writes what can be counted into the card of a folder (size, parameters, sha256), with whatever else is told.

    `told` are fields of the card in plain values: figures=[{"name": "accuracy", …}], date="2026-01-31".
    """
    from clearhead.weights.store import Safetensors

    folder = Path(folder)
    weights = sorted(folder.glob("*.safetensors"))
    if len(weights) != 1:
        raise ClearheadError(f"{folder} holds {len(weights)} files of weights; a card is of one.")
    counted = {
        "kind": _kind(folder),
        "parameters": sum(map(math.prod, Safetensors(weights).shapes.values())),
        "bytes": sum(path.stat().st_size for path in folder.iterdir() if path.name != CARD),
        "sha256": hashlib.sha256(weights[0].read_bytes()).hexdigest(),
    }
    before = reader.load(folder / CARD) if (folder / CARD).exists() else {}
    written = {**before, **told, **counted}
    sealed = _understood(folder, written)
    overwrite(folder / CARD, (json.dumps(written, indent=1, ensure_ascii=False) + "\n").encode())
    return sealed


def _kind(folder: Path) -> str:
    model = folder / "clearhead.json"
    return str(reader.load(model)["model"]["shape"]["kind"]) if model.exists() else "vectors"
