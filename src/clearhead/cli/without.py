"""--without LAYER.HEAD: heads that are left out while a model works."""

from typing import TYPE_CHECKING

import typer

from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.lens.edits import Change

WITHOUT = typer.Option(
    [], help="A head to leave out, as layer.head: 0.2; may be given again.", metavar="LAYER.HEAD", show_default=False
)


def edits(model: "Model", heads: list[str]) -> "dict[str, Change]":
    """As `edits=` takes them: what each of these heads has gathered becomes 0."""
    from clearhead.lens.edits import ablate, in_turn

    m = model.config.model
    found: dict[str, list[Change]] = {}
    for text in heads:
        layer, _, head = text.partition(".")
        known = layer.isdecimal() and head.isdecimal() and int(layer) < m.layers and int(head) < m.attention.heads
        if "," in text:
            raise ClearheadError(
                f"--without {text}: a point stands between layer and head, and each has its own --without."
            )
        if not known:
            every = f"0.0 to {m.layers - 1}.{m.attention.heads - 1}"
            raise ClearheadError(f"--without {text}: there is no such head; they are {every}, layer and head.")
        found.setdefault(f"blocks.{int(layer)}.attn.z", []).append(ablate(head=int(head)))
    return {name: in_turn(changes) for name, changes in found.items()}
