"""The logit lens: what the model would answer if it stopped after each layer.

The residual stream after a layer goes through the last norm and the head as if it were the end. Row 0 is the stream
before the first block, the last row is the model's own answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.given import known_names
from clearhead.lens.parts import asked_at, check_token, check_top, numbers, watch_one
from clearhead.lens.view import Axis, View
from clearhead.model.transformer import Transformer
from clearhead.tap import SILENT, Tap
from clearhead.tokens.text import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model

STREAMS = ("blocks.0.pre", "blocks.*.post")  # what must be watched for it
TOP = 5
NUMBER = "number"  # what the one output of a head that gives a number is called


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Lens(View):
    """The likeliest answers: layer × position × rank. Its picture has the first of each, layers down, positions across.

    A head that answers once for a whole text has one position.
    """

    ids: Tensor
    probabilities: Tensor  # of a head that gives a number, the number
    word: Callable[[int], str]
    head: c.Head
    asked: int  # the position that is looked at where none is named

    @classmethod
    def of(
        cls,
        tokens: Sequence[str],
        ids: Tensor,
        probabilities: Tensor,
        word: Callable[[int], str],
        head: c.Head,
        asked: int = -1,
    ) -> "Lens":
        """From ids and probabilities, layer × position × rank."""
        number = isinstance(head, c.Number)
        answer = "answer" if number else "likeliest answer, and its probability,"
        return cls(
            probabilities[:, :, 0],
            (Axis.of("layer", ["start", *map(str, range(len(ids) - 1))]), Axis.of("token", tokens)),
            "logit lens",
            "number" if number else "probability",
            signed=number,
            most=None if number else 1.0,
            words=tuple(tuple(map(word, layer)) for layer in ids[:, :, 0].tolist()),
            note=f"the {answer} if the model stopped after that layer",
            ids=ids,
            probabilities=probabilities,
            word=word,
            head=head,
            asked=asked,
        )

    def likeliest(self, position: int | None = None) -> list[list[tuple[str, float]]]:
        """For each layer the likeliest answers at a position, with their probabilities, the first one first."""
        position = self._at(position)
        ids, shares = self.ids[:, position].tolist(), self.probabilities[:, position].tolist()
        return [[(self.word(i), p) for i, p in zip(*layer, strict=True)] for layer in zip(ids, shares, strict=True)]

    def answers(self, position: int | None = None) -> View:
        """The model's own likeliest answers at a position."""
        token, best = self.axes[1].labels[self._at(position)], self.likeliest(position)[-1]
        axis, values = Axis.of("answer", [word for word, _ in best]), torch.tensor([share for _, share in best])
        title = f"likeliest answers {beside(self.head)} {token!r}" if token else "likeliest answers"
        return View(values, (axis,), title, self.measure, signed=self.signed, most=self.most)

    def __str__(self) -> str:
        return str(self.terminal())

    def _at(self, position: int | None) -> int:
        return check_token(self.asked if position is None else position, self.ids.shape[1])


@known_names
def logit_lens(model: "Model", x: Any = None, *, top: int = TOP, **given: Any) -> Lens:
    """The `top` likeliest answers after each layer, for one text (or picture, or sound)."""
    head = model.config.model.head
    if isinstance(head, c.Hidden):
        raise ClearheadError("this model has no head, so there is no answer to look for; hidden states have no words.")
    check_top(top)
    seen = watch_one(model, x, STREAMS, given)
    with torch.no_grad():
        tap = model._tap((), given.get("edits"))
        ids, shares = (found[0].cpu() for found in through_the_head(model.net, seen, None, top, tap))
    numbers({"the logits": shares})
    pooled, asked = isinstance(head, c.Classes | c.Number), asked_at(model, None, x, given)
    across = [""] if pooled else seen.tokens
    return Lens.of(across, ids, shares, lambda i: answers(model.config, model.tokenizer, [i])[0], head, asked)


def through_the_head(
    net: Transformer, values: Mapping[str, Tensor], segments: Tensor | None, top: int, tap: Tap = SILENT
) -> tuple[Tensor, Tensor]:
    """Ids and probabilities of the likeliest answers, batch × layer × position × rank. One layer's logits at a time."""
    found = []
    for name in (STREAMS[0], *(f"blocks.{i}.post" for i in range(net.config.layers))):
        logits = net.predict(tap("norm", net.norm(values[name])), segments, tap).float()
        shares = logits if isinstance(net.config.head, c.Number) else logits.softmax(dim=-1)
        best = shares.topk(min(top, shares.shape[-1]))
        found.append(
            (best.indices, best.values) if logits.dim() == 3 else (best.indices[:, None], best.values[:, None])
        )
    ids, shares = (torch.stack(parts, dim=1) for parts in zip(*found, strict=True))
    return ids, shares


def beside(head: c.Head) -> str:
    """How an answer stands to the token whose hidden state it is made of."""
    return "at" if isinstance(head, c.MaskedWord) else "after"


def answers(config: c.Config, tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """What the outputs of a model's head are called."""
    if isinstance(config.model.head, c.Classes):
        return [config.use.labels[i] if i < len(config.use.labels) else str(i) for i in ids]
    if isinstance(config.model.head, c.Number):
        return [NUMBER for _ in ids]
    return token_labels(tokenizer, ids)


def token_labels(tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """Each token for people to read; its number where it has no name."""

    def label(i: int) -> str:
        try:
            return tokenizer.pieces([i])[0] if tokenizer else str(i)
        except ClearheadError:  # models have room for more tokens than their tokenizer knows
            return str(i)

    return [label(i) for i in ids]
