"""How likely a model found what it wrote for a source, token by token, and what else it thought of."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.generate.align import read_to_write
from clearhead.generate.request import Chosen
from clearhead.model.transformer import Transformer


@torch.no_grad()
def chances(
    net: Transformer,
    prompts: Sequence[list[int]],
    outputs: Sequence[list[int]],
    top: int,
    known: int | None,
    source: Tensor,
    source_segments: Tensor | None,
) -> list[list[Chosen]]:
    """Each token of each output with its log-probability, and those of the `top` likeliest in its place."""
    texts = read_to_write(prompts, outputs, source.device)
    hidden = net(texts.ids, segments=texts.segments, source=source, source_segments=source_segments)
    told = []
    for row, prompt, output in zip(hidden, prompts, outputs, strict=True):
        before = slice(len(prompt) - 1, len(prompt) + len(output) - 1)
        rows = net.predict(row[None, before])[0].float().log_softmax(dim=-1)[:, :known]
        own = rows[torch.arange(len(output), device=rows.device), torch.tensor(output, device=rows.device)].tolist()
        best = rows.topk(min(top, rows.shape[1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        told.append(
            [
                Chosen(token, value, tuple(zip(*pair, strict=True)))
                for token, value, pair in zip(output, own, pairs, strict=True)
            ]
        )
    return told
