"""Models that come with the package, by name.

A folder of `clearhead/bundled` holds the files of a model, or word vectors, and `card.json`.
"""

from pathlib import Path

from clearhead.errors import ClearheadError, suggest
from clearhead.weights.model_cards import ModelCard, read_card

BUNDLED_DIR = Path(__file__).parents[1] / "bundled"
BUNDLED_NAMES = (
    "story",
    "en-de",
    "fill",
    "mood",
    "sentences",
    "digits",
    "spoken-digits",
    "words",
)


def bundled_models() -> list[str]:
    """Names of the bundled models."""
    return [name for name in BUNDLED_NAMES if any((BUNDLED_DIR / name).glob("*.safetensors"))]


def bundled_path(name: str) -> Path | None:
    """The folder of a bundled model."""
    return BUNDLED_DIR / name if name in bundled_models() else None


def bundled_card(name: str) -> ModelCard:
    """The card of a bundled model."""
    folder = bundled_path(name)
    if folder is None:
        raise ClearheadError(
            f"there is no bundled model {name!r}, and only bundled models have cards;"
            f" {suggest(name, bundled_models())}"
        )
    return read_card(folder)
