"""Training traces: attention, logit lens and embeddings of probes, recorded during training."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from clearhead.config.model import LMHead, RegressionHead
from clearhead.config.parse import ConfigDict, Schema, read_json_as
from clearhead.errors import ClearheadError, check_type
from clearhead.io import read_log
from clearhead.lens.argument_checks import check_head, check_layer
from clearhead.lens.attention import ATTENTION_NOTES, KIND_PREFIXES
from clearhead.lens.hook_points import ATTENTION_KINDS, AttentionKind
from clearhead.lens.logit_lens import LogitLens
from clearhead.lens.tokens import REGRESSION_LABEL
from clearhead.lens.view import View, label_axes
from clearhead.weights.tensors import SafetensorsReader

TRACE_FOLDER = "activations"
TRACE_INDEX = "index.json"
TRACE_TOKENS = "tokens.json"

INDEX_SCHEMA: Schema = {
    "probes": [
        {"text": str, "tokens": [str], "source_tokens": [str], "answer_position": int},
    ],
    "num_truncated": int,
    "embedding_ids": {str: [int]},
    "shapes": {str: [int]},
    "records": [{"step": int, "seconds": int | float}],
}

MAX_SHOWN_STEPS = 8


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

    def attention_labels(self, kind: AttentionKind) -> dict[str, list[str]]:
        """The tokens that are queries and those that are keys."""
        return {
            "query": self.source_tokens if kind == "encoder" else self.tokens,
            "key": self.tokens if kind == "attention" else self.source_tokens,
        }


class TrainingTrace:
    """What was recorded, by step and probe; tensors are read on demand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = read_trace_index(folder)
        self._labels: dict[str, list[str]] = read_json_as(folder / TRACE_TOKENS, {str: [str]})
        self._embedding_ids: dict[str, list[int]] = index["embedding_ids"]
        self._shapes: dict[str, list[int]] = index["shapes"]
        self.probes = [Probe(**probe) for probe in index["probes"]]
        self.steps: list[int] = [record["step"] for record in index["records"]]
        self.losses = _losses(folder.parent / "log.jsonl", self.steps)
        self._check_labels()

    def _check_labels(self) -> None:
        """Raise unless every row of the recorded tensors has a label."""
        sizes: dict[str, tuple[int, ...]] = {}
        for n, probe in enumerate(self.probes):
            for kind in self.attention_kinds:
                sizes[f"{n}.{kind}"] = tuple(map(len, probe.attention_labels(kind).values()))
        for table in self._embedding_ids:
            sizes[f"{table}.vectors"] = (len(self._embedding_ids[table]),)
            sizes[f"{table}.plane"] = (len(self._labels.get(table, [])),)
        for name, size in sizes.items() if self.steps else ():
            shape = self._shapes.get(name, [])
            rows = shape[-2:] if len(size) == 2 else shape[:1]
            if tuple(rows) != size:
                raise ClearheadError(
                    f"{self._folder / TRACE_INDEX} or {TRACE_TOKENS} is damaged: {name} has shape "
                    f"{shape}, but there are labels for {size}."
                )

    @property
    def attention_kinds(self) -> list[AttentionKind]:
        """The kinds of attention that were recorded."""
        return [kind for kind in ATTENTION_KINDS if f"0.{kind}" in self._shapes]

    @property
    def embedding_tables(self) -> list[str]:
        """The embedding matrices: "tokens", and "source" if the encoder has its own."""
        return list(self._embedding_ids)

    def attention(self, step: int, probe: int = 0, kind: AttentionKind = "attention") -> View:
        """Patterns, layer × head × query × key."""
        values = self._patterns(step, probe, kind)
        labels = self.probes[probe].attention_labels(kind)
        axes = label_axes({"layer": values.shape[0], "head": values.shape[1], **labels})
        return View(values, axes, f"{KIND_PREFIXES[kind]}step {step:,}", "pattern", vmax=1.0)

    def attention_over_steps(
        self,
        probe: int = 0,
        layer: int | None = None,
        head: int | None = None,
        kind: AttentionKind | None = None,
    ) -> View:
        """The pattern of one head at up to eight steps, step × query × key.

        By default the head that changes most, in cross-attention if there is any.
        """
        kind = kind or ("cross" if "cross" in self.attention_kinds else "attention")
        change = self._patterns(self.steps[-1], probe, kind)
        change = (change - self._patterns(self.steps[0], probe, kind)).abs().sum(dim=(-1, -2))
        n_layers, n_heads = change.shape
        layers = range(n_layers) if layer is None else [check_layer(layer, n_layers)]
        heads = range(n_heads) if head is None else [check_head(head, n_heads)]
        layer, head = max(product(layers, heads), key=lambda index: float(change[index]))
        num_shown = min(len(self.steps), MAX_SHOWN_STEPS)
        shown = torch.linspace(0, len(self.steps) - 1, num_shown).round().long()
        steps = [self.steps[i] for i in shown.tolist()]
        values = torch.stack([self._patterns(step, probe, kind)[layer, head] for step in steps])
        labels = self.probes[probe].attention_labels(kind)
        return View(
            values,
            label_axes({"step": [f"{step:,}" for step in steps], **labels}),
            f"{KIND_PREFIXES[kind]}layer {layer}, head {head}, during training",
            "pattern",
            vmax=1.0,
            note=ATTENTION_NOTES["pattern"],
        )

    def _patterns(self, step: int, probe: int, kind: AttentionKind) -> Tensor:
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
        return read_recorded_tensor(self._folder, step, name, self._shapes)


def read_trace_index(folder: Path) -> ConfigDict:
    """Read the index of a training trace."""
    path = folder / TRACE_INDEX
    index = read_json_as(path, INDEX_SCHEMA)
    steps = [record["step"] for record in index["records"]]
    if steps != sorted(set(steps)) or any(step < 0 for step in steps):
        raise ClearheadError(f"{path} is damaged: steps must increase.")
    if steps and not index["probes"]:
        raise ClearheadError(f"{path} is damaged: there are no probes.")
    return index


def read_recorded_tensor(
    folder: Path, step: int, name: str, shapes: Mapping[str, list[int]]
) -> Tensor:
    """Read a tensor that was recorded at a step; its shape must be the one in the index."""
    file = step_file(folder, step)
    tensor = SafetensorsReader([file]).get_tensor(name)
    if list(tensor.shape) != shapes.get(name):
        raise ClearheadError(
            f"{file} is damaged: {name} has shape {list(tensor.shape)}, expected "
            f"{shapes.get(name)}."
        )
    return tensor


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
    for entry in read_log(log):
        losses[entry["step"]] = entry["loss"]
    logged = sorted(losses)
    covering = [bisect_left(logged, step) if step else len(logged) for step in steps]
    return [losses[logged[i]] if i < len(logged) else None for i in covering]
