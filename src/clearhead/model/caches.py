"""What a model remembers of tokens it has read, so that the next one costs one step.

Attention asks its cache for keys and values and hands over how to make them. `Fresh` just makes them;
`Growing` makes those of the new tokens and returns all so far; `Frozen` makes them once.
"""

from collections.abc import Callable, Sequence

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

    Only the first `used` rows take part in a pass. Rows that are `fixed` read one token at a time by the same
    operations each time, whatever they hold, so that a GPU can replay them.
    """

    def __init__(self, batch: int, capacity: int, device: torch.device) -> None:
        self.capacity, self.used = capacity, batch
        self.held = torch.zeros(batch, dtype=torch.long, device=device)
        self.longest, self.even = 0, True  # known without asking the device: no row holds more; all hold as many
        self.fixed = False
        self.owner: Tensor | None = None  # the row that holds each token of each row, where they are not its own
        self.writing = self.held[:, None]

    def begin(self, batch: int, tokens: int, segments: Int[Tensor, "batch token"] | None) -> Int[Tensor, "batch token"]:
        """Positions of the next `tokens` tokens of each row; segments may only say what is padding, on the right."""
        if batch != self.used:
            raise ClearheadError(f"this memory is for {self.used} rows, not {batch}.")
        if self.fixed:
            self.longest, self.even = self.capacity, False
            self.writing = self.held[: self.used, None].clamp(max=self.capacity - 1)
            if self.owner is not None:
                mine = torch.arange(self.used, device=self.held.device, dtype=self.owner.dtype)[:, None]
                self.owner[: self.used].scatter_(1, self.writing, mine)
            return self.writing
        if segments is not None and not bool(((segments[:, 1:] <= segments[:, :-1]) & (segments[:, :1] == 1)).all()):
            raise ClearheadError("with a memory, rows hold one document each and are padded on the right.")
        if self.longest + tokens > self.capacity:
            raise ClearheadError(f"the cache holds {self.capacity} tokens; {self.longest} + {tokens} do not fit.")
        self.longest, self.even = self.longest + tokens, self.even and segments is None
        self.writing = self.held[: self.used, None] + torch.arange(tokens, device=self.held.device)
        return self.writing

    def end(self, counts: Int[Tensor, " batch"] | int) -> None:
        self.held[: self.used] += counts


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
        new = make(*args)
        if torch.is_grad_enabled():  # what earlier steps were computed from must stay as it was
            self.keys, self.values = self.keys.clone(), self.values.clone()
        used, longest, tokens = self.rows.used, self.rows.longest, new[0].shape[2]
        keys, values = self.keys[:used, :, :longest], self.values[:used, :, :longest]
        for held, more in zip((keys, values), new, strict=True):
            if self.rows.even:
                held[:, :, longest - tokens :] = more
            else:
                held.scatter_(2, self.rows.writing[:, None, :, None].expand_as(more), more)
        return keys, values

    def reorder(self, index: Tensor) -> None:
        for held in (self.keys, self.values):
            held = held[:, :, : self.rows.longest]
            held[: len(index)] = held.index_select(0, index)


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

    def clear(self, used: int) -> None:
        """Nothing is remembered, in so many rows."""
        self.rows.used, self.rows.longest, self.rows.even, self.rows.fixed = used, 0, True, False
        self.rows.held.zero_()
        for _, frozen in self.layers:
            frozen.kept = None

    def put(self, row: int, other: "Memory", theirs: Sequence[int], tokens: Sequence[int]) -> None:
        """Rows from there on become what rows of another memory, or of this one, hold: so many tokens each."""
        rows, longest = slice(row, row + len(theirs)), max(tokens)
        self.rows.held[rows] = torch.tensor(tokens, device=self.rows.held.device)
        self.rows.longest, self.rows.even = max(self.rows.longest, longest), len(self.rows.held) == 1
        of = slice(theirs[0], theirs[0] + 1) if len(theirs) == 1 else torch.tensor(theirs, device=self.rows.held.device)
        for (own, _), (given, _) in zip(self.layers, other.layers, strict=True):
            own.keys[rows, :, :longest] = given.keys[of, :, :longest]
            own.values[rows, :, :longest] = given.values[of, :, :longest]

    def reorder(self, index: Int[Tensor, " batch"]) -> None:
        """Row i becomes what row index[i] was, and sees what that saw."""
        self.follow(index)
        self.look(index)

    def follow(self, index: Int[Tensor, " row"]) -> None:
        """The same for what was written alone: beams of a sentence split and die, its source stays."""
        self.rows.used = len(index)
        self.rows.held[: len(index)] = self.rows.held.index_select(0, index)
        if self.rows.owner is not None:  # what was written stays where it is; it is told anew whose it is
            self.rows.owner[: len(index)] = self.rows.owner.index_select(0, index)
            return
        for growing, _ in self.layers:
            growing.reorder(index)

    def look(self, index: Int[Tensor, " sentence"]) -> None:
        """Sentence i sees what sentence index[i] saw: those that are done have left."""
        for _, frozen in self.layers:
            frozen.reorder(index)
