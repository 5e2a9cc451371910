"""The logit lens: what the model would answer if it stopped after each layer.

The residual stream after a layer goes through the last norm and the head as if it were the end. Row 0 is the stream
before the first block, the last row is the model's own answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import NO_HOOKS, Hooks
from clearhead.lens.activations import (
    answer_position,
    check_arguments,
    check_no_nan,
    check_token,
    check_top,
    output_labels,
    watch_single_text,
)
from clearhead.lens.view import Axis, View
from clearhead.model.transformer import Transformer

if TYPE_CHECKING:
    from clearhead.api import Model

RESIDUAL_STREAMS = ("blocks.0.resid_pre", "blocks.*.resid_post")  # what must be watched for it
DEFAULT_TOP_K = 5


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LogitLens(View):
    """The likeliest answers: layer × position × rank. Its picture has the first of each, layers down, positions across.

    A head that answers once for a whole text has one position.
    """

    ids: Tensor
    probabilities: Tensor  # of a head that gives a number, the number
    label_of: Callable[[int], str]
    head: c.Head
    default_position: int  # the position that is looked at where none is named

    @classmethod
    def from_top_k(
        cls,
        tokens: Sequence[str],
        ids: Tensor,
        probabilities: Tensor,
        word: Callable[[int], str],
        head: c.Head,
        asked: int = -1,
    ) -> "LogitLens":
        """From ids and probabilities, layer × position × rank."""
        number = isinstance(head, c.RegressionHead)
        answer = "answer" if number else "likeliest answer, and its probability,"
        return cls(
            probabilities[:, :, 0],
            (
                Axis.from_labels("layer", ["start", *map(str, range(len(ids) - 1))]),
                Axis.from_labels("token", tokens),
            ),
            "logit lens",
            "number" if number else "probability",
            signed=number,
            vmax=None if number else 1.0,
            words=tuple(tuple(map(word, layer)) for layer in ids[:, :, 0].tolist()),
            note=f"the {answer} if the model stopped after that layer",
            ids=ids,
            probabilities=probabilities,
            label_of=word,
            head=head,
            default_position=asked,
        )

    def top_predictions(self, position: int | None = None) -> list[list[tuple[str, float]]]:
        """For each layer the likeliest answers at a position, with their probabilities, the first one first."""
        position = self._at(position)
        ids = self.ids[:, position].tolist()
        shares = self.probabilities[:, position].tolist()
        return [
            [(self.label_of(i), p) for i, p in zip(*layer, strict=True)]
            for layer in zip(ids, shares, strict=True)
        ]

    def final_predictions(self, position: int | None = None) -> View:
        """The model's own likeliest answers at a position."""
        token = self.axes[1].labels[self._at(position)]
        best = self.top_predictions(position)[-1]
        axis = Axis.from_labels("answer", [word for word, _ in best])
        values = torch.tensor([share for _, share in best])
        title = (
            f"likeliest answers {answer_preposition(self.head)} {token!r}"
            if token
            else "likeliest answers"
        )
        return View(values, (axis,), title, self.value_name, signed=self.signed, vmax=self.vmax)

    def __str__(self) -> str:
        return str(self.terminal())

    def _at(self, position: int | None) -> int:
        return check_token(
            self.default_position if position is None else position, self.ids.shape[1]
        )


@check_arguments
def logit_lens(
    model: "Model", x: Any = None, *, top: int = DEFAULT_TOP_K, **given: Any
) -> LogitLens:
    """The `top` likeliest answers after each layer, for one text (or picture, or sound)."""
    head = model.config.model.head
    if isinstance(head, c.NoHead):
        raise ClearheadError(
            "this model has no head, so there is no answer to look for; hidden states have no words."
        )
    check_top(top)
    seen = watch_single_text(model, x, RESIDUAL_STREAMS, given)
    with torch.no_grad():
        hooks = model.make_hooks((), given.get("edits"))
        ids, shares = (found[0].cpu() for found in apply_head(model.net, seen, None, top, hooks))
    check_no_nan({"the logits": shares})
    pooled = isinstance(head, c.ClassificationHead | c.RegressionHead)
    asked = answer_position(model, None, x, given)
    across = [""] if pooled else seen.tokens
    return LogitLens.from_top_k(
        across,
        ids,
        shares,
        lambda i: output_labels(model.config, model.tokenizer, [i])[0],
        head,
        asked,
    )


def apply_head(
    net: Transformer,
    values: Mapping[str, Tensor],
    segment_ids: Tensor | None,
    top: int,
    hooks: Hooks = NO_HOOKS,
) -> tuple[Tensor, Tensor]:
    """Ids and probabilities of the likeliest answers, batch × layer × position × rank. One layer's logits at a time."""
    found = []
    for name in (
        RESIDUAL_STREAMS[0],
        *(f"blocks.{i}.resid_post" for i in range(net.config.n_layers)),
    ):
        logits = net.compute_logits(
            hooks("final_norm", net.final_norm(values[name])), segment_ids, hooks
        ).float()
        shares = logits if isinstance(net.config.head, c.RegressionHead) else logits.softmax(dim=-1)
        best = shares.topk(min(top, shares.shape[-1]))
        found.append(
            (best.indices, best.values)
            if logits.dim() == 3
            else (best.indices[:, None], best.values[:, None])
        )
    ids, shares = (torch.stack(parts, dim=1) for parts in zip(*found, strict=True))
    return ids, shares


def answer_preposition(head: c.Head) -> str:
    """How an answer stands to the token whose hidden state it is made of."""
    return "at" if isinstance(head, c.MLMHead) else "after"
