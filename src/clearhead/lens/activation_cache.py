"""Activation cache: what `model.watch` returns."""

import html
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError, NonFiniteError, suggest
from clearhead.hooks import Selector
from clearhead.lens.argument_checks import check_single_text
from clearhead.lens.hook_points import (
    activation_table,
    attention_kinds,
    attention_path,
    is_source_activation,
    num_layers,
)
from clearhead.lens.tokens import first_text_labels
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import MediaInput, Model, TextInput
    from clearhead.lens.edits import Edits
CacheT = TypeVar("CacheT", bound=Mapping[str, Tensor])


class NotCachedError(ClearheadError, KeyError):
    """An activation that was not watched."""

    __str__ = Exception.__str__  # a KeyError would print the repr of the message


class ActivationCache(Mapping[str, Tensor]):
    """Activations of one run by name. Draws itself in notebooks.

    `batch` is the input of the run. `is_complete` tells whether whole values were recorded rather
    than selected parts of them.
    """

    def __init__(
        self,
        values: dict[str, Tensor],
        config: c.ModelConfig,
        batch: Batch,
        tokenizers: tuple[Tokenizer | None, Tokenizer | None],
        is_complete: bool,
    ) -> None:
        self._values = values
        self._tokenizers = tokenizers
        self.config = config
        self.batch = batch
        self.is_complete = is_complete

    @cached_property  # not computed earlier, because it waits for the GPU
    def tokens(self) -> list[str]:
        """The first text's tokens."""
        return first_text_labels(self.batch.inputs, self.batch.segment_ids, self._tokenizers[0])

    @cached_property
    def source_tokens(self) -> list[str]:
        """The tokens of the first text's source; empty without one."""
        batch = self.batch
        return first_text_labels(batch.source, batch.source_segment_ids, self._tokenizers[1])

    def token_mask(self, name: str) -> Tensor | None:
        """Boolean, text × token: false at padding; None if nothing is padded."""
        is_source = is_source_activation(self.config, name)
        segment_ids = self.batch.source_segment_ids if is_source else self.batch.segment_ids
        return None if segment_ids is None else segment_ids != 0

    def __getitem__(self, name: str) -> Tensor:
        if name not in self:
            raise NotCachedError(f"{name!r} was not watched; {suggest(name, self._values)}")
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            raise ClearheadError(
                f"expected a name such as 'blocks.2.attn.pattern', got {name!r:.60}."
            )
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _rows(self) -> list[tuple[str, str, str, str]]:
        table = activation_table(self.config)
        return [
            (name, " × ".join(map(str, value.shape)), table[name].formula, table[name].description)
            for name, value in self.items()
        ]

    def __repr__(self) -> str:
        return "\n".join(
            f"{name:<34} {shape:<20} {description}" for name, shape, _, description in self._rows()
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self._rows()
        )
        header = "<tr><th>name</th><th>shape</th><th>formula</th><th>description</th></tr>"
        return f"{''.join(self._pattern_figures())}<table>{header}{rows}</table>"

    def _pattern_figures(self) -> Iterator[str]:
        """The heads of each layer whose pattern was watched."""
        from clearhead.lens.attention import cached_attention  # it imports this module

        for kind in attention_kinds(self.config) if self.is_complete else ():
            for layer in range(num_layers(self.config, kind)):
                if f"{attention_path(kind, layer)}.pattern" in self:
                    yield cached_attention(self, layer, kind=kind)._repr_html_()


def query_key_labels(
    cache: ActivationCache, kind: str, shape: tuple[int, int]
) -> tuple[list[str], list[str]]:
    """Labels of queries and keys: tokens, and numbers for patches and padding."""
    queries = cache.source_tokens if kind == "encoder" else cache.tokens
    keys = cache.tokens if kind == "attention" else cache.source_tokens
    return _numbered_after(queries, shape[0]), _numbered_after(keys, shape[1])


def _numbered_after(labels: list[str], size: int) -> list[str]:
    return [*labels, *map(str, range(len(labels), size))]


def single_text(value: Tensor) -> Tensor:
    """The only text of a batch, in float32 on the CPU."""
    check_single_text(value)
    return value[0].detach().float().cpu()


def check_no_nan(cache: CacheT) -> CacheT:
    """The activations themselves; raises if one of them contains NaN."""
    for name, value in cache.items():
        if bool(value.isnan().any()):
            raise NonFiniteError(f"the values of {name}")
    return cache


def watch_single_text(
    model: "Model",
    names: Iterable[str] | Mapping[str, Selector],
    x: "TextInput | None",
    source: "TextInput | None",
    images: "MediaInput | None",
    audio: "MediaInput | None",
    edits: "Edits | None",
) -> ActivationCache:
    """`model.watch` of one text, which must not give NaN."""
    cache = model.watch(x, names, source=source, images=images, audio=audio, edits=edits)
    for value in check_no_nan(cache).values():
        check_single_text(value)
    return cache
