"""Attention, seen: the patterns of heads, the steps that lead to a row of one, and what a head moves by it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, check_kind, nearest
from clearhead.lens.given import known_names
from clearhead.lens.matrices import out_of
from clearhead.lens.parts import (
    Part,
    check_head,
    check_layer,
    check_token,
    labels_of,
    layers_of,
    module_of,
    of_one_text,
    path_of,
    watch_one,
)
from clearhead.lens.view import Axis, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clearhead.api import Model
    from clearhead.lens.seen import Seen

WHAT = {
    "pattern": "the weight that each query (row) gives each key (column); rows add up to 1",
    "scores": "q·k / √d with the bias of positions, before the mask",
    "masked": "the scores, −∞ where a query may not look",
}
KIND = {"attention": "", "cross": "cross-attention, ", "encoder": "encoder, "}


@dataclass(frozen=True, eq=False, repr=False)
class Heads(View):
    """Patterns: layer × head × query × key, less the dimensions of which one place was asked for."""

    def lines(self, token: int | None = None) -> "View":
        """One head's pattern as lines from each token to those it looks at; or of one token only."""
        from clearhead.lens.lines import Lines

        if len(self.axes) != 2:
            raise ClearheadError("lines are drawn of one head; ask for one by layer= and head=.")
        values = self.values
        if token is not None:
            keep = check_token(token, len(values))
            values = torch.zeros_like(values).index_copy(0, torch.tensor([keep]), values[keep][None])
        return Lines(values, self.axes, self.title, self.measure, self.signed, self.most, note=self.note)


@known_names
def attention(
    model: "Model",
    x: Any = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: Part = "attention",
    what: str = "pattern",
    **given: Any,
) -> Heads:
    """Where each token looks: one head, all heads of a layer, one head in all layers, or all of them.

    Layers and heads count from 0, or from the end below 0. Only what is shown is kept.
    `part` is "cross" for how a decoder looks at its source, "encoder" for how the source
    looks at itself. More arguments are those of `model.watch`: source=, pictures=, sound=, edits=.
    """
    if what not in WHAT:
        raise ClearheadError(f"attention has no {what!r} to show; {nearest(str(what), WHAT)}")
    m = model.config.model
    layer, head = _places(m, part, layer, head)
    heads = slice(None) if head is None else head
    names = [f"{path_of(part, i)}.{what}" for i in _layers(layer, m, part)]
    seen = watch_one(model, x, dict.fromkeys(names, lambda value: value[:, heads]), given)
    return _heads(seen, [of_one_text(seen[name]) for name in names], layer, head, part, what)


def _places(m: c.ModelConfig, part: Part, layer: int | None, head: int | None) -> tuple[int | None, int | None]:
    """Both as counted from 0; None stands for all."""
    layers = layers_of(m, part)
    return (
        None if layer is None else check_layer(layer, layers),
        None if head is None else check_head(head, m.attention.heads),
    )


def _layers(layer: int | None, m: c.ModelConfig, part: Part) -> Sequence[int]:
    return range(layers_of(m, part)) if layer is None else [layer]


def _heads(
    seen: "Seen", values: list[Tensor], layer: int | None, head: int | None, part: str, what: str, note: str = ""
) -> Heads:
    down, across = labels_of(seen, part, (values[0].shape[-2], values[0].shape[-1]))
    axes = [Axis.of("query", down), Axis.of("key", across)]
    stacked = torch.stack(values) if layer is None else values[0]
    if head is None:
        axes.insert(0, Axis.of("head", values[0].shape[0]))
    if layer is None:
        axes.insert(0, Axis.of("layer", len(values)))
    where = [f"{word} {n}" for word, n in (("layer", layer), ("head", head)) if n is not None]
    title = f"{KIND[part]}{', '.join(where) or 'all heads'}"
    signed, most = what in ("scores", "masked"), 1.0 if what == "pattern" else None
    note = note or WHAT[what]
    note += "; a row is the look of a token that was read, by which the next one is written" * (part == "cross")
    return Heads(stacked, tuple(axes), title, what, signed, most, note=note)


@known_names
def softmax_row(
    model: "Model", x: Any = None, *, layer: int, head: int, token: int = -1, part: Part = "attention", **given: Any
) -> View:
    """How one row of a pattern comes to be: scores, mask, exponentials, and their share of the sum (L3.3, L3.5)."""
    m = model.config.model
    layer, head = check_layer(layer, layers_of(m, part)), check_head(head, m.attention.heads)
    names = [f"{path_of(part, layer)}.{what}" for what in ("scores", "masked", "pattern")]
    seen = watch_one(model, x, dict.fromkeys(names, lambda value: value[:, head]), given)
    grids = [of_one_text(seen[name]) for name in names]
    down, across = labels_of(seen, part, (grids[0].shape[0], grids[0].shape[1]))
    at = check_token(token, len(grids[0]))
    scores, masked, pattern = (grid[at] for grid in grids)
    raised = (masked - masked.max().nan_to_num(0, 0, 0)).exp()  # the largest is 1, so nothing overflows
    steps = torch.stack((scores, masked, raised, pattern))
    axes = Axis.of("step", ("scores", "masked", "exp", "softmax")), Axis.of("key", across)
    title = f"{KIND[part]}layer {layer}, head {head}, query {down[at]} (token {at})"
    note = "exp(masked − its largest), divided by the sum of the row, is the softmax"
    return View(steps, axes, title, "value", signed=True, note=note)


