"""Attention, seen: the patterns of heads, the steps that lead to a row of one, and what a head moves by it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, check_type, suggest
from clearhead.lens.activations import (
    AttentionKind,
    InputSide,
    attention_module,
    attention_path,
    check_arguments,
    check_head,
    check_layer,
    check_token,
    check_top,
    num_layers,
    query_key_labels,
    single_text,
    watch_single_text,
)
from clearhead.lens.circuits import output_matrices
from clearhead.lens.context import locate_word
from clearhead.lens.render.colors import DARK, LIGHT, POSITIVE
from clearhead.lens.render.html import LETTER_WIDTH, LINE_HEIGHT, figure_html, svg_element, svg_text
from clearhead.lens.render.matplotlib import escape_mathtext
from clearhead.lens.view import Axis, Row, View
from clearhead.tokenizers.tokenizer import MASK_PLACEHOLDER, VISIBLE_WHITESPACE

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from clearhead.api import Model
    from clearhead.lens.activations import ActivationCache

# ---- attention: Attention, seen: the patterns of heads, the steps that lead to a row of one, and what a head moves by it.

ATTENTION_NOTES = {
    "pattern": "the weight that each query (row) gives each key (column); rows add up to 1",
    "scores": "q·k / √d with the bias of positions, before the mask",
    "masked": "the scores, −∞ where a query may not look",
}
KIND_PREFIXES = {"attention": "", "cross": "cross-attention, ", "encoder": "encoder, "}


@dataclass(frozen=True, eq=False, repr=False)
class AttentionView(View):
    """Patterns: layer × head × query × key, less the dimensions of which one place was asked for."""

    def line_view(self, position: int | None = None) -> "View":
        """One head's pattern as lines from each token to those it looks at; or of one token only."""

        if len(self.axes) != 2:
            raise ClearheadError("lines are drawn of one head; ask for one by layer= and head=.")
        values = self.values
        if position is not None:
            keep = check_token(position, len(values))
            values = torch.zeros_like(values).index_copy(
                0, torch.tensor([keep]), values[keep][None]
            )
        return AttentionLines(
            values, self.axes, self.title, self.value_name, self.signed, self.vmax, note=self.note
        )


@check_arguments
def attention(
    model: "Model",
    x: Any = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: AttentionKind = "attention",
    activation: str = "pattern",
    **given: Any,
) -> AttentionView:
    """Where each token looks: one head, all heads of a layer, one head in all layers, or all of them.

    Layers and heads count from 0, or from the end below 0. Only what is shown is kept.
    `part` is "cross" for how a decoder looks at its source, "encoder" for how the source
    looks at itself. More arguments are those of `model.watch`: source=, pictures=, sound=, edits=.
    """
    if activation not in ATTENTION_NOTES:
        raise ClearheadError(
            f"attention has no {activation!r} to show; {suggest(str(activation), ATTENTION_NOTES)}"
        )
    m = model.config.model
    layer, head = _places(m, kind, layer, head)
    heads = slice(None) if head is None else head
    names = [f"{attention_path(kind, i)}.{activation}" for i in _layers(layer, m, kind)]
    seen = watch_single_text(model, x, dict.fromkeys(names, lambda value: value[:, heads]), given)
    return _heads(seen, [single_text(seen[name]) for name in names], layer, head, kind, activation)


def _places(
    m: c.ModelConfig, part: AttentionKind, layer: int | None, head: int | None
) -> tuple[int | None, int | None]:
    """Both as counted from 0; None stands for all."""
    layers = num_layers(m, part)
    return (
        None if layer is None else check_layer(layer, layers),
        None if head is None else check_head(head, m.attention.n_heads),
    )


def _layers(layer: int | None, m: c.ModelConfig, part: AttentionKind) -> Sequence[int]:
    return range(num_layers(m, part)) if layer is None else [layer]


