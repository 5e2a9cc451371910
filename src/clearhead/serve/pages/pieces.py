"""Tokens as the page shows them: the number, a label that can be read, and whether plain text ever becomes it."""

from collections.abc import Iterable
from typing import Any

from clearhead.lens.logit_lens import token_labels
from clearhead.tokens.text import Tokenizer


def pieces(tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[dict[str, Any]]:
    ids = list(ids)
    special = set(tokenizer.special.values()) if tokenizer else set()
    return [
        {"id": i, "text": label, "special": i in special}
        for i, label in zip(ids, token_labels(tokenizer, ids), strict=True)
    ]
