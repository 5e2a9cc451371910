"""A pattern as lines: the queries on the left, the keys on the right, and a line for each weight."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clearhead.lens.colours import DARK, LIGHT, MORE
from clearhead.lens.markup import LETTER, LINE, framed, svg, text
from clearhead.lens.plots import plain
from clearhead.lens.view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAINTEST = 0.02  # of the full value: a thinner line would not be seen
BETWEEN = 180.0  # pixels from side to side


@dataclass(frozen=True, eq=False, repr=False)
class Lines(View):
    """The same numbers as the matrix of a head, drawn as lines whose strength is the weight."""

    def _drawn(self) -> list[tuple[int, int, float]]:
        shares = (self.values / self.full).clamp(0, 1)
        return [(int(i), int(j), float(shares[i, j])) for i, j in (shares > FAINTEST).nonzero()]

    def figure(self, dark: bool = False) -> "Figure":
        from matplotlib.figure import Figure

        theme, (down, across) = DARK if dark else LIGHT, self.axes
        tall = max(len(down.labels), len(across.labels))
        drawn = Figure(figsize=(5, 0.6 + 0.22 * tall), layout="constrained", facecolor=theme.paper)
        axes = drawn.add_subplot(xlim=(-0.6, 1.6), ylim=(tall - 0.4, -0.6))
        axes.set_axis_off()
        axes.set_title(self.title, fontsize=10, loc="left", color=theme.ink)
        for i, j, share in self._drawn():
            axes.plot((0, 1), (i, j), color=MORE, alpha=share, linewidth=1.6)
        for x, side, labels in ((-0.03, "right", down.labels), (1.03, "left", across.labels)):
            for y, label in enumerate(plain(labels)):
                axes.text(x, y, label, ha=side, va="center", fontsize=8, family="monospace", color=theme.ink)
        return drawn

    def _repr_html_(self) -> str:
        down, across = self.axes
        left = max(map(len, down.labels)) * LETTER + 8
        right = left + BETWEEN
        parts = [
            f'<path d="M{left:.1f} {(i + 0.5) * LINE:.1f}L{right:.1f} {(j + 0.5) * LINE:.1f}" stroke="{MORE}" '
            f'stroke-width="1.6" stroke-opacity="{share:.3f}"><title>{share * self.full:.4g}</title></path>'
            for i, j, share in self._drawn()
        ]
        parts += [text(left - 5, (i + 0.5) * LINE + 4, label, "end") for i, label in enumerate(down.labels)]
        parts += [text(right + 5, (j + 0.5) * LINE + 4, label) for j, label in enumerate(across.labels)]
        width = right + max(map(len, across.labels)) * LETTER + 10
        return framed(self, svg(width, max(len(down.labels), len(across.labels)) * LINE + 4, parts))
