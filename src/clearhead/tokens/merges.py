"""How a BPE built its pieces: from single symbols, always the two neighbours first that were learned first (L1.2)."""

import json
from itertools import islice, pairwise

from clearhead.tokens.text import Tokenizer


class Merges:
    """The merges of a tokenizer in the order in which they were learned; none where it is no BPE."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        model = json.loads(tokenizer._inner.to_str())["model"]
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(model.get("merges") or [])}

    def __len__(self) -> int:
        return len(self._ranks)

    def first(self, count: int) -> list[list[str]]:
        """Those that were learned first, as labels: left and right, and what they became."""
        return [self._labels([left, right, left + right]) for left, right in islice(self._ranks, count)]

    def steps(self, i: int) -> list[list[str]]:
        """The labels of the symbols that token `i` was made of, after each merge; nothing if no merges lead to it."""
        token = self._tokenizer._token(i)
        symbols = list(token)
        steps = [symbols]
        while len(symbols) > 1:
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in pairwise(symbols)]
            if (least := min(ranks)) == len(self._ranks):
                return []
            at = ranks.index(least)
            symbols = [*symbols[:at], symbols[at] + symbols[at + 1], *symbols[at + 2 :]]
            steps.append(symbols)
        return [self._labels(symbols) for symbols in steps] if len(steps) > 1 else []

    def _labels(self, symbols: list[str]) -> list[str]:
        ids = [self._tokenizer._inner.token_to_id(symbol) for symbol in symbols]
        return self._tokenizer.pieces([i for i in ids if i is not None])
