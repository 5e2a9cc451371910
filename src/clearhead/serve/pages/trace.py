"""One text's way through a model: the stream between blocks is kept, all else is computed again when it is asked for.

A model of 12 layers and 12 heads has 600 MB of patterns at 1,024 tokens, but only 38 MB of stream. From the stream that
enters a block everything inside follows, by the block's own code, watched and edited as in the first pass.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.batch import Batch
from clearhead.errors import ClearheadError, nearest
from clearhead.lens.edits import as_edit
from clearhead.lens.names import Name, matching, names
from clearhead.model.block import Block, Scene
from clearhead.model.caches import FRESH
from clearhead.model.masks import EVERYTHING
from clearhead.model.transformer import Stack
from clearhead.serve.refused import Refused
from clearhead.tap import Tap, Watch, eager

Edits = dict[str, Callable[..., Tensor]]
STREAMS = ("embed", "blocks.*.post", "norm")  # what enters each block, after edits; and what the head reads
ENCODER = "encoder."


class Trace:
    """Takes the way once. `value` gives any value of the table of names, without the dimension of the batch."""

    def __init__(self, model: Model, batch: Batch, edits: Edits | None = None) -> None:
        if len(batch.ids) != 1:
            raise ClearheadError(f"a run is of one text, not of {len(batch.ids)}.")
        self._model, self.batch, self.edits = weakref.ref(model), batch, edits or {}
        for name in self.edits:
            matching(model.config.model, name)
        tap = self._watch([*STREAMS, *(ENCODER + name for name in STREAMS if batch.source is not None)])
        with _watched():
            model._run(batch, tap)
        self.streams = tap.values
        self.last = self._answer(-1)

    @property
    def model(self) -> Model:
        """The model, which may have been dropped meanwhile: a run does not keep it."""
        model = self._model()
        if model is None:
            raise Gone("the model of this run is no longer loaded.")
        return model

    def loaded(self, model: Model) -> bool:
        """Whether that is the very model the way was taken through."""
        return self._model() is model

    @property
    def config(self) -> c.ModelConfig:
        return self.model.config.model

    @property
    def pooled(self) -> bool:
        """Whether the head answers once for the whole text."""
        return isinstance(self.config.head, c.Classes | c.Number)

    @cached_property
    def table(self) -> Mapping[str, Name]:
        return names(self.config)

    @property
    def nbytes(self) -> int:
        read = [value for value in vars(self.batch).values() if isinstance(value, Tensor)]
        return sum(value.nbytes for value in (*self.streams.values(), self.last, *read))

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a value, without the batch; known before the value is."""
        m = self.config
        words = self._named(name).shape.split()[1:]
        source = self.streams.get(f"{ENCODER}embed")
        own, other = self.streams["embed"].shape[1], source.shape[1] if source is not None else 0
        tokens = other if name.startswith(ENCODER) else own
        sizes = {
            "token": tokens,
            "key": other if ".cross." in name else tokens,
            "head": m.attention.heads,
            "kv_head": m.kv_heads,
            "d_head": m.head_width,
            "width": m.width,
            "ffn_width": m.ffn_width,
            "vocabulary": m.vocabulary,
            "outputs": self.last.shape[-1],
        }
        return tuple(sizes[word] for word in words)

    def stack(self, name: str) -> Stack:
        """The blocks that a value is of."""
        net = self.model.net
        return net.encoder if name.startswith(ENCODER) and net.encoder is not None else net

    def value(self, name: str) -> Tensor:
        """A value as the model had it in this run."""
        return self.values([name])[name]

    def values(self, wanted: Iterable[str]) -> dict[str, Tensor]:
        """Several values of one block (or of none), from one pass through it."""
        wanted = list(wanted)
        for name in wanted:
            self._named(name)
        found = {name: self.streams[name] for name in wanted if name in self.streams}
        rest = [name for name in wanted if name not in found]
        if rest:
            with _watched():
                found |= self._again(rest)
        return {name: found[name][0] for name in wanted}

    @staticmethod
    def of_head(value: Tensor, head: int | None, name: str) -> Tensor:
        if head is None:
            return value
        if value.dim() != 3:
            raise ClearheadError(f"{name} is not split by head; leave out head={head}.")
        if not 0 <= head < len(value):
            raise ClearheadError(f"{name} has {len(value)} heads; there is no head {head}.")
        return value[head]

    def logits(self, at: int = -1) -> Tensor:
        """What the model answers at one token; the whole answer where there is one for all."""
        if isinstance(self.config.head, c.Hidden):
            raise ClearheadError("this model has no head, so it has no logits.")
        tokens = self.streams["norm"].shape[1]
        if not -tokens <= at < tokens:
            raise ClearheadError(f"there is no token {at}; the text has tokens 0 to {tokens - 1}.")
        return self.last if self.pooled or at % tokens == tokens - 1 else self._answer(at)

    def _answer(self, at: int) -> Tensor:
        hidden = self.streams["norm"]
        with _watched():
            if self.pooled or "logits" in self.edits:  # an edit may be of one token, and counts them all
                whole = self._head(hidden)[0]
                return (whole if self.pooled else whole[at]).float()
            at %= hidden.shape[1]
            return self._head(hidden[:, at : at + 1])[0, 0].float()

    def _named(self, name: str) -> Name:
        if name not in self.table:
            raise ClearheadError(f"{name!r:.60} names no value of this model; {nearest(name, self.table)}")
        return self.table[name]

    def _watch(self, wanted: Iterable[str]) -> Watch:
        return Watch(wanted, {name: as_edit(edit) for name, edit in self.edits.items()})

    def _head(self, hidden: Tensor) -> Tensor:
        return self.model.net.predict(hidden, None, self._watch(()))

    def _again(self, wanted: list[str]) -> dict[str, Tensor]:
        """Values that were not kept, by the code that made them."""
        tap = self._watch(wanted)
        if wanted == ["logits"]:
            return {"logits": self._head(self.streams["norm"])}
        encoder, stack = wanted[0].startswith(ENCODER), self.stack(wanted[0])
        within = tap.at("encoder") if encoder else tap
        path = wanted[0].removeprefix(ENCODER).split(".")
        if path[0] == "embed":
            self._embed(stack, within, encoder)
        else:
            self._block(stack, int(path[1]), within, encoder)
        missing = set(wanted) - tap.values.keys()
        if missing:
            raise ClearheadError(f"{', '.join(sorted(missing))} are not of one block; ask for each block's apart.")
        return tap.values

    def _embed(self, stack: Stack, tap: Tap, encoder: bool) -> None:
        ids = self.batch.source if encoder else self.batch.ids
        assert ids is not None
        x = stack.embed(ids) if encoder or self.batch.kinds is None else stack.embed(ids, self.batch.kinds)
        at, _, _ = stack.stand(x, None, None, None)
        stack.embed.join(x, stack.position.embed(at, x.dtype), tap)

    def _block(self, stack: Stack, layer: int, tap: Tap, encoder: bool) -> None:
        side = ENCODER if encoder else ""
        x = self.streams[f"{side}blocks.{layer - 1}.post" if layer else f"{side}embed"]
        at, keys, mask = stack.stand(x, None, None, None)
        place = stack.position.places(at, keys, len(stack.blocks))[layer]
        source = None if encoder else self.streams.get(f"{ENCODER}norm")
        block: Block = stack.blocks[layer]  # type: ignore[assignment]
        block(x, Scene(place, mask, FRESH, source, EVERYTHING, FRESH), tap.at("blocks", layer))


class Gone(Refused):
    """What was asked about is no longer kept; the same request makes it again."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, 410)


@contextmanager
def _watched() -> Iterator[None]:
    """Without gradients, never compiled."""
    with torch.no_grad(), eager():
        yield
