"""A net that is edited wherever it is used: what writes with it need not know."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from clearhead.model.transformer import Transformer
from clearhead.tap import SILENT, Edit, Tap, eager


class Edited(Transformer):
    """The same weights, each value changed as `edits` say; it is never compiled nor recorded.

    An edit sees only the tokens that are read at a time, so it must change each by itself.
    """

    edits: Mapping[str, Edit]

    def __init__(self, net: Transformer, edits: Mapping[str, Edit]) -> None:
        self.__dict__.update(net.__dict__, _compiled_call_impl=None, edits=edits)

    def forward(self, tokens: Tensor, *, tap: Tap = SILENT, **given: Any) -> Tensor:
        with eager():
            return super().forward(tokens, tap=tap.edited(self.edits), **given)

    def encode(self, source: Tensor, segments: Tensor | None = None, tap: Tap = SILENT) -> Tensor:
        return super().encode(source, segments, tap.edited(self.edits) if tap is SILENT else tap)

    def predict(self, hidden: Tensor, segments: Tensor | None = None, tap: Tap = SILENT) -> Tensor:
        return super().predict(hidden, segments, tap.edited(self.edits) if tap is SILENT else tap)
