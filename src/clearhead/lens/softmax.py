"""Softmax (L5.2): from logits to probabilities, step by step, at any temperature."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.generate.sampling import check_temperature, is_number
from clearhead.lens.activation_cache import single_text, watch_single_text
from clearhead.lens.argument_checks import (
    answer_position,
    check_model,
    check_token,
    check_top_k,
)
from clearhead.lens.hook_points import has_pooled_head
from clearhead.lens.logit_target import answer_preposition
from clearhead.lens.tokens import output_labels
from clearhead.lens.view import Row, View, label_axes

if TYPE_CHECKING:
    from clearhead.api import MediaInput, Model, TextInput
    from clearhead.lens.edits import Edits

STEPS = ("logit/T", "exp", "probability")  # for each temperature
NOTE = "exp is e^(logit/T − the largest logit/T), which cannot overflow; probability = exp / sum"
GREEDY_NOTE = "; T = 0 is greedy decoding: the largest logit, the first of equal ones, gets all"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SoftmaxTable(View):
    """answer × (logit, then logit/T, exp and probability for each temperature)."""

    probabilities: Tensor  # temperature × answer

    def table(self) -> list[Row]:
        """A row for each answer."""
        rows = zip(self.axes[0].labels, self.values.tolist(), strict=True)
        columns = self.axes[1].labels
        return [
            {self.axes[0].name: label, **dict(zip(columns, row, strict=True))}
            for label, row in rows
        ]


def softmax(
    logits: Mapping[str, float] | Sequence[float] | Tensor,
    temperatures: Sequence[float] = (1.0,),
) -> SoftmaxTable:
    """The softmax of any logits, step by step, for each temperature.

    A mapping names the answers: `{"cat": 2.0, "dog": 1.5}`. A logit of −∞ is a masked answer.
    """
    if isinstance(logits, Mapping):
        labels = [str(label) for label in logits]
        numbers: Iterable[object] = logits.values()
    else:
        numbers = logits.tolist() if isinstance(logits, Tensor) else logits
        if isinstance(numbers, str) or not isinstance(numbers, Sequence):
            raise ClearheadError(f"logits must be a list of numbers, got {logits!r:.60}.")
        labels = [str(i) for i in range(len(numbers))]
    row = torch.tensor([_check_logit(number) for number in numbers], dtype=torch.float64)
    if not row.numel() or bool(row.isneginf().all()):
        raise ClearheadError("logits must contain at least one finite number.")
    return _softmax_table(row, temperatures, labels, slice(None), "softmax")


def logits(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    position: int | None = None,
    temperatures: Sequence[float] = (1.0,),
    top_k: int = 10,
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> SoftmaxTable:
    """The largest logits at a position, and how softmax over all outputs turns them into
    probabilities.

    The default position is the last, or that of the first mask token.
    """
    check_model(model)
    check_top_k(top_k)
    head = model.config.model.head
    if isinstance(head, c.NoHead | c.RegressionHead):
        raise ClearheadError(f"a model with head {head.kind} has no logits.")
    cache = watch_single_text(model, ["logits"], x, source, images, audio, edits)
    row = single_text(cache["logits"])
    title = "logits"
    if not has_pooled_head(model.config.model):
        position = answer_position(model.config, cache.batch, position)
        position = check_token(position, len(cache.tokens))
        row = row[position]
        title = f"logits {answer_preposition(head)} {cache.tokens[position]!r}"
    top = row.argsort(descending=True, stable=True)[:top_k]
    labels = output_labels(model.config, model.tokenizer, top.tolist())
    return _softmax_table(row.double(), temperatures, labels, top, title)


def shifted_exponentials(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """exp(scores / T) of a row, divided by its largest value, so that it cannot overflow."""
    largest = scores.max().nan_to_num(0, 0, 0)
    return ((scores - largest) / temperature).exp()


def _softmax_table(
    row: Tensor,
    temperatures: Sequence[float],
    labels: Sequence[str],
    shown: Tensor | slice,
    title: str,
) -> SoftmaxTable:
    """The table of the shown logits of a row, with the softmax over the whole row."""
    if not isinstance(temperatures, tuple | list) or not temperatures:
        raise ClearheadError(
            f"temperatures must be a list of numbers such as [1, 10], got {temperatures!r:.60}."
        )
    columns = {"logit": row}
    for temperature in temperatures:
        check_temperature(temperature)
    if len(set(temperatures)) < len(temperatures):
        raise ClearheadError(f"temperatures must differ, got {temperatures!r:.60}.")
    for temperature in temperatures:
        if temperature:
            scaled = row / temperature
            exponentials = shifted_exponentials(row, temperature)
        else:
            scaled = torch.full_like(row, torch.nan)
            exponentials = torch.zeros_like(row)
            exponentials[row.argmax()] = 1
        steps = (scaled, exponentials, exponentials / exponentials.sum())
        for name, values in zip(STEPS, steps, strict=True):
            columns[f"{name} (T={temperature:.16g})"] = values
    values = torch.stack([column[shown] for column in columns.values()], dim=1)
    return SoftmaxTable(
        values,
        label_axes({"answer": labels, "step": list(columns)}),
        title,
        "value",
        signed=True,
        vmax=math.inf,
        words=tuple(tuple(map(_format, numbers)) for numbers in values.tolist()),
        note=NOTE + (GREEDY_NOTE if 0 in temperatures else ""),
        probabilities=values[:, len(STEPS) :: len(STEPS)].T.float(),
    )


def _check_logit(value: object) -> float:
    try:
        if is_number(value) and not math.isnan(value) and value != math.inf:
            return float(value)
    except OverflowError:  # an integer that no float can hold
        pass
    raise ClearheadError(f"a logit must be a finite number or −∞, got {value!r:.60}.")


def _format(value: float) -> str:
    if math.isnan(value):
        return ""
    return "−∞" if value == -math.inf else f"{value:.4g}".replace("inf", "∞")
