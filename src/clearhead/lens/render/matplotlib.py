"""Views as figures of matplotlib's: bars, a map, or maps side by side."""

import math
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from clearhead.lens.render.colors import DARK, LIGHT, NEGATIVE, POSITIVE, Theme, color_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from clearhead.lens.view import View

CELL = 0.24  # inches of a labelled cell
# inches of one map among many, and the most if they are few
PANEL = 2.6
LARGE = 5.0
FEW = 4
LETTER = 0.09  # inches of a letter in a cell, with some space around the word


def render_figure(view: "View", dark: bool = False) -> "Figure":
    from matplotlib.figure import Figure

    theme = DARK if dark else LIGHT
    if len(view.axes) == 1:
        drawn = Figure(figsize=(6.5, 1.0 + CELL * len(view.axes[0].labels)), layout="constrained")
        _bars(drawn.add_subplot(), view, theme)
    else:
        drawn = _maps(view, theme)
    drawn.set_facecolor(theme.background)
    drawn.suptitle(
        escape_mathtext([view.title])[0],
        fontsize=10,
        x=0.01,
        ha="left",
        color=theme.foreground,
        wrap=True,
    )
    if view.note:
        drawn.supxlabel(
            escape_mathtext([view.note])[0],
            fontsize=8,
            x=0.01,
            ha="left",
            color=theme.foreground,
            wrap=True,
        )
    return drawn


def _bars(axes: "Axes", view: "View", theme: Theme) -> None:
    values = view.values.tolist()
    axes.barh(
        range(len(values)),
        values,
        color=[POSITIVE if value >= 0 else NEGATIVE for value in values],
        height=0.8,
    )
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_yticks(range(len(values)), escape_mathtext(view.axes[0].labels))
    axes.axvline(0, color=theme.foreground, linewidth=0.6)
    axes.set_xlabel(view.value_name, fontsize=8, color=theme.foreground)
    _bare(axes, theme, 8)


def _maps(view: "View", theme: Theme) -> "Figure":
    from matplotlib.figure import Figure

    panels, side = view.panels()
    down, across = view.axes[-2:]
    rows = -(-len(panels) // side)
    alone = len(panels) == 1
    words = view.cells
    wide = (
        CELL * len(across.labels)
        if words is None
        else LETTER * sum(map(_widest, zip(*words, strict=True)))
    )
    if alone:
        size = max(3.0, wide + 2.2), max(2.4, CELL * len(down.labels) + 1.6)
    else:
        most = LARGE if len(panels) <= FEW else PANEL
        size = min(max(PANEL, wide / 2), most), min(max(PANEL, CELL * len(down.labels) / 2), most)
    size = min(size[0], 40 / side), min(size[1], 40 / rows)
    drawn = Figure(figsize=(size[0] * side, size[1] * rows), layout="constrained")
    for number, (title, values) in enumerate(panels):
        axes = drawn.add_subplot(rows, side, number + 1)
        picture = _map(axes, values, view, theme)
        axes.set_title(escape_mathtext([title])[0], fontsize=9, loc="left", color=theme.foreground)
        # the outer edges
        first = number % side == 0
        last = number + side >= len(panels)
        letters = 8 if alone else 6
        axes.set_yticks(*_ticks(down.labels if first else (), size[1], letters))
        turned = _widest(across.labels) > 2
        flat = (
            1 if turned else max(1, 0.7 * _widest(across.labels))
        )  # a digit is narrower than a line is high
        axes.set_xticks(
            *_ticks(across.labels if last else (), size[0], letters * flat),
            rotation=90 if turned else 0,
        )
        axes.set_ylabel(down.name if first else "", fontsize=8, color=theme.foreground)
        axes.set_xlabel(across.name if last else "", fontsize=8, color=theme.foreground)
        _bare(axes, theme, letters)
        axes.spines[:].set(visible=not alone, color=theme.foreground, linewidth=0.3)
    if view.color_limit == np.inf:
        return drawn
    bar = drawn.colorbar(picture, ax=drawn.axes, shrink=0.6, label=view.value_name)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=7, labelcolor=theme.foreground)
    bar.ax.yaxis.label.set(color=theme.foreground, fontsize=8)
    return drawn


def _map(axes: "Axes", values: Tensor, view: "View", theme: Theme) -> "AxesImage":
    seen = np.ma.masked_invalid(values.numpy())  # what is −∞ or no number has no colour
    low = -view.color_limit if view.signed else 0
    look = color_map(view.signed, theme)
    picture = axes.imshow(
        seen, cmap=look, vmin=low, vmax=view.color_limit, interpolation="nearest", aspect="auto"
    )
    picture.set_visible(view.color_limit < np.inf)
    for row, words in enumerate(view.cells or ()):
        for column, word in enumerate(escape_mathtext(words)):
            axes.text(
                column, row, word, fontsize=7, ha="center", va="center", color=theme.foreground
            )
    return picture


def _ticks(labels: tuple[str, ...], inches: float, points: float) -> tuple[list[int], list[str]]:
    """As many labels as can be read side by side, evenly; a fifth of the room is lost to margins."""
    every = math.ceil(len(labels) * points * 1.25 / (0.8 * inches * 72)) or 1
    return list(range(0, len(labels), every)), escape_mathtext(labels[::every])


def _bare(axes: "Axes", theme: Theme, size: float) -> None:
    axes.set_facecolor(theme.background)
    axes.tick_params(
        length=0, labelsize=size, labelfontfamily="monospace", labelcolor=theme.foreground
    )
    for spine in axes.spines.values():
        spine.set_visible(False)


def _widest(words: "tuple[str, ...]") -> int:
    return max(map(len, words), default=0)


def escape_mathtext(tokens: "list[str] | tuple[str, ...]") -> list[str]:
    return [token.replace("$", r"\$") for token in tokens]  # a dollar would start a formula
