"""Plot of the loss by step, and what the plots of all reports share: style, PNG and SVG."""

import io
import math
import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from clearhead.train.diagnosis import Curve, Line, curve_of, moving_average

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 1500  # per line of a plot; longer curves are averaged
MIN_SMOOTHED_POINTS = 12
MAX_MARKERS = 60
COLORS = {  # on white; a page replaces them by CSS variables
    "ink": "#1f2328",
    "quiet": "#6e7781",
    "grid": "#e7e9ec",
    "train": "#3b6fd4",
    "valid": "#d9480f",
    "range": "#2f9e60",
    "lr": "#9aa4b1",
}


def plot_loss(
    lines: Sequence[Line], expected: Sequence[float] = (), size: tuple[float, float] = (8.0, 4.6)
) -> "Figure":
    """Training loss (raw and smoothed), validation loss, expected range and learning rate."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = new_figure(size)
    loss_axes, lr_axes = figure.subplots(2, 1, sharex=True, height_ratios=(8, 1))
    style_axes(loss_axes, y_label="loss", grid="y")
    style_axes(lr_axes, x_label="step", y_label="lr")
    train = curve_of(lines, "loss")
    valid = curve_of(lines, "valid_loss")
    is_wide = size[0] > 6

    _plot_expected(loss_axes, expected)
    _plot_training(loss_axes, downsample(train))
    _plot_validation(loss_axes, valid)
    points = [*moving_average(train), *valid]
    limit_to_flat_part(loss_axes, points, 0.03, [*expected[1::3], *expected[2::3]])

    lr_curve = downsample(curve_of(lines, "lr_factor"))
    lr_axes.fill_between(*_columns(lr_curve), color=COLORS["lr"], alpha=0.35, linewidth=0)
    lr_axes.set_ylim(0, 1.1)
    lr_axes.set_yticks([])
    lr_axes.set_xlim(0, max(lines[-1]["step"] * 1.01, *expected[::3], 1))
    locator = MaxNLocator(6 if is_wide else 4, integer=True, steps=[1, 2, 5, 10])
    lr_axes.xaxis.set_major_locator(locator)
    lr_axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    figure.align_ylabels()
    add_legend(figure, loss_axes, num_columns=4 if is_wide else 2)
    return figure


def _plot_expected(axes: "Axes", expected: Sequence[float]) -> None:
    steps = expected[::3]
    low = expected[1::3]
    high = expected[2::3]
    style: dict[str, Any] = {"color": COLORS["range"], "label": "expected"}
    if len(steps) > 1:
        axes.fill_between(steps, low, high, alpha=0.16, linewidth=0, **style)
    elif steps:
        axes.plot([*steps, *steps], [*low, *high], alpha=0.4, linewidth=7, **style)


def _plot_training(axes: "Axes", train: Curve) -> None:
    if not train:
        return
    style: dict[str, Any] = {"color": COLORS["train"]}
    if len(train) < MIN_SMOOTHED_POINTS:
        axes.plot(*_columns(train), linewidth=0.9, marker=".", label="training", **style)
        return
    axes.plot(*_columns(train), alpha=0.3, linewidth=0.9, **style)
    window = 2 * (len(train) // 120) + 3
    smooth = moving_average(moving_average(train, window), window)
    axes.plot(*_columns(smooth), linewidth=1.8, label="training", **style)


def _plot_validation(axes: "Axes", valid: Curve) -> None:
    if not valid:
        return
    style: dict[str, Any] = {"color": COLORS["valid"]}
    axes.plot(
        *_columns(downsample(valid)),
        linewidth=1.4,
        marker="o" if len(valid) <= MAX_MARKERS else "",
        markersize=4,
        label="validation",
        **style,
    )
    step, best = min(valid, key=lambda point: point[1])
    axes.plot(
        [step],
        [best],
        marker="o",
        markersize=9,
        markerfacecolor="none",
        markeredgewidth=1.4,
        linestyle="none",
        label=f"best: {best:.4g} at step {step:,}",
        **style,
    )


def _columns(curve: Curve) -> tuple[list[int], list[float]]:
    """Steps and values."""
    return [step for step, _ in curve], [value for _, value in curve]


def downsample(curve: Curve) -> Curve:
    """At most `MAX_POINTS` points, each the mean of equally many neighbors."""
    size = max(1, math.ceil(len(curve) / MAX_POINTS))
    groups = [curve[i : i + size] for i in range(0, len(curve), size)]
    return [(group[-1][0], statistics.fmean(value for _, value in group)) for group in groups]


# --- shared by the plots of all reports


def new_figure(size: tuple[float, float]) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained", facecolor="none")


def style_axes(
    axes: "Axes", x_label: str = "", y_label: str = "", grid: Literal["x", "y", ""] = ""
) -> None:
    """Axes without frame and ticks, with grid lines along one axis."""
    axes.set_facecolor("none")
    axes.set_xlabel(x_label, color=COLORS["quiet"], fontsize=9)
    axes.set_ylabel(y_label, color=COLORS["quiet"], fontsize=9)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=COLORS["quiet"], labelsize=9)
    if grid:
        axes.grid(axis=grid, color=COLORS["grid"], linewidth=0.8)
        axes.set_axisbelow(True)


def limit_to_flat_part(
    axes: "Axes", points: Curve, skipped_fraction: float, other_values: Sequence[float] = ()
) -> None:
    """Set limits that leave out the steep first steps, so that the long flat part is legible."""
    min_step = skipped_fraction * max((step for step, _ in points), default=0)
    values = [value for step, value in points if step > min_step]
    values += other_values
    if values:
        margin = 0.06 * (max(values) - min(values)) or 0.1
        axes.set_ylim(min(values) - margin, max(values) + margin)


def add_legend(figure: "Figure", axes: "Axes", num_columns: int) -> None:
    """Add a legend of the labeled lines above the axes."""
    figure.legend(
        handles=axes.get_legend_handles_labels()[0],
        loc="outside upper left",
        ncols=num_columns,
        frameon=False,
        labelcolor=COLORS["ink"],
        fontsize=9,
        handlelength=2.0,
        columnspacing=1.6,
    )


def to_png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def to_svg(figure: "Figure", prefix: str) -> str:
    """SVG for a page: text stays text, colors are the page's variables, ids have the prefix."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style).*?</\1>|<style[^>]*/>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    for name, color in COLORS.items():
        svg = svg.replace(color, f"var(--{name})")
    svg = re.sub(r"font-family:[^;\"]*;?", "", svg)  # the page's font
    # The page sizes the drawing: drop the width and height of the svg element.
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"|height="[\d.]+pt"',
        lambda match: f"<svg {match[1]}" if match[1] else "",
        svg,
        count=2,
    )