def _heads(
    seen: "ActivationCache",
    values: list[Tensor],
    layer: int | None,
    head: int | None,
    part: str,
    what: str,
    note: str = "",
) -> AttentionView:
    down, across = query_key_labels(seen, part, (values[0].shape[-2], values[0].shape[-1]))
    axes = [Axis.from_labels("query", down), Axis.from_labels("key", across)]
    stacked = torch.stack(values) if layer is None else values[0]
    if head is None:
        axes.insert(0, Axis.from_labels("head", values[0].shape[0]))
    if layer is None:
        axes.insert(0, Axis.from_labels("layer", len(values)))
    where = [f"{word} {n}" for word, n in (("layer", layer), ("head", head)) if n is not None]
    title = f"{KIND_PREFIXES[part]}{', '.join(where) or 'all heads'}"
    signed = what in ("scores", "masked")
    most = 1.0 if what == "pattern" else None
    note = note or ATTENTION_NOTES[what]
    note += "; a row is the look of a token that was read, by which the next one is written" * (
        part == "cross"
    )
    return AttentionView(stacked, tuple(axes), title, what, signed, most, note=note)


@check_arguments
def softmax_steps(
    model: "Model",
    x: Any = None,
    *,
    layer: int,
    head: int,
    position: int = -1,
    kind: AttentionKind = "attention",
    **given: Any,
) -> View:
    """How one row of a pattern comes to be: scores, mask, exponentials, and their share of the sum (L3.3, L3.5)."""
    m = model.config.model
    layer = check_layer(layer, num_layers(m, kind))
    head = check_head(head, m.attention.n_heads)
    names = [f"{attention_path(kind, layer)}.{what}" for what in ("scores", "masked", "pattern")]
    seen = watch_single_text(model, x, dict.fromkeys(names, lambda value: value[:, head]), given)
    grids = [single_text(seen[name]) for name in names]
    down, across = query_key_labels(seen, kind, (grids[0].shape[0], grids[0].shape[1]))
    at = check_token(position, len(grids[0]))
    scores, masked, pattern = (grid[at] for grid in grids)
    raised = (
        masked - masked.max().nan_to_num(0, 0, 0)
    ).exp()  # the largest is 1, so nothing overflows
    steps = torch.stack((scores, masked, raised, pattern))
    axes = (
        Axis.from_labels("step", ("scores", "masked", "exp", "softmax")),
        Axis.from_labels("key", across),
    )
    title = f"{KIND_PREFIXES[kind]}layer {layer}, head {head}, query {down[at]} (token {at})"
    note = "exp(masked − its largest), divided by the sum of the row, is the softmax"
    return View(steps, axes, title, "value", signed=True, note=note)


