"""All heads of a run: thumbnails of their patterns, and scores of what they do; one layer at a time."""

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.lens.atlas import BETWEEN_TEXTS, SCORES, Scene
from clearhead.lens.parts import Part, layers_of, path_of
from clearhead.lens.view import Axis, View
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
    """score × layer × head, as `lens.atlas` defines them, without ever holding all patterns at once."""
    trace, model = run.trace, run.trace.model
    visible = trace.value(f"{path_of(part, 0)}.masked")[0].cpu() > -torch.inf  # all heads see alike
    apart = torch.ones_like(visible) if part == "cross" else ~torch.eye(len(visible), dtype=torch.bool)
    sides = {"attention": (False, False), "cross": (False, True), "encoder": (True, True)}[part]
    queries, keys = (
        tuple(
            token["text"] for token in tokens(model, trace.batch.source if source else trace.batch.ids, trace, source)
        )
        for source in sides
    )
    kinds = BETWEEN_TEXTS if part == "cross" else tuple(SCORES)
    rows = []
    for layer in range(layers_of(trace.config, part)):
        pattern = trace.value(f"{path_of(part, layer)}.pattern").float().cpu()
        scene = Scene(pattern[None], queries, keys, visible, apart)
        rows.append(torch.stack([SCORES[kind][1](scene)[0] for kind in kinds]))
    values = torch.stack(rows, dim=1)
    shown = [n for n in range(len(kinds)) if bool(values[n].isfinite().all())]  # others nothing here could show
    axes = Axis.of("score", [kinds[n] for n in shown]), Axis.of("layer", len(rows)), Axis.of("head", values.shape[2])
    return View(values[shown], axes, "what the heads do", "score", most=1.0)
