"""Pictures for people: an attention head as a figure, or in the terminal."""

from typing import TYPE_CHECKING

from torch import Tensor

from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from clearhead.lens.seen import Seen


SHADES = " ░▒▓█"  # a fifth of the weight each


def attention_figure(seen: "Seen", layer: int, head: int | None = None, cross: bool = False) -> "Figure":
    """One head's pattern as a matrix, queries down, keys across; without `head`, all heads of the layer."""
    from matplotlib.figure import Figure

    pattern = pattern_of(seen, layer, cross)
    heads = range(pattern.shape[0]) if head is None else [_checked(head, pattern)]
    down, across = _labels(seen, pattern[0], cross)
    columns = min(len(heads), 4)
    rows = -(-len(heads) // columns)
    side = max(3.0, 0.24 * len(across) + 1.4) if head is not None else 2.6
    figure = Figure(figsize=(side * columns, side * rows), layout="constrained")
    for number, h in enumerate(heads):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.imshow(pattern[h].numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        kind = "cross-attention, " if cross else ""
        axes.set_title(f"{kind}layer {layer}, head {h}", fontsize=10, loc="left", pad=8)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(length=0, labelsize=8 if head is not None else 6, labelfontfamily="monospace")
        fits = head is not None or max(len(down), len(across)) <= 32
        first, last = fits and number % columns == 0, fits and number + columns >= len(heads)  # the outer edges
        axes.set_yticks(range(len(down)) if first else [], plain(down) if first else [])
        axes.set_xticks(range(len(across)) if last else [], plain(across) if last else [], rotation=90)
        axes.set_ylabel("looking (query)" if first else "", fontsize=8)
        axes.set_xlabel("looked at (key)" if last else "", fontsize=8)
    return figure


def attention_text(seen: "Seen", layer: int, head: int, cross: bool = False) -> "Text":
    """The same for a terminal: a shaded square for each weight, rows are queries; last, where most of it goes."""
    from rich.text import Text

    pattern = pattern_of(seen, layer, cross)
    pattern = pattern[_checked(head, pattern)]
    down, across = _labels(seen, pattern, cross)
    picture, wide = Text(), max(map(len, down))
    for label, row in zip(down, pattern.tolist(), strict=True):
        picture.append(f"{label:>{wide}} ")
        for weight in row:
            picture.append(SHADES[min(int(weight * 5), 4)] * 2)
        picture.append(f"  {across[row.index(max(row))]} {max(row):.2f}\n", style="dim")
    return picture


def pattern_of(seen: "Seen", layer: int, cross: bool = False) -> Tensor:
    """head × query × key of the first text."""
    name = f"blocks.{layer}.{'cross' if cross else 'attn'}.pattern"
    if not 0 <= layer < seen.layers:
        raise ClearheadError(f"there is no layer {layer}; this model has layers 0 to {seen.layers - 1}.")
    if name not in seen:
        raise ClearheadError(f"{name} was not watched; ask for it in model.watch(text, [{name!r}]).")
    return seen[name][0].detach().float().cpu()


def _checked(head: int, pattern: Tensor) -> int:
    if not 0 <= head < len(pattern):
        raise ClearheadError(f"there is no head {head}; this layer has heads 0 to {len(pattern) - 1}.")
    return head


def _labels(seen: "Seen", pattern: Tensor, cross: bool) -> tuple[list[str], list[str]]:
    """Names for rows and columns: the tokens, or numbers where patches and paddings have none."""
    sides = (seen.tokens, pattern.shape[0]), (seen.source_tokens if cross else seen.tokens, pattern.shape[1])
    down, across = ([*names, *map(str, range(len(names), size))] for names, size in sides)
    return down, across


def plain(tokens: list[str]) -> list[str]:
    return [token.replace("$", r"\$") for token in tokens]  # a dollar would start a formula
