"""The colors of all views: blue for positive, orange for negative values, safe for color blindness.

A value is the opacity of its color over the background, light or dark; zero is the background.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap

# both have enough contrast with white and with black
POSITIVE = "#2b83d8"
NEGATIVE = "#d9691c"


@dataclass(frozen=True)
class Theme:
    """Colors of background and text."""

    background: str
    foreground: str


LIGHT = Theme("#ffffff", "#1b1f24")
DARK = Theme("#14171a", "#e6e8ea")


def color_map(signed: bool, theme: Theme) -> "LinearSegmentedColormap":
    """From the background to blue; for signed values, from orange over the background to blue."""
    from matplotlib.colors import LinearSegmentedColormap

    if signed:
        colors = [NEGATIVE, theme.background, POSITIVE]
        return LinearSegmentedColormap.from_list("signed", colors)
    return LinearSegmentedColormap.from_list("unsigned", [theme.background, POSITIVE])