@known_names
def contribution(
    model: "Model",
    x: Any = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: Part = "attention",
    **given: Any,
) -> Heads:
    """How much each head moves from each key to each query: the length of pattern · v W_O, not the pattern alone."""
    m = model.config.model
    layer, head = _places(m, part, layer, head)
    layers = _layers(layer, m, part)
    heads = slice(None) if head is None else slice(head, head + 1)
    names = [f"{path_of(part, i)}.{what}" for i in layers for what in ("pattern", "v")]
    seen = watch_one(model, x, names, given)
    values = []
    for i in layers:
        pattern, v = (of_one_text(seen[f"{path_of(part, i)}.{what}"]) for what in ("pattern", "v"))
        written = v.repeat_interleave(len(pattern) // len(v), dim=0) @ out_of(module_of(model.net, part, i)).mT
        moved = (pattern * written.norm(dim=-1)[:, None])[heads]
        values.append(moved if head is None else moved[0])
    note = "the length of what a query (row) receives from a key (column): weight × |v W_O|"
    return _heads(seen, values, layer, head, part, "length", note)


@known_names
def written(model: "Model", x: Any = None, *, part: Part = "attention", **given: Any) -> View:
    """How much each head adds to the stream at each token, layer × head × token: the length of z W_O."""
    paths = [path_of(part, i) for i in range(layers_of(model.config.model, part))]
    seen = watch_one(model, x, [f"{path}.z" for path in paths], given)
    lengths = [
        (of_one_text(seen[f"{path}.z"]) @ out_of(module_of(model.net, part, i)).mT).norm(dim=-1)
        for i, path in enumerate(paths)
    ]
    values = torch.stack(lengths)
    tokens = labels_of(seen, part, (values.shape[2], values.shape[2]))[0]
    axes = Axis.of("layer", len(paths)), Axis.of("head", values.shape[1]), Axis.of("token", tokens)
    note = "|z W_O|: the length of what a head adds to the stream at a token"
    return View(values, axes, f"{KIND[part]}what the heads write", "length", note=note)


@known_names
def rollout(model: "Model", x: Any = None, *, part: Part = "attention", **given: Any) -> View:
    """Attention rollout (Abnar and Zuidema): how much of each input token has arrived at each place, by layer.

    The mean pattern of a layer's heads and, for the residual stream, the identity, half and half; multiplied upwards.
    """
    if part == "cross":
        raise ClearheadError('rollout follows one stack from its input; ask for part="attention" or part="encoder".')
    names = [f"{path_of(part, i)}.pattern" for i in range(layers_of(model.config.model, part))]
    seen = watch_one(model, x, dict.fromkeys(names, lambda value: value.mean(dim=1)), given)
    arrived, by_layer = None, []
    for name in names:
        pattern = of_one_text(seen[name])
        mixed = (pattern + torch.eye(len(pattern))) / 2
        arrived = mixed if arrived is None else mixed @ arrived
        by_layer.append(arrived)
    down, across = labels_of(seen, part, (len(by_layer[0]), len(by_layer[0])))
    axes = Axis.of("layer", len(names)), Axis.of("query", down), Axis.of("key", across)
    note = "½ (mean pattern of the heads + identity), multiplied from the first layer up; rows add up to 1"
    return View(torch.stack(by_layer), axes, f"{KIND[part]}rollout", "share", most=1.0, note=note)


def heads_of(seen: "Seen", layer: int, head: int | None = None, part: Part = "attention") -> Heads:
    """The patterns of a layer of the first text that was watched."""
    layer = check_layer(layer, layers_of(seen.config, part))
    name = f"{path_of(part, layer)}.pattern"
    if name not in seen or not seen.whole:
        raise ClearheadError(f"{name} was not watched whole; ask for it in model.watch(text, [{name!r}]).")
    pattern = seen[name][0].detach().float().cpu()
    head = None if head is None else check_head(head, len(pattern))
    values = pattern if head is None else pattern[head]
    return _heads(seen, [values], layer, head, part, "pattern")


@known_names
def attention_figure(seen: "Seen", layer: int, head: int | None = None, part: Part = "attention") -> "Figure":
    """One head's pattern as a matrix, queries down, keys across; without `head`, all heads of the layer."""
    check_kind(seen, Mapping, "what model.watch has seen")
    return heads_of(seen, layer, head, part).figure()
