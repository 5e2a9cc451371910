"""A text as the model gets it: its tokens and their numbers."""

from typing import TYPE_CHECKING, Any

import torch

from clearhead.lens.given import known_names
from clearhead.lens.logit_lens import token_labels
from clearhead.lens.view import Axis, View

if TYPE_CHECKING:
    from clearhead.api import Model


@known_names
def tokens(model: "Model", text: Any) -> View:
    """Each token and its id, with all that stands around a text."""
    tokenizer = model.source_tokenizer or model.tokenizer
    given = {"x": text} if model.kind != "encoder-decoder" else {"x": None, "source": text}
    batch = model._batch(**given)
    ids = (batch.ids if batch.source is None else batch.source)[0].tolist()
    words = tuple(token_labels(tokenizer, ids)), tuple(map(str, ids))
    axes = Axis.of("what", ("token", "id")), Axis.of("place", len(ids))
    return View(torch.tensor([ids, ids]), axes, f"{len(ids)} tokens", "id", most=float("inf"), words=words)
