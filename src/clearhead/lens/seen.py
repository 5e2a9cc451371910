"""What one run had inside: values by name, with the tokens they belong to."""

import html
from collections.abc import Iterator, Mapping

from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, nearest
from clearhead.lens.attention import heads_of
from clearhead.lens.names import names
from clearhead.tokens.text import Tokenizer


class NotSeen(ClearheadError, KeyError):
    """A value was asked for that nobody watched."""

    __str__ = Exception.__str__  # a KeyError would quote the sentence


class Seen(Mapping[str, Tensor]):
    """A mapping name → tensor; `tokens` label the first text, `source_tokens` its source. Draws itself in notebooks."""

    def __init__(
        self, values: dict[str, Tensor], m: c.ModelConfig, tokens: list[str], source_tokens: list[str]
    ) -> None:
        self._values, self._model, self.tokens, self.source_tokens = values, m, tokens, source_tokens

    @property
    def layers(self) -> int:
        """How many blocks the model has, watched or not."""
        return self._model.layers

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            raise NotSeen(f"{name!r} was not watched; {nearest(name, self._values)}")
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _rows(self) -> list[tuple[str, str, str, str]]:
        table = names(self._model)
        return [
            (name, " × ".join(map(str, value.shape)), table[name].formula, table[name].sentence)
            for name, value in self.items()
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{name:<34} {shape:<20} {sentence}" for name, shape, _, sentence in self._rows())

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in self._rows())
        table = f"<table><tr><th>name</th><th>shape</th><th>formula</th><th>what it is</th></tr>{rows}</table>"
        return "".join(self._pictures()) + table

    def _pictures(self) -> Iterator[str]:
        """The heads of each layer whose pattern was watched."""
        for layer in range(self.layers):
            if f"blocks.{layer}.attn.pattern" in self:
                yield heads_of(self, layer)._repr_html_()


def labels(ids: Tensor | None, segments: Tensor | None, tokenizer: Tokenizer | None) -> list[str]:
    """The first text's tokens, for people to read."""
    if ids is None or ids.is_floating_point():
        return []
    first = (ids[0] if segments is None else ids[0][segments[0] != 0]).tolist()
    return tokenizer.pieces(first) if tokenizer else [str(i) for i in first]
