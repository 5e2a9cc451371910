"""Views for a terminal: bars, and maps of numbers or shaded squares; blue for more and orange for less, if in colours.

Nothing is told by colour alone: numbers and squares have a sign, and a shade that grows with the value.
"""

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from torch import Tensor

from clearhead.lens.render.colors import NEGATIVE, POSITIVE
from clearhead.lens.view import format_numbers

if TYPE_CHECKING:
    from clearhead.lens.view import View

SHADES = " ░▒▓█"  # a fifth of the full value each
BELOW = ("  ", "- ", "--", "==", "≡≡")  # the same for squares below 0
EIGHTHS = " ▏▎▍▌▋▊▉█"
# characters of the longest bar, and of a line where nobody knows better
BAR = 40
SCREEN = 100
APART = 3  # spaces between two maps

Cell = tuple[str, float]  # what stands there, and the value that gives it its colour
Block = list[Text]  # lines, all as wide


class PrintableText(Text):
    """Text that a prompt shows as it is."""

    def __repr__(self) -> str:
        return self.plain


def render_text(view: "View") -> Text:
    """As text of rich's: print() shows it plain, a console of rich's in colours."""
    room = shutil.get_terminal_size((SCREEN, 24)).columns
    one_row = view.values.numel() == len(view.axes[-1].labels) and view.words is None
    lines = _bars(view) if one_row else _maps(view, room)
    for line in lines:
        line.rstrip()
    shown = PrintableText()
    shown.append_text(
        Text("\n").join(
            (Text(view.title), *lines, *([Text(view.note, "dim")] if view.note else ()), Text())
        )
    )
    return shown


def _bars(view: "View") -> Block:
    """To the right; where some values are negative, those to the left of a line in the middle."""
    labels = view.axes[-1].labels
    values = view.values.flatten().tolist()
    both = any(value < 0 for value in values)
    room = BAR // 2 if both else BAR
    lines = []
    for label, value in zip(_padded(labels), values, strict=True):
        eighths = round(8 * room * min(abs(value) / view.color_limit, 1)) if value == value else 0
        bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        if both and value < 0:
            bar = f"{'█' * round(eighths / 8):>{room}}│{'':{room}}"
        elif both:
            bar = f"{'':{room}}│{bar:<{room}}"
        lines.append(Text.assemble(f"{label} ", (f"{bar:<{BAR}}", _colour(value)), f" {value:.4g}"))
    return lines


def _maps(view: "View", room: int) -> Block:
    """Words in columns, as many as fit, the others below; else numbers if they all fit; else squares."""
    panels, _ = view.panels()
    if view.words is not None:
        rows = [
            list(zip(*row, strict=True))
            for row in zip(view.cell_texts, view.values.tolist(), strict=True)
        ]
        blocks = _cut(view, rows, room)
        return [line for block in blocks for line in block]
    blocks = [_numbers(view, values, room) for _, values in panels] if view.is_small else []
    if not blocks or blocks[0][0].cell_len > room:
        blocks = [_squares(view, values, room, len(panels) == 1) for _, values in panels]
    if len(panels) == 1:
        return blocks[0]
    wide = max(
        max(block[0].cell_len for block in blocks), *(cell_len(title) for title, _ in panels)
    )
    titled = [
        [Text(title, "bold"), *block] for (title, _), block in zip(panels, blocks, strict=True)
    ]
    side = max(1, (room + APART) // (wide + APART))
    return [
        line
        for i in range(0, len(titled), side)
        for line in _side_by_side(titled[i : i + side], wide)
    ]


def _side_by_side(blocks: Sequence[Block], wide: int) -> Block:
    lines = []
    for across in zip(*blocks, strict=True):
        for part in across[:-1]:
            part.pad_right(wide - part.cell_len + APART)
        lines.append(Text.assemble(*across))
    return lines


def _cut(view: "View", rows: list[list[Cell]], room: int) -> list[Block]:
    """Columns, so many to a block as there is room for; each block has the labels of the rows."""
    down, across = view.axes
    wide = [
        max(map(cell_len, (label, *(row[i][0] for row in rows)))) + 2 for i, label in enumerate(across.labels)
    ]  # fmt: skip
    room -= max(map(cell_len, (view.corner_label, *down.labels)))
    starts = [0]
    used = 0
    for i, width in enumerate(wide):
        if used + width > room and used:
            starts = [*starts, i]
            used = 0
        used += width
    return [
        _table(view, across.labels[a:b], [row[a:b] for row in rows], wide[a:b], left=True)
        for a, b in zip(starts, [*starts[1:], len(wide)], strict=True)
    ]


def _numbers(view: "View", values: Tensor, room: int) -> Block:
    """Each number with a shade behind it."""
    down, across = view.axes[-2:]
    told = format_numbers(values, view.color_limit)
    longest = max((len(cell) for row in told for cell in row), default=0)
    free = (room - max(map(cell_len, (view.corner_label, *down.labels)))) // max(
        1, len(across.labels)
    ) - 2
    label = min(
        free, max(map(cell_len, across.labels), default=0)
    )  # as much of it as there is room for
    wide = max(longest, label) + 2
    rows = [
        [
            (f"{number}{_square(value, view)[0]}", value)
            for number, value in zip(row, numbers, strict=True)
        ]
        for row, numbers in zip(told, values.tolist(), strict=True)
    ]
    headings = [f"{set_cell_size(label, wide - 2).rstrip()} " for label in across.labels]
    return _table(view, headings, rows, [wide] * len(headings), left=False)


