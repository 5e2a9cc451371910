"""An atlas of heads: what each of them does, as numbers whose definitions are told, to sort them by."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, nearest
from clearhead.lens.attention import KIND, attention
from clearhead.lens.given import known_names
from clearhead.lens.parts import Part, check_top
from clearhead.lens.view import Axis, Row, View
from clearhead.tokens.text import VISIBLE

if TYPE_CHECKING:
    from rich.text import Text

    from clearhead.api import Model

Labels = tuple[str, ...]
BLANK = "".join(VISIBLE.values())  # as labels show it


@dataclass(frozen=True)
class Scene:
    """What a definition may look at: all patterns of a layer, and the tokens on both sides."""

    pattern: Tensor  # head query key
    queries: Labels
    keys: Labels
    visible: Tensor  # query key: what a query may look at
    apart: Tensor  # query key: what is not the query itself

    @property
    def back(self) -> Tensor:
        """How far each key lies before each query."""
        return torch.arange(len(self.queries))[:, None] - torch.arange(len(self.keys))

    def on(self, chosen: Tensor) -> Tensor:
        """The mean weight on the chosen keys, over the queries that have such a key; no number if none has."""
        chosen = chosen & self.visible
        asked = chosen.any(dim=-1)
        return (self.pattern * chosen).sum(dim=-1)[..., asked].mean(dim=-1)


def _entropy(s: Scene) -> Tensor:
    spread = -torch.special.xlogy(s.pattern, s.pattern).sum(dim=-1)
    most = s.visible.sum(dim=-1).float().log()
    return (spread / most)[..., most > 0].mean(dim=-1)


def _same(s: Scene) -> Tensor:
    return torch.tensor([[query == key for key in s.keys] for query in s.queries])


def _induction(s: Scene) -> Tensor:
    """Keys that stand right after an earlier place of the query's own token."""
    after = torch.zeros_like(s.visible)
    after[:, 1:] = _same(s)[:, :-1]
    return after & (s.back >= 0)


def _mark(token: str) -> bool:
    return bool(token.strip(BLANK)) and not any(letter.isalnum() for letter in token)


def _distance(s: Scene) -> Tensor:
    """1 − what is left of the variance when each weight is replaced by the mean of its distance."""
    found, cells = s.back[s.visible], s.pattern[..., s.visible]  # head cell
    places = found - found.min()
    sums = cells.new_zeros(*cells.shape[:-1], int(places.max()) + 1).index_add(-1, places, cells)
    means = (sums / torch.bincount(places))[..., places]
    return 1 - (cells - means).square().sum(dim=-1) / (cells - cells.mean(dim=-1, keepdim=True)).square().sum(dim=-1)


def _first(s: Scene) -> Tensor:
    return (torch.arange(len(s.keys)) == 0) & s.apart


def _marks(s: Scene) -> Tensor:
    return torch.tensor([_mark(key) for key in s.keys]).expand_as(s.visible)


SCORES: dict[str, tuple[str, Callable[[Scene], Tensor]]] = {
    "entropy": ("entropy of a row / that of an even row: 0 looks at one key, 1 at all alike", _entropy),
    "previous": ("mean weight on the token before", lambda s: s.on(s.back == 1)),
    "next": ("mean weight on the token after", lambda s: s.on(s.back == -1)),
    "itself": ("mean weight of a token on itself", lambda s: s.on(s.back == 0)),
    "first": ("mean weight on the first token, of all others", lambda s: s.on(_first(s))),
    "same": ("mean weight on other places of the same token, if there are any", lambda s: s.on(_same(s) & s.apart)),
    "induction": ("mean weight on what followed the same token before, if it occurred", lambda s: s.on(_induction(s))),
    "punctuation": ("mean weight on signs (no letter, no digit), if there are any", lambda s: s.on(_marks(s))),
    "position": ("share of the pattern's variance that the distance of key and query explains", _distance),
}
BETWEEN_TEXTS = ("entropy", "first", "same", "punctuation", "position")  # where query and key are of two texts


