"""Views for notebooks and browsers: drawings that need no script, no font and no net, on light paper or dark.

Text takes the page's own colour, and values are a share of a colour over the page's own paper.
"""

import base64
import io
from html import escape
from typing import TYPE_CHECKING

import torch
from matplotlib.colors import to_rgb
from torch import Tensor
from torch.nn import functional as F

from clearhead.lens.render.colors import NEGATIVE, POSITIVE

if TYPE_CHECKING:
    from clearhead.lens.view import View

# how wide a letter and how high a line is, in pixels
LETTER_WIDTH = 6.7
LINE_HEIGHT = 18.0
# pixels of a cell, and of a map, which is half of that among few, a third among others
LARGE = 24.0
MOST = 560.0
# maps; of more, none has labels
FEW = 4
MANY = 16
CELLS = 3000  # more would make a page slow: then the map is one picture, and its cells do not tell their values
FONT = "font:11px ui-monospace,monospace"


def render_page(view: "View") -> str:
    """A whole page that follows the reader's choice of light or dark."""
    head = f'<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>{escape(view.title)}</title>'
    return f"<!doctype html>{head}{view._repr_html_()}\n"


def render_html(view: "View") -> str:
    if len(view.axes) == 1:
        inside = _bars(view)
    else:
        panels, side = view.panels()
        maps = "".join(
            f"<div>{escape(title)}<br/>{_map(view, values, len(panels))}</div>"
            for title, values in panels
        )
        inside = f'<div style="display:grid;gap:10px;grid-template-columns:repeat({side},max-content)">{maps}</div>'
    return figure_html(view, inside)


def figure_html(view: "View", inside: str) -> str:
    """A drawing between the title of its view and its note."""
    below = f"<figcaption>{escape(view.note)}</figcaption>" if view.note else ""
    style = f"margin:0;overflow:auto;{FONT}"
    return f'<figure style="{style}"><div><b>{escape(view.title)}</b></div>{inside}{below}</figure>'


def _bars(view: "View") -> str:
    labels = view.axes[0].labels
    values = view.values.nan_to_num(0, 0, 0).tolist()
    left = _longest(labels) * LETTER_WIDTH + 8
    full = 300.0
    low = min(0.0, *values, 0.0)
    high = max(0.0, *values, 0.0)
    scale = full / ((high - low) or 1.0)
    zero = left - low * scale
    parts = []
    for i, (label, value) in enumerate(zip(labels, values, strict=True)):
        y = i * LINE_HEIGHT
        x = zero + min(value, 0) * scale
        bar = f'<rect x="{x:.1f}" y="{y + 3:.1f}" width="{abs(value) * scale:.1f}" height="{LINE_HEIGHT - 5}"'
        parts.append(
            f'{bar} fill="{POSITIVE if value >= 0 else NEGATIVE}"/>'
            + svg_text(left - 4, y + 13, label, "end")
        )
        parts.append(svg_text(left + full + 6, y + 13, f"{float(view.values[i]):.4g}"))
    parts.append(
        f'<path d="M{zero:.1f} 0v{len(values) * LINE_HEIGHT}" stroke="currentColor" stroke-width=".6"/>'
    )
    return svg_element(left + full + 80, len(values) * LINE_HEIGHT + 4, parts)


