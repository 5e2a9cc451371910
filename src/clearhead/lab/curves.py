"""The pictures of an experiment: validation by step, every run as a dot, and the loss at other lengths."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.files import json_lines
from clearhead.lab.findings import metric_name
from clearhead.lab.summary import Row, Summary
from clearhead.lens.colours import LESS, MORE
from clearhead.train.curve import INK
from clearhead.train.diagnosis import Points, points
from clearhead.train.report import LOG

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (MORE, LESS, "#2f9e60", "#9c62c8", "#b98a00", "#d0507f", "#4f9da6", "#8a8f98")  # seen on white and on black
DASHES = ("-", "--", ":", "-.")  # for those who see few colours, and where there are more variants


def courses(row: Row, out: Path) -> list[Points]:
    """The validation losses of each run of a variant that came to its end."""
    logs = (json_lines(out / run.place / LOG) for run in row.runs if run.end != "diverged")
    return [found for lines in logs if (found := points(lines, "valid"))]


def by_step(summary: Summary, out: Path, size: tuple[float, float]) -> "Figure":
    """The mean of each variant's runs at each step that all of them have, and between which two they lie."""
    drawn, axes = _empty(size, "step", "validation loss")
    seen: list[tuple[int, float]] = []
    for i, row in enumerate(summary.rows):
        runs = [dict(course) for course in courses(row, out)]
        steps = sorted(set.intersection(*map(set, runs))) if runs else []
        each = [[run[step] for run in runs] for step in steps]
        seen += [(step, value) for step, values in zip(steps, each, strict=True) for value in values]
        dot = "o" if len(steps) == 1 else ""  # of which no line can be drawn
        axes.plot(steps, [statistics.fmean(values) for values in each], label=row.name, marker=dot, **_pen(i))
        if len(runs) > 1:
            axes.fill_between(steps, [min(v) for v in each], [max(v) for v in each], color=_colour(i), alpha=0.16, lw=0)
    steep = 0.1 * max((step for step, _ in seen), default=0)  # the beginning would hide the rest
    if settled := [value for step, value in seen if step > steep]:
        room = 0.06 * (max(settled) - min(settled)) or 0.1
        axes.set_ylim(min(settled) - room, max(settled) + room)
    return _legend(drawn, axes)


def by_run(summary: Summary, size: tuple[float, float]) -> "Figure":
    """Every run as a dot, and a line for the mean of each variant."""
    drawn, axes = _empty((size[0], 0.7 + 0.34 * len(summary.rows)), metric_name(summary.experiment.metric), "")
    for i, row in enumerate(summary.rows):
        axes.plot(row.values, [i] * len(row.values), "o", color=_colour(i), alpha=0.7, markersize=5)
        if row.mean is not None:
            axes.plot([row.mean] * 2, [i - 0.28, i + 0.28], color=_colour(i), linewidth=2)
    axes.set_yticks(range(len(summary.rows)), [row.name for row in summary.rows], color=INK["ink"])
    axes.set_ylim(len(summary.rows) - 0.4, -0.6)
    axes.grid(axis="x", color=INK["grid"], linewidth=0.8)
    axes.grid(visible=False, axis="y")
    return drawn


def lengths(row: Row) -> dict[int, list[float]]:
    """The losses of a variant's runs at each length that it can read."""
    found: dict[int, list[float]] = {}
    for length, told in (pair for run in row.runs for pair in run.lengths.items() if pair[1]):
        found.setdefault(int(length), []).append(told["loss"])
    return dict(sorted(found.items()))


def by_length(summary: Summary, size: tuple[float, float]) -> "Figure":
    drawn, axes = _empty(size, "tokens of a text that are read at once", "loss on what is held out")
    axes.set_xscale("log", base=2)
    ticks = sorted({length for row in summary.rows for length in lengths(row)})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    for i, row in enumerate(summary.rows):
        found = {length: statistics.fmean(losses) for length, losses in lengths(row).items()}
        axes.plot([*found], [*found.values()], label=row.name, marker="o", markersize=4, **_pen(i))
    for own in {v.config.train.length or v.config.model.context for v in summary.experiment.variants}:
        axes.axvline(own, color=INK["quiet"], linewidth=1, linestyle=":")
    return _legend(drawn, axes)


def _empty(size: tuple[float, float], across: str, up: str) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=size, layout="constrained", facecolor="none")
    axes = drawn.add_subplot(facecolor="none")
    axes.set_xlabel(across, color=INK["quiet"], fontsize=9)
    axes.set_ylabel(up, color=INK["quiet"], fontsize=9)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK["quiet"], labelsize=9)
    axes.grid(axis="y", color=INK["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    return drawn, axes


def _legend(drawn: "Figure", axes: "Axes") -> "Figure":
    handles, names = axes.get_legend_handles_labels()
    columns = max(1, int(drawn.get_size_inches()[0] * 12 // (6 + max(map(len, names), default=1))))
    drawn.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, labelcolor=INK["ink"],
                 fontsize=9, handlelength=2.0, columnspacing=1.6)  # fmt: skip
    return drawn


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _pen(i: int) -> dict[str, Any]:
    return {"color": _colour(i), "linestyle": DASHES[i // len(COLOURS) % len(DASHES)], "linewidth": 1.6}
