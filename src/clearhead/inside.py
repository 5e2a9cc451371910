"""What can be seen of a model: text or ids in, tensors out; every value by its name, and changed if one likes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.batch import Batch, read_batch, read_rows
from clearhead.config import Config
from clearhead.errors import ClearheadError
from clearhead.lens.edits import Change, as_edit
from clearhead.lens.names import matching
from clearhead.lens.seen import Seen, labels
from clearhead.model.transformer import Transformer
from clearhead.tap import SILENT, Edit, Select, Tap, Watch, eager
from clearhead.tokens.text import Tokenizer

Pair = tuple[str, str]  # two texts to be read together
Text = str | Pair | Tensor | Sequence[str] | Sequence[Pair] | Sequence[int] | Sequence[Sequence[int]]
Dense = Tensor | str | Path | Sequence[str | Path]  # numbers, or files that hold them
Edits = Mapping[str, Callable[..., Tensor]]


class Inside:
    """A Transformer with its configuration and tokenizer; `net` is the torch module itself."""

    def __init__(
        self,
        net: Transformer,
        config: Config,
        tokenizer: Tokenizer | None = None,
        source_tokenizer: Tokenizer | None = None,  # where a source is cut by another rule
        why: str = "",  # it cannot read text, where it has no tokenizer
    ) -> None:
        self.net, self.config, self.tokenizer = net, config, tokenizer
        self.source_tokenizer, self._why = source_tokenizer, why
        if tokenizer is not None and len(tokenizer) > config.model.vocabulary:
            size = f"{len(tokenizer)} tokens, the model only {config.model.vocabulary}"
            raise ClearheadError(f"the tokenizer has {size}; give the model vocabulary={len(tokenizer)}.")

    @property
    def kind(self) -> str:
        """decoder, encoder or encoder-decoder."""
        return self.config.model.shape.kind

    @property
    def parameters(self) -> int:
        """How many trainable numbers it has."""
        return self.config.parameters()  # of int8 matrices torch counts none

    @property
    def tokenizers(self) -> tuple[Tokenizer | None, Tokenizer | None]:
        """That of what it writes and that of what it reads, which are one unless a source has its own."""
        return self.tokenizer, self.source_tokenizer or self.tokenizer

    def __repr__(self) -> str:
        m, size = self.config.model, f"{self.parameters:,} parameters"
        return f"<{self.kind}: {m.layers} layers, {m.attention.heads} heads, width {m.width}, {size}>"

    def hidden(
        self,
        x: Text | None = None,
        *,
        source: Text | None = None,
        pictures: Dense | None = None,
        sound: Dense | None = None,
        edits: Edits | None = None,
        gradients: bool = False,
    ) -> Tensor:
        """The last hidden states: tokens × width for one text, batch × tokens × width for several."""
        if edits and "logits" in edits:
            raise ClearheadError("logits come after the hidden states; an edit of them changes nothing here.")
        batch = self._batch(x, source, pictures, sound)
        tap = self._tap((), edits, batch)
        with _mode(gradients, tap):
            return batch.unwrap(self._run(batch, tap))

    def logits(
        self,
        x: Text | None = None,
        *,
        source: Text | None = None,
        pictures: Dense | None = None,
        sound: Dense | None = None,
        edits: Edits | None = None,
        gradients: bool = False,
    ) -> Tensor:
        """Logits at every position (language, masked-word), or one row for the whole text (classes, number).

        Several texts are padded on the right to the longest; what comes out beyond a text's end means nothing. A tuple
        of two texts is a pair, which models with something between two texts (`use.end`) read together.
        `source` is what an encoder-decoder reads; `pictures` and `sound` (tensors or files) take its place or that of
        text. `edits` map names of values to `ablate`, `scale`, `replace` or any function of a tensor.
        """
        if isinstance(self.config.model.head, c.Hidden):
            raise ClearheadError("this model has no head, so it has no logits; hidden(…) gives its hidden states.")
        batch = self._batch(x, source, pictures, sound)
        tap = self._tap((), edits, batch)
        with _mode(gradients, tap):
            return batch.unwrap(self.net.predict(self._run(batch, tap), batch.segments, tap))

    def watch(
        self,
        x: Text | None = None,
        names: str | Iterable[str] | Mapping[str, Select] = "**",
        *,
        source: Text | None = None,
        pictures: Dense | None = None,
        sound: Dense | None = None,
        edits: Edits | None = None,
        gradients: bool = False,
    ) -> Seen:
        """The values of those names (`blocks.*.attn.pattern`), by name, always with the batch as first dimension.

        Of `{name: function}` what the function returns is kept: `{"blocks.*.attn.pattern": lambda p: p[:, 3]}`.
        """
        batch = self._batch(x, source, pictures, sound)
        tap = self._tap([names] if isinstance(names, str) else names, edits, batch)
        with _mode(gradients, tap):
            self.net.predict(self._run(batch, tap), batch.segments, tap)
        values = tap.values if isinstance(tap, Watch) else {}
        tokens = partial(labels, batch.ids, batch.segments, self.tokenizer)
        source_tokens = partial(labels, batch.source, batch.source_segments, self.tokenizers[1])
        segments, picked = (batch.segments, batch.source_segments), isinstance(names, Mapping)
        return Seen(values, self.config.model, tokens, source_tokens, not picked, segments)

    def _batch(
        self, x: object, source: object = None, pictures: object = None, sound: object = None, **limits: Any
    ) -> Batch:
        like = next(self.net.parameters())
        given = {"source": source, "picture": pictures, "sound": sound, "why": self._why, **limits}
        return read_batch(self.config, self.tokenizers, like, x, **given)

    def _rows(self, texts: Sequence[Any], **limits: Any) -> Iterator[list[int]]:
        """The ids of each text alone, where no tensor is wanted."""
        return read_rows(self.config, self.tokenizer, texts, why=self._why, **limits)

    def _run(self, batch: Batch, tap: Tap) -> Tensor:
        return self.net(
            batch.ids,
            segments=batch.segments,
            kinds=batch.kinds,
            source=batch.source,
            source_segments=batch.source_segments,
            tap=tap,
        )

    def _tap(self, names: Iterable[str] | Mapping[str, Select], edits: Edits | None, batch: Batch | None = None) -> Tap:
        if not isinstance(names, Iterable):
            raise ClearheadError(f"values are asked for by name, not by {type(names).__name__}.")
        names = names if isinstance(names, Mapping) else list(names)
        if isinstance(names, Mapping) and not all(callable(select) for select in names.values()):
            raise ClearheadError("names may have functions that keep a part of each value, and nothing else.")
        if not names and not edits:
            return SILENT
        for pattern in names:
            self._check_name(pattern)
        padded = batch is not None and (batch.segments is not None or batch.source_segments is not None)
        return Watch(names, self._changes(edits or {}, padded=padded))

    def _changes(self, edits: Edits, alone: bool = False, padded: bool = False) -> dict[str, Edit]:
        """Edits by name; where texts are written, each must change a token `alone`, whatever the others are."""
        if not isinstance(edits, Mapping):
            raise ClearheadError(f"edits are {{name: change}}, not {type(edits).__name__}.")
        for name, edit in edits.items():
            self._check_name(name)
            if alone and isinstance(edit, Change) and not edit.alone:
                needs = "a token's place, a mean over the text, or another run"
                raise ClearheadError(f"the edit of {name} needs {needs}; tokens are written one at a time.")
            if padded and isinstance(edit, Change) and edit.over_text:
                raise ClearheadError(f"the edit of {name} is the mean of a text; give texts of equal length, or one.")
        return {name: as_edit(edit) for name, edit in edits.items()}

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str):
            raise ClearheadError(f"values are asked for by name, not by {type(name).__name__}.")
        matching(self.config.model, name)


@contextmanager
def _mode(gradients: bool, tap: Tap) -> Iterator[None]:
    """Gradients or not; a watched pass is never compiled."""
    with torch.set_grad_enabled(gradients), nullcontext() if tap is SILENT else eager():
        yield
