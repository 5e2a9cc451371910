"""Direct attribution: what a logit is made of, down to each head and each token it looked at.

The last hidden state is a sum of what every part has written to the residual stream, so a logit is one too, once the
scale of the norms on the way is held at what it was. The values add up to the logit; what the biases of norms and of
the head add is a part of its own.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.ask import Answer, Question, ask
from clearhead.lens.frozen import exact, from_answer
from clearhead.lens.given import known_names
from clearhead.lens.parts import labels_of, watch_one
from clearhead.lens.view import Axis, Row, View
from clearhead.lens.walk import Look, split, watched

if TYPE_CHECKING:
    from clearhead.api import Model

NOTE = "direct contributions to the logit, the scale of the norms held; they add up to {total:.4f}"


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(View):
    """A value for each part. `heads` and `sources` split attention up, and they too add up to it."""

    layers: tuple[dict[str, Look], ...] = ()
    labels: dict[str, list[str]] | None = None  # of the keys, by kind of attention
    question: Question | None = None

    @property
    def total(self) -> float:
        """The logit, or the difference of two, as the sum of the parts."""
        return float(self.values.sum())

    def heads(self, part: str = "attention") -> View:
        """layer × head."""
        values = torch.stack([look.keys.sum(dim=-1) for look in self._looks(part)])
        axes = Axis.of("layer", len(values)), Axis.of("head", values.shape[1])
        return View(values, axes, f"{self.title}, by head", self.measure, signed=True, note=self.note)

    def sources(self, part: str = "attention") -> View:
        """layer × head × key: what came from each token, by pattern · v W_O."""
        values = torch.stack([look.keys for look in self._looks(part)])
        names = (self.labels or {})[part]
        axes = Axis.of("layer", len(values)), Axis.of("head", values.shape[1]), Axis.of("key", names)
        return View(values, axes, f"{self.title}, by source token", self.measure, signed=True, note=self.note)

    def table(self) -> list[Row]:
        """A row for each part, attention by head; the column of values adds up to the logit."""
        rows: list[Row] = []
        for label, value in zip(self.axes[0].labels, self.values.tolist(), strict=True):
            layer, _, part = label.partition(" ")
            look = self.layers[int(layer)].get(part) if layer.isdigit() else None
            if look is None:
                rows.append({"part": label, "head": "", self.measure: value})
                continue
            by_head = look.keys.sum(dim=-1).tolist()
            rows += [{"part": label, "head": head, self.measure: value} for head, value in enumerate(by_head)]
            rows.append({"part": label, "head": "bias", self.measure: float(look.bias)})
        return rows

    def _looks(self, part: str) -> list[Look]:
        if part not in self.layers[0]:
            raise ClearheadError(f"this model has no {part!r} to split up; it has {' and '.join(self.layers[0])}.")
        return [layer[part] for layer in self.layers]


@known_names
def attribution(
    model: "Model", x: Any = None, *, token: Answer = None, against: Answer = None, at: int = -1, **given: Any
) -> Attribution:
    """What the logit of `token` after the token `at` is made of; with `against`, how it differs from that one's.

    Without `token`, the likeliest. Tokens are texts of one token, or ids; of a classifier, classes. More arguments are
    those of `model.watch`. An encoder-decoder is followed through its decoder; what it read there comes by "cross".
    """
    m = model.config.model
    if isinstance(m.head, c.Hidden):
        raise ClearheadError("this model has no head, so there is no logit to be made of anything.")
    pooled = isinstance(m.head, c.Classes | c.Number)
    rows = slice(None) if pooled else slice(at, at + 1 or None)  # of patterns, those that the answer came by
    names = {name: (lambda p: p[:, :, rows]) if name.endswith("pattern") else _whole for name in watched(m)}
    seen = watch_one(model, x, names, given)
    question = ask(model, seen["logits"][0].float(), token, against, at)
    ray = from_answer(model.net, exact(seen["norm"][0]), question)
    parts, layers = split(model.net, seen, ray, None if pooled else question.at)
    values = torch.stack(list(parts.values()))
    keys = {part: labels_of(seen, part, look.keys.shape)[1] for part, look in layers[0].items()}  # type: ignore[arg-type]
    where = "" if seen["logits"].dim() == 2 else f" after {seen.tokens[question.at]!r}" if seen.tokens else ""
    return Attribution(
        values,
        (Axis.of("part", list(parts)),),
        question.words + where,
        "logit",
        signed=True,
        note=NOTE.format(total=float(values.sum())),
        layers=tuple(layers),
        labels=keys,
        question=question,
    )


def _whole(value: Tensor) -> Tensor:
    return value
