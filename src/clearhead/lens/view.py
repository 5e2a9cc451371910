"""Numbers as they stand in the cells of a small map: all with as many decimals, and a plain 0 only where it is 0."""

import csv
import io
import math
from collections.abc import Sequence
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

# ---- numerals: Numbers as they stand in the cells of a small map: all with as many decimals, and a plain 0 only where it is 0.

CellTexts = tuple[tuple[str, ...], ...]


def format_numbers(values: Tensor, full: float) -> CellTexts:
    """Rows of numbers; `full` is the largest of them, which is shown with three digits. Counts are shown as such."""
    most = math.floor(math.log10(full)) if 0 < full < math.inf else 0
    counts = full > 1 and bool((values == values.round()).all())
    style = f"z.{0 if counts else max(1, 2 - most)}f" if -3 <= most < 5 else "z.1e"
    return tuple(tuple(format_number(value, style) for value in row) for row in values.tolist())


def format_number(value: float, style: str) -> str:
    if math.isfinite(value):
        return "0" if value == 0 else format(value, style)
    return "" if math.isnan(value) else "∞" if value > 0 else "−∞"


# ---- view: What every part of the lens gives back: numbers with names, and pictures of them.

Row = dict[str, str | int | float]
MAX_PANEL_COLUMNS = 4  # maps of one axis in a row
# values of a view, and of a row, that are read better as numbers
MAX_NUMBER_CELLS = 256
MAX_NUMBER_COLUMNS = 16
SUFFIXES = (".png", ".svg", ".html", ".csv", ".npy")


@dataclass(frozen=True)
class Axis:
    """One dimension: what it counts, and the name of each of its places."""

    name: str
    labels: tuple[str, ...]

    @classmethod
    def from_labels(cls, name: str, labels: Sequence[str] | int) -> "Axis":
        """From labels, or numbered from 0."""
        return cls(name, tuple(map(str, range(labels) if isinstance(labels, int) else labels)))


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """Values with a name for every place. One dimension is drawn as bars, two as a map, more as maps side by side.

    Where values have a sign, 0 has no colour. Words, if there are any, stand in the cells of a map.
    """

    values: Tensor
    axes: tuple[Axis, ...]
    title: str
    value_name: str  # what a value is: the name of its column
    signed: bool = False
    vmax: float | None = (
        None  # the value of the full colour; None for the largest, inf for none at all
    )
    words: CellTexts | None = None
    note: str = ""  # a sentence below the picture: how the values are defined

    def __post_init__(self) -> None:
        sizes = tuple(len(axis.labels) for axis in self.axes)
        if tuple(self.values.shape) != sizes:  # a mistake of ours, not of the user's
            raise ValueError(f"values of {tuple(self.values.shape)} do not fit labels of {sizes}")
        object.__setattr__(self, "values", self.values.detach().float().cpu())

    def numpy(self) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """The bare numbers."""
        return self.values.numpy()

    def table(self) -> list[Row]:
        """A row for each value: its labels, its word if it has one, and the value."""
        words = [word for line in self.words or () for word in line]
        rows: list[Row] = []
        for labels, value in zip(
            product(*(axis.labels for axis in self.axes)),
            self.values.flatten().tolist(),
            strict=True,
        ):
            row: Row = {axis.name: label for axis, label in zip(self.axes, labels, strict=True)}
            if words:
                row["word"] = words[len(rows)]
            rows.append({**row, self.value_name: value})
        return rows

    def csv(self) -> str:
        """The table as text, a line for each row, the names first."""
        rows = self.table()
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    @property
    def color_limit(self) -> float:
        """The value that gets the full colour."""
        if self.vmax is not None:
            return self.vmax
        return (
            float(self.values.nan_to_num(0, 0, 0).abs().max()) or 1.0
            if self.values.numel()
            else 1.0
        )

    def panels(self) -> tuple[list[tuple[str, Tensor]], int]:
        """Its maps, each with a title, and how many of them stand side by side."""
        leading = self.axes[:-2]
        if not leading:
            return [("", self.values)], 1
        names = [
            ", ".join(f"{axis.name} {label}" for axis, label in zip(leading, labels, strict=True))
            for labels in product(*(axis.labels for axis in leading))
        ]
        side = len(leading[-1].labels) if len(leading) > 1 else min(len(names), MAX_PANEL_COLUMNS)
        return list(zip(names, self.values.flatten(0, len(leading) - 1), strict=True)), side

    @property
    def corner_label(self) -> str:
        """What goes down its maps, and what across."""
        return "\\".join(axis.name for axis in self.axes[-2:])

    @property
    def is_small(self) -> bool:
        """Whether its numbers can be shown themselves, not only as colours."""
        return (
            self.values.numel() <= MAX_NUMBER_CELLS and self.values.shape[-1] <= MAX_NUMBER_COLUMNS
        )

    @property
    def cells(self) -> CellTexts | None:
        """What stands in the cells of its map: its words, and the numbers of a small one."""
        return self.cell_texts if len(self.axes) == 2 and self.is_small else self.words

    @property
    def cell_texts(self) -> CellTexts:
        """Of a map: each word with its number, unless the values mean nothing; or the number alone."""
        if self.words is not None and self.color_limit == float("inf"):
            return self.words
        numbers = format_numbers(self.values, self.color_limit)
        if self.words is None:
            return numbers
        pairs = (zip(*row, strict=True) for row in zip(self.words, numbers, strict=True))
        return tuple(tuple(f"{word} {number}".rstrip() for word, number in row) for row in pairs)

    def figure(self, dark: bool = False) -> "Figure":
        """A figure of matplotlib's."""
        from clearhead.lens.render.matplotlib import render_figure

        return render_figure(self, dark)

    def terminal(self) -> "Text":
        """A picture of characters: print() shows it plain, a console of rich in colours."""
        from clearhead.lens.render.terminal import render_text

        return render_text(self)

    def _repr_html_(self) -> str:
        """A drawing for notebooks, light or dark, that needs nothing but itself."""
        from clearhead.lens.render.html import render_html

        return render_html(self)

    def __repr__(self) -> str:
        size = " × ".join(f"{len(axis.labels)} {axis.name}" for axis in self.axes)
        return f"<{self.title}: {self.value_name}, {size}>"

    def save(self, path: str | Path, dark: bool = False) -> None:
        """As a picture (.png, .svg), a page (.html), a table (.csv) or bare numbers (.npy)."""
        check_type(path, str | Path, "the name of a file")
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
            raise ClearheadError(f"{path} cannot be written: {error.strerror}.") from None


def check_output_path(path: Path) -> None:
    """Refuses, before any work is done, what a view cannot be saved as, or where."""
    if path.suffix not in SUFFIXES:
        raise ClearheadError(f"{path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}.")
    check_parent_folder(path)


def check_parent_folder(path: Path) -> None:
    """Refuses to save a file where there is no folder for it, or one in its place."""
    if path.is_dir():
        raise ClearheadError(f"{path} is a folder; name a file in it.")
    if not path.parent.is_dir():
        raise ClearheadError(
            f"there is no folder {path.parent} to save {path.name} in; make it first."
        )
