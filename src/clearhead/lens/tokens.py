"""Tokens of a text as the model reads it, and printable labels of tokens and outputs."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.argument_checks import check_model, check_single_text
from clearhead.lens.view import View, label_axes
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model, TextInput
REGRESSION_LABEL = "number"  # the label of a regression head's only output


def tokens(model: "Model", text: "TextInput") -> View:
    """The tokens of a text and their ids, as the model reads it: with special tokens around it."""
    check_model(model)
    m = model.config.model
    if not isinstance(m.main_input, c.Tokens):
        raise ClearheadError(f"this model reads {m.main_input.kind}, not text; it has no tokens.")
    if isinstance(m.architecture, c.EncoderDecoder):
        target = None if model.config.inference.decoder_start_tokens else [0]
        batch = model.make_batch(target, source=text)
    else:
        batch = model.make_batch(text)
    inputs = batch.inputs if batch.source is None else batch.source
    check_single_text(inputs)
    ids = inputs[0].tolist()
    words = tuple(token_labels(model.tokenizers[1], ids)), tuple(map(str, ids))
    return View(
        torch.tensor([ids, ids]),
        label_axes({"row": ("token", "id"), "position": len(ids)}),
        title=f"{len(ids)} tokens",
        value_name="id",
        vmax=float("inf"),
        words=words,
    )


def first_text_labels(
    ids: Tensor | None, segment_ids: Tensor | None, tokenizer: Tokenizer | None
) -> list[str]:
    """The labels of the first text's tokens, without padding; empty for images and audio."""
    if ids is None or ids.is_floating_point():
        return []
    first = ids[0] if segment_ids is None else ids[0][segment_ids[0] != 0]
    return token_labels(tokenizer, first.tolist())


def output_labels(config: c.Config, tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """The labels of a head's outputs: class names, or tokens."""
    labels = config.inference.labels
    if isinstance(config.model.head, c.ClassificationHead):
        return [labels[i] if i < len(labels) else str(i) for i in ids]
    if isinstance(config.model.head, c.RegressionHead):
        return [REGRESSION_LABEL for _ in ids]
    return token_labels(tokenizer, ids)


def token_labels(tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """Printable tokens; the id where the tokenizer has no token for it."""

    def label(i: int) -> str:
        try:
            return tokenizer.to_str_tokens([i])[0] if tokenizer else str(i)
        except ClearheadError:  # models may have more rows than their tokenizer has tokens
            return str(i)

    return [label(i) for i in ids]
