"""The lens' colours: blue for more and orange for less, everywhere, told apart by every kind of eye.

A value is a share of a colour laid over the background, whatever that is: zero is the paper itself, light or dark.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap

# both stand out from white and from black
POSITIVE = "#2b83d8"
NEGATIVE = "#d9691c"


@dataclass(frozen=True)
class Theme:
    background: str
    foreground: str


LIGHT = Theme("#ffffff", "#1b1f24")
DARK = Theme("#14171a", "#e6e8ea")


def color_map(signed: bool, theme: Theme) -> "LinearSegmentedColormap":
    """From paper to blue; where values have a sign, from orange over paper to blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(
        "signed" if signed else "amount",
        [NEGATIVE, theme.background, POSITIVE] if signed else [theme.background, POSITIVE],
    )
