"""Beam search (L5.4): write several texts side by side, always go on with the likeliest, rank those that ended.

One round: every beam is expanded by every token; of the likeliest candidates, those that end are finished and the
others are kept as the next beams; a sentence is done when nothing that goes on can beat what has ended. One beam
is greedy decoding. Rounds and results are those of `generate(num_beams=…)` in transformers 5.
"""

from math import isnan
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, NoNumbers
from clearhead.generate.beam_recorded import replayed, rounded
from clearhead.generate.beam_rounds import Hypothesis, Search
from clearhead.generate.beam_rules import Rules
from clearhead.generate.edited import Edited
from clearhead.model.transformer import Transformer


@torch.no_grad()
def beam_search(
    net: Transformer,
    prompt: Tensor | list[list[int]],
    *,
    source: Tensor | None = None,
    source_segments: Tensor | None = None,
    n_best: int = 1,
    prefix: list[list[int]] | None = None,
    tree: bool = False,
    **rules: Any,
) -> list[list[Hypothesis]]:
    """The `n_best` best continuations of each prompt, best first; fewer where fewer are possible.

    `rules` are those of `Rules`. For an encoder-decoder, prompts are what its output starts with, one for each row of
    `source`. A continuation begins with its `prefix`, which counts for scores and lengths but not for `max_tokens`.
    With `tree`, each hypothesis carries the tree of all that was considered.
    """
    prompts = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    by = Rules(next(net.parameters()).device, **rules)
    prefixes = prefix or [[]] * len(prompts)
    check(net, by, prompts, prefixes, source, n_best)
    if by.device.type == "cuda" and source is not None and not source.is_floating_point():
        source, source_segments = rounded(net, source, source_segments)
    search = Search(net, by, prompts, prefixes, source, source_segments, tree)
    plain = search.even and not tree and not any(prefixes) and not isinstance(net, Edited)
    found = replayed(search) if by.device.type == "cuda" and plain else search.run()
    if any(isnan(h.score) for hypotheses in found for h in hypotheses):
        raise NoNumbers
    if not all(found):
        raise ClearheadError("no token can be written: never, never_first, no_repeat and known leave none.")
    return [hypotheses[:n_best] for hypotheses in found]


def check(
    net: Transformer, rules: Rules, prompts: list[list[int]], prefixes: list[list[int]], source: Tensor | None,
    n_best: int,
) -> None:  # fmt: skip
    """Refuses what cannot be searched for."""
    least = {"beams": (rules.beams, 1), "max_tokens": (rules.max_tokens, 1), "n_best": (n_best, 1)}
    for name, (value, fewest) in (least | {"no_repeat": (rules.no_repeat, 0)}).items():
        if value < fewest:
            raise ClearheadError(f"{name} = {value} is too few; it must be at least {fewest}.")
    if n_best > rules.beams:
        most = f"the {rules.beams} beams can give; ask for at most {rules.beams}"
        raise ClearheadError(f"n_best = {n_best} is more than {most}.")
    if not prompts or not all(prompts):
        raise ClearheadError("a prompt is empty; each needs at least one token to go on from.")
    if source is not None and len(source) != len(prompts):
        raise ClearheadError(f"there are {len(prompts)} prompts for {len(source)} sources; each source needs one.")
    if len(prefixes) != len(prompts):
        raise ClearheadError(f"there are {len(prefixes)} prefixes for {len(prompts)} prompts; each prompt needs one.")
    vocabulary = net.config.vocabulary
    for token in {token for prefix in prefixes for token in prefix}:
        if token in rules.stop:
            raise ClearheadError(f"the prefix holds token {token}, which ends a text; nothing could follow.")
        if not 0 <= token < vocabulary:
            raise ClearheadError(f"the prefix holds token {token}; the vocabulary has ids 0 to {vocabulary - 1}.")
