"""Views as HTML and SVG for notebooks and browsers: no scripts, no fonts, no network.

Text inherits the page's color, and values are opacities over its background, so both light and
dark pages work.
"""

import base64
import io
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.lens.render.colors import NEGATIVE, POSITIVE

if TYPE_CHECKING:
    from clearhead.lens.attention import AttentionLines
    from clearhead.lens.view import View

# pixels
LETTER_WIDTH = 6.7
LINE_HEIGHT = 18.0
BAR_WIDTH = 300.0
CELL_SIZE = 24.0
MIN_LABELED_CELL_SIZE = 9
MAP_SIZE = 560  # of a single heat map; half of it among a few, a third among many
CURVE_WIDTH = 480.0
CURVE_HEIGHT = 90.0
LINES_WIDTH = 180.0  # between queries and keys

MAX_LARGE_PANELS = 4
MAX_LABELED_PANELS = 16
MAX_RECTS = 3000  # more would make a page slow; a larger heat map is one image without tooltips
FONT = "font:11px ui-monospace,monospace"


def render_page(view: "View") -> str:
    """A complete HTML page that follows the reader's choice of light or dark."""
    title = f"<title>{escape(view.title)}</title>"
    head = f'<meta charset="utf-8"><meta name="color-scheme" content="light dark">{title}'
    return f"<!doctype html>{head}{view._repr_html_()}\n"


def render_html(view: "View") -> str:
    """The drawing with its title and note."""
    if len(view.axes) == 1:
        return _figure(view, _bars(view))
    panels, columns = view.panels()
    maps = "".join(
        f"<div>{escape(title)}<br/>{_heat_map(view, values, len(panels))}</div>"
        for title, values in panels
    )
    style = f"display:grid;gap:10px;grid-template-columns:repeat({columns},max-content)"
    return _figure(view, f'<div style="{style}">{maps}</div>')


def render_lines_html(view: "AttentionLines") -> str:
    """An attention pattern as lines from queries on the left to keys on the right."""
    queries, keys = (axis.labels for axis in view.axes)
    left = _max_length(queries) * LETTER_WIDTH + 8
    right = left + LINES_WIDTH
    parts = []
    for i, j, opacity in view.visible_lines():
        ends = (
            f"M{left:.1f} {(i + 0.5) * LINE_HEIGHT:.1f}L{right:.1f} {(j + 0.5) * LINE_HEIGHT:.1f}"
        )
        parts.append(
            f'<path d="{ends}" stroke="{POSITIVE}" stroke-width="1.6" '
            f'stroke-opacity="{opacity:.3f}">'
            f"<title>{opacity * view.color_limit:.4g}</title></path>"
        )
    for i, label in enumerate(queries):
        parts.append(_text(left - 5, (i + 0.5) * LINE_HEIGHT + 4, label, "end"))
    for j, label in enumerate(keys):
        parts.append(_text(right + 5, (j + 0.5) * LINE_HEIGHT + 4, label))
    width = right + _max_length(keys) * LETTER_WIDTH + 10
    return _figure(view, _svg(width, max(len(queries), len(keys)) * LINE_HEIGHT + 4, parts))


def render_curves_html(view: "View") -> str:
    """A curve over the last axis for each row of a matrix, one below the other."""
    rows, columns = view.axes
    left = (_max_length(rows.labels) + len(rows.name) + 1) * LETTER_WIDTH + 8
    step = CURVE_WIDTH / max(1, len(columns.labels) - 1)
    parts = []
    for i, (label, values) in enumerate(zip(rows.labels, view.values.tolist(), strict=True)):
        middle = (i + 0.5) * CURVE_HEIGHT
        scale = 0.45 * CURVE_HEIGHT / view.color_limit
        points = " ".join(
            f"{left + j * step:.1f},{middle - value * scale:.1f}" for j, value in enumerate(values)
        )
        parts.append(_text(left - 6, middle + 4, f"{rows.name} {label}", "end"))
        parts.append(
            f'<path d="M{left} {middle}h{CURVE_WIDTH}" stroke="currentColor" stroke-width=".3"/>'
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{POSITIVE}"><title>{columns.name} 0 '
            f"to {len(columns.labels) - 1}</title></polyline>"
        )
    return _figure(view, _svg(left + CURVE_WIDTH, len(rows.labels) * CURVE_HEIGHT, parts))


