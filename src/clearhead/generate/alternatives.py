"""Alternatives at a position: the best text up to there, then each of the likeliest next tokens, written to the end."""

from typing import Any

from torch import Tensor

from clearhead.errors import ClearheadError, check_whole
from clearhead.generate.beam import beam_search
from clearhead.generate.beam_rounds import Hypothesis
from clearhead.model.transformer import Transformer


def alternatives(
    net: Transformer,
    prompt: list[int],
    *,
    at: int,
    n_best: int,
    source: Tensor | None = None,
    prefix: list[int],
    max_tokens: int,
    stop: tuple[int, ...] = (),
    closed: bool = False,
    **rules: Any,
) -> list[Hypothesis]:
    """`n_best` texts after a prompt: the first `at` tokens are those of the best, the next is another in each.

    The likeliest next token comes first; other options are those of `beam_search`, for one sentence.
    """
    check_whole("alternatives", at)
    whole: dict[str, Any] = {**rules, "stop": stop, "closed": closed}
    [[best]] = beam_search(net, [prompt], source=source, prefix=[prefix], max_tokens=max_tokens, **whole)
    if at >= len(best.tokens):
        raise ClearheadError(f"alternatives = {at} is beyond the best text, which has {len(best.tokens)} tokens.")
    one: dict[str, Any] = {**rules, "stop": stop, "beams": n_best, "n_best": n_best, "max_tokens": 1}
    [found] = beam_search(net, [prompt], source=source, prefix=[best.tokens[:at]], **one)
    left, going = len(prefix) + max_tokens - at - 1, [text for text in found if text.tokens[-1] not in stop]
    if left < 1 or not going:
        return found
    sources = None if source is None else source.expand(len(going), *source.shape[1:])
    begun = [text.tokens for text in going]
    ended = beam_search(net, [prompt] * len(going), source=sources, prefix=begun, max_tokens=left, **whole)
    by_begin = {text.tokens[at]: text for [text] in ended}
    return [by_begin.get(text.tokens[at], text) for text in found]
