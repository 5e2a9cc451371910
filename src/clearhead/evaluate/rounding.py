"""What int8 costs: the perplexity of texts under a model as it is, and with its matrices rounded."""

import copy
import math
from dataclasses import dataclass

from clearhead.generate.answers import scored
from clearhead.model.int8 import quantise
from clearhead.model.transformer import Transformer


@dataclass(frozen=True)
class Rounding:
    exact: float  # perplexities
    int8: float
    tokens: int  # that were predicted

    @property
    def lost(self) -> float:
        """By which share the perplexity rises."""
        return self.int8 / self.exact - 1


def rounding(net: Transformer, texts: list[list[int]]) -> Rounding:
    """For a language model on a CPU; texts are ids, of any length, and each token after the first is predicted."""
    rounded = copy.deepcopy(net)
    quantise(rounded)
    told = [[p for text in scored(each, texts) for p in text.logprobs] for each in (net, rounded)]
    exact, int8 = (math.exp(-sum(logprobs) / len(logprobs)) for logprobs in told)
    return Rounding(exact, int8, len(told[0]))
