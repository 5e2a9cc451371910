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

from clearhead.config.parse import ConfigDict, dataclass_from_dict, read_config_file
from clearhead.errors import ClearheadError, suggest
from clearhead.io import write_atomic

BUNDLED_DIR = Path(__file__).parents[1] / "bundled"
BUNDLED_NAMES = ("story", "en-de", "fill", "mood", "digits", "spoken-digits", "words")
CARD_FILE = "card.json"
FOLDER_PLACEHOLDER = "{here}"  # in commands of a card: the folder of the model


@dataclass(frozen=True)
class Dataset:
    """Something a model learned from."""

    name: str
    license: str
    url: str  # where it is published
    attribution: str = ""  # whom its licence wants named


@dataclass(frozen=True)
class Metric:
    """Something that was measured, with its 95 % interval and the command that measures it again."""

    name: str
    value: float
    confidence_interval: tuple[float, ...]
    dataset: str
    command: str

    def __post_init__(self) -> None:
        if (
            len(self.confidence_interval) != 2
            or not self.confidence_interval[0] <= self.value <= self.confidence_interval[1]
        ):
            raise ClearheadError(
                f"the figure {self.name} = {self.value} is not within its interval {self.confidence_interval}."
            )


@dataclass(frozen=True)
class Example:
    """What was given, and what came: the first, not the best."""

    input: str
    output: str


@dataclass(frozen=True)
class ModelCard:
    title: str
    description: str  # one sentence
    usage: tuple[str, ...]  # commands that show what it does
    datasets: tuple[Dataset, ...]
    training_commands: tuple[str, ...]  # commands that make it again
    limitations: tuple[str, ...]
    metrics: tuple[Metric, ...] = ()
    examples: tuple[Example, ...] = ()
    seeds: tuple[int, ...] = ()
    compute: str = ""  # the machine, and how long it took
    versions: tuple[str, ...] = ()  # versions
    date: str = ""
    architecture: str = ""  # from here on `seal` counts
    num_parameters: int = 0
    size_bytes: int = 0  # of all files but the card
    sha256: str = ""  # of the weights


def bundled_models() -> list[str]:
    """The models that are here."""
    return [name for name in BUNDLED_NAMES if any((BUNDLED_DIR / name).glob("*.safetensors"))]


def bundled_path(name: str) -> Path | None:
    """The folder of a model by its name."""
    return BUNDLED_DIR / name if name in bundled_models() else None


def bundled_card(name: str) -> ModelCard:
    """What is told about a model."""
    folder = bundled_path(name)
    if folder is None:
        raise ClearheadError(
            f"{name!r} is no bundled model, and only those have cards; {suggest(name, bundled_models())}"
        )
    return read_card(folder)


def read_card(folder: Path) -> ModelCard:
    """The card in a folder."""
    return _parse_card(folder, read_config_file(folder / CARD_FILE))


def _parse_card(folder: Path, written: ConfigDict) -> ModelCard:
    """Every field held to its type; what stands for the folder is filled in."""
    try:
        found = dataclass_from_dict(ModelCard, written)
    except (ClearheadError, TypeError) as error:  # a TypeError tells which fields are missing
        raise ClearheadError(
            f"{folder / CARD_FILE} is no card: {str(error).removesuffix('.')}."
        ) from None
    return dataclasses.replace(
        found,
        usage=tuple(
            line.replace(FOLDER_PLACEHOLDER, shlex.quote(str(folder))) for line in found.usage
        ),
    )


def update_card(folder: str | Path, **told: object) -> ModelCard:
    """Writes what can be counted into the card of a folder (size, parameters, sha256), with whatever else is told.

    `told` are fields of the card in plain values: figures=[{"name": "accuracy", …}], date="2026-01-31".
    """
    from clearhead.weights.checkpoint import SafetensorsReader

    folder = Path(folder)
    weights = sorted(folder.glob("*.safetensors"))
    if len(weights) != 1:
        raise ClearheadError(f"{folder} holds {len(weights)} files of weights; a card is of one.")
    counted = {
        "kind": _architecture(folder),
        "parameters": sum(map(math.prod, SafetensorsReader(weights).shapes.values())),
        "bytes": sum(path.stat().st_size for path in folder.iterdir() if path.name != CARD_FILE),
        "sha256": hashlib.sha256(weights[0].read_bytes()).hexdigest(),
    }
    before = read_config_file(folder / CARD_FILE) if (folder / CARD_FILE).exists() else {}
    written = {**before, **told, **counted}
    sealed = _parse_card(folder, written)
    write_atomic(
        folder / CARD_FILE, (json.dumps(written, indent=1, ensure_ascii=False) + "\n").encode()
    )
    return sealed


def _architecture(folder: Path) -> str:
    model = folder / "clearhead.json"
    return str(read_config_file(model)["model"]["shape"]["kind"]) if model.exists() else "vectors"
