"""Views as figures of matplotlib's: bars, a map, or maps side by side."""

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from clearhead.lens.colours import DARK, LESS, LIGHT, MORE, Theme, colour_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from clearhead.lens.view import View

CELL, PANEL = 0.24, 2.6  # inches of a labelled cell, and of one map among many
READABLE = 32  # labels along the side of one map among many


def figure(view: "View", dark: bool = False) -> "Figure":
    from matplotlib.figure import Figure

    theme = DARK if dark else LIGHT
    if len(view.axes) == 1:
        drawn = Figure(figsize=(6.5, 1.0 + CELL * len(view.axes[0].labels)), layout="constrained")
        _bars(drawn.add_subplot(), view, theme)
    else:
        drawn = _maps(view, theme)
    drawn.set_facecolor(theme.paper)
    drawn.suptitle(plain([view.title])[0], fontsize=10, x=0.01, ha="left", color=theme.ink)
    if view.note:
        drawn.supxlabel(plain([view.note])[0], fontsize=8, x=0.01, ha="left", color=theme.ink, wrap=True)
    return drawn


def _bars(axes: "Axes", view: "View", theme: Theme) -> None:
    values = view.values.tolist()
    axes.barh(range(len(values)), values, color=[MORE if value >= 0 else LESS for value in values], height=0.8)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_yticks(range(len(values)), plain(view.axes[0].labels))
    axes.axvline(0, color=theme.ink, linewidth=0.6)
    axes.set_xlabel(view.measure, fontsize=8, color=theme.ink)
    _bare(axes, theme, 8)


def _maps(view: "View", theme: Theme) -> "Figure":
    from matplotlib.figure import Figure

    panels, side = view.panels()
    down, across = view.axes[-2:]
    rows, alone = -(-len(panels) // side), len(panels) == 1
    wide = CELL * len(across.labels) if view.words is None else 0.09 * sum(map(_widest, zip(*view.words, strict=True)))
    size = (max(3.0, wide + 2.2), max(2.4, CELL * len(down.labels) + 1.6)) if alone else (PANEL, PANEL)
    drawn = Figure(figsize=(min(size[0] * side, 40), min(size[1] * rows, 40)), layout="constrained")
    for number, (title, values) in enumerate(panels):
        axes = drawn.add_subplot(rows, side, number + 1)
        picture = _map(axes, values, view, theme)
        axes.set_title(plain([title])[0], fontsize=9, loc="left", color=theme.ink)
        fits = alone or max(len(down.labels), len(across.labels)) <= READABLE
        first, last = fits and number % side == 0, fits and number + side >= len(panels)  # the outer edges
        axes.set_yticks(*_ticks(down.labels if first else ()))
        axes.set_xticks(*_ticks(across.labels if last else ()), rotation=90 if _widest(across.labels) > 2 else 0)
        axes.set_ylabel(down.name if first else "", fontsize=8, color=theme.ink)
        axes.set_xlabel(across.name if last else "", fontsize=8, color=theme.ink)
        _bare(axes, theme, 8 if alone else 6)
    if view.full == np.inf:
        return drawn
    bar = drawn.colorbar(picture, ax=drawn.axes, shrink=0.6, label=view.measure)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=7, labelcolor=theme.ink)
    bar.ax.yaxis.label.set(color=theme.ink, fontsize=8)
    return drawn


def _map(axes: "Axes", values: Tensor, view: "View", theme: Theme) -> "AxesImage":
    seen = np.ma.masked_invalid(values.numpy())  # what is −∞ or no number has no colour
    low = -view.full if view.signed else 0
    look = colour_map(view.signed, theme)
    picture = axes.imshow(seen, cmap=look, vmin=low, vmax=view.full, interpolation="nearest", aspect="auto")
    picture.set_visible(view.full < np.inf)
    for row, words in enumerate(view.words or ()):
        for column, word in enumerate(plain(words)):
            axes.text(column, row, word, fontsize=7, ha="center", va="center", color=theme.ink)
    return picture


def _ticks(labels: tuple[str, ...]) -> tuple[list[int], list[str]]:
    every = -(-len(labels) // 200) or 1  # more cannot be read on any page
    return list(range(0, len(labels), every)), plain(labels[::every])


def _bare(axes: "Axes", theme: Theme, size: float) -> None:
    axes.set_facecolor(theme.paper)
    axes.tick_params(length=0, labelsize=size, labelfontfamily="monospace", labelcolor=theme.ink)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _widest(words: "tuple[str, ...]") -> int:
    return max(map(len, words), default=0)


def plain(tokens: "list[str] | tuple[str, ...]") -> list[str]:
    return [token.replace("$", r"\$") for token in tokens]  # a dollar would start a formula