def _figure(view: "View", drawing: str) -> str:
    caption = f"<figcaption>{escape(view.note)}</figcaption>" if view.note else ""
    style = f"margin:0;overflow:auto;{FONT}"
    title = f"<div><b>{escape(view.title)}</b></div>"
    return f'<figure style="{style}">{title}{drawing}{caption}</figure>'


def _bars(view: "View") -> str:
    labels = view.axes[0].labels
    values = view.values.nan_to_num(0, 0, 0).tolist()
    left = _max_length(labels) * LETTER_WIDTH + 8
    low = min([0.0, *values])
    high = max([0.0, *values])
    scale = BAR_WIDTH / ((high - low) or 1.0)
    zero = left - low * scale
    parts = []
    for i, (label, value) in enumerate(zip(labels, values, strict=True)):
        x = zero + min(value, 0) * scale
        y = i * LINE_HEIGHT
        color = POSITIVE if value >= 0 else NEGATIVE
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 3:.1f}" width="{abs(value) * scale:.1f}" '
            f'height="{LINE_HEIGHT - 5}" fill="{color}"/>'
        )
        parts.append(_text(left - 4, y + 13, label, "end"))
        parts.append(_text(left + BAR_WIDTH + 6, y + 13, f"{float(view.values[i]):.4g}"))
    height = len(values) * LINE_HEIGHT
    parts.append(f'<path d="M{zero:.1f} 0v{height}" stroke="currentColor" stroke-width=".6"/>')
    return _svg(left + BAR_WIDTH + 80, height + 4, parts)


@dataclass(frozen=True)
class _Grid:
    """Pixels: where a heat map begins, and the size of its cells."""

    left: float
    top: float
    cell_width: float
    cell_height: float


def _heat_map(view: "View", values: Tensor, num_panels: int) -> str:
    rows, columns = view.axes[-2:]
    cell_width, cell_height = _cell_size(view, values, num_panels)
    has_labels = (
        num_panels <= MAX_LABELED_PANELS and min(cell_width, cell_height) >= MIN_LABELED_CELL_SIZE
    )
    label_width = _max_length(columns.labels) * LETTER_WIDTH
    is_rotated = label_width > cell_width
    left = 1.0
    top = LINE_HEIGHT
    if has_labels:
        left = _max_length((view.corner_label, *rows.labels)) * LETTER_WIDTH + 8
        top = label_width + 8 if is_rotated else LINE_HEIGHT
    grid = _Grid(left, top, cell_width, cell_height)
    if view.values.numel() <= MAX_RECTS:
        parts = _rects(view, values, grid)
    else:
        parts = [_image(view, values, grid)]
    if not has_labels:
        parts.append(_text(left, top - 5, view.corner_label))
    else:
        parts.append(_text(left - 4, top - 5, view.corner_label, "end"))
        for i, label in enumerate(rows.labels):
            parts.append(_text(left - 4, top + (i + 0.5) * cell_height + 4, label, "end"))
        for j, label in enumerate(columns.labels):
            x = left + (j + 0.5) * cell_width
            if is_rotated:
                parts.append(_text(x + 4, top - 4, label, rotated=True))
            else:
                parts.append(_text(x, top - 5, label, "middle"))
    width = cell_width * values.shape[1]
    height = cell_height * values.shape[0]
    parts.append(
        f'<rect x="{left}" y="{top}" width="{width:.1f}" height="{height:.1f}" fill="none" '
        'stroke="currentColor" stroke-width=".3"/>'
    )
    corner_width = _max_length((view.corner_label,)) * LETTER_WIDTH
    return _svg(max(left + width, corner_width) + 2, top + height + 2, parts)


