"""Norms of the residual stream after every component, and of what each component adds."""

from typing import TYPE_CHECKING

import torch

from clearhead import config as c
from clearhead.lens.activation_cache import query_key_labels, single_text, watch_single_text
from clearhead.lens.argument_checks import check_model
from clearhead.lens.hook_points import activation_table, num_layers
from clearhead.lens.view import View, label_axes

if TYPE_CHECKING:
    from clearhead.api import MediaInput, Model, TextInput
    from clearhead.lens.edits import Edits

RESIDUAL_QUANTITIES = ("added", "stream")
VMAX_QUANTILE = 0.95  # some tokens have norms a hundred times those of all others


def residual_norms(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    encoder: bool = False,
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> View:
    """Two maps, component × token: the norm of its output, and that of the stream after it."""
    check_model(model)
    m = model.config.model
    kind = "encoder" if encoder else "attention"
    prefix = "encoder." if encoder else ""
    components = _components(m, num_layers(m, kind), has_cross=not encoder)
    names = [f"{prefix}{name}" for pair in components.values() for name in pair]
    cache = watch_single_text(model, names, x, source, images, audio, edits)
    norms = {name: single_text(value).norm(dim=-1) for name, value in cache.items()}
    pairs = [(norms[f"{prefix}{a}"], norms[f"{prefix}{b}"]) for a, b in components.values()]
    values = torch.stack([torch.stack(pair) for pair in pairs], dim=1)  # quantity component token
    labels, _ = query_key_labels(cache, kind, (values.shape[2], values.shape[2]))
    vmax = float(values.flatten().quantile(VMAX_QUANTILE))
    return View(
        values,
        label_axes(
            {"quantity": RESIDUAL_QUANTITIES, "component": list(components), "token": labels}
        ),
        title="encoder, residual stream" if encoder else "residual stream",
        value_name="norm",
        vmax=vmax,
        note="added: norm of the component's output; stream: norm of the residual stream after it; "
        f"colors saturate at {vmax:.3g}",
    )


def _components(m: c.ModelConfig, n_layers: int, has_cross: bool) -> dict[str, tuple[str, str]]:
    """The activations of each component: its output, and the residual stream after it."""
    components = {"embedding": ("embed", "full_embed")}
    if "pos_embed" in activation_table(m):
        components = {"embedding": ("embed", "embed"), "positions": ("pos_embed", "full_embed")}
    has_cross = has_cross and isinstance(m.architecture, c.EncoderDecoder)
    for i in range(n_layers):
        block = f"blocks.{i}"
        components[f"{i} attention"] = (f"{block}.attn.out", f"{block}.resid_mid")
        if has_cross:
            components[f"{i} cross"] = (f"{block}.cross_attn.out", f"{block}.resid_cross")
        components[f"{i} feed-forward"] = (f"{block}.ffn.out", f"{block}.resid_post")
    return components