def _table(
    view: "View", across: Sequence[str], rows: list[list[Cell]], wide: Sequence[int], left: bool
) -> Block:
    first = _padded((view.corner_label, *view.axes[-2].labels))
    lines = [
        Text(first[0] + "".join(_fit(*x, left=left) for x in zip(across, wide, strict=True)), "dim")
    ]
    for label, row in zip(first[1:], rows, strict=True):
        cells = [
            (_fit(cell, w, left=left), _colour(value))
            for (cell, value), w in zip(row, wide, strict=True)
        ]
        lines.append(Text.assemble(label, *cells))
    return lines


def _squares(view: "View", values: Tensor, room: int, alone: bool) -> Block:
    """A square for each value; alone, each row ends with its strongest. Of squares that do not fit, the strongest."""
    down, across = view.axes[-2:]
    first = _padded(("", *down.labels))
    fit = max(
        1, (room - cell_len(first[0]) - (len(max(across.labels, key=len)) + 9 if alone else 1)) // 2
    )
    every = -(-values.shape[1] // fit)  # values that share a square
    short = every == 1 and max(map(cell_len, across.labels), default=0) <= 2
    heading = "".join(f"{label:>2}" for label in across.labels) if short else ""
    if every > 1:
        heading = f" each square is the strongest of {every} values"
    lines = [Text(f"{first[0]} {heading}", "dim")]
    for label, row in zip(first[1:], values.tolist(), strict=True):
        line = Text(f"{label} ")
        for start in range(0, len(row), every):
            strongest = max(row[start : start + every], key=_strength)
            line.append(_square(strongest, view), _colour(strongest))
        if alone:
            most = max(range(len(row)), key=lambda i: _strength(row[i]))
            line.append(f"  {across.labels[most]} {row[most]:.3g}", "dim")
        lines.append(line)
    widest = max(line.cell_len for line in lines)
    for line in lines:
        line.pad_right(widest - line.cell_len)
    return lines


def _strength(value: float) -> float:
    return abs(value) if abs(value) < float("inf") else 0.0  # no number is not the largest


def _fifths(value: float, view: "View") -> int:
    return min(int(_strength(value) / view.color_limit * 5), 4)


def _square(value: float, view: "View") -> str:
    fifths = _fifths(value, view)
    return BELOW[fifths] if value < 0 else SHADES[fifths] * 2


def _padded(labels: Sequence[str]) -> list[str]:
    wide = max(map(cell_len, labels), default=0)
    return [_fit(label, wide, left=False) for label in labels]


def _fit(words: str, wide: int, left: bool) -> str:
    space = " " * (wide - cell_len(words))
    return f"  {words}{space[2:]}" if left else space + words


def _colour(value: float) -> str:
    return POSITIVE if value > 0 else NEGATIVE if value < 0 else "dim"
