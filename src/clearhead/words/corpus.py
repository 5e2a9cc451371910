"""Texts as one long row of word numbers, the most frequent word 0."""

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import ClearheadError

WORD = re.compile(r"\w+(?:['’]\w+)*")  # don't and mother's are words, a hyphen parts two


@dataclass(frozen=True)
class Corpus:
    """Words that are frequent enough, and where they stand. No window reaches beyond a line."""

    words: list[str]
    counts: Tensor
    ids: Tensor  # of every word in the texts that is one of `words`
    lines: Tensor  # the number of the line that each of them stands in

    @classmethod
    def of(cls, lines: Iterable[list[str]], least: int) -> "Corpus":
        """From the words of each line; those that are there less than `least` times are left out."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__  # a new word gets the next number
        row, lengths = array("i"), array("i")
        for line in lines:
            row.extend(map(numbers.__getitem__, line))
            lengths.append(len(line))
        ids = np.frombuffer(row, dtype=np.int32) if row else np.empty(0, np.int32)
        counts = np.bincount(ids, minlength=len(numbers))
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] >= least]
        if len(order) < 2:
            raise ClearheadError(
                f"{len(order)} of {len(numbers):,} words are there {least} times; give more text, or a lower least."
            )
        rank = np.full(len(numbers), -1)
        rank[order] = np.arange(len(order))
        names, ids = list(numbers), rank[ids]
        standing = np.repeat(np.arange(len(lengths)), lengths)
        kept = ids >= 0
        found = (torch.from_numpy(x) for x in (counts[order], ids[kept], standing[kept]))
        return cls([names[i] for i in order], *found)


def split(text: str) -> Iterable[list[str]]:
    """The words of each line, in small letters."""
    return (words for line in text.lower().splitlines() if (words := WORD.findall(line)))
