"""One text's way through a model, to be taken again from any block, changed in many ways side by side.

What comes before a change is the same for all, so it is computed once; each change then is a row of a batch.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError
from clearhead.hooks import Edit, Recorder, force_eager
from clearhead.lens.activations import (
    activation_table,
    answer_position,
    check_arguments,
    check_no_nan,
    check_top,
    first_text_labels,
    matching_names,
    single_text,
)
from clearhead.lens.attribution import AnswerToken, logit_target
from clearhead.lens.edits import ablate, checked_edit, replace
from clearhead.lens.view import Axis, View
from clearhead.model.attention import NO_MASK
from clearhead.model.kv_cache import NO_CACHE
from clearhead.model.transformer import Block, BlockInputs, Transformer
from clearhead.progress import progress_bar

if TYPE_CHECKING:
    from clearhead.api import Model

# ---- resumed: One text's way through a model, to be taken again from any block, changed in many ways side by side.

NamedEdit = tuple[str, Edit]  # the name of a value, and what becomes of it


class ResumableForward:
    """Takes the way once, unchanged, and keeps the stream before every block."""

    def __init__(self, net: Transformer, batch: Batch) -> None:
        if len(batch.inputs) != 1:
            raise ClearheadError(f"this changes one text at a time, not {len(batch.inputs)}.")
        self.net = net
        self.batch = batch
        self.n_layers = net.config.n_layers
        last = f"blocks.{self.n_layers - 1}.resid_post"
        watch = Recorder(["blocks.*.resid_pre", last])
        with torch.no_grad(), force_eager():
            self.encoder_output = None if batch.source is None else net.encode(batch.source)
            self.logits = net.compute_logits(
                net(
                    batch.inputs,
                    token_type_ids=batch.token_type_ids,
                    encoder_output=self.encoder_output,
                    hooks=watch,
                )
            )[0].float()
        check_no_nan({"the logits": self.logits})
        self.residuals = [
            *(watch.values[f"blocks.{i}.resid_pre"] for i in range(self.n_layers)),
            watch.values[last],
        ]

    def axis_sizes(self, name: str) -> dict[str, int]:
        """How many heads a value has, if it has any, and how many tokens."""
        m = self.net.config
        words = activation_table(self.net.config)[name].shape.split()
        heads = {"head": m.attention.n_heads, "kv_head": m.n_kv_heads}.get(words[1])
        tokens = (
            self.encoder_output
            if is_source_activation(m, name) and self.encoder_output is not None
            else self.residuals[0]
        )
        return {**({} if heads is None else {"head": heads}), "token": tokens.shape[1]}

    def first_block(self, name: str) -> int:
        """The block from which a change of that value matters; −1 where it must be taken from the beginning."""
        first, _, rest = name.partition(".")
        if first == "blocks":
            return int(rest.partition(".")[0])
        return self.n_layers if name == "final_norm" else -1

    @torch.no_grad()
    def run_edited(self, start: int, rows: Sequence[NamedEdit], at: int) -> Tensor:
        """The logits at a token (or of the whole text) after each change: row × outputs."""
        hooks = Recorder(edits=edits_by_row(rows))
        count = len(rows)
        with force_eager():
            if start < 0:
                ids, kinds, source = (
                    _repeated(x, count)
                    for x in (self.batch.inputs, self.batch.token_type_ids, self.batch.source)
                )
                assert ids is not None
                hidden = self.net(ids, token_type_ids=kinds, source=source, hooks=hooks)
            else:
                hidden = self._from(start, count, hooks)
            if isinstance(self.net.config.head, c.ClassificationHead | c.RegressionHead):
                return self.net.compute_logits(hidden).float()
            return self.net.compute_logits(hidden[:, at : at + 1])[:, 0].float()

    def _from(self, start: int, count: int, hooks: Recorder) -> Tensor:
        x = self.residuals[start].expand(count, -1, -1)
        encoded = _repeated(self.encoder_output, count)
        at, keys, mask = self.net.positions_and_mask(x, None, None, None)
        places = self.net.position.layer_positions(at, keys, self.n_layers)
        for i in range(start, self.n_layers):
            block: Block = self.net.blocks[i]  # type: ignore[assignment]
            x = block(
                x,
                BlockInputs(places[i], mask, NO_CACHE, encoded, NO_MASK, NO_CACHE),
                hooks.scope("blocks", i),
            )
        return hooks("final_norm", self.net.final_norm(x))


def _repeated(x: Tensor | None, count: int) -> Tensor | None:
    return None if x is None else x.expand(count, *x.shape[1:])


def edits_by_row(rows: Sequence[NamedEdit]) -> dict[str, Edit]:
    """One edit for each name, which changes each row in its own way."""
    grouped: dict[str, list[tuple[int, Edit]]] = {}
    for row, (name, edit) in enumerate(rows):
        grouped.setdefault(name, []).append((row, checked_edit(edit)))

    def together(edits: list[tuple[int, Edit]]) -> Edit:
        def edit(value: Tensor, name: str) -> Tensor:
            changed = value.expand(
                len(rows), *value.shape[1:]
            ).clone()  # positions may be one row for all
            for row, one in edits:
                changed[row : row + 1] = one(
                    value[row : row + 1] if len(value) > 1 else value, name
                )
            return changed

        return edit

    return {name: together(edits) for name, edits in grouped.items()}


def is_source_activation(m: c.ModelConfig, name: str) -> bool:
    """Whether the tokens of a value are those of the source."""
    keys = activation_table(m)[name].shape.split()[-2] == "key"
    return name.startswith("encoder.") or (keys and ".cross_attn." in name)


# ---- sweep: Sweeps: one change after another, at every place of a kind, and what each does to an answer.

LogitMetric = Callable[[Tensor], Tensor]  # rows of logits to a number for each
MAX_BATCH_TOKENS = 4096  # in one batch: 512 took 1.7 times as long, 8192 as long
SPLITS = ("head", "token")


@dataclass(frozen=True, eq=False, repr=False)
class EditEffects(View):
    """How much each change has moved the answer. `plain` is what it was without any. print() shows the largest."""

    baseline: float = 0.0
    patch_from_baseline: float | None = (
        None  # of a patching, what it was in the run that was patched in
    )

    def top_effects(self, top: int = 8) -> View:
        """The changes that moved the answer most, whichever way, the first one first."""
        flat = self.values.flatten()
        best = flat.abs().topk(min(check_top(top), len(flat))).indices
        places = list(product(*(axis.labels for axis in self.axes)))
        names = [
            " ".join(f"{a.name} {label}" for a, label in zip(self.axes, places[i], strict=True))
            for i in best
        ]
        return View(
            flat[best],
            (Axis.from_labels("place", names),),
            self.title,
            self.value_name,
            signed=True,
            note=self.note,
        )

    def __str__(self) -> str:
        return str(self.top_effects().terminal())

    def recovery(self) -> View:
        """Of a patching: the share of the way from this run's answer to the other's; 1 has brought it all."""
        if self.patch_from_baseline is None or self.patch_from_baseline == self.baseline:
            raise ClearheadError(
                "nothing can be recovered where both runs give the same answer, or there is only one."
            )
        values = self.values / (self.patch_from_baseline - self.baseline)
        note = f"share of the way from {self.baseline:.4f} to {self.patch_from_baseline:.4f}"
        return View(values, self.axes, self.title, "recovered", signed=True, note=note)


@check_arguments
def ablation(
    model: "Model",
    x: Any = None,
    names: str | Sequence[str] = "blocks.*.attn.z",
    *,
    split_by: str | Sequence[str] = "head",
    make_edit: Callable[..., Any] = ablate,
    token: AnswerToken = None,
    against: AnswerToken = None,
    position: int | None = None,
    metric: LogitMetric | None = None,
    **read: Any,
) -> EditEffects:
    """Changes one value at a time and tells by how much the answer moves: every head of every layer, to begin with.

    `names` are what is changed and `by` how it is cut: "head", "token", both, or () for whole values. `change` makes
    an edit of head= and token=: `ablate`, `partial(scale, 2.0)`, `partial(replace, seen)`. The answer is the logit of
    `token` (the likeliest, if none is given), less that of `against`, after the token `at` (the last, or the first
    that is hidden where words are); or any `measure` of the logits there, rows × outputs → rows. Many changes are rows
    of one batch.
    """
    if isinstance(model.config.model.head, c.NoHead):
        raise ClearheadError(
            "this model has no head, so there is no answer that a change could move."
        )
    if not callable(make_edit):
        raise ClearheadError(
            f"change makes an edit of head= and token=, as ablate does; it is not {make_edit!r:.40}."
        )
    paths = _paths(model, names)
    batch = model.make_batch(x, **read)
    way = ResumableForward(model.net, batch)
    question = logit_target(
        model, way.logits, token, against, answer_position(model, position, x, read)
    )
    counted = metric or question.select
    plain = _counted(counted, _row(way.logits, question.position))
    cuts = _cuts(split_by, way, paths)
    jobs = [
        (path, dict(zip(cuts, where, strict=True)))
        for path in paths
        for where in product(*map(range, cuts.values()))
    ]
    found = torch.empty(len(jobs))
    batches = _batches(way, [path for path, _ in jobs])
    for start, rows in progress_bar(batches, len(batches), f"{len(jobs)} changes"):
        edited = [(jobs[i][0], make_edit(**jobs[i][1])) for i in rows]
        found[rows] = _counted(counted, way.run_edited(start, edited, question.position)).cpu()
    return EditEffects(
        (found - plain.cpu()).reshape(len(paths), *cuts.values()),
        _axes(model, batch, paths, cuts),
        f"change of the {'measure' if metric else question.description}",
        "change",
        signed=True,
        note=f"without any change it is {float(plain):.4f}",
        baseline=float(plain),
    )


@check_arguments
def patching(
    model: "Model",
    x: Any,
    patch_from: Any,
    names: str | Sequence[str] = "blocks.*.resid_pre",
    *,
    split_by: str | Sequence[str] = "token",
    token: AnswerToken = None,
    against: AnswerToken = None,
    position: int | None = None,
    metric: LogitMetric | None = None,
    **read: Any,
) -> EditEffects:
    """Activation patching: a run of `x` into which values of a run of `other` are put, one at a time.

    The two need as many tokens. `other` is a text, or {"x": …, "source": …} where the runs differ in more. The answer
    is as in `sweep`; without `token`, the other run's likeliest.
    """
    paths = _paths(model, names)
    there = model.watch(
        **(patch_from if isinstance(patch_from, Mapping) else {**read, "x": patch_from}),
        names=[*paths, "logits"],
    )
    logits = single_text(there["logits"])
    position = answer_position(model, position, x, read)
    question = logit_target(model, logits, token, against, position)
    swept = ablation(
        model, x, paths, by=split_by, change=partial(replace, there), token=question.answer, against=question.against,
        at=position, measure=metric, **read,
    )  # fmt: skip
    brought = float(_counted(metric or question.select, _row(logits, question.position)))
    return dataclasses.replace(
        swept, patch_from_baseline=brought, note=f"{swept.note}; in the other run {brought:.4f}"
    )


def _paths(model: "Model", names: str | Sequence[str]) -> list[str]:
    if not isinstance(names, str | list | tuple):
        raise ClearheadError(
            f"names of values are needed, such as blocks.*.attn.z; not {names!r:.40}."
        )
    patterns = [names] if isinstance(names, str) else names
    found = list(
        dict.fromkeys(
            path for pattern in patterns for path in matching_names(model.config.model, pattern)
        )
    )
    if not found or "logits" in found:
        raise ClearheadError(
            "a sweep needs names of values that come before the logits, such as blocks.*.attn.z."
        )
    return found


def _cuts(by: str | Sequence[str], way: ResumableForward, paths: list[str]) -> dict[str, int]:
    """How many pieces each value is cut into, by what."""
    words = by if isinstance(by, list | tuple) else [by]
    for word in words:
        if word not in SPLITS:
            raise ClearheadError(f"values are cut by head or by token, not by {word!r}.")
    cuts: dict[str, int] = {}
    for path in paths:
        sizes = way.axis_sizes(path)
        for word in (word for word in SPLITS if word in words):
            if word not in sizes:
                raise ClearheadError(f"{path} is not split by head; leave out by={word!r}.")
            if cuts.setdefault(word, sizes[word]) != sizes[word]:
                raise ClearheadError(
                    f"{path} has {sizes[word]} {word}s, {paths[0]} has {cuts[word]}; sweep them apart."
                )
    return cuts


def _batches(way: ResumableForward, paths: list[str]) -> list[tuple[int, list[int]]]:
    """Jobs that start at the same block, so many at a time as there is room for."""
    starts: dict[int, list[int]] = {}
    for job, path in enumerate(paths):
        starts.setdefault(way.first_block(path), []).append(job)
    room = max(1, MAX_BATCH_TOKENS // way.residuals[0].shape[1])
    return [
        (start, jobs[i : i + room])
        for start, jobs in starts.items()
        for i in range(0, len(jobs), room)
    ]


def _axes(model: "Model", batch: Batch, paths: list[str], cuts: dict[str, int]) -> tuple[Axis, ...]:
    blocks = [path.split(".") for path in paths]
    same = len({(*parts[:1], *parts[2:]) for parts in blocks}) == 1 and blocks[0][0] == "blocks"
    axes = [
        Axis.from_labels("layer", [parts[1] for parts in blocks])
        if same
        else Axis.from_labels("name", paths)
    ]
    for word, size in cuts.items():
        tokens: list[str] = []
        if word == "token" and is_source_activation(model.config.model, paths[0]):
            tokens = first_text_labels(batch.source, None, model.tokenizers[1])
        elif word == "token":
            tokens = first_text_labels(batch.inputs, None, model.tokenizer)
        axes.append(Axis.from_labels(word, tokens if len(tokens) == size else size))
    return tuple(axes)


def _row(logits: Tensor, at: int) -> Tensor:
    return (logits if logits.dim() == 1 else logits[at])[None]


def _counted(measure: LogitMetric, logits: Tensor) -> Tensor:
    found = measure(logits)
    if not isinstance(found, Tensor) or found.shape != logits.shape[:1]:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ClearheadError(
            f"a measure makes {len(logits)} rows of logits into {len(logits)} numbers, not {got}."
        )
    return found
