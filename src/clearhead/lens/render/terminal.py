"""Views for the terminal: bars, tables of numbers, and maps of shaded squares.

Blue is positive and orange negative, but nothing depends on color alone: numbers have a sign, and
the shade of a square grows with its value.
"""

import math
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from torch import Tensor

from clearhead.errors import escape_controls
from clearhead.lens.render.colors import NEGATIVE, POSITIVE
from clearhead.lens.view import format_numbers

if TYPE_CHECKING:
    from clearhead.lens.view import View

SHADES = " ░▒▓█"
NEGATIVE_SQUARES = ("  ", "- ", "--", "==", "≡≡")
EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR_CHARACTERS = 40
CURVE_ROWS = 7
DEFAULT_TERMINAL_WIDTH = 100
PANEL_GAP = 3  # spaces

Cell = tuple[str, float]  # a text, and the value that gives its color
Block = list[Text]  # lines of equal width


class PrintableText(Text):
    """Text whose repr is the text itself, so that the Python prompt shows it."""

    def __repr__(self) -> str:
        return self.plain


def render_text(view: "View") -> Text:
    """The drawing between its title and note: plain with print(), in color on a rich console."""
    is_single_row = view.values.numel() == len(view.axes[-1].labels) and view.words is None
    return _framed(view, _bars(view) if is_single_row else _panels(view, _terminal_width()))


