"""Views for a terminal: bars and shaded squares, blue for more and orange for less where there are colours."""

from typing import TYPE_CHECKING

from rich.text import Text

from clearhead.lens.colours import LESS, MORE

if TYPE_CHECKING:
    from clearhead.lens.view import View

SHADES = " ░▒▓█"  # a fifth of the full value each
EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR, COLUMNS = 40, 60  # characters of the longest bar; cells of a row that fit a screen


def picture(view: "View") -> Text:
    """As text of rich's: print() shows it plain, a console of rich's in colours."""
    drawn = Text(f"{view.title}\n")
    if len(view.axes) == 1:
        _bars(view, drawn)
    elif view.words is not None:
        _words(view, drawn)
    else:
        for title, values in view.panels()[0]:
            drawn.append(f"{title}\n" if title else "", style="bold")
            _map(view, values.tolist(), drawn)
    drawn.append(f"{view.note}\n" if view.note else "", style="dim")
    return drawn


def _bars(view: "View", drawn: Text) -> None:
    """To the right; where some values are negative, those to the left of a line in the middle."""
    wide, values = max(map(len, view.axes[0].labels), default=0), view.values.tolist()
    both = any(value < 0 for value in values)
    room = BAR // 2 if both else BAR
    for label, value in zip(view.axes[0].labels, values, strict=True):
        eighths = round(8 * room * min(abs(value) / view.full, 1)) if value == value else 0
        bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        if both and value < 0:
            bar = f"{'█' * round(eighths / 8):>{room}}│{'':{room}}"
        elif both:
            bar = f"{'':{room}}│{bar:<{room}}"
        drawn.append(f"{label:>{wide}} ").append(f"{bar:<{BAR}}", style=_colour(value)).append(f" {value:.4g}\n")


def _map(view: "View", rows: list[list[float]], drawn: Text) -> None:
    down, across = view.axes[-2:]
    wide = max(map(len, down.labels), default=0)
    if max(map(len, across.labels), default=0) <= 2:  # else they do not fit above the squares
        drawn.append(f"{'':{wide}} {''.join(f'{label:>2}' for label in across.labels[:COLUMNS])}\n", style="dim")
    for label, row in zip(down.labels, rows, strict=True):
        drawn.append(f"{label:>{wide}} ")
        for value in row[:COLUMNS]:
            drawn.append(_cell(value, view), style=_colour(value))
        finite = [value if abs(value) < float("inf") else 0.0 for value in row]  # no number is not the largest either
        most = max(range(len(row)), key=lambda i: abs(finite[i]))
        more = "…" if len(row) > COLUMNS else ""
        drawn.append(f"{more}  {across.labels[most]} {row[most]:.3g}\n", style="dim")


def _cell(value: float, view: "View") -> str:
    share = abs(value) / view.full if abs(value) < float("inf") else 0
    shade = SHADES[min(int(share * 5), 4)]
    return f"-{shade}" if view.signed and value < 0 and shade != " " else shade * 2


def _words(view: "View", drawn: Text) -> None:
    down, across = view.axes
    table = [("", *across.labels), *((label, *row) for label, row in zip(down.labels, view.words or (), strict=True))]
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        drawn.append("  ".join(f"{cell:<{w}}" for cell, w in zip(row, wide, strict=True)).rstrip() + "\n")


def _colour(value: float) -> str:
    return MORE if value >= 0 else LESS
