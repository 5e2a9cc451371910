"""A film of training: what a microscope kept of a few probes at some steps, to be looked through by step."""

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from clearhead.config.model import LMHead, RegressionHead
from clearhead.config.parse import read_config_file
from clearhead.errors import ClearheadError, check_type
from clearhead.io import read_json_lines
from clearhead.lens.activations import (
    ATTENTION_KINDS,
    REGRESSION_LABEL,
    AttentionKind,
    check_arguments,
    check_index,
)
from clearhead.lens.logit_lens import LogitLens
from clearhead.lens.render.colors import LIGHT, color_map
from clearhead.lens.render.matplotlib import escape_mathtext
from clearhead.weights.checkpoint import SafetensorsReader

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- film: A film of training: what a microscope kept of a few probes at some steps, to be looked through by step.

TRACE_FOLDER = "microscope"
TRACE_INDEX = "index.json"
TRACE_TOKENS = "tokens.json"


def step_file(folder: Path, step: int) -> Path:
    return folder / f"{step:08d}.safetensors"


@dataclass(frozen=True)
class Embeddings:
    """The embedding matrix at one step: the vectors of the probes' tokens, and a plane with every token.

    From step to step the plane is turned so that points lie nearest to where they were.
    """

    tokens: list[str]  # of the vectors
    vectors: Tensor
    projection: Tensor  # a row of two for each of `all_tokens`
    all_tokens: list[str]


@dataclass(frozen=True)
class Probe:
    """A text, pair, picture or sound that is looked at, and its tokens; patches have numbers."""

    text: str
    tokens: list[str]
    source_tokens: list[str]
    answer_position: int  # the position whose answer is worth a picture: the last, or the first word that is hidden


