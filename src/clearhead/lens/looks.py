"""Where a word looks (L3.6): how much attention each head lets it give the other words of its text."""

import re
from typing import TYPE_CHECKING

import torch

from clearhead.errors import ClearheadError, nearest
from clearhead.lens.attention import attention
from clearhead.lens.context import placed
from clearhead.lens.given import known_names
from clearhead.lens.view import Axis, View
from clearhead.lens.word_sources import Side

if TYPE_CHECKING:
    from clearhead.api import Model

WORD = r"\w+(?:['’]\w+)*"


@known_names
def looks(model: "Model", word: str, text: str) -> View:
    """layer × head × word: the attention that a word gives each word of the text, however they are cut into tokens.

    It looks from its last token, which has read all of it, at all tokens of the other. What is missing from 1 goes to
    tokens of no word, such as the beginning of the text. Where a text has the word several times, the last is meant.
    An encoder-decoder is looked at where it reads: in its encoder.
    """
    side = Side(model)
    words = [(found[0], placed(side, text, *found.span()).word) for found in re.finditer(WORD, text)]
    own = [tokens for name, tokens in words if name.casefold() == word.casefold()]
    if not own:
        raise ClearheadError(f"{word!r} is not in {text!r:.80}; {nearest(word, dict(words))}")
    part = attention(model, "", source=text, part="encoder") if side.encoder else attention(model, text)
    row = part.values[:, :, own[-1][-1]]  # layer head key
    values = torch.stack([row[..., tokens].sum(dim=-1) for _, tokens in words], dim=-1)
    axes = Axis.of("layer", values.shape[0]), Axis.of("head", values.shape[1]), Axis.of("word", [n for n, _ in words])
    note = "the weight that a word gives another: from its last token to all tokens of the other"
    return View(values, axes, f"where {word!r} looks", "weight", most=1.0, note=note)
