"""A film of training: what a microscope kept of a few probes at some steps, to be looked through by step."""

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from clearhead import reader
from clearhead.config import Language, Number
from clearhead.errors import ClearheadError, check_kind
from clearhead.files import json_lines
from clearhead.lens.given import known_names
from clearhead.lens.logit_lens import NUMBER, Lens
from clearhead.lens.parts import PARTS, Part
from clearhead.weights.store import Safetensors

FOLDER, INDEX, TOKENS = "microscope", "index.json", "tokens.json"


def file_of(folder: Path, step: int) -> Path:
    return folder / f"{step:08d}.safetensors"


@dataclass(frozen=True)
class Embeddings:
    """The embedding matrix at one step: the vectors of the probes' tokens, and a plane with every token.

    From step to step the plane is turned so that points lie nearest to where they were.
    """

    tokens: list[str]  # of the vectors
    vectors: Tensor
    plane: Tensor  # a row of two for each of `all_tokens`
    all_tokens: list[str]


@dataclass(frozen=True)
class Probe:
    """A text, pair, picture or sound that is looked at, and its tokens; patches have numbers."""

    text: str
    tokens: list[str]
    source_tokens: list[str]
    asked: int  # the position whose answer is worth a picture: the last, or the first word that is hidden


class Film:
    """What was seen, by step and probe; tensors are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = reader.load(folder / INDEX)
        self._labels: dict[str, list[str]] = reader.load(folder / TOKENS)
        self._embedded: dict[str, list[int]] = index["embedded"]
        self._shapes: dict[str, list[int]] = index["shapes"]
        self.probes = [Probe(**probe) for probe in index["probes"]]
        self.steps: list[int] = [look["step"] for look in index["looks"]]
        self.losses = _losses(folder.parent / "log.jsonl", self.steps)

    @property
    def parts(self) -> list[Part]:
        """Which attention there is."""
        return [part for part in PARTS if f"0.{part}" in self._shapes]

    @property
    def embedded(self) -> list[str]:
        """Which embedding matrices there are: tokens, and source where that has its own."""
        return [*self._embedded]

    def attention(self, step: int, probe: int = 0, part: Part = "attention") -> Tensor:
        """layer × head × query × key: of the probe to itself, to its source (cross), or of the source (encoder)."""
        if part not in self.parts:
            raise ClearheadError(f"there is no {part} in this film, only {' and '.join(self.parts)}.")
        return self._read(step, f"{self._probe(probe)}.{part}").float()

    def lens(self, step: int, probe: int = 0) -> Lens:
        """The likeliest answers after each layer, at each position."""
        ids, shares = (self._read(step, f"{self._probe(probe)}.lens.{name}") for name in ("ids", "probabilities"))
        tokens = self.probes[probe].tokens
        words = self._labels["answers" if "answers" in self._labels else "tokens"]
        head = Number() if words == [NUMBER] else Language()
        return Lens.of(tokens if len(tokens) == ids.shape[1] else [""], ids.long(), shares, words.__getitem__, head)

    def embeddings(self, step: int, source: bool = False) -> Embeddings:
        """The embedding matrix; with `source`, that of an encoder with a vocabulary of its own."""
        name = "source" if source else "tokens"
        if name not in self._embedded:
            raise ClearheadError(f"this film has no embeddings of {'sources' if source else 'tokens'}.")
        labels, vectors, plane = self._labels[name], *(self._read(step, f"{name}.{x}") for x in ("vectors", "plane"))
        return Embeddings([labels[i] for i in self._embedded[name]], vectors.float(), plane.float(), labels)

    def _probe(self, probe: int) -> int:
        if not 0 <= probe < len(self.probes):
            raise ClearheadError(f"there is no probe {probe}; this film has probes 0 to {len(self.probes) - 1}.")
        return probe

    def _read(self, step: int, name: str) -> Tensor:
        if step not in self.steps:
            near = min(self.steps, key=lambda other: abs(other - step))
            raise ClearheadError(f"step {step} was not looked at; step {near} is the nearest that was.")
        return Safetensors([file_of(self._folder, step)]).read(name)


@known_names
def read_film(out: str | Path) -> Film:
    """The film in the folder of a run."""
    check_kind(out, str | Path, "the folder of a run")
    folder = Path(out) / FOLDER
    if not (folder / INDEX).is_file():
        raise ClearheadError(f"there is no film in {out}; clearhead train … --microscope makes one.")
    film = Film(folder)
    if not film.steps:
        raise ClearheadError(f"the film in {out} is empty; the run has not begun.")
    return film


def _losses(log: Path, steps: list[int]) -> list[float | None]:
    """For each step the loss of the report that it falls into; None before the first step and after the last report."""
    found: dict[int, float] = {}
    for report in json_lines(log):
        if "step" in report and "loss" in report:
            found[report["step"]] = report["loss"]
    reported = sorted(found)
    places = [bisect_left(reported, step) if step else len(reported) for step in steps]
    return [found[reported[place]] if place < len(reported) else None for place in places]
