"""How likely a model finds what follows a prompt, or was written for a source, and what else it thought of."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.generate.align import read_to_write
from clearhead.generate.answers import check_numbers
from clearhead.generate.beam_rules import Rules
from clearhead.generate.request import Chosen
from clearhead.model.transformer import Transformer


@torch.no_grad()
def chances(
    net: Transformer,
    prompts: Sequence[list[int]],
    outputs: Sequence[list[int]],
    top: int,
    known: int | None,
    source: Tensor | None = None,
    source_segments: Tensor | None = None,
    **rules: Any,
) -> list[list[Chosen]]:
    """Each token of each output with its log-probability, and those of the `top` likeliest in its place.

    `rules` are those of the beam search that wrote the outputs, where one did.
    """
    by = Rules(next(net.parameters()).device, 1, 1, **rules)
    texts = read_to_write(prompts, outputs, next(net.parameters()).device)
    hidden = net(texts.ids, segments=texts.segments, source=source, source_segments=source_segments)
    told = []
    for row, prompt, output in zip(hidden, prompts, outputs, strict=True):
        before = slice(len(prompt) - 1, len(prompt) + len(output) - 1)
        rows = by.along(net.predict(row[None, before])[0], prompt, output)
        wanted = torch.tensor(output, dtype=torch.long, device=rows.device)
        own = rows.gather(1, wanted[:, None])[:, 0]
        check_numbers(own.exp())
        best = (rows := rows[:, :known]).topk(min(top, rows.shape[1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        told.append(
            [
                Chosen(token, value, tuple(zip(*pair, strict=True)))
                for token, value, pair in zip(output, own.tolist(), pairs, strict=True)
            ]
        )
    return told
