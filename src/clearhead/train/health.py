"""When a loss says that a run is lost."""

import math

from clearhead.config import Classes, ModelConfig, Number
from clearhead.data.packed import Dataset
from clearhead.errors import ClearheadError
from clearhead.weights.checkpoint import Checkpoint


class Diverged(ClearheadError):
    """A run whose numbers are no numbers any more, or far too large."""


def highest(m: ModelConfig, first: float) -> float:
    """The mean loss above which a run has exploded, where its first report was `first`.

    Who knows nothing and guesses among n answers pays log n; no run that learns comes to pay ten times that. For
    numbers there is no such measure, since they may be of any size: there it is a thousand times the first loss.
    """
    if isinstance(m.head, Number):
        return 1000 * (first + 1)
    answers = m.head.classes if isinstance(m.head, Classes) else m.vocabulary
    return 10 * (max(first, math.log(answers)) + 1)


def taught(model: Checkpoint, data: Dataset, step: int) -> str:
    """The batches of a step, by number and, where there are words, by the first ones."""
    count = model.config.train.accumulate
    numbers = range(step * count, (step + 1) * count)
    tokens = data.batch(numbers[0]).tokens
    words = model.tokenizer.decode(tokens[0, :16].tolist()) if model.tokenizer is not None else ""
    named = f"batch {numbers[0]}" if count == 1 else f"batches {numbers[0]} to {numbers[-1]}"
    return f"{named} ({words!r} …)" if words else named
