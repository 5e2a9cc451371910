"""A film of training on one page: a head's pattern and the lens' answers, step by step from left to right."""

from typing import TYPE_CHECKING

from torch import Tensor

from clearhead.lens.colours import LIGHT, colour_map
from clearhead.lens.film import Film, Probe
from clearhead.lens.given import known_names
from clearhead.lens.parts import Part, check_place
from clearhead.lens.plots import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FRAMES, ROWS = 7, 9  # steps and layers that fit a page
PANEL, CELL = 2.3, 0.3  # inches of a pattern, and the height of an answer
WORD = 14  # characters of a token that fit a cell
KINDS = {"attention": "attention", "cross": "cross-attention", "encoder": "attention in the encoder,"}


@known_names
def film_figure(
    film: Film, probe: int = 0, layer: int | None = None, head: int | None = None, part: Part | None = None
) -> "Figure":
    """One head's pattern over the steps, and below it what the lens answers after each layer.

    Without `layer` or `head`, the head whose pattern has changed most; of an encoder-decoder, in its cross-attention.
    The answers are those at the last token, or at the hidden one where words are masked.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    part = part or ("cross" if "cross" in film.parts else "attention")
    layer, head = _head(film, probe, part, layer, head)
    frames = _spread(len(film.steps), FRAMES)
    shown, lenses = film.probes[probe], [film.lens(film.steps[i], probe) for i in frames]
    rows = _spread(len(lenses[0].ids), ROWS)[::-1]  # the last layer on top
    size = (1.5 + PANEL * len(frames), 2.1 + PANEL + CELL * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    above, below = figure.subplots(2, len(frames), squeeze=False, height_ratios=[PANEL, CELL * len(rows)])
    _caption(figure, f"{KINDS[part]} of layer {layer}, head {head}", shown, pooled=lenses[0].ids.shape[1] == 1)
    norm = PowerNorm(0.5, vmin=0, vmax=1)  # a square root, or the even patterns of the beginning would be white
    for n, frame in enumerate(frames):
        pattern = film.attention(film.steps[frame], probe, part)[layer, head]
        picture = above[n].imshow(pattern.numpy(), cmap=colour_map(False, LIGHT), norm=norm, interpolation="nearest")
        loss = film.losses[frame]
        above[n].set_title(f"step {film.steps[frame]:,}\n{'' if loss is None else f'loss {loss:.2f}'}", fontsize=9)
        answers = [lenses[n].likeliest(shown.asked if lenses[n].ids.shape[1] > 1 else 0)[row][0] for row in rows]
        _answers(below[n], answers)
    queries = shown.source_tokens if part == "encoder" else shown.tokens
    keys = shown.tokens if part == "attention" else shown.source_tokens
    for axes in (*above, *below):
        _bare(axes)
    _label(above[0], queries, keys)
    below[0].set_yticks(range(len(rows)), ["start" if row == 0 else f"layer {row - 1}" for row in rows], fontsize=8)
    figure.colorbar(picture, ax=above[-1], ticks=[0, 0.1, 0.5, 1], shrink=0.7).ax.tick_params(labelsize=7, length=0)
    return figure


def _caption(figure: "Figure", what: str, probe: Probe, pooled: bool) -> None:
    text, asked = plain([" ".join(probe.text.split()), probe.tokens[probe.asked]])
    figure.suptitle(
        f"{what}, while it learns:  {text if len(text) <= 130 else text[:129] + '…'}", fontsize=11, x=0.01, ha="left"
    )
    where = "" if pooled else f" at  {asked}  (token {probe.asked + 1})"
    answer = f"the likeliest answer{where} and its probability, if the model stopped after that layer"
    figure.supxlabel(answer, fontsize=9, x=0.01, ha="left")


def _head(film: Film, probe: int, part: Part, layer: int | None, head: int | None) -> tuple[int, int]:
    """The head that was asked for; where something was left open, the one that has changed most."""
    first, last = (film.attention(film.steps[i], probe, part) for i in (0, -1))
    change: Tensor = (last - first).abs().sum(dim=(-1, -2))
    for dim, (word, index) in enumerate((("layer", layer), ("head", head))):
        if index is not None:
            own = check_place(index, change.shape[dim], word, "this film")
            others = [i for i in range(change.shape[dim]) if i != own]
            change = change.index_fill(dim, change.new_tensor(others).long(), -1.0)
    most = int(change.argmax())
    return most // change.shape[1], most % change.shape[1]


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` of the numbers below `count`, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _answers(axes: "Axes", answers: list[tuple[str, float]]) -> None:
    """A column of words, shaded by their probability."""
    axes.imshow([[share] for _, share in answers], cmap=colour_map(False, LIGHT), vmin=0, vmax=1, aspect="auto")
    for row, (word, share) in enumerate(answers):
        colour = "white" if share > 0.75 else "black"
        short = plain([word if len(word) <= WORD else word[: WORD - 1] + "…"])[0]
        axes.text(-0.46, row, short, fontsize=9, va="center", ha="left", family="monospace", color=colour)
        axes.text(0.46, row, f"{share:.2f}", fontsize=7, va="center", ha="right", color=colour)


def _label(axes: "Axes", queries: list[str], keys: list[str]) -> None:
    size = min(8.0, 0.85 * PANEL * 72 / max(len(queries), len(keys)))
    if size >= 3.5:  # smaller, nobody can read it
        axes.set_yticks(range(len(queries)), plain(queries), fontsize=size, family="monospace")
        axes.set_xticks(range(len(keys)), plain(keys), fontsize=size, family="monospace", rotation=90)


def _bare(axes: "Axes") -> None:
    axes.set(xticks=[], yticks=[])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
