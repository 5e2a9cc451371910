"""Writing on from a prompt: tokens become text, and the model's own stop tokens end it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from clearhead.batch import Batch
from clearhead.config import Use
from clearhead.errors import ClearheadError
from clearhead.generate.beam import beam_search
from clearhead.generate.sample import sample
from clearhead.model.transformer import Transformer
from clearhead.tokens.text import Tokenizer


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt; `stop` ended it, or the length that was asked for."""

    text: str
    tokens: list[int]
    finish_reason: str


def write_on(
    net: Transformer,
    tokenizer: Tokenizer | None,
    use: Use,
    prompt: Tensor,
    max_tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
) -> Generated:
    """Up to `max_tokens` tokens after `prompt` (1 × tokens)."""
    if not 0 <= temperature < math.inf:
        raise ClearheadError(f"temperature = {temperature} must be a number of at least 0.")
    for name, value, least in (("max_tokens", max_tokens, 1), ("top_k", top_k, 0)):
        if not isinstance(value, int) or value < least:
            raise ClearheadError(f"{name} = {value} must be a whole number of at least {least}.")
    length = prompt.shape[1]
    if length + max_tokens > net.context:
        room = f"the context of {net.context}; ask for at most {max(0, net.context - length)}"
        raise ClearheadError(f"{length} tokens of prompt and {max_tokens} to write exceed {room}.")
    known = len(tokenizer) if tokenizer else None
    tokens: list[int] = []
    for token in sample(net, prompt, max_tokens, temperature, top_k, seed, known, use.never, use.never_first):
        tokens.append(token)
        if token in use.stop:
            break
    reason = "stop" if tokens[-1] in use.stop else "length"
    return Generated(plain_text(tokenizer, tokens, use, prompt[0].tolist()), tokens, reason)


@dataclass(frozen=True)
class Translated:
    """What a model made of a source; the score is its log-probability over its length to the penalty's power."""

    text: str
    tokens: list[int]
    score: float


def translations(
    net: Transformer,
    tokenizer: Tokenizer | None,
    use: Use,
    batch: Batch,
    beams: int,
    max_tokens: int,
    length_penalty: float,
) -> list[Translated]:
    """The best output for each source by beam search; the batch's targets are what outputs start with."""
    best = beam_search(
        net,
        batch.ids,
        source=batch.source,
        source_segments=batch.source_segments,
        beams=beams,
        max_tokens=max_tokens or net.context - batch.ids.shape[1],
        stop=use.stop,
        length_penalty=length_penalty,
        never=use.never,
        never_first=use.never_first,
        renormalised=use.renormalised,
        closed=use.closed,
        known=len(tokenizer) if tokenizer else None,
    )
    return [Translated(plain_text(tokenizer, h.tokens, use), h.tokens, h.score) for h, *_ in best]


def plain_text(tokenizer: Tokenizer | None, tokens: Sequence[int], use: Use, after: Sequence[int] = ()) -> str:
    """What was written after some tokens, without the token that ended it."""
    if tokenizer is None:
        return ""
    before = tokenizer.decode(after)
    whole = tokenizer.decode([*after, *(t for t in tokens if t not in use.stop)])
    return whole.removeprefix(before)  # alone, some tokenizers drop the space that a word begins with
