"""Training traces: attention, logit lens and embeddings of probes, recorded during training."""

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
    check_index,
)
from clearhead.lens.logit_lens import LogitLens
from clearhead.lens.render.colors import LIGHT, color_map
from clearhead.lens.render.matplotlib import POINTS_PER_INCH, escape_mathtext
from clearhead.weights.checkpoint import SafetensorsReader

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRACE_FOLDER = "activations"
TRACE_INDEX = "index.json"
TRACE_TOKENS = "tokens.json"

MAX_FIGURE_STEPS = 7
MAX_FIGURE_LAYERS = 9
PATTERN_SIZE = 2.3  # inches
ANSWER_HEIGHT = 0.3  # inches
MAX_ANSWER_CHARACTERS = 14
MAX_TITLE_CHARACTERS = 130
MIN_FONT_SIZE = 3.5
KIND_TITLES = {"attention": "attention", "cross": "cross-attention", "encoder": "encoder attention"}


def step_file(folder: Path, step: int) -> Path:
    """The file of a recorded step."""
    return folder / f"{step:08d}.safetensors"


@dataclass(frozen=True)
class Embeddings:
    """Embeddings at one step: the vectors of the probes' tokens, and a projection of all tokens.

    The projection is rotated so that points move as little as possible between steps.
    """

    tokens: list[str]  # of the vectors
    vectors: Tensor
    projection: Tensor  # 2D, a row for each of `all_tokens`
    all_tokens: list[str]


@dataclass(frozen=True)
class Probe:
    """A text, pair, image or audio clip that is recorded, and its tokens; patches have numbers."""

    text: str
    tokens: list[str]
    source_tokens: list[str]
    answer_position: int  # of the prediction to show: the last, or the first mask token


class TrainingTrace:
    """What was recorded, by step and probe; tensors are read on demand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = read_config_file(folder / TRACE_INDEX)
        self._labels: dict[str, list[str]] = read_config_file(folder / TRACE_TOKENS)
        self._embedding_ids: dict[str, list[int]] = index["embedding_ids"]
        self._shapes: dict[str, list[int]] = index["shapes"]
        self.probes = [Probe(**probe) for probe in index["probes"]]
        self.steps: list[int] = [record["step"] for record in index["records"]]
        self.losses = _losses(folder.parent / "log.jsonl", self.steps)

    @property
    def attention_kinds(self) -> list[AttentionKind]:
        """The kinds of attention that were recorded."""
        return [kind for kind in ATTENTION_KINDS if f"0.{kind}" in self._shapes]

    @property
    def embedding_tables(self) -> list[str]:
        """The embedding matrices: "tokens", and "source" if the encoder has its own."""
        return list(self._embedding_ids)

    def attention(self, step: int, probe: int = 0, kind: AttentionKind = "attention") -> Tensor:
        """Patterns, layer × head × query × key."""
        if kind not in self.attention_kinds:
            known = ", ".join(self.attention_kinds)
            raise ClearheadError(f"this trace has no attention of kind {kind!r}; known: {known}.")
        self._check_probe(probe)
        return self._read(step, f"{probe}.{kind}").float()

    def logit_lens(self, step: int, probe: int = 0) -> LogitLens:
        """The top predictions after each layer, at each position."""
        self._check_probe(probe)
        ids = self._read(step, f"{probe}.lens.ids")
        labels = self._labels["answers" if "answers" in self._labels else "tokens"]
        tokens = self.probes[probe].tokens
        return LogitLens.from_top_k(
            tokens if len(tokens) == ids.shape[1] else [""],
            ids.long(),
            self._read(step, f"{probe}.lens.probabilities"),
            labels.__getitem__,
            RegressionHead() if labels == [REGRESSION_LABEL] else LMHead(),
        )

    def embeddings(self, step: int, source: bool = False) -> Embeddings:
        """The embedding matrix; with `source`, the encoder's own."""
        table = "source" if source else "tokens"
        if table not in self._embedding_ids:
            raise ClearheadError(f"this trace has no {table!r} embeddings.")
        labels = self._labels[table]
        return Embeddings(
            tokens=[labels[i] for i in self._embedding_ids[table]],
            vectors=self._read(step, f"{table}.vectors").float(),
            projection=self._read(step, f"{table}.plane").float(),
            all_tokens=labels,
        )

    def _check_probe(self, probe: int) -> None:
        if not 0 <= probe < len(self.probes):
            raise ClearheadError(
                f"there is no probe {probe}; this trace has probes 0 to {len(self.probes) - 1}."
            )

    def _read(self, step: int, name: str) -> Tensor:
        if step not in self.steps:
            nearest = min(self.steps, key=lambda recorded: abs(recorded - step))
            raise ClearheadError(f"step {step} was not recorded; the nearest is step {nearest}.")
        return SafetensorsReader([step_file(self._folder, step)]).get_tensor(name)


def read_training_trace(run: str | Path) -> TrainingTrace:
    """The training trace in the folder of a run."""
    check_type(run, str | Path, "the folder of a run")
    folder = Path(run) / TRACE_FOLDER
    if not (folder / TRACE_INDEX).is_file():
        raise ClearheadError(f"{run} has no training trace; train with --record-activations.")
    trace = TrainingTrace(folder)
    if not trace.steps:
        raise ClearheadError(f"the training trace in {run} is empty; training has not started.")
    return trace


def _losses(log: Path, steps: list[int]) -> list[float | None]:
    """The loss of the log entry that covers each step; None at step 0 and after the last entry."""
    losses: dict[int, float] = {}
    for entry in read_json_lines(log):
        if "step" in entry and "loss" in entry:
            losses[entry["step"]] = entry["loss"]
    logged = sorted(losses)
    covering = [bisect_left(logged, step) if step else len(logged) for step in steps]
    return [losses[logged[i]] if i < len(logged) else None for i in covering]


