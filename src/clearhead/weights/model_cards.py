"""Model cards: what a model was trained on, how it was measured, and examples."""

import hashlib
import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clearhead.config.parse import ConfigDict, dataclass_from_dict, read_config_file
from clearhead.errors import ClearheadError
from clearhead.io import write_atomic

CARD_FILE = "card.json"
FOLDER_PLACEHOLDER = "{model_dir}"  # in usage commands


@dataclass(frozen=True)
class Dataset:
    """Training data."""

    name: str
    license: str
    url: str
    attribution: str = ""  # whom the license wants credited


@dataclass(frozen=True)
class Metric:
    """A measured value with its 95 % confidence interval and the command that measures it."""

    name: str
    value: float
    confidence_interval: tuple[float, ...]
    dataset: str
    command: str

    def __post_init__(self) -> None:
        interval = self.confidence_interval
        if len(interval) != 2 or not interval[0] <= self.value <= interval[1]:
            raise ClearheadError(
                f"{self.name} = {self.value} is outside its confidence interval {interval}."
            )


@dataclass(frozen=True)
class Example:
    """An input and the model's first output."""

    input: str
    output: str


@dataclass(frozen=True)
class ModelCard:
    """What users should know about a model."""

    title: str
    description: str  # one sentence
    usage: tuple[str, ...]  # commands
    datasets: tuple[Dataset, ...]
    training_commands: tuple[str, ...]
    limitations: tuple[str, ...]
    metrics: tuple[Metric, ...] = ()
    examples: tuple[Example, ...] = ()
    seeds: tuple[int, ...] = ()
    compute: str = ""  # hardware and training time
    versions: tuple[str, ...] = ()  # of the libraries
    date: str = ""
    # filled in by update_card
    architecture: str = ""  # decoder, encoder, encoder-decoder or vectors
    num_parameters: int = 0
    size_bytes: int = 0  # of all files but the card
    sha256: str = ""  # of the weights


def read_card(folder: Path) -> ModelCard:
    """The card in a folder."""
    return _parse_card(folder, read_config_file(folder / CARD_FILE))


def _parse_card(folder: Path, fields: ConfigDict) -> ModelCard:
    try:
        card = dataclass_from_dict(ModelCard, fields)
    except (ClearheadError, TypeError) as error:  # a TypeError names missing fields
        problem = str(error).removesuffix(".")
        raise ClearheadError(f"{folder / CARD_FILE} is not a valid card: {problem}.") from None
    path = shlex.quote(str(folder))
    usage = tuple(command.replace(FOLDER_PLACEHOLDER, path) for command in card.usage)
    return replace(card, usage=usage)


def update_card(folder: str | Path, fields: Mapping[str, object] | None = None) -> ModelCard:
    """Set fields of a folder's card, as plain JSON values, and recompute sizes and sha256."""
    from clearhead.weights.tensors import SafetensorsReader

    folder = Path(folder)
    weights = sorted(folder.glob("*.safetensors"))
    if len(weights) != 1:
        raise ClearheadError(
            f"{folder} must contain one .safetensors file to get a card, not {len(weights)}."
        )
    old = read_config_file(folder / CARD_FILE) if (folder / CARD_FILE).exists() else {}
    new = {
        **old,
        **(fields or {}),
        "architecture": _architecture(folder),
        "num_parameters": sum(map(math.prod, SafetensorsReader(weights).shapes.values())),
        "size_bytes": sum(p.stat().st_size for p in folder.iterdir() if p.name != CARD_FILE),
        "sha256": _sha256(weights[0]),
    }
    card = _parse_card(folder, new)
    content = json.dumps(new, indent=1, ensure_ascii=False) + "\n"
    write_atomic(folder / CARD_FILE, content.encode())
    return card


def weights_match_card(folder: Path) -> bool | None:
    """Whether the weights have the sha256 of the card in their folder; None without a card."""
    if not (folder / CARD_FILE).is_file():
        return None
    sha256 = read_card(folder).sha256
    return [_sha256(path) for path in folder.glob("*.safetensors")] == [sha256] if sha256 else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _architecture(folder: Path) -> str:
    config = folder / "clearhead.json"
    if not config.exists():
        return "vectors"
    return str(read_config_file(config)["model"]["architecture"]["kind"])
