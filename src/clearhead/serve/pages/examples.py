"""The lectures' own sentences, and files of bundled models, to be looked at with before anyone has typed."""

import base64
import shlex
from pathlib import Path

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.tokens.gaps import GAP
from clearhead.tokens.text import Tokenizer
from clearhead.weights import bundled, hub

FLUFFY = "a fluffy blue creature roamed the verdant forest"
CHICKEN = "The chicken didn't cross the road because it was too {}"
PROMPT = "thanks for all the"
FILMS = "A warm, funny film with a heart.", "A cold, empty film with no heart."
QUEEN = "The king and the queen had a daughter."
SOURCE = "A little dog runs through the green grass."


def examples(model: Model) -> dict[str, object]:
    """`text` (and `source`) to begin with, and the sentences of single views."""
    m = model.config.model
    both = isinstance(m.shape, c.EncoderDecoder)
    return {
        "text": None if both and model.config.use.start else _begin(model),  # None: what it writes itself
        "source": readable(model, SOURCE, source=True) if both else "",
        "fluffy": readable(model, FLUFFY),
        "asks": _asks(model),
        "beside": readable(model, FILMS[1] if _judges(model) else FLUFFY.replace("blue", "little")),
        "pair": [readable(model, CHICKEN.format(word)) for word in ("tired", "wide")],
        "predict": readable(model, PROMPT),
        "mole": [
            readable(model, text, source=both)
            for text in ("American shrew mole", "one mole of carbon dioxide", "take a biopsy of the mole")
        ],
        "others": ["mouse", "rat", "gram", "unit", "tumor", "skin", "spy"],  # what may stand in the place of a mole
    }


def file_of(path: str) -> dict[str, str] | None:
    """The picture or sound that the card of a bundled model tries it with, in base64 as a browser sends its own."""
    folder = bundled.find(path)
    if folder is None or hub.find(path) != folder:  # somebody's model may have the same name
        return None
    words = (word for line in bundled.read_card(folder).tries for word in shlex.split(line))
    file = next((file for file in map(Path, words) if file.parent == folder and file.is_file()), None)
    return {"name": file.name, "data": base64.b64encode(file.read_bytes()).decode()} if file else None


def _begin(model: Model) -> str:
    """A sentence; for a model that fills gaps, one with a gap, and for one that judges, something to be judged."""
    if _judges(model):
        return readable(model, FILMS[0])
    fills = isinstance(model.config.model.head, c.MaskedWord) and model.config.use.mask
    return QUEEN.replace("queen", GAP) if fills and readable(model, QUEEN) == QUEEN else readable(model, FLUFFY)


def _judges(model: Model) -> bool:
    return isinstance(model.config.model.head, c.Classes)


def _asks(model: Model) -> list[int] | None:
    """In that sentence, where creature ends, which asks for adjectives, and fluffy, which answers from afar (L3.6)."""
    if model.tokenizer is None or readable(model, FLUFFY) != FLUFFY:
        return None
    before = len(model.config.use.begin) - 1
    return [before + len(model.tokenizer.encode(FLUFFY.partition(word)[0] + word)) for word in ("creature", "fluffy")]


def readable(model: Model, text: str, source: bool = False) -> str:
    """The text, or what of it this model's tokenizer has tokens for and its context has room for."""
    tokenizer = model.tokenizers[source]
    if tokenizer is None:
        return ""
    m, use = model.config.model, model.config.use
    room = m.shape.context if source and isinstance(m.shape, c.EncoderDecoder) else m.context
    room -= len(use.begin) + len(use.end)
    known = "".join(letter for letter in text if _reads(tokenizer, letter))
    while known and len(tokenizer.encode(known)) > room:
        known = known[: len(known) * 3 // 4]
    return known


def _reads(tokenizer: Tokenizer, letter: str) -> bool:
    try:
        tokenizer.encode(letter)
    except ClearheadError:
        return False
    return True