def _cell_size(view: "View", values: Tensor, num_panels: int) -> tuple[float, float]:
    if view.cells is None:
        divisor = 1 if num_panels == 1 else 2 if num_panels <= MAX_LARGE_PANELS else 3
        size = min(CELL_SIZE, MAP_SIZE / max(values.shape) / divisor)
        return size, size
    rows = list(view.cells)
    if view.words is not None:
        rows.append(view.axes[-1].labels)
    height = LINE_HEIGHT if view.words is not None else CELL_SIZE
    return LETTER_WIDTH * max(map(_max_length, rows)) + 8, height


def _rects(view: "View", values: Tensor, grid: _Grid) -> list[str]:
    """A rectangle for each value, with its labels and number as the tooltip."""
    rows, columns = view.axes[-2:]
    cells = view.cells
    width, height = grid.cell_width, grid.cell_height
    parts = []
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            x = grid.left + j * width
            y = grid.top + i * height
            color, opacity = _color(view, value)
            tooltip = (
                f"{rows.name} {rows.labels[i]}, {columns.name} {columns.labels[j]}: {value:.4g}"
            )
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                f'fill="{color}" fill-opacity="{opacity:.3f}">'
                f"<title>{escape(tooltip)}</title></rect>"
            )
            if cells is not None:
                parts.append(_text(x + width / 2, y + height / 2 + 4, cells[i][j], "middle"))
    return parts


def _image(view: "View", values: Tensor, grid: _Grid) -> str:
    """All values as one image; of values that share a pixel, the one with the largest magnitude."""
    from PIL import Image

    fractions = (values.nan_to_num(0, 0, 0) / view.color_limit).clamp(-1 if view.signed else 0, 1)
    if max(fractions.shape) > MAP_SIZE:
        size = [min(n, MAP_SIZE) for n in fractions.shape]
        positive = F.adaptive_max_pool2d(fractions.clamp(min=0)[None], size)[0]
        negative = F.adaptive_max_pool2d((-fractions).clamp(min=0)[None], size)[0]
        fractions = torch.where(positive >= negative, positive, -negative)
    pixels = fractions.new_zeros(*fractions.shape, 4)
    pixels[..., :3] = fractions.new_tensor(_rgb(POSITIVE))
    pixels[fractions < 0, :3] = fractions.new_tensor(_rgb(NEGATIVE))
    pixels[..., 3] = fractions.abs()
    png = io.BytesIO()
    Image.fromarray((pixels * 255).round().byte().numpy(), "RGBA").save(png, "PNG")
    data = base64.b64encode(png.getvalue()).decode()
    width = grid.cell_width * values.shape[1]
    height = grid.cell_height * values.shape[0]
    return (
        f'<image x="{grid.left}" y="{grid.top}" width="{width:.1f}" height="{height:.1f}" '
        'preserveAspectRatio="none" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/>'
    )


def _rgb(color: str) -> list[float]:
    return [byte / 255 for byte in bytes.fromhex(color.removeprefix("#"))]


def _color(view: "View", value: float) -> tuple[str, float]:
    """The color and opacity of a value; NaN and infinity are transparent."""
    if not abs(value) < float("inf"):
        return POSITIVE, 0.0
    fraction = max(-1.0 if view.signed else 0.0, min(1.0, value / view.color_limit))
    return (POSITIVE if fraction >= 0 else NEGATIVE), abs(fraction)


def _max_length(words: tuple[str, ...]) -> int:
    return max(map(len, words), default=0)


def _text(x: float, y: float, text: str, anchor: str = "start", rotated: bool = False) -> str:
    rotation = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if rotated else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{rotation}'
    return f'<text {place} xml:space="preserve" fill="currentColor">{escape(text)}</text>'


def _svg(width: float, height: float, parts: list[str]) -> str:
    attributes = f'width="{width:.0f}" height="{height:.0f}" role="img" style="{FONT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {attributes}>{"".join(parts)}</svg>'
