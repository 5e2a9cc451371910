"""A text as the model gets it: its tokens and their numbers."""

from typing import TYPE_CHECKING, Any

import torch

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.given import known_names
from clearhead.lens.logit_lens import token_labels
from clearhead.lens.view import Axis, View

if TYPE_CHECKING:
    from clearhead.api import Model


@known_names
def tokens(model: "Model", text: Any) -> View:
    """Each token and its id, with all that stands around a text."""
    m = model.config.model
    reads, both = m.reads, isinstance(m.shape, c.EncoderDecoder)
    if not isinstance(reads, c.Tokens):
        raise ClearheadError(f"this model reads {reads.kind}, not text; only text has tokens to show.")
    target = None if model.config.use.start else [0]  # which no source is cut by
    batch = model._batch(target, source=text) if both else model._batch(text)
    read = batch.ids if batch.source is None else batch.source
    if len(read) != 1:
        raise ClearheadError(f"this looks at one text at a time, not at {len(read)}.")
    ids = read[0].tolist()
    words = tuple(token_labels(model.tokenizers[1], ids)), tuple(map(str, ids))
    axes = Axis.of("what", ("token", "id")), Axis.of("place", len(ids))
    return View(torch.tensor([ids, ids]), axes, f"{len(ids)} tokens", "id", most=float("inf"), words=words)
