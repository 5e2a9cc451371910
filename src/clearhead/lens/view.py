"""View: an array with labeled axes that becomes a table, figure, HTML drawing, text or file.

Every function of the lens returns one.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from clearhead.errors import ClearheadError, check_type
from clearhead.io import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

Row = dict[str, str | int | float]
CellTexts = tuple[tuple[str, ...], ...]
MAX_PANEL_COLUMNS = 4
MAX_NUMBER_CELLS = 256  # a larger view shows colors, not numbers
MAX_NUMBER_COLUMNS = 16
SUFFIXES = (".png", ".svg", ".html", ".csv", ".npy")


@dataclass(frozen=True)
class Axis:
    """One dimension of a view: its name, and a label for each index."""

    name: str
    labels: tuple[str, ...]


def label_axes(axes: Mapping[str, Sequence[str] | int]) -> tuple[Axis, ...]:
    """Axes by name, each with its labels; a size gives the labels 0, 1, 2, …"""
    return tuple(
        Axis(name, tuple(map(str, range(labels) if isinstance(labels, int) else labels)))
        for name, labels in axes.items()
    )


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """Values with a label for every index. Drawn as bars (1 dimension), a heat map (2), or several.

    In a signed view 0 has no color. `words`, if any, are written into the cells of a heat map.
    """

    values: Tensor
    axes: tuple[Axis, ...]
    title: str
    value_name: str  # the name of the table's column of values
    signed: bool = False
    vmax: float | None = None  # the value of the full color; None: the largest, inf: no color
    words: CellTexts | None = None
    note: str = ""  # a caption that defines the values
    word_suffix: str = ""  # drawn between a word and its number

    def __post_init__(self) -> None:
        sizes = tuple(len(axis.labels) for axis in self.axes)
        if tuple(self.values.shape) != sizes:
            raise ValueError(f"values of shape {tuple(self.values.shape)} do not fit axes {sizes}")
        columns = [axis.name for axis in self.axes] + ["word"] * (self.words is not None)
        columns.append(self.value_name)
        if len(set(columns)) < len(columns):
            raise ValueError(f"columns of the table must differ, got {', '.join(columns)}")
        object.__setattr__(self, "values", self.values.detach().float().cpu())

    def numpy(self) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """The values as an array."""
        return self.values.numpy()

    def table(self) -> list[Row]:
        """A row for each value: its labels, its word if it has one, and the value."""
        words = [word for row in self.words or () for word in row]
        labels = product(*(axis.labels for axis in self.axes))
        rows: list[Row] = []
        for row_labels, value in zip(labels, self.values.flatten().tolist(), strict=True):
            row: Row = {axis.name: label for axis, label in zip(self.axes, row_labels, strict=True)}
            if words:
                row["word"] = words[len(rows)]
            rows.append({**row, self.value_name: value})
        return rows

    def csv(self) -> str:
        """The table as CSV with a header."""
        return format_csv(self.table())

    @property
    def color_limit(self) -> float:
        """The absolute value that is drawn in full color."""
        if self.vmax is not None:
            return self.vmax
        if not self.values.numel():
            return 1.0
        return float(self.values.nan_to_num(0, 0, 0).abs().max()) or 1.0

    def panels(self) -> tuple[list[tuple[str, Tensor]], int]:
        """The heat maps with their titles, and the number of columns to arrange them in."""
        leading = self.axes[:-2]
        if not leading:
            return [("", self.values)], 1
        titles = [
            ", ".join(f"{axis.name} {label}" for axis, label in zip(leading, labels, strict=True))
            for labels in product(*(axis.labels for axis in leading))
        ]
        if len(leading) > 1:
            columns = len(leading[-1].labels)
        else:
            columns = min(len(titles), MAX_PANEL_COLUMNS)
        return list(zip(titles, self.values.flatten(0, len(leading) - 1), strict=True)), columns

    @property
    def corner_label(self) -> str:
        """The names of a heat map's rows and columns."""
        return "\\".join(axis.name for axis in self.axes[-2:])

    @property
    def is_small(self) -> bool:
        """Whether numbers fit into the cells."""
        num_columns = self.values.shape[-1]
        return self.values.numel() <= MAX_NUMBER_CELLS and num_columns <= MAX_NUMBER_COLUMNS

    @property
    def cells(self) -> CellTexts | None:
        """The text in the cells of a heat map: its words, and the numbers if they fit."""
        return self.cell_texts if len(self.axes) == 2 and self.is_small else self.words

    @property
    def cell_texts(self) -> CellTexts:
        """Each cell's word and number; without a number if the view has no colors."""
        if self.words is not None and self.color_limit == math.inf:
            return self.words
        numbers = format_numbers(self.values, self.color_limit)
        if self.words is None:
            return numbers
        return tuple(
            tuple(
                f"{word}{self.word_suffix} {number}".rstrip()
                for word, number in zip(*rows, strict=True)
            )
            for rows in zip(self.words, numbers, strict=True)
        )

    def figure(self, dark: bool = False) -> "Figure":
        """A matplotlib figure."""
        from clearhead.lens.render.matplotlib import render_figure

        return render_figure(self, dark)

    def terminal(self) -> "Text":
        """A drawing in characters: plain with print(), in color on a rich console."""
        from clearhead.lens.render.terminal import render_text

        return render_text(self)

    def _repr_html_(self) -> str:
        from clearhead.lens.render.html import render_html

        return render_html(self)

    def __repr__(self) -> str:
        size = " × ".join(f"{len(axis.labels)} {axis.name}" for axis in self.axes)
        return f"<{self.title}: {self.value_name}, {size}>"

    def save(self, path: str | Path, dark: bool = False) -> None:
        """Write a figure (.png, .svg), a web page (.html), the table (.csv) or the array (.npy)."""
        check_type(path, str | Path, "a file name")
        path = Path(path)
        check_output_path(path)
        content = io.BytesIO()
        if path.suffix == ".csv":
            content.write(self.csv().encode())
        elif path.suffix == ".npy":
            np.save(content, self.numpy())
        elif path.suffix == ".html":
            from clearhead.lens.render.html import render_page

            content.write(render_page(self).encode())
        else:
            self.figure(dark).savefig(content, format=path.suffix[1:], dpi=160)
        try:
            write_atomic(path, content.getvalue())
        except OSError as error:
            raise ClearheadError(f"cannot write {path}: {error.strerror}.") from None