@dataclass(frozen=True, eq=False, repr=False)
class Atlas(View):
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
        axes = Axis.of("score", kinds), Axis.of("rank", [str(n + 1) for n in range(values.shape[1])])
        title = f"{self.title}: those that have most of each score, layer.head"
        return View(values, axes, title, "score", most=1.0, words=words, note=self.note.replace("; ", "\n"))

    def table(self) -> list[Row]:
        """A row for each head, with all its scores."""
        kinds, layers, heads = (axis.labels for axis in self.axes)
        return [
            {"layer": i, "head": j, **{kind: float(self.values[n, i, j]) for n, kind in enumerate(kinds)}}
            for i in range(len(layers))
            for j in range(len(heads))
        ]

    def by(self, score: str, top: int = 12) -> View:
        """The patterns of the heads that have most of a score, the first one first."""
        ranked = self._ranked(score, top)
        labels = [f"{i}.{j}  {value:.2f}" for value, i, j in ranked]
        assert self.patterns is not None
        values = torch.stack([self.patterns.values[i, j] for _, i, j in ranked])
        axes = (Axis.of("head", labels), *self.patterns.axes[2:])
        return View(values, axes, f"heads by {score}", "pattern", most=1.0, note=f"{score}: {SCORES[score][0]}")

    def ranking(self, score: str, top: int = 20) -> View:
        """The heads that have most of a score, as bars."""
        ranked = self._ranked(score, top)
        axis = Axis.of("head", [f"{i}.{j}" for _, i, j in ranked])
        values = torch.tensor([value for value, _, _ in ranked])
        return View(values, (axis,), f"heads by {score}", score, note=f"{score}: {SCORES[score][0]}")

    def _ranked(self, score: str, top: int) -> list[tuple[float, int, int]]:
        kinds = self.axes[0].labels
        if score not in SCORES:
            raise ClearheadError(f"heads have no score {score!r}; {nearest(str(score), kinds)}")
        if score not in kinds:
            raise ClearheadError(f"nothing in this text shows {score!r}: {SCORES[score][0]}.")
        values = self.values[kinds.index(score)]
        found = [(float(value), i, j) for i, row in enumerate(values) for j, value in enumerate(row)]
        return sorted(found, key=lambda head: -head[0])[: check_top(top)]


@known_names
def atlas(model: "Model", x: Any = None, *, part: Part = "attention", **given: Any) -> Atlas:
    """What every head does with a text: how spread it looks, and at what."""
    patterns = attention(model, x, part=part, **given)
    masked = attention(model, x, layer=0, head=0, part=part, what="masked", **given)  # all heads see alike
    sides = patterns.axes[2].labels, patterns.axes[3].labels
    found = scored(patterns.values, sides, masked.values > -torch.inf, part)
    return Atlas(found.values, found.axes, found.title, found.measure, most=1.0, note=found.note, patterns=patterns)


def scored(patterns: Iterable[Tensor], sides: tuple[Labels, Labels], visible: Tensor, part: Part) -> View:
    """score × layer × head, of the patterns of one layer after another, so that they need not be held all at once.

    `sides` are the tokens of queries and keys, `visible` what a query may look at.
    """
    apart = torch.ones_like(visible) if part == "cross" else ~torch.eye(len(visible), dtype=torch.bool)
    kinds = BETWEEN_TEXTS if part == "cross" else tuple(SCORES)
    scenes = (Scene(pattern, *sides, visible, apart) for pattern in patterns)
    values = torch.stack([torch.stack([SCORES[kind][1](scene) for kind in kinds]) for scene in scenes], dim=1)
    shown = [n for n, each in enumerate(values) if bool(each.isfinite().all())]
    names = [kinds[n] for n in shown]
    axes = Axis.of("score", names), Axis.of("layer", values.shape[1]), Axis.of("head", values.shape[2])
    note = "; ".join(f"{kind}: {SCORES[kind][0]}" for kind in names)
    return View(values[shown], axes, f"{KIND[part]}what the heads do", "score", most=1.0, note=note)
