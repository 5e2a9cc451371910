"""Texts with gaps: a token for each word that is missing."""

import re

from clearhead.tokens.text import Tokenizer

GAP = "[MASK]"  # what people type, whatever the tokenizer calls it


def with_gaps(tokenizer: Tokenizer, mask: int, text: str) -> list[int]:
    """The ids of a text, `mask` for each gap. A word brings its own space, so a gap does too."""
    names = [GAP, *(name for name, token in tokenizer.special.items() if token == mask)]
    space = " ?" if tokenizer.spaces_first else ""
    first, *others = re.split("|".join(space + re.escape(name) for name in names), text)
    ids = tokenizer.encode(first)
    for part in others:
        ids += [mask, *tokenizer.encode(part)]
    return ids
