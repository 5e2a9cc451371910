"""Direct attribution: what a logit is made of, down to each head and each token it looked at.

The last hidden state is a sum of what every part has written to the residual stream, so a logit is one too, once the
scale of the norms on the way is held at what it was. The values add up to the logit; what the biases of norms and of
the head add is a part of its own, and so is the rest, where edits of the stream or rounding have added to it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.ask import Answer, Question, ask
from clearhead.lens.frozen import exact, from_answer
from clearhead.lens.given import known_names
from clearhead.lens.logit_lens import beside
from clearhead.lens.parts import asked_at, labels_of, watch_one
from clearhead.lens.view import Axis, Row, View
from clearhead.lens.walk import Look, split, watched
from clearhead.tap import whole

if TYPE_CHECKING:
    from clearhead.api import Model

NOTE = "direct contributions to the logit, the scale of the norms held; they add up to {total:.4f}"
REST = "rest"
FEW = 1e-4  # of a value: so much any sum of 32-bit numbers may be off


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(View):
    """A value for each part. `heads` and `sources` split attention up."""

    layers: tuple[dict[str, Look], ...] = ()
    labels: dict[str, list[str]] | None = None  # of the keys, by kind of attention
    question: Question | None = None

    @property
    def total(self) -> float:
        """The logit, or the difference of two, as the sum of the parts."""
        return float(self.values.sum())

    def heads(self, part: str = "attention") -> View:
        """layer × head."""
        values = torch.stack([look.heads for look in self._looks(part)])
        axes = Axis.of("layer", len(values)), Axis.of("head", values.shape[1])
        return View(values, axes, f"{self.title}, by head", self.measure, signed=True, note=self.note)

    def sources(self, part: str = "attention") -> View:
        """layer × head × key: what came from each token, by pattern · v W_O; of edited heads, as before the edit."""
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
            given: list[tuple[int | str, float]] = [*enumerate(look.heads.tolist()), ("bias", float(look.bias))]
            if _counts(rest := value - sum(some for _, some in given), value):
                given.append((REST, rest))
            rows += [{"part": label, "head": head, self.measure: some} for head, some in given]
        return rows

    def _looks(self, part: str) -> list[Look]:
        if part not in self.layers[0]:
            raise ClearheadError(f"this model has no {part!r} to split up; it has {' and '.join(self.layers[0])}.")
        return [layer[part] for layer in self.layers]


@known_names
def attribution(
    model: "Model", x: Any = None, *, token: Answer = None, against: Answer = None, at: int | None = None, **given: Any
) -> Attribution:
    """What the logit of `token` after the token `at` is made of; with `against`, how it differs from that one's.

    Without `token`, the likeliest; without `at`, the last token, or the first that is hidden where words are. Tokens
    are texts of one token, or ids; of a classifier, classes. More arguments are those of `model.watch`. An
    encoder-decoder is followed through its decoder; what it read there comes by "cross".
    """
    m = model.config.model
    if isinstance(m.head, c.Hidden):
        raise ClearheadError("this model has no head, so there is no logit to be made of anything.")
    pooled = isinstance(m.head, c.Classes | c.Number)
    at = asked_at(model, at, x, given)
    rows = slice(None) if pooled else slice(at, at + 1 or None)  # of patterns, those that the answer came by
    names = {name: (lambda p: p[:, :, rows]) if name.endswith("pattern") else whole for name in watched(m)}
    seen = watch_one(model, x, names, given)
    logits = seen["logits"][0].float()
    question = ask(model, logits, token, against, at)
    ray = from_answer(model.net, exact(seen["norm"][0]), question)
    parts, layers = split(model.net, seen, ray, None if pooled else question.at)
    logit = question.of(logits if pooled else logits[question.at])
    note = NOTE
    if _counts(rest := float(logit - sum(parts.values())), float(logit)):
        parts[REST], note = (
            logit.new_tensor(rest),
            f"{NOTE}; {REST}: what edits of the stream, and rounding, have added",
        )
    values = torch.stack(list(parts.values()))
    keys = {part: labels_of(seen, part, look.keys.shape)[1] for part, look in layers[0].items()}  # type: ignore[arg-type]
    where = f" {beside(m.head)} {seen.tokens[question.at]!r}" if seen.tokens and not pooled else ""
    return Attribution(
        values,
        (Axis.of("part", list(parts)),),
        question.words + where,
        "logit",
        signed=True,
        note=note.format(total=float(values.sum())),
        layers=tuple(layers),
        labels=keys,
        question=question,
    )


def _counts(rest: float, of: float) -> bool:
    """Whether what is missing from a sum is more than its rounding."""
    return abs(rest) > FEW * max(1.0, abs(of))
