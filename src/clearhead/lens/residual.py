"""The residual stream: how long it is after every part, and how much each part has added."""

from typing import TYPE_CHECKING, Any

import torch

from clearhead import config as c
from clearhead.lens.given import known_names
from clearhead.lens.names import names
from clearhead.lens.parts import labels_of, layers_of, of_one_text, watch_one
from clearhead.lens.view import Axis, View

if TYPE_CHECKING:
    from clearhead.api import Model

QUANTITIES = ("added", "stream")


@known_names
def residual(model: "Model", x: Any = None, *, encoder: bool = False, **given: Any) -> View:
    """Two maps, part × token: the length of what a part adds, and that of the stream after it."""
    m = model.config.model
    stack = "encoder." if encoder else ""
    layers = layers_of(m, "encoder" if encoder else "attention")
    parts = _parts(m, layers, encoder)
    seen = watch_one(model, x, [f"{stack}{name}" for pair in parts.values() for name in pair], given)
    columns = []
    for added, stream in parts.values():
        a, s = (of_one_text(seen[f"{stack}{name}"]) for name in (added, stream))
        columns.append(torch.stack((a.norm(dim=-1), s.norm(dim=-1))))
    values = torch.stack(columns, dim=1)  # quantity part token
    tokens = labels_of(seen, "encoder" if encoder else "attention", (values.shape[2], values.shape[2]))[0]
    axes = Axis.of("quantity", QUANTITIES), Axis.of("part", list(parts)), Axis.of("token", tokens)
    most = float(values.flatten().quantile(0.95))  # some tokens grow a hundred times as long as all others
    note = f"added: |what the part writes|; stream: |the stream after it|; full colour from {most:.3g} on"
    return View(values, axes, f"{stack.replace('.', ', ')}residual stream", "length", most=most, note=note)


def _parts(m: c.ModelConfig, layers: int, encoder: bool) -> dict[str, tuple[str, str]]:
    """Every part: where what it adds is seen, and where the stream after it."""
    parts = {"embedding": ("embed.tokens", "embed")}
    if "embed.positions" in names(m):
        parts = {"embedding": ("embed.tokens", "embed.tokens"), "positions": ("embed.positions", "embed")}
    cross = isinstance(m.shape, c.EncoderDecoder) and not encoder
    for i in range(layers):
        block = f"blocks.{i}"
        parts[f"{i} attention"] = (f"{block}.attn.out", f"{block}.mid")
        if cross:
            parts[f"{i} cross"] = (f"{block}.cross.out", f"{block}.crossed")
        parts[f"{i} feed-forward"] = (f"{block}.ffn.out", f"{block}.post")
    return parts