def _map(view: "View", values: Tensor, among: int) -> str:
    down, across = view.axes[-2:]
    words = view.cells
    if words is not None:
        longest = max(
            _longest(row) for row in (*words, across.labels if view.words is not None else ())
        )
        wide = LETTER_WIDTH * longest + 8
        high = LINE_HEIGHT if view.words is not None else LARGE
    else:
        wide = high = min(
            LARGE, MOST / max(values.shape) / (1 if among == 1 else 2 if among <= FEW else 3)
        )
    labelled = among <= MANY and min(wide, high) >= 9
    flat = _longest(across.labels) * LETTER_WIDTH <= wide
    left = _longest((view.corner_label, *down.labels)) * LETTER_WIDTH + 8 if labelled else 1
    top = (
        (LINE_HEIGHT if flat else _longest(across.labels) * LETTER_WIDTH + 8)
        if labelled
        else LINE_HEIGHT
    )
    parts = _cells(view, values, left, top, wide, high) if view.values.numel() <= CELLS else [
        _raster(view, values, left, top, wide, high)
    ]  # fmt: skip
    parts.append(
        svg_text(left - 4, top - 5, view.corner_label, "end")
        if labelled
        else svg_text(left, top - 5, view.corner_label)
    )
    for i, label in enumerate(down.labels if labelled else ()):
        parts.append(svg_text(left - 4, top + (i + 0.5) * high + 4, label, "end"))
    for i, label in enumerate(across.labels if labelled else ()):
        x = left + (i + 0.5) * wide
        parts.append(
            svg_text(x, top - 5, label, "middle")
            if flat
            else svg_text(x + 4, top - 4, label, turned=True)
        )
    width = wide * values.shape[1]
    height = high * values.shape[0]
    frame = f'<rect x="{left}" y="{top}" width="{width:.1f}" height="{height:.1f}" fill="none" stroke="currentColor"'
    parts.append(f'{frame} stroke-width=".3"/>')
    return svg_element(
        max(left + width, _longest((view.corner_label,)) * LETTER_WIDTH) + 2,
        top + height + 2,
        parts,
    )


def _cells(
    view: "View", values: Tensor, left: float, top: float, wide: float, high: float
) -> list[str]:
    """A square for each value, which tells its labels and its number to the mouse."""
    down, across = view.axes[-2:]
    parts = []
    words = view.cells
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            x, y, colour, share = left + j * wide, top + i * high, *_shade(view, value)
            told = f"{down.name} {down.labels[i]}, {across.name} {across.labels[j]}: {value:.4g}"
            square = f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{colour}"'
            parts.append(
                f'{square} fill-opacity="{share:.3f}"><title>{escape(told)}</title></rect>'
            )
            if words is not None:
                parts.append(svg_text(x + wide / 2, y + high / 2 + 4, words[i][j], "middle"))
    return parts


def _raster(view: "View", values: Tensor, left: float, top: float, wide: float, high: float) -> str:
    from PIL import Image

    share = (values.nan_to_num(0, 0, 0) / view.color_limit).clamp(-1 if view.signed else 0, 1)
    if max(share.shape) > MOST:  # of values that share a pixel, the strongest
        pixel = [min(n, int(MOST)) for n in share.shape]
        more, less = (
            F.adaptive_max_pool2d(side.clamp(min=0)[None], pixel)[0] for side in (share, -share)
        )
        share = torch.where(more >= less, more, -less)
    pixels = share.new_zeros(*share.shape, 4)
    pixels[..., :3] = share.new_tensor(to_rgb(POSITIVE))
    pixels[share < 0, :3] = share.new_tensor(to_rgb(NEGATIVE))
    pixels[..., 3] = share.abs()
    png = io.BytesIO()
    Image.fromarray((pixels * 255).round().byte().numpy(), "RGBA").save(png, "PNG")
    coded = base64.b64encode(png.getvalue()).decode()
    size = (wide * values.shape[1], high * values.shape[0])
    place = f'x="{left}" y="{top}" width="{size[0]:.1f}" height="{size[1]:.1f}" preserveAspectRatio="none"'
    return (
        f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{coded}"/>'
    )


def _shade(view: "View", value: float) -> tuple[str, float]:
    if not abs(value) < float("inf"):  # −∞, or no number: no colour
        return POSITIVE, 0.0
    share = max(-1.0 if view.signed else 0.0, min(1.0, value / view.color_limit))
    return (POSITIVE if share >= 0 else NEGATIVE), abs(share)


def _longest(words: tuple[str, ...]) -> int:
    return max(map(len, words), default=0)


def svg_text(x: float, y: float, words: str, anchor: str = "start", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}'
    return f'<text {place} xml:space="preserve" fill="currentColor">{escape(words)}</text>'


def svg_element(width: float, height: float, parts: list[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" style="{FONT}">{"".join(parts)}</svg>'
