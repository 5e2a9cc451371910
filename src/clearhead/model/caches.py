"""What a model remembers of tokens it has read, so that the next one costs one step.

Attention asks its cache for keys and values and hands over how to make them. `Fresh` just makes them;
`Growing` makes those of the new tokens and returns all so far; `Frozen` makes them once.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import ClearheadError

KeysValues = tuple[Float[Tensor, "batch head key d"], Float[Tensor, "batch head key d"]]
Make = Callable[..., KeysValues]


class Fresh:
    """Remembers nothing."""

    def __call__(self, make: Make, *args: object) -> KeysValues:
        return make(*args)


FRESH = Fresh()


class Rows:
    """Where each row of a batch stands: tokens held, and where the pass under way writes. Shared by all layers.

    Only the first `used` rows take part in a pass.
    """

    def __init__(self, batch: int, capacity: int, device: torch.device) -> None:
        self.capacity, self.used = capacity, batch
        self.held = torch.zeros(batch, dtype=torch.long, device=device)
        self.longest = 0  # known without asking the device: no row holds more
        self.writing = self.held[:, None]

    def begin(self, batch: int, tokens: int, segments: Int[Tensor, "batch token"] | None) -> Int[Tensor, "batch token"]:
        """Positions of the next `tokens` tokens of each row; segments may only say what is padding, on the right."""
        if batch != self.used:
            raise ClearheadError(f"this memory is for {self.used} rows, not {batch}.")
        if segments is not None and not bool(((segments[:, 1:] <= segments[:, :-1]) & (segments[:, :1] == 1)).all()):
            raise ClearheadError("with a memory, rows hold one document each and are padded on the right.")
        if self.longest + tokens > self.capacity:
            raise ClearheadError(f"the cache holds {self.capacity} tokens; {self.longest} + {tokens} do not fit.")
        self.longest += tokens
        self.writing = self.held[: self.used, None] + torch.arange(tokens, device=self.held.device)
        return self.writing

    def end(self, counts: Int[Tensor, " batch"] | int) -> None:
        held = self.held.clone()
        held[: self.used] += counts
        self.held = held


class Growing:
    """Keys and values so far, in memory set aside beforehand; a token's place in it is its position.

    What lies beyond a row's end is never seen: the mask allows no key after the query.
    """

    def __init__(self, rows: Rows, heads: int, width: int, dtype: torch.dtype) -> None:
        shape = (len(rows.held), heads, rows.capacity, width)
        self.rows = rows
        self.keys = torch.zeros(shape, dtype=dtype, device=rows.held.device)
        self.values = torch.zeros(shape, dtype=dtype, device=rows.held.device)

    def __call__(self, make: Make, *args: object) -> KeysValues:
        keys, values = make(*args)
        row = torch.arange(len(keys), device=keys.device)[:, None]
        if torch.is_grad_enabled():  # what earlier steps were computed from must stay as it was
            self.keys, self.values = self.keys.clone(), self.values.clone()
        self.keys[row, :, self.rows.writing] = keys.transpose(1, 2)
        self.values[row, :, self.rows.writing] = values.transpose(1, 2)
        used, longest = self.rows.used, self.rows.longest
        return self.keys[:used, :, :longest], self.values[:used, :, :longest]

    def reorder(self, index: Tensor) -> None:
        self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)


class Frozen:
    """Keys and values of an encoded source, made once per sentence."""

    def __init__(self) -> None:
        self.kept: KeysValues | None = None

    def __call__(self, make: Make, *args: object) -> KeysValues:
        if self.kept is None:
            self.kept = make(*args)
        return self.kept

    def reorder(self, index: Tensor) -> None:
        if self.kept is not None:
            self.kept = self.kept[0].index_select(0, index), self.kept[1].index_select(0, index)


class Memory:
    """The caches of a whole stack, for one batch, with at most `capacity` tokens a row."""

    def __init__(
        self, layers: int, batch: int, capacity: int, heads: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.rows = Rows(batch, capacity, device)
        self.layers = [(Growing(self.rows, heads, width, dtype), Frozen()) for _ in range(layers)]

    def put(self, row: int, other: "Memory", theirs: int, tokens: int) -> None:
        """A row becomes what a row of another memory, or of this one, holds: so many tokens."""
        self.rows.held[row] = tokens
        for (own, _), (given, _) in zip(self.layers, other.layers, strict=True):
            own.keys[row, :, :tokens] = given.keys[theirs, :, :tokens]
            own.values[row, :, :tokens] = given.values[theirs, :, :tokens]

    def reorder(self, index: Int[Tensor, " batch"]) -> None:
        """Row i becomes what row index[i] was: beams that split and die."""
        self.rows.used = len(index)
        self.rows.held = self.rows.held.index_select(0, index)
        for growing, frozen in self.layers:
            growing.reorder(index)
            frozen.reorder(index)