def training_trace_figure(
    trace: TrainingTrace,
    probe: int = 0,
    layer: int | None = None,
    head: int | None = None,
    kind: AttentionKind | None = None,
) -> "Figure":
    """The pattern of one head over training, and below it the logit lens.

    By default the head whose pattern changes most, in cross-attention if there is any. Predictions
    are those at the last token, or at the first mask token.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    check_type(trace, TrainingTrace, "the result of read_training_trace")
    kind = kind or ("cross" if "cross" in trace.attention_kinds else "attention")
    layer, head = _select_head(trace, probe, kind, layer, head)
    columns = _evenly_spaced(len(trace.steps), MAX_FIGURE_STEPS)
    shown_probe = trace.probes[probe]
    lenses = [trace.logit_lens(trace.steps[i], probe) for i in columns]
    rows = _evenly_spaced(len(lenses[0].ids), MAX_FIGURE_LAYERS)[::-1]  # the last layer on top
    is_pooled = lenses[0].ids.shape[1] == 1
    answers_height = ANSWER_HEIGHT * len(rows)
    figure = Figure(
        figsize=(1.5 + PATTERN_SIZE * len(columns), 2.1 + PATTERN_SIZE + answers_height),
        layout="constrained",
    )
    pattern_axes, answer_axes = figure.subplots(
        2, len(columns), squeeze=False, height_ratios=[PATTERN_SIZE, answers_height]
    )
    _add_titles(figure, f"{KIND_TITLES[kind]}, layer {layer}, head {head}", shown_probe, is_pooled)
    # square root, because the uniform patterns at the beginning would be almost white
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for n, (column, lens) in enumerate(zip(columns, lenses, strict=True)):
        step = trace.steps[column]
        pattern = trace.attention(step, probe, kind)[layer, head]
        image = pattern_axes[n].imshow(
            pattern.numpy(), cmap=color_map(False, LIGHT), norm=norm, interpolation="nearest"
        )
        loss = trace.losses[column]
        loss_text = "" if loss is None else f"loss {loss:.2f}"
        pattern_axes[n].set_title(f"step {step:,}\n{loss_text}", fontsize=9)
        predictions = lens.top_predictions(0 if is_pooled else shown_probe.answer_position)
        _draw_answers(answer_axes[n], [predictions[row][0] for row in rows])
    for axes in (*pattern_axes, *answer_axes):
        _hide_axes(axes)
    queries = shown_probe.source_tokens if kind == "encoder" else shown_probe.tokens
    keys = shown_probe.tokens if kind == "attention" else shown_probe.source_tokens
    _label_tokens(pattern_axes[0], queries, keys)
    layer_labels = ["start" if row == 0 else f"layer {row - 1}" for row in rows]
    answer_axes[0].set_yticks(range(len(rows)), layer_labels, fontsize=8)
    color_bar = figure.colorbar(image, ax=pattern_axes[-1], ticks=[0, 0.1, 0.5, 1], shrink=0.7)
    color_bar.ax.tick_params(labelsize=7, length=0)
    return figure


def _add_titles(figure: "Figure", head: str, probe: Probe, is_pooled: bool) -> None:
    text, token = escape_mathtext(
        [" ".join(probe.text.split()), probe.tokens[probe.answer_position]]
    )
    title = f"{head}, during training:  {_truncate(text, MAX_TITLE_CHARACTERS)}"
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    place = "" if is_pooled else f" at  {token}  (token {probe.answer_position})"
    caption = f"top prediction{place} and its probability if the model stopped after that layer"
    figure.supxlabel(caption, fontsize=9, x=0.01, ha="left")


def _select_head(
    trace: TrainingTrace, probe: int, kind: AttentionKind, layer: int | None, head: int | None
) -> tuple[int, int]:
    """The given head; among those left open, the one that changes most."""
    first = trace.attention(trace.steps[0], probe, kind)
    last = trace.attention(trace.steps[-1], probe, kind)
    change = (last - first).abs().sum(dim=(-1, -2))  # layer head
    for dim, noun, index in ((0, "layer", layer), (1, "head", head)):
        if index is not None:
            selected = check_index(index, change.shape[dim], noun, "this trace")
            others = [i for i in range(change.shape[dim]) if i != selected]
            change = change.index_fill(dim, change.new_tensor(others).long(), -1.0)
    best = int(change.argmax())
    return best // change.shape[1], best % change.shape[1]


def _evenly_spaced(size: int, max_count: int) -> list[int]:
    """At most `max_count` of the indices below `size`, with the first and the last."""
    if size <= max_count:
        return list(range(size))
    return [round(i * (size - 1) / (max_count - 1)) for i in range(max_count)]


def _draw_answers(axes: "Axes", answers: list[tuple[str, float]]) -> None:
    """A column of words, shaded by probability."""
    probabilities = [[probability] for _, probability in answers]
    axes.imshow(probabilities, cmap=color_map(False, LIGHT), vmin=0, vmax=1, aspect="auto")
    for row, (word, probability) in enumerate(answers):
        color = "white" if probability > 0.75 else "black"
        label = escape_mathtext([_truncate(word, MAX_ANSWER_CHARACTERS)])[0]
        axes.text(
            -0.46, row, label, fontsize=9, va="center", ha="left", family="monospace", color=color
        )
        axes.text(0.46, row, f"{probability:.2f}", fontsize=7, va="center", ha="right", color=color)


def _truncate(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def _label_tokens(axes: "Axes", queries: list[str], keys: list[str]) -> None:
    longest = max(len(queries), len(keys))
    size = min(8.0, 0.85 * PATTERN_SIZE * POINTS_PER_INCH / longest)
    if size < MIN_FONT_SIZE:
        return
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
