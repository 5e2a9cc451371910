"""The residual stream: how long it is after every part, and how much each part has added."""

from typing import TYPE_CHECKING, Any

import torch

from clearhead import config as c
from clearhead.lens.activations import (
    activation_table,
    check_arguments,
    num_layers,
    query_key_labels,
    single_text,
    watch_single_text,
)
from clearhead.lens.view import Axis, View

if TYPE_CHECKING:
    from clearhead.api import Model

RESIDUAL_QUANTITIES = ("added", "stream")


@check_arguments
def residual_norms(model: "Model", x: Any = None, *, encoder: bool = False, **given: Any) -> View:
    """Two maps, part × token: the length of what a part adds, and that of the stream after it."""
    m = model.config.model
    stack = "encoder." if encoder else ""
    layers = num_layers(m, "encoder" if encoder else "attention")
    parts = _parts(m, layers, encoder)
    seen = watch_single_text(
        model, x, [f"{stack}{name}" for pair in parts.values() for name in pair], given
    )
    columns = []
    for added, stream in parts.values():
        a, s = (single_text(seen[f"{stack}{name}"]) for name in (added, stream))
        columns.append(torch.stack((a.norm(dim=-1), s.norm(dim=-1))))
    values = torch.stack(columns, dim=1)  # quantity part token
    tokens = query_key_labels(
        seen, "encoder" if encoder else "attention", (values.shape[2], values.shape[2])
    )[0]
    axes = (
        Axis.from_labels("quantity", RESIDUAL_QUANTITIES),
        Axis.from_labels("part", list(parts)),
        Axis.from_labels("token", tokens),
    )
    most = float(
        values.flatten().quantile(0.95)
    )  # some tokens grow a hundred times as long as all others
    note = f"added: |what the part writes|; stream: |the stream after it|; full colour from {most:.3g} on"
    return View(
        values, axes, f"{stack.replace('.', ', ')}residual stream", "length", vmax=most, note=note
    )


def _parts(m: c.ModelConfig, layers: int, encoder: bool) -> dict[str, tuple[str, str]]:
    """Every part: where what it adds is seen, and where the stream after it."""
    parts = {"embedding": ("embed", "full_embed")}
    if "pos_embed" in activation_table(m):
        parts = {"embedding": ("embed", "embed"), "positions": ("pos_embed", "full_embed")}
    cross = isinstance(m.architecture, c.EncoderDecoder) and not encoder
    for i in range(layers):
        block = f"blocks.{i}"
        parts[f"{i} attention"] = (f"{block}.attn.out", f"{block}.resid_mid")
        if cross:
            parts[f"{i} cross"] = (f"{block}.cross_attn.out", f"{block}.resid_cross")
        parts[f"{i} feed-forward"] = (f"{block}.ffn.out", f"{block}.resid_post")
    return parts