class TrainingTrace:
    """What was seen, by step and probe; tensors are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = read_config_file(folder / TRACE_INDEX)
        self._labels: dict[str, list[str]] = read_config_file(folder / TRACE_TOKENS)
        self._embedded: dict[str, list[int]] = index["embedded"]
        self._shapes: dict[str, list[int]] = index["shapes"]
        self.probes = [Probe(**probe) for probe in index["probes"]]
        self.steps: list[int] = [look["step"] for look in index["looks"]]
        self.losses = _losses(folder.parent / "log.jsonl", self.steps)

    @property
    def attention_kinds(self) -> list[AttentionKind]:
        """Which attention there is."""
        return [part for part in ATTENTION_KINDS if f"0.{part}" in self._shapes]

    @property
    def embedding_tables(self) -> list[str]:
        """Which embedding matrices there are: tokens, and source where that has its own."""
        return [*self._embedded]

    def attention(self, step: int, probe: int = 0, kind: AttentionKind = "attention") -> Tensor:
        """layer × head × query × key: of the probe to itself, to its source (cross), or of the source (encoder)."""
        if kind not in self.attention_kinds:
            raise ClearheadError(
                f"there is no {kind} in this film, only {' and '.join(self.attention_kinds)}."
            )
        return self._read(step, f"{self._probe(probe)}.{kind}").float()

    def logit_lens(self, step: int, probe: int = 0) -> LogitLens:
        """The likeliest answers after each layer, at each position."""
        ids, shares = (
            self._read(step, f"{self._probe(probe)}.lens.{name}")
            for name in ("ids", "probabilities")
        )
        tokens = self.probes[probe].tokens
        words = self._labels["answers" if "answers" in self._labels else "tokens"]
        head = RegressionHead() if words == [REGRESSION_LABEL] else LMHead()
        return LogitLens.from_top_k(
            tokens if len(tokens) == ids.shape[1] else [""],
            ids.long(),
            shares,
            words.__getitem__,
            head,
        )

    def embeddings(self, step: int, source: bool = False) -> Embeddings:
        """The embedding matrix; with `source`, that of an encoder with a vocabulary of its own."""
        name = "source" if source else "tokens"
        if name not in self._embedded:
            raise ClearheadError(
                f"this film has no embeddings of {'sources' if source else 'tokens'}."
            )
        labels, vectors, plane = (
            self._labels[name],
            *(self._read(step, f"{name}.{x}") for x in ("vectors", "plane")),
        )
        return Embeddings(
            [labels[i] for i in self._embedded[name]], vectors.float(), plane.float(), labels
        )

    def _probe(self, probe: int) -> int:
        if not 0 <= probe < len(self.probes):
            raise ClearheadError(
                f"there is no probe {probe}; this film has probes 0 to {len(self.probes) - 1}."
            )
        return probe

    def _read(self, step: int, name: str) -> Tensor:
        if step not in self.steps:
            near = min(self.steps, key=lambda other: abs(other - step))
            raise ClearheadError(
                f"step {step} was not looked at; step {near} is the nearest that was."
            )
        return SafetensorsReader([step_file(self._folder, step)]).get_tensor(name)


@check_arguments
def read_training_trace(out: str | Path) -> TrainingTrace:
    """The film in the folder of a run."""
    check_type(out, str | Path, "the folder of a run")
    folder = Path(out) / TRACE_FOLDER
    if not (folder / TRACE_INDEX).is_file():
        raise ClearheadError(
            f"there is no film in {out}; clearhead train … --microscope makes one."
        )
    film = TrainingTrace(folder)
    if not film.steps:
        raise ClearheadError(f"the film in {out} is empty; the run has not begun.")
    return film


def _losses(log: Path, steps: list[int]) -> list[float | None]:
    """For each step the loss of the report that it falls into; None before the first step and after the last report."""
    found: dict[int, float] = {}
    for report in read_json_lines(log):
        if "step" in report and "loss" in report:
            found[report["step"]] = report["loss"]
    reported = sorted(found)
    places = [bisect_left(reported, step) if step else len(reported) for step in steps]
    return [found[reported[place]] if place < len(reported) else None for place in places]


# ---- film_figure: A film of training on one page: a head's pattern and the lens' answers, step by step from left to right.

# steps and layers that fit a page
FRAMES = 7
ROWS = 9
# inches of a pattern, and the height of an answer
PANEL = 2.3
CELL = 0.3
WORD = 14  # characters of a token that fit a cell
KINDS = {
    "attention": "attention",
    "cross": "cross-attention",
    "encoder": "attention in the encoder,",
}


@check_arguments
def training_trace_figure(
    film: TrainingTrace,
    probe: int = 0,
    layer: int | None = None,
    head: int | None = None,
    kind: AttentionKind | None = None,
) -> "Figure":
    """One head's pattern over the steps, and below it what the lens answers after each layer.

    Without `layer` or `head`, the head whose pattern has changed most; of an encoder-decoder, in its cross-attention.
    The answers are those at the last token, or at the hidden one where words are masked.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    kind = kind or ("cross" if "cross" in film.attention_kinds else "attention")
    layer, head = _head(film, probe, kind, layer, head)
    frames = _spread(len(film.steps), FRAMES)
    shown = film.probes[probe]
    lenses = [film.logit_lens(film.steps[i], probe) for i in frames]
    rows = _spread(len(lenses[0].ids), ROWS)[::-1]  # the last layer on top
    size = (1.5 + PANEL * len(frames), 2.1 + PANEL + CELL * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    above, below = figure.subplots(
        2, len(frames), squeeze=False, height_ratios=[PANEL, CELL * len(rows)]
    )
    _caption(
        figure,
        f"{KINDS[kind]} of layer {layer}, head {head}",
        shown,
        pooled=lenses[0].ids.shape[1] == 1,
    )
    norm = PowerNorm(
        0.5, vmin=0, vmax=1
    )  # a square root, or the even patterns of the beginning would be white
    for n, frame in enumerate(frames):
        pattern = film.attention(film.steps[frame], probe, kind)[layer, head]
        picture = above[n].imshow(
            pattern.numpy(), cmap=color_map(False, LIGHT), norm=norm, interpolation="nearest"
        )
        loss = film.losses[frame]
        above[n].set_title(
            f"step {film.steps[frame]:,}\n{'' if loss is None else f'loss {loss:.2f}'}", fontsize=9
        )
        answers = [
            lenses[n].top_predictions(shown.answer_position if lenses[n].ids.shape[1] > 1 else 0)[
                row
            ][0]
            for row in rows
        ]
        _answers(below[n], answers)
    queries = shown.source_tokens if kind == "encoder" else shown.tokens
    keys = shown.tokens if kind == "attention" else shown.source_tokens
    for axes in (*above, *below):
        _hide_axes(axes)
    _label(above[0], queries, keys)
    below[0].set_yticks(
        range(len(rows)), ["start" if row == 0 else f"layer {row - 1}" for row in rows], fontsize=8
    )
    figure.colorbar(picture, ax=above[-1], ticks=[0, 0.1, 0.5, 1], shrink=0.7).ax.tick_params(
        labelsize=7, length=0
    )
    return figure


def _caption(figure: "Figure", what: str, probe: Probe, pooled: bool) -> None:
    text, asked = escape_mathtext(
        [" ".join(probe.text.split()), probe.tokens[probe.answer_position]]
    )
    figure.suptitle(
        f"{what}, while it learns:  {text if len(text) <= 130 else text[:129] + '…'}",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    where = "" if pooled else f" at  {asked}  (token {probe.answer_position + 1})"
    answer = (
        f"the likeliest answer{where} and its probability, if the model stopped after that layer"
    )
    figure.supxlabel(answer, fontsize=9, x=0.01, ha="left")


def _head(
    film: TrainingTrace, probe: int, part: AttentionKind, layer: int | None, head: int | None
) -> tuple[int, int]:
    """The head that was asked for; where something was left open, the one that has changed most."""
    first, last = (film.attention(film.steps[i], probe, part) for i in (0, -1))
    change: Tensor = (last - first).abs().sum(dim=(-1, -2))
    for dim, (word, index) in enumerate((("layer", layer), ("head", head))):
        if index is not None:
            own = check_index(index, change.shape[dim], word, "this film")
            others = [i for i in range(change.shape[dim]) if i != own]
            change = change.index_fill(dim, change.new_tensor(others).long(), -1.0)
    most = int(change.argmax())
    return most // change.shape[1], most % change.shape[1]


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` of the numbers below `count`, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _answers(axes: "Axes", answers: list[tuple[str, float]]) -> None:
    """A column of words, shaded by their probability."""
    axes.imshow(
        [[share] for _, share in answers],
        cmap=color_map(False, LIGHT),
        vmin=0,
        vmax=1,
        aspect="auto",
    )
    for row, (word, share) in enumerate(answers):
        colour = "white" if share > 0.75 else "black"
        short = escape_mathtext([word if len(word) <= WORD else word[: WORD - 1] + "…"])[0]
        axes.text(
            -0.46, row, short, fontsize=9, va="center", ha="left", family="monospace", color=colour
        )
        axes.text(0.46, row, f"{share:.2f}", fontsize=7, va="center", ha="right", color=colour)


def _label(axes: "Axes", queries: list[str], keys: list[str]) -> None:
    size = min(8.0, 0.85 * PANEL * 72 / max(len(queries), len(keys)))
    if size >= 3.5:  # smaller, nobody can read it
        axes.set_yticks(
            range(len(queries)), escape_mathtext(queries), fontsize=size, family="monospace"
        )
        axes.set_xticks(
            range(len(keys)), escape_mathtext(keys), fontsize=size, family="monospace", rotation=90
        )


def _hide_axes(axes: "Axes") -> None:
    axes.set(xticks=[], yticks=[])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
