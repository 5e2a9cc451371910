"""Alignment: which token of the source each token of the output looked at when it was written (L3.8)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.batch import Batch
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer
from clearhead.tap import Watch


def check_layer(net: Transformer, layer: int | str) -> None:
    layers = net.config.layers
    if layer != "all" and not (isinstance(layer, int) and -layers <= layer < layers):
        most = f'0 to {layers - 1}, counted from the end by -1 to {-layers}, or "all"'
        raise ClearheadError(f"align = {layer!r} is no layer of this decoder; there are {most}.")


@torch.no_grad()
def alignments(
    net: Transformer,
    prompts: Sequence[list[int]],
    outputs: Sequence[list[int]],
    layer: int | str,
    source: Tensor,
    source_segments: Tensor | None,
) -> list[list[int]]:
    """For each token of an output, the place in its source with most attention: the mean of a layer's heads, or of all.

    The attention is that of the pass that wrote the token.
    """
    check_layer(net, layer)
    texts = read_to_write(prompts, outputs, source.device)
    tap = Watch({f"blocks.{'*' if isinstance(layer, str) else layer % net.config.layers}.cross.pattern": heads_mean})
    net(texts.ids, segments=texts.segments, source=source, source_segments=source_segments, tap=tap)
    places = torch.stack([*tap.values.values()]).mean(0).argmax(-1).tolist()
    return [
        row[len(prompt) - 1 : len(prompt) + len(output) - 1]
        for row, prompt, output in zip(places, prompts, outputs, strict=True)
    ]


def read_to_write(prompts: Sequence[list[int]], outputs: Sequence[list[int]], device: torch.device) -> Batch:
    """What was read when each token of the outputs was written; the last of them was not."""
    return Batch.of([[*prompt, *output[:-1]] for prompt, output in zip(prompts, outputs, strict=True)], device)


def heads_mean(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch query key"]:
    return pattern.mean(1)
