"""Logit lens: what the model would predict if it stopped after each layer.

The residual stream after each layer goes through the final norm and the head. Row 0 is the stream
before the first block; the last row is the model's own prediction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import NO_HOOKS, Hooks
from clearhead.lens.activation_cache import check_no_nan, watch_single_text
from clearhead.lens.argument_checks import answer_position, check_model, check_token, check_top_k
from clearhead.lens.hook_points import has_pooled_head
from clearhead.lens.logit_target import answer_preposition
from clearhead.lens.tokens import output_labels
from clearhead.lens.view import View, label_axes
from clearhead.model.transformer import Transformer

if TYPE_CHECKING:
    from clearhead.api import MediaInput, Model, TextInput
    from clearhead.lens.edits import Edits

RESIDUAL_STREAMS = ("blocks.0.resid_pre", "blocks.*.resid_post")  # the activations it needs
DEFAULT_TOP_K = 5


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LogitLens(View):
    """The top predictions, layer × position × rank; drawn with the first of each.

    A head that gives one prediction for a whole text has one position.
    """

    ids: Tensor
    probabilities: Tensor  # the prediction itself, for a regression head
    label_of: Callable[[int], str]
    head: c.Head
    default_position: int

    @classmethod
    def from_top_k(
        cls,
        tokens: Sequence[str],
        ids: Tensor,
        probabilities: Tensor,
        label_of: Callable[[int], str],
        head: c.Head,
        default_position: int = -1,
    ) -> "LogitLens":
        """From ids and probabilities, layer × position × rank."""
        is_regression = isinstance(head, c.RegressionHead)
        prediction = "prediction" if is_regression else "top prediction and its probability"
        return cls(
            values=probabilities[:, :, 0],
            axes=label_axes({"layer": ["start", *map(str, range(len(ids) - 1))], "token": tokens}),
            title="logit lens",
            value_name="number" if is_regression else "probability",
            signed=is_regression,
            vmax=None if is_regression else 1.0,
            words=tuple(tuple(map(label_of, row)) for row in ids[:, :, 0].tolist()),
            note=f"the {prediction} if the model stopped after that layer",
            ids=ids,
            probabilities=probabilities,
            label_of=label_of,
            head=head,
            default_position=default_position,
        )

    def top_predictions(self, position: int | None = None) -> list[list[tuple[str, float]]]:
        """For each layer the top predictions at a position with their probabilities, best first."""
        index = self._position_index(position)
        return [
            [(self.label_of(i), p) for i, p in zip(ids, probabilities, strict=True)]
            for ids, probabilities in zip(
                self.ids[:, index].tolist(), self.probabilities[:, index].tolist(), strict=True
            )
        ]

    def final_predictions(self, position: int | None = None) -> View:
        """The model's own top predictions at a position."""
        token = self.axes[1].labels[self._position_index(position)]
        labels, probabilities = zip(*self.top_predictions(position)[-1], strict=True)
        title = "top predictions"
        if token:
            title += f" {answer_preposition(self.head)} {token!r}"
        return View(
            torch.tensor(probabilities),
            label_axes({"answer": labels}),
            title,
            self.value_name,
            signed=self.signed,
            vmax=self.vmax,
        )

    def __str__(self) -> str:
        return str(self.terminal())

    def _position_index(self, position: int | None) -> int:
        if position is None:
            position = self.default_position
        return check_token(position, self.ids.shape[1])


def logit_lens(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    top_k: int = DEFAULT_TOP_K,
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> LogitLens:
    """The `top_k` predictions after each layer, for one text, image or audio clip."""
    check_model(model)
    head = model.config.model.head
    if isinstance(head, c.NoHead):
        raise ClearheadError("this model has no head, so hidden states give no predictions.")
    check_top_k(top_k)
    cache = watch_single_text(model, RESIDUAL_STREAMS, x, source, images, audio, edits)
    with torch.no_grad():
        hooks = model.make_hooks((), edits)
        ids, probabilities = apply_head(model.net, cache, None, top_k, hooks)
    check_no_nan({"the logits": probabilities})
    return LogitLens.from_top_k(
        [""] if has_pooled_head(model.config.model) else cache.tokens,
        ids[0].cpu(),
        probabilities[0].cpu(),
        lambda i: output_labels(model.config, model.tokenizer, [i])[0],
        head,
        answer_position(model.config, cache.batch),
    )


def apply_head(
    net: Transformer,
    activations: Mapping[str, Tensor],
    segment_ids: Tensor | None,
    top_k: int,
    hooks: Hooks = NO_HOOKS,
) -> tuple[Tensor, Tensor]:
    """Ids and probabilities of the top predictions, batch × layer × position × rank.

    Holds the logits of one layer at a time.
    """
    ids_by_layer = []
    probabilities_by_layer = []
    streams = (RESIDUAL_STREAMS[0], *(f"blocks.{i}.resid_post" for i in range(net.config.n_layers)))
    for name in streams:
        hidden = hooks("final_norm", net.final_norm(activations[name]))
        logits = net.compute_logits(hidden, segment_ids, hooks).float()
        if logits.dim() == 2:  # one row for each text
            logits = logits[:, None]
        is_regression = isinstance(net.config.head, c.RegressionHead)
        probabilities = logits if is_regression else logits.softmax(dim=-1)
        best = probabilities.topk(min(top_k, probabilities.shape[-1]))
        ids_by_layer.append(best.indices)
        probabilities_by_layer.append(best.values)
    return torch.stack(ids_by_layer, dim=1), torch.stack(probabilities_by_layer, dim=1)
