"""The course of a run as a picture: one drawing, for a file of pixels and for a page that has light and dark."""

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clearhead.train.diagnosis import Line, Points, points, smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 1500  # points of a line; a longer run is drawn as means
INK = {  # roles and their colours on white; a page puts its own in their place
    "ink": "#1f2328",
    "quiet": "#6e7781",
    "grid": "#e7e9ec",
    "train": "#3b6fd4",
    "valid": "#d9480f",
    "range": "#2f9e60",
    "rate": "#9aa4b1",
}


def figure(lines: Sequence[Line], expected: Sequence[float] = (), size: tuple[float, float] = (8.0, 4.6)) -> "Figure":
    """Training loss (thin, and smoothed), validations, the best of them, what is expected, and the schedule below."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    drawn = Figure(figsize=size, layout="constrained", facecolor="none")
    above, below = drawn.subplots(2, 1, sharex=True, height_ratios=(8, 1))
    train, valid = points(lines, "loss"), points(lines, "valid")
    _expected(above, expected)
    _training(above, thin(train))
    _validation(above, valid)
    above.set_ylim(*_limits(train, valid, expected))
    rate = thin(points(lines, "factor"))
    below.fill_between(*_columns(rate), color=INK["rate"], alpha=0.35, linewidth=0)
    below.set_ylim(0, 1.1)
    below.set_yticks([])
    below.set_xlim(0, max(lines[-1]["step"] * 1.01, *expected[::3], 1))
    below.set_xlabel("step", color=INK["quiet"], fontsize=9)
    below.xaxis.set_major_locator(MaxNLocator(6 if size[0] > 6 else 4, integer=True, steps=[1, 2, 5, 10]))
    below.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    for axes, name in ((above, "loss"), (below, "rate")):
        axes.set_ylabel(name, color=INK["quiet"], fontsize=9)
        axes.set_facecolor("none")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelcolor=INK["quiet"], labelsize=9)
    drawn.align_ylabels()
    above.grid(axis="y", color=INK["grid"], linewidth=0.8)
    above.set_axisbelow(True)
    handles = above.get_legend_handles_labels()[0]
    if handles:
        drawn.legend(handles=handles, loc="outside upper left", ncols=2 if size[0] < 6 else 4, frameon=False,
                     labelcolor=INK["ink"], fontsize=9, handlelength=1.6, columnspacing=1.6)  # fmt: skip
    return drawn


def _expected(axes: "Axes", expected: Sequence[float]) -> None:
    steps, lowest, highest = expected[::3], expected[1::3], expected[2::3]
    if len(steps) > 1:
        axes.fill_between(steps, lowest, highest, color=INK["range"], alpha=0.16, linewidth=0, label="expected")
    elif steps:
        axes.plot([*steps, *steps], [*lowest, *highest], color=INK["range"], alpha=0.4, linewidth=7, label="expected")


def _training(axes: "Axes", train: Points) -> None:
    if not train:
        return
    few = len(train) < 12
    axes.plot(*_columns(train), color=INK["train"], alpha=1.0 if few else 0.3, linewidth=0.9, marker="." if few else "",
              label="training" if few else None)  # fmt: skip
    if not few:
        width = 2 * (len(train) // 120) + 3
        axes.plot(*_columns(smooth(smooth(train, width), width)), color=INK["train"], linewidth=1.8, label="training")


def _validation(axes: "Axes", valid: Points) -> None:
    if not valid:
        return
    dots = "o" if len(valid) <= 60 else ""
    axes.plot(*_columns(thin(valid)), color=INK["valid"], linewidth=1.4, marker=dots, markersize=4, label="validation")
    step, best = min(valid, key=lambda point: point[1])
    axes.plot([step], [best], color=INK["valid"], marker="o", markersize=9, markerfacecolor="none", linestyle="none",
              markeredgewidth=1.4, label=f"best: {best:.4g} at step {step:,}")  # fmt: skip


def _limits(train: Points, valid: Points, expected: Sequence[float]) -> tuple[float, float]:
    """What all but the steep first values need, so that the long flat part can be read."""
    found = [*smooth(train), *valid]
    start = 0.03 * max(step for step, _ in found)
    every = [*(value for step, value in found if step > start), *expected[1::3], *expected[2::3]]
    low, high = min(every), max(every)
    room = 0.06 * (high - low) or 0.1
    return low - room, high + room


def _columns(found: Points) -> tuple[list[int], list[float]]:
    return [step for step, _ in found], [value for _, value in found]


def thin(found: Points) -> Points:
    """At most so many points: means of equal numbers of neighbours."""
    width = -(-len(found) // MOST)
    groups = (found[i : i + width] for i in range(0, len(found), max(1, width)))
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def png(drawn: "Figure") -> bytes:
    held = io.BytesIO()
    drawn.savefig(held, format="png", dpi=160, facecolor="white")
    return held.getvalue()


def svg(drawn: "Figure", name: str) -> str:
    """For a page: text stays text, and colours are the page's variables; ids begin with a name of their own."""
    from matplotlib import rc_context

    held = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawn.savefig(held, format="svg", metadata={"Date": None, "Creator": None})
    text = held.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style).*?</\1>|<style[^>]*/>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for role, colour in INK.items():
        text = text.replace(colour, f"var(--{role})")
    text = re.sub(r"font-family:[^;\"]*;?", "", text)  # it has the page's
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"|height="[\d.]+pt"', lambda m: f"<svg {m[1]}" if m[1] else "", text, count=2
    )
