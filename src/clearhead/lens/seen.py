"""What one run had inside: values by name, with the tokens they belong to."""

import html
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, nearest
from clearhead.lens.attention import heads_of
from clearhead.lens.logit_lens import token_labels
from clearhead.lens.names import names
from clearhead.lens.parts import layers_of, parts_of, path_of
from clearhead.tokens.text import Tokenizer

Labels = Callable[[], list[str]]
KEYS = "batch kv_head key d_head"  # the shape of what has a row for each key


class NotSeen(ClearheadError, KeyError):
    """A value was asked for that nobody watched."""

    __str__ = Exception.__str__  # a KeyError would quote the sentence


class Seen(Mapping[str, Tensor]):
    """A mapping name → tensor; `tokens` label the first text, `source_tokens` its source. Draws itself in notebooks.

    `whole` tells whether values are as the model had them, not parts that somebody selected. `segments`, of the texts
    and of their sources, are 0 where there is padding, and None where there is none.
    """

    def __init__(
        self, values: dict[str, Tensor], m: c.ModelConfig, tokens: Labels, source_tokens: Labels, whole: bool,
        segments: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> None:  # fmt: skip
        self._values, self.config, self.whole, self._segments = values, m, whole, segments
        self._tokens, self._source_tokens = tokens, source_tokens  # made when asked for: a GPU would be waited for

    @cached_property
    def tokens(self) -> list[str]:
        """The first text's tokens, for people to read."""
        return self._tokens()

    @cached_property
    def source_tokens(self) -> list[str]:
        """The same of its source, where there is one."""
        return self._source_tokens()

    def real(self, name: str) -> Tensor | None:
        """Which tokens of each text, or of its source, a value has that are no padding; None where all are."""
        of_source = name.startswith("encoder.") or (".cross." in name and names(self.config)[name].shape == KEYS)
        segments = self._segments[of_source]
        return None if segments is None else segments != 0

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
        table = names(self.config)
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
        for part in parts_of(self.config) if self.whole else ():
            for layer in range(layers_of(self.config, part)):
                if f"{path_of(part, layer)}.pattern" in self:
                    yield heads_of(self, layer, part=part)._repr_html_()


def labels(ids: Tensor | None, segments: Tensor | None, tokenizer: Tokenizer | None) -> list[str]:
    """The first text's tokens, for people to read."""
    if ids is None or ids.is_floating_point():
        return []
    first = (ids[0] if segments is None else ids[0][segments[0] != 0]).tolist()
    return token_labels(tokenizer, first)
