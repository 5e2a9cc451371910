"""All heads of a run: thumbnails of their patterns, and scores of what they do; one layer at a time."""

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.lens.atlas import scored
from clearhead.lens.parts import Part, layers_of, path_of
from clearhead.lens.view import View
from clearhead.serve.pages.runs import Run, tokens

MOST = 48  # rows and columns of a thumbnail


def thumbnails(run: Run, part: Part) -> tuple[Tensor, int]:
    """layer × head × row × column in 256 steps, and how many tokens a cell is; the largest weight of each stays.

    So a thumbnail hides no line that a head draws.
    """
    found, factor = [], 1
    for layer in range(layers_of(run.trace.config, part)):
        pattern = run.trace.value(f"{path_of(part, layer)}.pattern").float()
        factor = -(-max(pattern.shape[-2:]) // MOST)
        small = F.max_pool2d(pattern[:, None], factor, ceil_mode=True)[:, 0]
        found.append((small.nan_to_num(0) * 255).round().to(torch.uint8).cpu())
    return torch.stack(found), factor


def scores(run: Run, part: Part) -> View:
    """score × layer × head, as `lens.atlas` has them, without ever holding all patterns at once."""
    trace = run.trace
    read, source = (
        tuple(token["text"] for token in tokens(trace.model, ids, trace, of_source)) if ids is not None else ()
        for ids, of_source in ((trace.batch.ids, False), (trace.batch.source, True))
    )
    sides = {"attention": (read, read), "cross": (read, source), "encoder": (source, source)}[part]
    paths = [path_of(part, layer) for layer in range(layers_of(trace.config, part))]
    visible = trace.value(f"{paths[0]}.masked")[0].cpu() > -torch.inf  # all heads see alike
    return scored((trace.value(f"{path}.pattern").float().cpu() for path in paths), sides, visible, part)
