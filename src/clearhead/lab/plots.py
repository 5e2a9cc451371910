"""Plots of an experiment: loss by step, each run, and loss by sequence length."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clearhead.io import read_log
from clearhead.lab.experiment import metric_title
from clearhead.lab.stats import Summary
from clearhead.lens.render.colors import NEGATIVE, POSITIVE
from clearhead.train.checkpoint import LOG_FILE
from clearhead.train.diagnosis import Curve, curve_of
from clearhead.train.plots import COLORS, add_legend, limit_to_flat_part, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = (9.0, 4.4)
NARROW = (4.2, 4.4)
VARIANT_COLORS = (  # legible on white and on black
    POSITIVE,
    NEGATIVE,
    "#2f9e60",
    "#9c62c8",
    "#b98a00",
    "#d0507f",
    "#4f9da6",
    "#8a8f98",
)
LINE_STYLES = ("-", "--", ":", "-.")  # change when the colors repeat


def plot_by_step(summary: Summary, output: Path, size: tuple[float, float]) -> "Figure":
    """Validation loss by step: mean of each variant's runs, and the range between them."""
    figure, axes = _new_plot(size, "step", "validation loss")
    points: Curve = []
    for i, row in enumerate(summary.rows):
        curves = [
            curve_of(read_log(output / run.path / LOG_FILE), "valid_loss")
            for run in row.runs
            if run.status != "diverged"
        ]
        runs = [dict(curve) for curve in curves if curve]
        steps = sorted(set.intersection(*map(set, runs))) if runs else []
        losses = [[run[step] for run in runs] for step in steps]
        for step, values in zip(steps, losses, strict=True):
            points += [(step, value) for value in values]
        axes.plot(
            steps,
            [statistics.fmean(values) for values in losses],
            label=row.name,
            marker="o" if len(steps) == 1 else "",  # a single point has no line
            **_line_style(i),
        )
        if len(runs) > 1:
            lowest = [min(values) for values in losses]
            highest = [max(values) for values in losses]
            axes.fill_between(steps, lowest, highest, color=_color(i), alpha=0.16, lw=0)
    limit_to_flat_part(axes, points, 0.1)
    _add_legend(figure, axes)
    return figure


def plot_runs(summary: Summary, size: tuple[float, float]) -> "Figure":
    """Each run as a dot, and a line for the mean of each variant."""
    num_rows = len(summary.rows)
    height = 0.7 + 0.34 * num_rows
    figure, axes = _new_plot((size[0], height), metric_title(summary.experiment.metric), grid="x")
    for i, row in enumerate(summary.rows):
        axes.plot(row.values, [i] * len(row.values), "o", color=_color(i), alpha=0.7, markersize=5)
        if row.mean is not None:
            axes.plot([row.mean] * 2, [i - 0.28, i + 0.28], color=_color(i), linewidth=2)
    axes.set_yticks(range(num_rows), [row.name for row in summary.rows], color=COLORS["ink"])
    axes.set_ylim(num_rows - 0.4, -0.6)
    return figure


def plot_by_length(summary: Summary, size: tuple[float, float]) -> "Figure":
    figure, axes = _new_plot(size, "sequence length", "validation loss")
    axes.set_xscale("log", base=2)
    lengths = sorted({length for row in summary.rows for length in row.losses_by_length})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    for i, row in enumerate(summary.rows):
        losses = row.losses_by_length
        means = [statistics.fmean(values) for values in losses.values()]
        axes.plot([*losses], means, label=row.name, marker="o", markersize=4, **_line_style(i))
    configs = [variant.config for variant in summary.experiment.variants]
    for length in {config.train.seq_len or config.model.context_length for config in configs}:
        axes.axvline(length, color=COLORS["quiet"], linewidth=1, linestyle=":")
    _add_legend(figure, axes)
    return figure


def _new_plot(
    size: tuple[float, float], x_label: str, y_label: str = "", grid: Literal["x", "y"] = "y"
) -> tuple["Figure", "Axes"]:
    figure = new_figure(size)
    axes = figure.add_subplot()
    style_axes(axes, x_label, y_label, grid)
    return figure, axes


def _add_legend(figure: "Figure", axes: "Axes") -> None:
    names = axes.get_legend_handles_labels()[1]
    max_name_length = max(map(len, names), default=1)
    num_columns = int(figure.get_size_inches()[0] * 12 // (6 + max_name_length))
    add_legend(figure, axes, max(1, num_columns))


def _color(i: int) -> str:
    return VARIANT_COLORS[i % len(VARIANT_COLORS)]


def _line_style(i: int) -> dict[str, Any]:
    style = LINE_STYLES[i // len(VARIANT_COLORS) % len(LINE_STYLES)]
    return {"color": _color(i), "linestyle": style, "linewidth": 1.6}
