"""Sweeps: one change after another, at every place of a kind, and what each does to an answer."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.batch import Batch
from clearhead.errors import ClearheadError
from clearhead.lens.ask import Answer, ask
from clearhead.lens.edits import ablate, replace
from clearhead.lens.given import known_names
from clearhead.lens.names import matching
from clearhead.lens.parts import asked_at, check_top, of_one_text
from clearhead.lens.progress import shown
from clearhead.lens.resumed import Resumed, of_source
from clearhead.lens.seen import labels
from clearhead.lens.view import Axis, View

if TYPE_CHECKING:
    from clearhead.api import Model

Measure = Callable[[Tensor], Tensor]  # rows of logits to a number for each
TOKENS = 4096  # in one batch: 512 took 1.7 times as long, 8192 as long
BY = ("head", "token")


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(View):
    """How much each change has moved the answer. `plain` is what it was without any. print() shows the largest."""

    plain: float = 0.0
    other: float | None = None  # of a patching, what it was in the run that was patched in

    def largest(self, top: int = 8) -> View:
        """The changes that moved the answer most, whichever way, the first one first."""
        flat = self.values.flatten()
        best = flat.abs().topk(min(check_top(top), len(flat))).indices
        places = list(product(*(axis.labels for axis in self.axes)))
        names = [" ".join(f"{a.name} {label}" for a, label in zip(self.axes, places[i], strict=True)) for i in best]
        return View(flat[best], (Axis.of("place", names),), self.title, self.measure, signed=True, note=self.note)

    def __str__(self) -> str:
        return str(self.largest().terminal())

    def recovered(self) -> View:
        """Of a patching: the share of the way from this run's answer to the other's; 1 has brought it all."""
        if self.other is None or self.other == self.plain:
            raise ClearheadError("nothing can be recovered where both runs give the same answer, or there is only one.")
        values = self.values / (self.other - self.plain)
        note = f"share of the way from {self.plain:.4f} to {self.other:.4f}"
        return View(values, self.axes, self.title, "recovered", signed=True, note=note)


@known_names
def sweep(
    model: "Model",
    x: Any = None,
    names: str | Sequence[str] = "blocks.*.attn.z",
    *,
    by: str | Sequence[str] = "head",
    change: Callable[..., Any] = ablate,
    token: Answer = None,
    against: Answer = None,
    at: int | None = None,
    measure: Measure | None = None,
    **read: Any,
) -> Sweep:
    """Changes one value at a time and tells by how much the answer moves: every head of every layer, to begin with.

    `names` are what is changed and `by` how it is cut: "head", "token", both, or () for whole values. `change` makes
    an edit of head= and token=: `ablate`, `partial(scale, 2.0)`, `partial(replace, seen)`. The answer is the logit of
    `token` (the likeliest, if none is given), less that of `against`, after the token `at` (the last, or the first
    that is hidden where words are); or any `measure` of the logits there, rows × outputs → rows. Many changes are rows
    of one batch.
    """
    if isinstance(model.config.model.head, c.Hidden):
        raise ClearheadError("this model has no head, so there is no answer that a change could move.")
    if not callable(change):
        raise ClearheadError(f"change makes an edit of head= and token=, as ablate does; it is not {change!r:.40}.")
    paths, batch = _paths(model, names), model._batch(x, **read)
    way = Resumed(model.net, batch)
    question = ask(model, way.logits, token, against, asked_at(model, at, x, read))
    counted = measure or question.of
    plain = _counted(counted, _row(way.logits, question.at))
    cuts = _cuts(by, way, paths)
    jobs = [
        (path, dict(zip(cuts, where, strict=True))) for path in paths for where in product(*map(range, cuts.values()))
    ]
    found = torch.empty(len(jobs))
    batches = _batches(way, [path for path, _ in jobs])
    for start, rows in shown(batches, len(batches), f"{len(jobs)} changes"):
        edited = [(jobs[i][0], change(**jobs[i][1])) for i in rows]
        found[rows] = _counted(counted, way.run(start, edited, question.at)).cpu()
    return Sweep(
        (found - plain.cpu()).reshape(len(paths), *cuts.values()),
        _axes(model, batch, paths, cuts),
        f"change of the {'measure' if measure else question.words}",
        "change",
        signed=True,
        note=f"without any change it is {float(plain):.4f}",
        plain=float(plain),
    )


@known_names
def patching(
    model: "Model",
    x: Any,
    other: Any,
    names: str | Sequence[str] = "blocks.*.pre",
    *,
    by: str | Sequence[str] = "token",
    token: Answer = None,
    against: Answer = None,
    at: int | None = None,
    measure: Measure | None = None,
    **read: Any,
) -> Sweep:
    """Activation patching: a run of `x` into which values of a run of `other` are put, one at a time.

    The two need as many tokens. `other` is a text, or {"x": …, "source": …} where the runs differ in more. The answer
    is as in `sweep`; without `token`, the other run's likeliest.
    """
    paths = _paths(model, names)
    there = model.watch(**(other if isinstance(other, Mapping) else {**read, "x": other}), names=[*paths, "logits"])
    logits = of_one_text(there["logits"])
    at = asked_at(model, at, x, read)
    question = ask(model, logits, token, against, at)
    swept = sweep(
        model, x, paths, by=by, change=partial(replace, there), token=question.answer, against=question.against,
        at=at, measure=measure, **read,
    )  # fmt: skip
    brought = float(_counted(measure or question.of, _row(logits, question.at)))
    return dataclasses.replace(swept, other=brought, note=f"{swept.note}; in the other run {brought:.4f}")


def _paths(model: "Model", names: str | Sequence[str]) -> list[str]:
    if not isinstance(names, str | list | tuple):
        raise ClearheadError(f"names of values are needed, such as blocks.*.attn.z; not {names!r:.40}.")
    patterns = [names] if isinstance(names, str) else names
    found = list(dict.fromkeys(path for pattern in patterns for path in matching(model.config.model, pattern)))
    if not found or "logits" in found:
        raise ClearheadError("a sweep needs names of values that come before the logits, such as blocks.*.attn.z.")
    return found


def _cuts(by: str | Sequence[str], way: Resumed, paths: list[str]) -> dict[str, int]:
    """How many pieces each value is cut into, by what."""
    words = by if isinstance(by, list | tuple) else [by]
    for word in words:
        if word not in BY:
            raise ClearheadError(f"values are cut by head or by token, not by {word!r}.")
    cuts: dict[str, int] = {}
    for path in paths:
        sizes = way.sizes(path)
        for word in (word for word in BY if word in words):
            if word not in sizes:
                raise ClearheadError(f"{path} is not split by head; leave out by={word!r}.")
            if cuts.setdefault(word, sizes[word]) != sizes[word]:
                raise ClearheadError(
                    f"{path} has {sizes[word]} {word}s, {paths[0]} has {cuts[word]}; sweep them apart."
                )
    return cuts


def _batches(way: Resumed, paths: list[str]) -> list[tuple[int, list[int]]]:
    """Jobs that start at the same block, so many at a time as there is room for."""
    starts: dict[int, list[int]] = {}
    for job, path in enumerate(paths):
        starts.setdefault(way.start(path), []).append(job)
    room = max(1, TOKENS // way.streams[0].shape[1])
    return [(start, jobs[i : i + room]) for start, jobs in starts.items() for i in range(0, len(jobs), room)]


def _axes(model: "Model", batch: Batch, paths: list[str], cuts: dict[str, int]) -> tuple[Axis, ...]:
    blocks = [path.split(".") for path in paths]
    same = len({(*parts[:1], *parts[2:]) for parts in blocks}) == 1 and blocks[0][0] == "blocks"
    axes = [Axis.of("layer", [parts[1] for parts in blocks]) if same else Axis.of("name", paths)]
    for word, size in cuts.items():
        tokens: list[str] = []
        if word == "token" and of_source(model.config.model, paths[0]):
            tokens = labels(batch.source, None, model.tokenizers[1])
        elif word == "token":
            tokens = labels(batch.ids, None, model.tokenizer)
        axes.append(Axis.of(word, tokens if len(tokens) == size else size))
    return tuple(axes)


def _row(logits: Tensor, at: int) -> Tensor:
    return (logits if logits.dim() == 1 else logits[at])[None]


def _counted(measure: Measure, logits: Tensor) -> Tensor:
    found = measure(logits)
    if not isinstance(found, Tensor) or found.shape != logits.shape[:1]:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ClearheadError(f"a measure makes {len(logits)} rows of logits into {len(logits)} numbers, not {got}.")
    return found