@check_arguments
def value_weighted_attention(
    model: "Model",
    x: Any = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: AttentionKind = "attention",
    **given: Any,
) -> AttentionView:
    """How much each head moves from each key to each query: the length of pattern · v W_O, not the pattern alone."""
    m = model.config.model
    layer, head = _places(m, kind, layer, head)
    layers = _layers(layer, m, kind)
    heads = slice(None) if head is None else slice(head, head + 1)
    names = [f"{attention_path(kind, i)}.{what}" for i in layers for what in ("pattern", "v")]
    seen = watch_single_text(model, x, names, given)
    values = []
    for i in layers:
        pattern, v = (
            single_text(seen[f"{attention_path(kind, i)}.{what}"]) for what in ("pattern", "v")
        )
        written = (
            v.repeat_interleave(len(pattern) // len(v), dim=0)
            @ output_matrices(attention_module(model.net, kind, i)).mT
        )
        moved = (pattern * written.norm(dim=-1)[:, None])[heads]
        values.append(moved if head is None else moved[0])
    note = "the length of what a query (row) receives from a key (column): weight × |v W_O|"
    return _heads(seen, values, layer, head, kind, "length", note)


@check_arguments
def head_output_norms(
    model: "Model", x: Any = None, *, kind: AttentionKind = "attention", **given: Any
) -> View:
    """How much each head adds to the stream at each token, layer × head × token: the length of z W_O."""
    paths = [attention_path(kind, i) for i in range(num_layers(model.config.model, kind))]
    seen = watch_single_text(model, x, [f"{path}.z" for path in paths], given)
    lengths = [
        (
            single_text(seen[f"{path}.z"])
            @ output_matrices(attention_module(model.net, kind, i)).mT
        ).norm(dim=-1)
        for i, path in enumerate(paths)
    ]
    values = torch.stack(lengths)
    tokens = query_key_labels(seen, kind, (values.shape[2], values.shape[2]))[0]
    axes = (
        Axis.from_labels("layer", len(paths)),
        Axis.from_labels("head", values.shape[1]),
        Axis.from_labels("token", tokens),
    )
    note = "|z W_O|: the length of what a head adds to the stream at a token"
    return View(values, axes, f"{KIND_PREFIXES[kind]}what the heads write", "length", note=note)


@check_arguments
def rollout(
    model: "Model", x: Any = None, *, kind: AttentionKind = "attention", **given: Any
) -> View:
    """Attention rollout (Abnar and Zuidema): how much of each input token has arrived at each place, by layer.

    The mean pattern of a layer's heads and, for the residual stream, the identity, half and half; multiplied upwards.
    """
    if kind == "cross":
        raise ClearheadError(
            'rollout follows one stack from its input; ask for part="attention" or part="encoder".'
        )
    names = [
        f"{attention_path(kind, i)}.pattern" for i in range(num_layers(model.config.model, kind))
    ]
    seen = watch_single_text(model, x, dict.fromkeys(names, lambda value: value.mean(dim=1)), given)
    arrived = None
    by_layer = []
    for name in names:
        pattern = single_text(seen[name])
        mixed = (pattern + torch.eye(len(pattern))) / 2
        arrived = mixed if arrived is None else mixed @ arrived
        by_layer.append(arrived)
    down, across = query_key_labels(seen, kind, (len(by_layer[0]), len(by_layer[0])))
    axes = (
        Axis.from_labels("layer", len(names)),
        Axis.from_labels("query", down),
        Axis.from_labels("key", across),
    )
    note = "½ (mean pattern of the heads + identity), multiplied from the first layer up; rows add up to 1"
    return View(
        torch.stack(by_layer), axes, f"{KIND_PREFIXES[kind]}rollout", "share", vmax=1.0, note=note
    )


def cached_attention(
    seen: "ActivationCache", layer: int, head: int | None = None, kind: AttentionKind = "attention"
) -> AttentionView:
    """The patterns of a layer of the first text that was watched."""
    layer = check_layer(layer, num_layers(seen.config, kind))
    name = f"{attention_path(kind, layer)}.pattern"
    if name not in seen or not seen.is_complete:
        raise ClearheadError(
            f"{name} was not watched whole; ask for it in model.watch(text, [{name!r}])."
        )
    pattern = seen[name][0].detach().float().cpu()
    head = None if head is None else check_head(head, len(pattern))
    values = pattern if head is None else pattern[head]
    return _heads(seen, [values], layer, head, kind, "pattern")


@check_arguments
def attention_figure(
    cache: "ActivationCache", layer: int, head: int | None = None, kind: AttentionKind = "attention"
) -> "Figure":
    """One head's pattern as a matrix, queries down, keys across; without `head`, all heads of the layer."""
    check_type(cache, Mapping, "what model.watch has seen")
    return cached_attention(cache, layer, head, kind).figure()


# ---- lines: A pattern as lines: the queries on the left, the keys on the right, and a line for each weight.

MIN_LINE_OPACITY = 0.02  # of the full value: a thinner line would not be seen
LINE_PIXELS = 180.0  # pixels from side to side


@dataclass(frozen=True, eq=False, repr=False)
class AttentionLines(View):
    """The same numbers as the matrix of a head, drawn as lines whose strength is the weight."""

    def _drawn(self) -> list[tuple[int, int, float]]:
        shares = (self.values / self.color_limit).clamp(0, 1)
        return [
            (int(i), int(j), float(shares[i, j])) for i, j in (shares > MIN_LINE_OPACITY).nonzero()
        ]

    def figure(self, dark: bool = False) -> "Figure":
        from matplotlib.figure import Figure

        theme, (down, across) = DARK if dark else LIGHT, self.axes
        tall = max(len(down.labels), len(across.labels))
        drawn = Figure(
            figsize=(5, 0.6 + 0.22 * tall), layout="constrained", facecolor=theme.background
        )
        axes = drawn.add_subplot(xlim=(-0.6, 1.6), ylim=(tall - 0.4, -0.6))
        axes.set_axis_off()
        axes.set_title(self.title, fontsize=10, loc="left", color=theme.foreground)
        for i, j, share in self._drawn():
            axes.plot((0, 1), (i, j), color=POSITIVE, alpha=share, linewidth=1.6)
        for x, side, labels in ((-0.03, "right", down.labels), (1.03, "left", across.labels)):
            for y, label in enumerate(escape_mathtext(labels)):
                axes.text(
                    x,
                    y,
                    label,
                    ha=side,
                    va="center",
                    fontsize=8,
                    family="monospace",
                    color=theme.foreground,
                )
        return drawn

    def _repr_html_(self) -> str:
        down, across = self.axes
        left = max(map(len, down.labels)) * LETTER_WIDTH + 8
        right = left + LINE_PIXELS
        parts = [
            f'<path d="M{left:.1f} {(i + 0.5) * LINE_HEIGHT:.1f}L{right:.1f} {(j + 0.5) * LINE_HEIGHT:.1f}" stroke="{POSITIVE}" '
            f'stroke-width="1.6" stroke-opacity="{share:.3f}"><title>{share * self.color_limit:.4g}</title></path>'
            for i, j, share in self._drawn()
        ]
        parts += [
            svg_text(left - 5, (i + 0.5) * LINE_HEIGHT + 4, label, "end")
            for i, label in enumerate(down.labels)
        ]
        parts += [
            svg_text(right + 5, (j + 0.5) * LINE_HEIGHT + 4, label)
            for j, label in enumerate(across.labels)
        ]
        width = right + max(map(len, across.labels)) * LETTER_WIDTH + 10
        return figure_html(
            self,
            svg_element(width, max(len(down.labels), len(across.labels)) * LINE_HEIGHT + 4, parts),
        )


# ---- atlas: An atlas of heads: what each of them does, as numbers whose definitions are told, to sort them by.

TokenLabels = tuple[str, ...]
VISIBLE_BLANKS = "".join(VISIBLE_WHITESPACE.values())  # as labels show it


@dataclass(frozen=True)
class LayerPatterns:
    """What a definition may look at: all patterns of a layer, and the tokens on both sides."""

    pattern: Tensor  # head query key
    query_tokens: TokenLabels
    key_tokens: TokenLabels
    allowed: Tensor  # query key: what a query may look at
    not_self: Tensor  # query key: what is not the query itself

    @property
    def distance(self) -> Tensor:
        """How far each key lies before each query."""
        return torch.arange(len(self.query_tokens))[:, None] - torch.arange(len(self.key_tokens))

    def mean_weight(self, chosen: Tensor) -> Tensor:
        """The mean weight on the chosen keys, over the queries that have such a key; no number if none has."""
        chosen = chosen & self.allowed
        asked = chosen.any(dim=-1)
        return (self.pattern * chosen).sum(dim=-1)[..., asked].mean(dim=-1)


def _entropy(s: LayerPatterns) -> Tensor:
    spread = -torch.special.xlogy(s.pattern, s.pattern).sum(dim=-1)
    most = s.allowed.sum(dim=-1).float().log()
    return (spread / most)[..., most > 0].mean(dim=-1)


def _same(s: LayerPatterns) -> Tensor:
    return torch.tensor([[query == key for key in s.key_tokens] for query in s.query_tokens])


def _induction(s: LayerPatterns) -> Tensor:
    """Keys that stand right after an earlier place of the query's own token."""
    after = torch.zeros_like(s.allowed)
    after[:, 1:] = _same(s)[:, :-1]
    return after & (s.distance >= 0)


def _mark(token: str) -> bool:
    return bool(token.strip(VISIBLE_BLANKS)) and not any(letter.isalnum() for letter in token)


def _distance(s: LayerPatterns) -> Tensor:
    """1 − what is left of the variance when each weight is replaced by the mean of its distance."""
    # head cell
    found = s.distance[s.allowed]
    cells = s.pattern[..., s.allowed]
    places = found - found.min()
    sums = cells.new_zeros(*cells.shape[:-1], int(places.max()) + 1).index_add(-1, places, cells)
    means = (sums / torch.bincount(places))[..., places]
    return 1 - (cells - means).square().sum(dim=-1) / (
        cells - cells.mean(dim=-1, keepdim=True)
    ).square().sum(dim=-1)


def _first(s: LayerPatterns) -> Tensor:
    return (torch.arange(len(s.key_tokens)) == 0) & s.not_self


def _marks(s: LayerPatterns) -> Tensor:
    return torch.tensor([_mark(key) for key in s.key_tokens]).expand_as(s.allowed)


HEAD_SCORES: dict[str, tuple[str, Callable[[LayerPatterns], Tensor]]] = {
    "entropy": (
        "entropy of a row / that of an even row: 0 looks at one key, 1 at all alike",
        _entropy,
    ),
    "previous": ("mean weight on the token before", lambda s: s.mean_weight(s.distance == 1)),
    "next": ("mean weight on the token after", lambda s: s.mean_weight(s.distance == -1)),
    "itself": ("mean weight of a token on itself", lambda s: s.mean_weight(s.distance == 0)),
    "first": ("mean weight on the first token, of all others", lambda s: s.mean_weight(_first(s))),
    "same": (
        "mean weight on other places of the same token, if there are any",
        lambda s: s.mean_weight(_same(s) & s.not_self),
    ),
    "induction": (
        "mean weight on what followed the same token before, if it occurred",
        lambda s: s.mean_weight(_induction(s)),
    ),
    "punctuation": (
        "mean weight on signs (no letter, no digit), if there are any",
        lambda s: s.mean_weight(_marks(s)),
    ),
    "position": (
        "share of the pattern's variance that the distance of key and query explains",
        _distance,
    ),
}
CROSS_ATTENTION_SCORES = (
    "entropy",
    "first",
    "same",
    "punctuation",
    "position",
)  # where query and key are of two texts


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores(View):
    """score × layer × head. Scores that nothing in the text could show (no token occurs twice) are left out."""

    patterns: View | None = None

    def terminal(self) -> "Text":
        """The heads that have most of each score, and what it is."""
        return self.best().terminal()

    def best(self, top: int = 5) -> View:
        """The heads that have most of each score, layer.head."""
        kinds = self.axes[0].labels
        ranked = [self._ranked(kind, top) for kind in kinds]
        values = torch.tensor([[value for value, _, _ in row] for row in ranked])
        words = tuple(tuple(f"{i}.{j}:" for _, i, j in row) for row in ranked)
        axes = (
            Axis.from_labels("score", kinds),
            Axis.from_labels("rank", [str(n + 1) for n in range(values.shape[1])]),
        )
        title = f"{self.title}: those that have most of each score, layer.head"
        return View(
            values, axes, title, "score", vmax=1.0, words=words, note=self.note.replace("; ", "\n")
        )

    def table(self) -> list[Row]:
        """A row for each head, with all its scores."""
        kinds, layers, heads = (axis.labels for axis in self.axes)
        return [
            {
                "layer": i,
                "head": j,
                **{kind: float(self.values[n, i, j]) for n, kind in enumerate(kinds)},
            }
            for i in range(len(layers))
            for j in range(len(heads))
        ]

    def patterns_by(self, score: str, top: int = 12) -> View:
        """The patterns of the heads that have most of a score, the first one first."""
        ranked = self._ranked(score, top)
        labels = [f"{i}.{j}  {value:.2f}" for value, i, j in ranked]
        assert self.patterns is not None
        values = torch.stack([self.patterns.values[i, j] for _, i, j in ranked])
        axes = (Axis.from_labels("head", labels), *self.patterns.axes[2:])
        return View(
            values,
            axes,
            f"heads by {score}",
            "pattern",
            vmax=1.0,
            note=f"{score}: {HEAD_SCORES[score][0]}",
        )

    def ranking(self, score: str, top: int = 20) -> View:
        """The heads that have most of a score, as bars."""
        ranked = self._ranked(score, top)
        axis = Axis.from_labels("head", [f"{i}.{j}" for _, i, j in ranked])
        values = torch.tensor([value for value, _, _ in ranked])
        return View(
            values, (axis,), f"heads by {score}", score, note=f"{score}: {HEAD_SCORES[score][0]}"
        )

    def _ranked(self, score: str, top: int) -> list[tuple[float, int, int]]:
        kinds = self.axes[0].labels
        if score not in HEAD_SCORES:
            raise ClearheadError(f"heads have no score {score!r}; {suggest(str(score), kinds)}")
        if score not in kinds:
            raise ClearheadError(f"nothing in this text shows {score!r}: {HEAD_SCORES[score][0]}.")
        values = self.values[kinds.index(score)]
        found = [
            (float(value), i, j) for i, row in enumerate(values) for j, value in enumerate(row)
        ]
        return sorted(found, key=lambda head: -head[0])[: check_top(top)]


@check_arguments
def head_scores(
    model: "Model", x: Any = None, *, kind: AttentionKind = "attention", **given: Any
) -> HeadScores:
    """What every head does with a text: how spread it looks, and at what."""
    patterns = attention(model, x, part=kind, **given)
    masked = attention(
        model, x, layer=0, head=0, part=kind, what="masked", **given
    )  # all heads see alike
    sides = patterns.axes[2].labels, patterns.axes[3].labels
    found = score_heads(patterns.values, sides, masked.values > -torch.inf, kind)
    return HeadScores(
        found.values,
        found.axes,
        found.title,
        found.value_name,
        vmax=1.0,
        note=found.note,
        patterns=patterns,
    )


def score_heads(
    patterns: Iterable[Tensor],
    sides: tuple[TokenLabels, TokenLabels],
    visible: Tensor,
    part: AttentionKind,
) -> View:
    """score × layer × head, of the patterns of one layer after another, so that they need not be held all at once.

    `sides` are the tokens of queries and keys, `visible` what a query may look at.
    """
    apart = (
        torch.ones_like(visible) if part == "cross" else ~torch.eye(len(visible), dtype=torch.bool)
    )
    kinds = CROSS_ATTENTION_SCORES if part == "cross" else tuple(HEAD_SCORES)
    scenes = (LayerPatterns(pattern, *sides, visible, apart) for pattern in patterns)
    values = torch.stack(
        [torch.stack([HEAD_SCORES[kind][1](scene) for kind in kinds]) for scene in scenes], dim=1
    )
    shown = [n for n, each in enumerate(values) if bool(each.isfinite().all())]
    names = [kinds[n] for n in shown]
    axes = (
        Axis.from_labels("score", names),
        Axis.from_labels("layer", values.shape[1]),
        Axis.from_labels("head", values.shape[2]),
    )
    note = "; ".join(f"{kind}: {HEAD_SCORES[kind][0]}" for kind in names)
    return View(
        values[shown], axes, f"{KIND_PREFIXES[part]}what the heads do", "score", vmax=1.0, note=note
    )


# ---- looks: Where a word looks (L3.6): how much attention each head lets it give the other words of its text.

WORD_PATTERN = rf"{re.escape(MASK_PLACEHOLDER)}|\w+(?:['’]\w+)*"
OTHER_RANKS = ("most else", "second", "third")  # words that a head also looks at


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WordAttention(View):
    """layer × head × word: what each head gives each word of a text."""

    word_index: int  # of the word that looks, among the words

    def find_heads(self, word: str, top: int = 8) -> View:
        """The heads, layer.head, that give most to a word, all its places together; and to what else they give most."""
        labels = self.axes[-1].labels
        asked = torch.tensor([label.casefold() == str(word).casefold() for label in labels])
        if not asked.any():
            raise ClearheadError(
                f"{word!r} is not in the text; {suggest(str(word), dict.fromkeys(labels))}"
            )
        flat = self.values.flatten(0, 1)
        own = flat[:, asked].sum(dim=-1)
        if not own.any() and int(asked.nonzero()[0]) > self.word_index:
            looks = labels[self.word_index]
            later = labels[int(asked.nonzero()[0])]
            why = f"{looks!r} cannot look at {later!r}, which comes after it: in a decoder a word can only look back"
            raise ClearheadError(
                f"{why}; ask the other way round, how {later!r} looks at {looks!r}."
            )
        best = own.topk(min(check_top(top), len(flat))).indices
        places = [i for i, mine in enumerate(asked.tolist()) if not mine]
        others = flat[best][:, ~asked].topk(min(len(OTHER_RANKS), len(places)))
        names = [f"{i // self.values.shape[1]}.{i % self.values.shape[1]}" for i in best.tolist()]
        words = tuple(
            (f"{word}:", *(f"{labels[places[i]]}:" for i in row)) for row in others.indices.tolist()
        )
        axes = (
            Axis.from_labels("head", names),
            Axis.from_labels("rank", (word, *OTHER_RANKS[: others.values.shape[1]])),
        )
        title = f"{self.title}: the heads, layer.head, in which it looks most at {word!r}"
        values = torch.cat((own[best][:, None], others.values), dim=1)
        return View(values, axes, title, self.value_name, vmax=1.0, words=words, note=self.note)


@check_arguments
def word_attention(model: "Model", word: str, text: str) -> WordAttention:
    """layer × head × word: the attention that a word gives each word of the text, however they are cut into tokens.

    It looks from its last token, which has read all of it, at all tokens of the other. What is missing from 1 goes to
    tokens of no word, such as the beginning of the text. Where a text has the word several times, the last is meant.
    An encoder-decoder is looked at where it reads: in its encoder. `.heads("fluffy")` finds those that look at a word.
    """
    side = InputSide(model)
    check_type(word, str, "a word")
    check_type(text, str, "a text")
    words = [
        (found[0], locate_word(side, text, *found.span()).word_positions)
        for found in re.finditer(WORD_PATTERN, text)
    ]
    own = [place for place, (name, _) in enumerate(words) if name.casefold() == word.casefold()]
    if not own:
        raise ClearheadError(f"{word!r} is not in {text!r:.80}; {suggest(word, dict(words))}")
    part = (
        attention(model, "", source=text, part="encoder")
        if side.is_encoder
        else attention(model, text)
    )
    row = part.values[:, :, words[own[-1]][1][-1]]  # layer head key
    values = torch.stack([row[..., tokens].sum(dim=-1) for _, tokens in words], dim=-1)
    axes = (
        Axis.from_labels("layer", values.shape[0]),
        Axis.from_labels("head", values.shape[1]),
        Axis.from_labels("word", [n for n, _ in words]),
    )
    note = "from the last token of the word, at its last place, to all tokens of the other; tokens of no word are left out"
    where = f"where {word!r} looks" + (", in the encoder" if model.net.encoder is not None else "")
    return WordAttention(values, axes, where, "weight", vmax=1.0, note=note, word_index=own[-1])
