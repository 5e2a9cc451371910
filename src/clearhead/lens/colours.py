"""The lens' colours: blue for more and orange for less, everywhere, told apart by every kind of eye.

A value is a share of a colour laid over the background, whatever that is: zero is the paper itself, light or dark.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap

MORE, LESS = "#2b83d8", "#d9691c"  # both stand out from white and from black


@dataclass(frozen=True)
class Theme:
    paper: str
    ink: str


LIGHT, DARK = Theme("#ffffff", "#1b1f24"), Theme("#14171a", "#e6e8ea")


def colour_map(signed: bool, theme: Theme) -> "LinearSegmentedColormap":
    """From paper to blue; where values have a sign, from orange over paper to blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(
        "signed" if signed else "amount", [LESS, theme.paper, MORE] if signed else [theme.paper, MORE]
    )
