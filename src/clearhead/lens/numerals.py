"""Numbers as they stand in the cells of a small map: all with as many decimals, and a plain 0 only where it is 0."""

import math

from torch import Tensor

Cells = tuple[tuple[str, ...], ...]


def numerals(values: Tensor, full: float) -> Cells:
    """Rows of numbers; `full` is the largest of them, which is shown with three digits. Counts are shown as such."""
    most = math.floor(math.log10(full)) if 0 < full < math.inf else 0
    counts = full > 1 and bool((values == values.round()).all())
    style = f"z.{0 if counts else max(1, 2 - most)}f" if -3 <= most < 5 else "z.1e"
    return tuple(tuple(numeral(value, style) for value in row) for row in values.tolist())


def numeral(value: float, style: str) -> str:
    if math.isfinite(value):
        return "0" if value == 0 else format(value, style)
    return "" if math.isnan(value) else "∞" if value > 0 else "−∞"