def format_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of a table as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def check_output_path(path: Path) -> None:
    """Raise, before any work is done, if a view cannot be saved to this path."""
    if path.suffix not in SUFFIXES:
        raise ClearheadError(f"{path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}.")
    check_parent_folder(path)


def check_parent_folder(path: Path) -> None:
    """Raise if the path is a folder, or if its parent folder does not exist."""
    if path.is_dir():
        raise ClearheadError(f"{path} is a folder; name a file in it.")
    if not path.parent.is_dir():
        raise ClearheadError(f"cannot save {path.name}: there is no folder {path.parent}.")


def format_numbers(values: Tensor, largest: float) -> CellTexts:
    """A matrix as text with the same number of decimals in every cell; `largest` gets 3 digits."""
    exponent = math.floor(math.log10(largest)) if 0 < largest < math.inf else 0
    if not -3 <= exponent < 5:
        spec = "z.1e"
    elif largest > 1 and bool((values == values.round()).all()):
        spec = "z.0f"
    else:
        spec = f"z.{max(1, 2 - exponent)}f"
    return tuple(tuple(_format_number(value, spec) for value in row) for row in values.tolist())


def _format_number(value: float, spec: str) -> str:
    if math.isfinite(value):
        return "0" if value == 0 else format(value, spec)
    if math.isnan(value):
        return ""
    return "∞" if value > 0 else "−∞"
