"""One text's way through a model, to be taken again from any block, changed in many ways side by side.

What comes before a change is the same for all, so it is computed once; each change then is a row of a batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.batch import Batch
from clearhead.errors import ClearheadError
from clearhead.lens.edits import as_edit
from clearhead.lens.names import names
from clearhead.lens.parts import numbers
from clearhead.model.block import Block, Scene
from clearhead.model.caches import FRESH
from clearhead.model.masks import EVERYTHING
from clearhead.model.transformer import Transformer
from clearhead.tap import Edit, Watch, eager

Edited = tuple[str, Edit]  # the name of a value, and what becomes of it


class Resumed:
    """Takes the way once, unchanged, and keeps the stream before every block."""

    def __init__(self, net: Transformer, batch: Batch) -> None:
        if len(batch.ids) != 1:
            raise ClearheadError(f"this changes one text at a time, not {len(batch.ids)}.")
        self.net, self.batch, self.layers = net, batch, net.config.layers
        last = f"blocks.{self.layers - 1}.post"
        watch = Watch(["blocks.*.pre", last])
        with torch.no_grad(), eager():
            self.encoded = None if batch.source is None else net.encode(batch.source)
            self.logits = net.predict(net(batch.ids, kinds=batch.kinds, encoded=self.encoded, tap=watch))[0].float()
        numbers({"the logits": self.logits})
        self.streams = [*(watch.values[f"blocks.{i}.pre"] for i in range(self.layers)), watch.values[last]]

    def sizes(self, name: str) -> dict[str, int]:
        """How many heads a value has, if it has any, and how many tokens."""
        m, words = self.net.config, names(self.net.config)[name].shape.split()
        heads = {"head": m.attention.heads, "kv_head": m.kv_heads}.get(words[1])
        tokens = self.encoded if of_source(m, name) and self.encoded is not None else self.streams[0]
        return {**({} if heads is None else {"head": heads}), "token": tokens.shape[1]}

    def start(self, name: str) -> int:
        """The block from which a change of that value matters; −1 where it must be taken from the beginning."""
        first, _, rest = name.partition(".")
        if first == "blocks":
            return int(rest.partition(".")[0])
        return self.layers if name == "norm" else -1

    @torch.no_grad()
    def run(self, start: int, rows: Sequence[Edited], at: int) -> Tensor:
        """The logits at a token (or of the whole text) after each change: row × outputs."""
        tap, count = Watch(edits=by_row(rows)), len(rows)
        with eager():
            if start < 0:
                ids, kinds, source = (
                    _repeated(x, count) for x in (self.batch.ids, self.batch.kinds, self.batch.source)
                )
                assert ids is not None
                hidden = self.net(ids, kinds=kinds, source=source, tap=tap)
            else:
                hidden = self._from(start, count, tap)
            if isinstance(self.net.config.head, c.Classes | c.Number):
                return self.net.predict(hidden).float()
            return self.net.predict(hidden[:, at : at + 1])[:, 0].float()

    def _from(self, start: int, count: int, tap: Watch) -> Tensor:
        x, encoded = self.streams[start].expand(count, -1, -1), _repeated(self.encoded, count)
        at, keys, mask = self.net.stand(x, None, None, None)
        places = self.net.position.places(at, keys, self.layers)
        for i in range(start, self.layers):
            block: Block = self.net.blocks[i]  # type: ignore[assignment]
            x = block(x, Scene(places[i], mask, FRESH, encoded, EVERYTHING, FRESH), tap.at("blocks", i))
        return tap("norm", self.net.norm(x))


def _repeated(x: Tensor | None, count: int) -> Tensor | None:
    return None if x is None else x.expand(count, *x.shape[1:])


def by_row(rows: Sequence[Edited]) -> dict[str, Edit]:
    """One edit for each name, which changes each row in its own way."""
    grouped: dict[str, list[tuple[int, Edit]]] = {}
    for row, (name, edit) in enumerate(rows):
        grouped.setdefault(name, []).append((row, as_edit(edit)))

    def together(edits: list[tuple[int, Edit]]) -> Edit:
        def edit(value: Tensor, name: str) -> Tensor:
            changed = value.expand(len(rows), *value.shape[1:]).clone()  # positions may be one row for all
            for row, one in edits:
                changed[row : row + 1] = one(value[row : row + 1] if len(value) > 1 else value, name)
            return changed

        return edit

    return {name: together(edits) for name, edits in grouped.items()}


def of_source(m: c.ModelConfig, name: str) -> bool:
    """Whether the tokens of a value are those of the source."""
    keys = names(m)[name].shape.split()[-2] == "key"
    return name.startswith("encoder.") or (keys and ".cross." in name)
