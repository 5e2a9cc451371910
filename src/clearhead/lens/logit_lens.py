"""The logit lens: what the model would answer if it stopped after each layer.

The residual stream after a layer goes through the last norm and the head as if it were the end. Row 0 is the stream
before the first block, the last row is the model's own answer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.given import known_names
from clearhead.lens.view import Axis, Row, View
from clearhead.model.transformer import Transformer
from clearhead.tokens.text import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from clearhead.api import Model

STREAMS = ("blocks.0.pre", "blocks.*.post")  # what must be watched for it
TOP = 5


@dataclass(frozen=True, eq=False, repr=False)
class Lens:
    """The likeliest answers: layer × position × rank. A head that answers once for a whole text has one position."""

    tokens: list[str]
    ids: Tensor
    probabilities: Tensor  # of a head that gives a number, the number
    word: Callable[[int], str]

    def words(self, position: int = -1) -> list[list[tuple[str, float]]]:
        """For each layer the likeliest answers at a position, with their probabilities, the first one first."""
        ids, shares = self.ids[:, position].tolist(), self.probabilities[:, position].tolist()
        return [[(self.word(i), p) for i, p in zip(*layer, strict=True)] for layer in zip(ids, shares, strict=True)]

    def view(self) -> View:
        """The first answers and their probabilities, layers down, positions across."""
        layers = ["start", *map(str, range(len(self.ids) - 1))]
        words = tuple(tuple(self.word(i) for i in layer) for layer in self.ids[:, :, 0].tolist())
        axes = Axis.of("layer", layers), Axis.of("token", self.tokens)
        note = "the likeliest answer if the model stopped after that layer, and its probability"
        values = self.probabilities[:, :, 0]
        return View(values, axes, "logit lens", "probability", most=1.0, words=words, note=note)

    def answers(self, position: int = -1) -> View:
        """The model's own likeliest answers at a position."""
        best = self.words(position)[-1]
        axis = Axis.of("answer", [word for word, _ in best])
        title = f"likeliest answers after {self.tokens[position]!r}" if self.tokens[position] else "likeliest answers"
        return View(torch.tensor([share for _, share in best]), (axis,), title, "probability", most=1.0)

    # What every view answers, this one's answers with its picture of all layers.

    def table(self) -> list[Row]:
        return self.view().table()

    def figure(self, dark: bool = False) -> "Figure":
        return self.view().figure(dark)

    def terminal(self) -> "Text":
        return self.view().terminal()

    def save(self, path: str | Path, dark: bool = False) -> None:
        self.view().save(path, dark)

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()

    def __repr__(self) -> str:
        return repr(self.view())

    def __str__(self) -> str:
        return str(self.terminal())


@known_names
def logit_lens(
    model: "Model", x: Any = None, *, source: Any = None, pictures: Any = None, sound: Any = None, top: int = TOP
) -> Lens:
    """The `top` likeliest answers after each layer, for one text (or picture, or sound)."""
    if isinstance(model.config.model.head, c.Hidden):
        raise ClearheadError("this model has no head, so there is no answer to look for; hidden states have no words.")
    if top < 1:
        raise ClearheadError(f"top = {top} must be at least 1.")
    seen = model.watch(x, STREAMS, source=source, pictures=pictures, sound=sound)
    if len(seen[STREAMS[0]]) != 1:
        raise ClearheadError(f"the lens looks at one text at a time, not at {len(seen[STREAMS[0]])}.")
    with torch.no_grad():
        ids, shares = (found[0].cpu() for found in through_the_head(model.net, seen, None, top))
    across = seen.tokens if ids.shape[1] == len(seen.tokens) else [str(n) for n in range(ids.shape[1])]
    return Lens(across, ids, shares, lambda i: answers(model.config, model.tokenizer, [i])[0])


def through_the_head(
    net: Transformer, values: Mapping[str, Tensor], segments: Tensor | None, top: int
) -> tuple[Tensor, Tensor]:
    """Ids and probabilities of the likeliest answers, batch × layer × position × rank. One layer's logits at a time."""
    found = []
    for name in (STREAMS[0], *(f"blocks.{i}.post" for i in range(net.config.layers))):
        logits = net.predict(net.norm(values[name]), segments).float()
        shares = logits if isinstance(net.config.head, c.Number) else logits.softmax(dim=-1)
        best = shares.topk(min(top, shares.shape[-1]))
        found.append(
            (best.indices, best.values) if logits.dim() == 3 else (best.indices[:, None], best.values[:, None])
        )
    ids, shares = (torch.stack(parts, dim=1) for parts in zip(*found, strict=True))
    return ids, shares


def answers(config: c.Config, tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """What the outputs of a model's head are called."""
    if isinstance(config.model.head, c.Classes):
        return [config.use.labels[i] if i < len(config.use.labels) else str(i) for i in ids]
    if isinstance(config.model.head, c.Number):
        return ["number" for _ in ids]
    return token_labels(tokenizer, ids)


def token_labels(tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """Each token for people to read; its number where it has no name."""

    def label(i: int) -> str:
        try:
            return tokenizer.pieces([i])[0] if tokenizer else str(i)
        except ClearheadError:  # models have room for more tokens than their tokenizer knows
            return str(i)

    return [label(i) for i in ids]
