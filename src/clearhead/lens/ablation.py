"""Ablation: edit one part of a run at a time, and measure the effect of each edit on the answer.

Everything before the edited layer is computed once; the edits then run as the rows of a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError
from clearhead.lens.argument_checks import answer_position, check_model, check_top_k
from clearhead.lens.edits import ablate
from clearhead.lens.hook_points import is_source_activation, matching_names
from clearhead.lens.logit_target import AnswerToken, LogitTarget, logit_target
from clearhead.lens.resumable_forward import ResumableForward
from clearhead.lens.tokens import first_text_labels
from clearhead.lens.view import Axis, View, label_axes
from clearhead.progress_bar import progress_bar

if TYPE_CHECKING:
    from clearhead.api import MediaInput, Model, TextInput

LogitMetric = Callable[[Tensor], Tensor]  # from row × outputs to row
MAX_BATCH_TOKENS = 4096  # 512 took 1.7 times as long, 8192 as long
SPLITS = ("head", "position")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EditEffects(View):
    """How much each edit changed the metric. print() shows the largest changes."""

    baseline: float  # the metric without an edit
    patch_from_baseline: float | None = None  # the metric of the run that was patched from

    def top_effects(self, top_k: int = 8) -> View:
        """The edits with the largest effects in either direction."""
        effects = self.values.flatten()
        best = effects.abs().topk(min(check_top_k(top_k), len(effects))).indices
        labels = list(product(*(axis.labels for axis in self.axes)))
        names = [
            " ".join(
                f"{axis.name} {label}" for axis, label in zip(self.axes, labels[i], strict=True)
            )
            for i in best
        ]
        axes = label_axes({"edit": names})
        return View(effects[best], axes, self.title, self.value_name, signed=True, note=self.note)

    def __str__(self) -> str:
        return str(self.top_effects().terminal())

    def recovery(self) -> View:
        """The fraction of the difference between the two runs that each patch recovers."""
        if self.patch_from_baseline is None:
            raise ClearheadError("recovery needs the result of patching, which has two runs.")
        difference = self.patch_from_baseline - self.baseline
        if difference == 0:
            raise ClearheadError("both runs have the same answer, so there is nothing to recover.")
        return View(
            self.values / difference,
            self.axes,
            self.title,
            "recovered_fraction",
            signed=True,
            note=f"fraction of the way from {self.baseline:.4f} to {self.patch_from_baseline:.4f}",
        )


def ablation(
    model: "Model",
    x: "TextInput | None" = None,
    names: str | Sequence[str] = "blocks.*.attn.z",
    *,
    split_by: str | Sequence[str] = "head",
    make_edit: Callable[..., Callable[..., Tensor]] = ablate,
    token: AnswerToken = None,
    against: AnswerToken = None,
    position: int | None = None,
    metric: LogitMetric | None = None,
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
) -> EditEffects:
    """Edit one value at a time and measure the effect; by default, ablate each head of each layer.

    `names` are the activations to edit, split by "head", "position", both, or () for whole values;
    `make_edit` is called with head= and position= of each part: `ablate`, `partial(scale, 2.0)` …
    The metric is the logit of `token` (by default the top prediction), minus that of `against`, at
    `position` (by default the last, or the first mask token); or a function of the logits there,
    rows × outputs → rows. Edits run as rows of one batch.
    """
    check_model(model)
    if isinstance(model.config.model.head, c.NoHead):
        raise ClearheadError("this model has no head, so edits have no effect on an answer.")
    if not callable(make_edit):
        raise ClearheadError(
            "make_edit must be a function of head= and position=, such as ablate, "
            f"got {make_edit!r:.40}."
        )
    paths = edited_names(model, names)
    batch = model.make_batch(x, source, images, audio)
    forward = ResumableForward(model.net, batch)
    position = answer_position(model.config, batch, position)
    target = logit_target(model, forward.logits, token, against, position)
    metric_function = metric or target.select
    baseline = evaluate_metric(metric_function, answer_row(forward.logits, target))
    sizes = _split_sizes(split_by, forward, paths)
    parts = [
        dict(zip(sizes, indices, strict=True)) for indices in product(*map(range, sizes.values()))
    ]
    jobs = [(name, part) for name in paths for part in parts]
    effects = torch.empty(len(jobs))
    batches = _batches(forward, [name for name, _ in jobs])
    for start, indices in progress_bar(batches, len(batches), f"{len(jobs)} edits"):
        edits = [(jobs[i][0], make_edit(**jobs[i][1])) for i in indices]
        logits = forward.run_edited(start, edits, target.position)
        effects[indices] = evaluate_metric(metric_function, logits).cpu()
    return EditEffects(
        values=(effects - baseline.cpu()).reshape(len(paths), *sizes.values()),
        axes=_axes(model, batch, paths, sizes),
        title=f"change of the {'metric' if metric else target.description}",
        value_name="change",
        signed=True,
        note=f"without an edit: {float(baseline):.4f}",
        baseline=float(baseline),
    )


def edited_names(model: "Model", names: str | Sequence[str]) -> list[str]:
    """The activations that patterns match; raises if one of them cannot be edited."""
    if not isinstance(names, str | list | tuple):
        raise ClearheadError(
            f"names must be activations such as blocks.*.attn.z, got {names!r:.40}."
        )
    patterns = [names] if isinstance(names, str) else names
    matching: dict[str, None] = {}  # an ordered set
    for pattern in patterns:
        matching |= dict.fromkeys(matching_names(model.config.model, pattern))
    if not matching or "logits" in matching:
        raise ClearheadError(
            "names must be activations before the logits, such as blocks.*.attn.z."
        )
    return list(matching)


def _split_sizes(
    split_by: str | Sequence[str], forward: ResumableForward, names: list[str]
) -> dict[str, int]:
    """The number of parts along each axis that the values are split by."""
    axes = split_by if isinstance(split_by, list | tuple) else [split_by]
    for axis in axes:
        if axis not in SPLITS:
            raise ClearheadError(f"split_by must be 'head' or 'position', got {axis!r}.")
    split_sizes: dict[str, int] = {}
    for name in names:
        sizes = forward.axis_sizes(name)
        for axis in SPLITS:
            if axis not in axes:
                continue
            if axis not in sizes:
                raise ClearheadError(f"{name} is not split by head; omit split_by={axis!r}.")
            if split_sizes.setdefault(axis, sizes[axis]) != sizes[axis]:
                raise ClearheadError(
                    f"{name} has {sizes[axis]} {axis}s, {names[0]} has {split_sizes[axis]}; "
                    "edit them in separate calls."
                )
    return split_sizes


def _batches(forward: ResumableForward, names: list[str]) -> list[tuple[int, list[int]]]:
    """Batches of edits that resume at the same block: the block, and indices into `names`."""
    by_start: dict[int, list[int]] = {}
    for i, name in enumerate(names):
        by_start.setdefault(forward.first_block(name), []).append(i)
    batch_size = max(1, MAX_BATCH_TOKENS // forward.residuals[0].shape[1])
    return [
        (start, indices[i : i + batch_size])
        for start, indices in by_start.items()
        for i in range(0, len(indices), batch_size)
    ]


def _axes(
    model: "Model", batch: Batch, names: list[str], sizes: dict[str, int]
) -> tuple[Axis, ...]:
    parts = [name.split(".") for name in names]
    differ_only_by_layer = parts[0][0] == "blocks" and len({(p[0], *p[2:]) for p in parts}) == 1
    axes: dict[str, Sequence[str] | int] = {}
    if differ_only_by_layer:
        axes["layer"] = [part[1] for part in parts]
    else:
        axes["name"] = names
    if "head" in sizes:
        axes["head"] = sizes["head"]
    if "position" in sizes:
        if is_source_activation(model.config.model, names[0]):
            tokens = first_text_labels(batch.source, None, model.tokenizers[1])
        else:
            tokens = first_text_labels(batch.inputs, None, model.tokenizer)
        size = sizes["position"]
        axes["token"] = tokens if len(tokens) == size else size
    return label_axes(axes)


def answer_row(logits: Tensor, target: LogitTarget) -> Tensor:
    """1 × outputs: the logits that a target is about."""
    return (logits if logits.dim() == 1 else logits[target.position])[None]


def evaluate_metric(metric: LogitMetric, logits: Tensor) -> Tensor:
    """The metric of each row of logits; raises if it does not return a number for each."""
    values = metric(logits)
    if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
        got = (
            f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        )
        raise ClearheadError(
            f"metric must map {len(logits)} rows of logits to {len(logits)} numbers, got {got}."
        )
    return values
