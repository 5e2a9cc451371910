"""Views as matplotlib figures: bars, a heat map, or a grid of heat maps."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from clearhead.lens.render.colors import DARK, LIGHT, NEGATIVE, POSITIVE, Theme, color_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from clearhead.lens.attention import AttentionLines
    from clearhead.lens.view import View

# inches
CELL_SIZE = 0.24
LETTER_WIDTH = 0.09  # including the space around a word
PANEL_SIZE = 2.6
LARGE_PANEL_SIZE = 5.0  # where there are few panels
MAX_FIGURE_SIZE = 40

MAX_LARGE_PANELS = 4
POINTS_PER_INCH = 72


def render_figure(view: "View", dark: bool = False) -> "Figure":
    """The figure with its title and note."""
    from matplotlib.figure import Figure

    theme = DARK if dark else LIGHT
    if len(view.axes) == 1:
        height = 1.0 + CELL_SIZE * len(view.axes[0].labels)
        figure = Figure(figsize=(6.5, height), layout="constrained")
        _draw_bars(figure.add_subplot(), view, theme)
    else:
        figure = _heat_maps(view, theme)
    figure.set_facecolor(theme.background)
    title = escape_mathtext([view.title])[0]
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", color=theme.foreground, wrap=True)
    if view.note:
        note = escape_mathtext([view.note])[0]
        figure.supxlabel(note, fontsize=8, x=0.01, ha="left", color=theme.foreground, wrap=True)
    return figure


def render_lines_figure(view: "AttentionLines", dark: bool = False) -> "Figure":
    """An attention pattern as lines from queries on the left to keys on the right."""
    from matplotlib.figure import Figure

    theme = DARK if dark else LIGHT
    queries, keys = (axis.labels for axis in view.axes)
    num_lines = max(len(queries), len(keys))
    figure = Figure(
        figsize=(5, 0.6 + 0.22 * num_lines), layout="constrained", facecolor=theme.background
    )
    axes = figure.add_subplot(xlim=(-0.6, 1.6), ylim=(num_lines - 0.4, -0.6))
    axes.set_axis_off()
    axes.set_title(view.title, fontsize=10, loc="left", color=theme.foreground)
    for i, j, opacity in view.visible_lines():
        axes.plot((0, 1), (i, j), color=POSITIVE, alpha=opacity, linewidth=1.6)
    for x, alignment, labels in ((-0.03, "right", queries), (1.03, "left", keys)):
        for y, label in enumerate(escape_mathtext(labels)):
            axes.text(
                x,
                y,
                label,
                ha=alignment,
                va="center",
                fontsize=8,
                family="monospace",
                color=theme.foreground,
            )
    return figure


def render_curves_figure(view: "View", dark: bool = False) -> "Figure":
    """A curve over the last axis for each row of a matrix."""
    from matplotlib.figure import Figure

    theme = DARK if dark else LIGHT
    rows, columns = view.axes
    figure = Figure(
        figsize=(7, 1.2 + 1.2 * len(rows.labels)),
        layout="constrained",
        facecolor=theme.background,
    )
    title = escape_mathtext([view.title])[0]
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", color=theme.foreground)
    panels = figure.subplots(len(rows.labels), sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, label, values in zip(panels, rows.labels, view.numpy(), strict=True):
        axes.plot(values, color=POSITIVE, linewidth=1)
        axes.axhline(0, color=theme.foreground, linewidth=0.3)
        axes.set_ylabel(f"{rows.name} {label}", fontsize=8, color=theme.foreground)
        _style_axes(axes, theme, 7)
    panels[-1].set_xlabel(columns.name, fontsize=8, color=theme.foreground)
    return figure


def _draw_bars(axes: "Axes", view: "View", theme: Theme) -> None:
    values = view.values.tolist()
    colors = [POSITIVE if value >= 0 else NEGATIVE for value in values]
    axes.barh(range(len(values)), values, color=colors, height=0.8)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_yticks(range(len(values)), escape_mathtext(view.axes[0].labels))
    axes.axvline(0, color=theme.foreground, linewidth=0.6)
    axes.set_xlabel(view.value_name, fontsize=8, color=theme.foreground)
    _style_axes(axes, theme, 8)


def _heat_maps(view: "View", theme: Theme) -> "Figure":
    from matplotlib.figure import Figure

    panels, num_columns = view.panels()
    num_rows = -(-len(panels) // num_columns)
    is_single = len(panels) == 1
    down, across = view.axes[-2:]
    width, height = _panel_size(view, len(panels))
    width = min(width, MAX_FIGURE_SIZE / num_columns)
    height = min(height, MAX_FIGURE_SIZE / num_rows)
    figure = Figure(figsize=(width * num_columns, height * num_rows), layout="constrained")
    font_size = 8 if is_single else 6
    is_rotated = _max_length(across.labels) > 2
    # a digit is narrower than a line is high
    points = font_size * (1 if is_rotated else max(1, 0.7 * _max_length(across.labels)))
    for i, (title, values) in enumerate(panels):
        axes = figure.add_subplot(num_rows, num_columns, i + 1)
        image = _draw_heat_map(axes, values, view, theme)
        axes.set_title(escape_mathtext([title])[0], fontsize=9, loc="left", color=theme.foreground)
        in_first_column = i % num_columns == 0
        in_last_row = i + num_columns >= len(panels)
        axes.set_yticks(*_ticks(down.labels if in_first_column else (), height, font_size))
        axes.set_xticks(
            *_ticks(across.labels if in_last_row else (), width, points),
            rotation=90 if is_rotated else 0,
        )
        axes.set_ylabel(down.name if in_first_column else "", fontsize=8, color=theme.foreground)
        axes.set_xlabel(across.name if in_last_row else "", fontsize=8, color=theme.foreground)
        _style_axes(axes, theme, font_size)
        axes.spines[:].set(visible=not is_single, color=theme.foreground, linewidth=0.3)
    if view.color_limit == np.inf:
        return figure
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.6, label=view.value_name)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=7, labelcolor=theme.foreground)
    bar.ax.yaxis.label.set(color=theme.foreground, fontsize=8)
    return figure


def _panel_size(view: "View", num_panels: int) -> tuple[float, float]:
    down, across = view.axes[-2:]
    if view.cells is None:
        width = CELL_SIZE * len(across.labels)
    else:
        columns = zip(*view.cells, strict=True)
        width = LETTER_WIDTH * sum(map(_max_length, columns))
    height = CELL_SIZE * len(down.labels)
    if num_panels == 1:
        return max(3.0, width + 2.2), max(2.4, height + 1.6)
    largest = LARGE_PANEL_SIZE if num_panels <= MAX_LARGE_PANELS else PANEL_SIZE
    return min(max(PANEL_SIZE, width / 2), largest), min(max(PANEL_SIZE, height / 2), largest)


def _draw_heat_map(axes: "Axes", values: Tensor, view: "View", theme: Theme) -> "AxesImage":
    image = axes.imshow(
        np.ma.masked_invalid(values.numpy()),  # NaN and infinity have no color
        cmap=color_map(view.signed, theme),
        vmin=-view.color_limit if view.signed else 0,
        vmax=view.color_limit,
        interpolation="nearest",
        aspect="auto",
    )
    image.set_visible(view.color_limit < np.inf)
    for row, cells in enumerate(view.cells or ()):
        for column, text in enumerate(escape_mathtext(cells)):
            axes.text(
                column, row, text, fontsize=7, ha="center", va="center", color=theme.foreground
            )
    return image


def _ticks(labels: tuple[str, ...], inches: float, points: float) -> tuple[list[int], list[str]]:
    """As many evenly spaced labels as can be read; a fifth of the space is lost to margins."""
    space = 0.8 * inches * POINTS_PER_INCH
    step = math.ceil(len(labels) * points * 1.25 / space) or 1
    return list(range(0, len(labels), step)), escape_mathtext(labels[::step])


def _style_axes(axes: "Axes", theme: Theme, font_size: float) -> None:
    axes.set_facecolor(theme.background)
    axes.tick_params(
        length=0, labelsize=font_size, labelfontfamily="monospace", labelcolor=theme.foreground
    )
    axes.spines[:].set_visible(False)


def _max_length(words: tuple[str, ...]) -> int:
    return max(map(len, words), default=0)


def escape_mathtext(labels: Sequence[str]) -> list[str]:
    """Labels in which a dollar sign does not start a formula."""
    return [label.replace("$", r"\$") for label in labels]