def render_curves_text(view: "View") -> Text:
    """A curve over the last axis for each row of a matrix: a character for each column."""
    rows, columns = view.axes
    labels = _right_aligned([f"{rows.name} {label}" for label in rows.labels])
    size = len(columns.labels)
    shown = min(size, _terminal_width() - cell_len(labels[0]) - 1)
    indices = [i * size // shown for i in range(shown)]
    lines: Block = []
    for label, values in zip(labels, view.values.tolist(), strict=True):
        curve = [[" "] * shown for _ in range(CURVE_ROWS)]
        for i, index in enumerate(indices):
            height = (1 - values[index] / view.color_limit) / 2 * (CURVE_ROWS - 1)
            curve[round(height)][i] = "•"
        for i, row in enumerate(curve):
            name = label if i == CURVE_ROWS // 2 else " " * cell_len(label)
            lines.append(Text(f"{name} {''.join(row)}"))
    return _framed(view, [*lines, Text(f"{columns.name}s 0 to {size - 1}, {shown} shown", "dim")])


def _terminal_width() -> int:
    return shutil.get_terminal_size((DEFAULT_TERMINAL_WIDTH, 24)).columns


def _framed(view: "View", lines: Block) -> Text:
    """The lines between the view's title and note."""
    for line in lines:
        line.rstrip()
    note = [Text(view.note, "dim")] if view.note else []
    text = PrintableText()
    text.append_text(Text("\n").join((Text(view.title), *lines, *note, Text())))
    text.plain = escape_controls(text.plain)
    return text


def _bars(view: "View") -> Block:
    """Bars to the right, and to the left of a middle line for negative values."""
    values = view.values.flatten().tolist()
    has_negative = any(value < 0 for value in values)
    length = BAR_CHARACTERS // 2 if has_negative else BAR_CHARACTERS
    lines = []
    for label, value in zip(_right_aligned(view.axes[-1].labels), values, strict=True):
        eighths = 0
        if not math.isnan(value):
            eighths = round(8 * length * min(abs(value) / view.color_limit, 1))
        bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        if has_negative and value < 0:
            bar = f"{'█' * round(eighths / 8):>{length}}│{'':{length}}"
        elif has_negative:
            bar = f"{'':{length}}│{bar:<{length}}"
        cell = f"{bar:<{BAR_CHARACTERS}}", _color(value)
        lines.append(Text.assemble(f"{label} ", cell, f" {value:.4g}"))
    return lines


def _panels(view: "View", width: int) -> Block:
    """Words in columns; else numbers if they fit; else squares."""
    if view.words is not None:
        return _words(view, width)
    panels, _ = view.panels()
    blocks: list[Block] = []
    if view.is_small:
        blocks = [_numbers(view, values, width) for _, values in panels]
    if not blocks or blocks[0][0].cell_len > width:
        blocks = [_squares(view, values, width, len(panels) == 1) for _, values in panels]
    if len(panels) == 1:
        return blocks[0]
    title_width = max(cell_len(title) for title, _ in panels)
    panel_width = max(title_width, *(block[0].cell_len for block in blocks))
    titled = [
        [Text(title, "bold"), *block] for (title, _), block in zip(panels, blocks, strict=True)
    ]
    columns = max(1, (width + PANEL_GAP) // (panel_width + PANEL_GAP))
    lines: Block = []
    for start in range(0, len(titled), columns):
        lines += _side_by_side(titled[start : start + columns], panel_width)
    return lines


def _side_by_side(blocks: Sequence[Block], width: int) -> Block:
    lines = []
    for parts in zip(*blocks, strict=True):
        for part in parts[:-1]:
            part.pad_right(width - part.cell_len + PANEL_GAP)
        lines.append(Text.assemble(*parts))
    return lines


def _words(view: "View", width: int) -> Block:
    """Columns of words; those that do not fit follow below, with the row labels repeated."""
    down, across = view.axes
    rows: list[list[Cell]] = [
        list(zip(*row, strict=True))
        for row in zip(view.cell_texts, view.values.tolist(), strict=True)
    ]
    widths = [
        2 + max(map(cell_len, (label, *(row[i][0] for row in rows))))
        for i, label in enumerate(across.labels)
    ]
    room = width - max(map(cell_len, (view.corner_label, *down.labels)))
    starts = [0]
    used = 0
    for i, column_width in enumerate(widths):
        if used + column_width > room and used:
            starts.append(i)
            used = 0
        used += column_width
    lines: Block = []
    for start, end in zip(starts, [*starts[1:], len(widths)], strict=True):
        labels = across.labels[start:end]
        cells = [row[start:end] for row in rows]
        lines += _table(view, labels, cells, widths[start:end], left_aligned=True)
    return lines


def _numbers(view: "View", values: Tensor, width: int) -> Block:
    """Each number followed by a shade."""
    down, across = view.axes[-2:]
    texts = format_numbers(values, view.color_limit)
    row_label_width = max(map(cell_len, (view.corner_label, *down.labels)))
    number_width = max((len(text) for row in texts for text in row), default=0)
    room = (width - row_label_width) // max(1, len(across.labels)) - 2
    label_width = min(room, max(map(cell_len, across.labels), default=0))
    cell_width = max(number_width, label_width) + 2
    rows = [
        [
            (f"{text}{_square(value, view)[0]}", value)
            for text, value in zip(row_texts, row_values, strict=True)
        ]
        for row_texts, row_values in zip(texts, values.tolist(), strict=True)
    ]
    headings = [f"{set_cell_size(label, cell_width - 2).rstrip()} " for label in across.labels]
    return _table(view, headings, rows, [cell_width] * len(headings), left_aligned=False)


def _table(
    view: "View",
    headings: Sequence[str],
    rows: list[list[Cell]],
    widths: Sequence[int],
    left_aligned: bool,
) -> Block:
    corner, *row_labels = _right_aligned((view.corner_label, *view.axes[-2].labels))
    heading = "".join(_pad(*column, left_aligned) for column in zip(headings, widths, strict=True))
    lines = [Text(corner + heading, "dim")]
    for label, row in zip(row_labels, rows, strict=True):
        cells = [
            (_pad(text, width, left_aligned), _color(value))
            for (text, value), width in zip(row, widths, strict=True)
        ]
        lines.append(Text.assemble(label, *cells))
    return lines


def _squares(view: "View", values: Tensor, width: int, is_single: bool) -> Block:
    """A square for each value; if they do not fit, values share one that shows the strongest.

    Rows of a single panel end with the label and number of their strongest value.
    """
    down, across = view.axes[-2:]
    corner, *row_labels = _right_aligned(("", *down.labels))
    suffix_width = len(max(across.labels, key=len)) + 9 if is_single else 1
    max_squares = max(1, (width - cell_len(corner) - suffix_width) // 2)
    step = -(-values.shape[1] // max_squares)  # values per square
    heading = ""
    if step > 1:
        heading = f" each square is the strongest of {step} values"
    elif max(map(cell_len, across.labels), default=0) <= 2:
        heading = "".join(f"{label:>2}" for label in across.labels)
    lines = [Text(f"{corner} {heading}", "dim")]
    for label, row in zip(row_labels, values.tolist(), strict=True):
        line = Text(f"{label} ")
        for start in range(0, len(row), step):
            strongest = max(row[start : start + step], key=_magnitude)
            line.append(_square(strongest, view), _color(strongest))
        if is_single:
            best = max(range(len(row)), key=lambda i: _magnitude(row[i]))
            line.append(f"  {across.labels[best]} {row[best]:.3g}", "dim")
        lines.append(line)
    line_width = max(line.cell_len for line in lines)
    for line in lines:
        line.pad_right(line_width - line.cell_len)
    return lines


def _magnitude(value: float) -> float:
    return abs(value) if abs(value) < math.inf else 0.0  # NaN and −∞ are not the strongest


def _square(value: float, view: "View") -> str:
    level = min(int(_magnitude(value) / view.color_limit * 5), 4)
    return NEGATIVE_SQUARES[level] if value < 0 else SHADES[level] * 2


def _right_aligned(labels: Sequence[str]) -> list[str]:
    width = max(map(cell_len, labels), default=0)
    return [_pad(label, width, left_aligned=False) for label in labels]


def _pad(text: str, width: int, left_aligned: bool) -> str:
    space = " " * (width - cell_len(text))
    return f"  {text}{space[2:]}" if left_aligned else space + text


def _color(value: float) -> str:
    if value > 0:
        return POSITIVE
    return NEGATIVE if value < 0 else "dim"
