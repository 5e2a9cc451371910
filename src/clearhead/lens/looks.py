"""Where a word looks (L3.6): how much attention each head lets it give the other words of its text."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from clearhead.errors import ClearheadError, check_kind, nearest
from clearhead.lens.attention import attention
from clearhead.lens.context import placed
from clearhead.lens.given import known_names
from clearhead.lens.parts import check_top
from clearhead.lens.view import Axis, View
from clearhead.lens.word_sources import Side
from clearhead.tokens.gaps import GAP

if TYPE_CHECKING:
    from clearhead.api import Model

WORD = rf"{re.escape(GAP)}|\w+(?:['’]\w+)*"
OTHERS = ("most else", "second", "third")  # words that a head also looks at


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Looks(View):
    """layer × head × word: what each head gives each word of a text."""

    place: int  # of the word that looks, among the words

    def heads(self, word: str, top: int = 8) -> View:
        """The heads, layer.head, that give most to a word, all its places together; and to what else they give most."""
        labels = self.axes[-1].labels
        asked = torch.tensor([label.casefold() == str(word).casefold() for label in labels])
        if not asked.any():
            raise ClearheadError(f"{word!r} is not in the text; {nearest(str(word), dict.fromkeys(labels))}")
        flat = self.values.flatten(0, 1)
        own = flat[:, asked].sum(dim=-1)
        if not own.any() and int(asked.nonzero()[0]) > self.place:
            looks, later = labels[self.place], labels[int(asked.nonzero()[0])]
            why = f"{looks!r} cannot look at {later!r}, which comes after it: in a decoder a word can only look back"
            raise ClearheadError(f"{why}; ask the other way round, how {later!r} looks at {looks!r}.")
        best = own.topk(min(check_top(top), len(flat))).indices
        places = [i for i, mine in enumerate(asked.tolist()) if not mine]
        others = flat[best][:, ~asked].topk(min(len(OTHERS), len(places)))
        names = [f"{i // self.values.shape[1]}.{i % self.values.shape[1]}" for i in best.tolist()]
        words = tuple((f"{word}:", *(f"{labels[places[i]]}:" for i in row)) for row in others.indices.tolist())
        axes = Axis.of("head", names), Axis.of("rank", (word, *OTHERS[: others.values.shape[1]]))
        title = f"{self.title}: the heads, layer.head, in which it looks most at {word!r}"
        values = torch.cat((own[best][:, None], others.values), dim=1)
        return View(values, axes, title, self.measure, most=1.0, words=words, note=self.note)


@known_names
def looks(model: "Model", word: str, text: str) -> Looks:
    """layer × head × word: the attention that a word gives each word of the text, however they are cut into tokens.

    It looks from its last token, which has read all of it, at all tokens of the other. What is missing from 1 goes to
    tokens of no word, such as the beginning of the text. Where a text has the word several times, the last is meant.
    An encoder-decoder is looked at where it reads: in its encoder. `.heads("fluffy")` finds those that look at a word.
    """
    side = Side(model)
    check_kind(word, str, "a word")
    check_kind(text, str, "a text")
    words = [(found[0], placed(side, text, *found.span()).word) for found in re.finditer(WORD, text)]
    own = [place for place, (name, _) in enumerate(words) if name.casefold() == word.casefold()]
    if not own:
        raise ClearheadError(f"{word!r} is not in {text!r:.80}; {nearest(word, dict(words))}")
    part = attention(model, "", source=text, part="encoder") if side.encoder else attention(model, text)
    row = part.values[:, :, words[own[-1]][1][-1]]  # layer head key
    values = torch.stack([row[..., tokens].sum(dim=-1) for _, tokens in words], dim=-1)
    axes = Axis.of("layer", values.shape[0]), Axis.of("head", values.shape[1]), Axis.of("word", [n for n, _ in words])
    note = (
        "from the last token of the word, at its last place, to all tokens of the other; tokens of no word are left out"
    )
    where = f"where {word!r} looks" + (", in the encoder" if model.net.encoder is not None else "")
    return Looks(values, axes, where, "weight", most=1.0, note=note, place=own[-1])
