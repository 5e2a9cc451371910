"""Texts with gaps: a token for each word that is missing."""

import re
from collections.abc import Iterator

from clearhead.tokens.text import Tokenizer

GAP = "[MASK]"  # what people type, whatever the tokenizer calls it


def with_gaps(tokenizer: Tokenizer, mask: int, text: str) -> list[int]:
    """The ids of a text, `mask` for each gap."""
    ids = list[int]()
    for start, end, gap in parts(tokenizer, mask, text):
        ids += tokenizer.encode(text[start:end]) if gap is None else [gap]
    return ids


def parts(tokenizer: Tokenizer, mask: int | None, text: str) -> Iterator[tuple[int, int, int | None]]:
    """From where to where the parts of a text go: what is between gaps, and the gaps, with their token.

    A word brings its own space, so a gap does too. For a model without a token for gaps all is one part.
    """
    names = [GAP, *(name for name, token in tokenizer.special.items() if token == mask)]
    space, at = " ?" if tokenizer.spaces_first else "", 0
    for gap in () if mask is None else re.finditer("|".join(space + re.escape(name) for name in names), text):
        yield at, gap.start(), None
        yield gap.start(), gap.end(), mask
        at = gap.end()
    yield at, len(text), None
