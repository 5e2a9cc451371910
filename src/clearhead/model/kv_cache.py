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
ComputeKV = Callable[..., KeysValues]


class NoCache:
    """Remembers nothing."""

    def __call__(self, make: ComputeKV, *args: object) -> KeysValues:
        return make(*args)


NO_CACHE = NoCache()


class CacheRows:
    """Where each row of a batch stands: tokens held, and where the pass under way writes. Shared by all layers.

    Only the first `used` rows take part in a pass. Rows that are `fixed` read one token at a time by the same
    operations each time, whatever they hold, so that a GPU can replay them.
    """

    def __init__(self, batch: int, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.n_active = batch
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)
        # known without asking the device: no row holds more; all hold as many
        self.max_length = 0
        self.is_uniform = True
        self.is_static = False
        self.kv_owner: Tensor | None = (
            None  # the row that holds each token of each row, where they are not its own
        )
        self.write_positions = self.lengths[:, None]

    def begin_step(
        self, batch: int, tokens: int, segment_ids: Int[Tensor, "batch token"] | None
    ) -> Int[Tensor, "batch token"]:
        """Positions of the next `tokens` tokens of each row; segments may only say what is padding, on the right."""
        if batch != self.n_active:
            raise ClearheadError(f"this memory is for {self.n_active} rows, not {batch}.")
        if self.is_static:
            self.max_length = self.capacity
            self.is_uniform = False
            self.write_positions = self.lengths[: self.n_active, None].clamp(max=self.capacity - 1)
            if self.kv_owner is not None:
                mine = torch.arange(
                    self.n_active, device=self.lengths.device, dtype=self.kv_owner.dtype
                )[:, None]
                self.kv_owner[: self.n_active].scatter_(1, self.write_positions, mine)
            return self.write_positions
        if segment_ids is not None and not bool(
            ((segment_ids[:, 1:] <= segment_ids[:, :-1]) & (segment_ids[:, :1] == 1)).all()
        ):
            raise ClearheadError(
                "with a memory, rows hold one document each and are padded on the right."
            )
        if self.max_length + tokens > self.capacity:
            raise ClearheadError(
                f"the cache holds {self.capacity} tokens; {self.max_length} + {tokens} do not fit."
            )
        self.max_length = self.max_length + tokens
        self.is_uniform = self.is_uniform and segment_ids is None
        self.write_positions = self.lengths[: self.n_active, None] + torch.arange(
            tokens, device=self.lengths.device
        )
        return self.write_positions

    def end_step(self, counts: Int[Tensor, " batch"] | int) -> None:
        self.lengths[: self.n_active] += counts


class KVCache:
    """Keys and values so far, in memory set aside beforehand; a token's place in it is its position.

    What lies beyond a row's end is never seen: the mask allows no key after the query.
    """

    def __init__(self, rows: CacheRows, heads: int, width: int, dtype: torch.dtype) -> None:
        shape = (len(rows.lengths), heads, rows.capacity, width)
        self.rows = rows
        self.keys = torch.zeros(shape, dtype=dtype, device=rows.lengths.device)
        self.values = torch.zeros(shape, dtype=dtype, device=rows.lengths.device)

    def __call__(self, make: ComputeKV, *args: object) -> KeysValues:
        new = make(*args)
        if torch.is_grad_enabled():  # what earlier steps were computed from must stay as it was
            self.keys, self.values = self.keys.clone(), self.values.clone()
        used = self.rows.n_active
        longest = self.rows.max_length
        tokens = new[0].shape[2]
        keys = self.keys[:used, :, :longest]
        values = self.values[:used, :, :longest]
        for held, more in zip((keys, values), new, strict=True):
            if self.rows.is_uniform:
                held[:, :, longest - tokens :] = more
            else:
                held.scatter_(2, self.rows.write_positions[:, None, :, None].expand_as(more), more)
        return keys, values

    def reorder(self, index: Tensor) -> None:
        for held in (self.keys, self.values):
            held = held[:, :, : self.rows.max_length]
            held[: len(index)] = held.index_select(0, index)


class CrossKVCache:
    """Keys and values of an encoded source, made once per sentence."""

    def __init__(self) -> None:
        self.keys_values: KeysValues | None = None

    def __call__(self, make: ComputeKV, *args: object) -> KeysValues:
        if self.keys_values is None:
            self.keys_values = make(*args)
        return self.keys_values

    def reorder(self, index: Tensor) -> None:
        if self.keys_values is not None:
            self.keys_values = (
                self.keys_values[0].index_select(0, index),
                self.keys_values[1].index_select(0, index),
            )


class ModelCache:
    """The caches of a whole stack, for one batch, with at most `capacity` tokens a row."""

    def __init__(
        self,
        layers: int,
        batch: int,
        capacity: int,
        heads: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.rows = CacheRows(batch, capacity, device)
        self.layers = [
            (KVCache(self.rows, heads, width, dtype), CrossKVCache()) for _ in range(layers)
        ]

    def reset(self, used: int) -> None:
        """Nothing is remembered, in so many rows."""
        self.rows.n_active = used
        self.rows.max_length = 0
        self.rows.is_uniform = True
        self.rows.is_static = False
        self.rows.lengths.zero_()
        for _, frozen in self.layers:
            frozen.keys_values = None

    def copy_rows(
        self, row: int, other: "ModelCache", theirs: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Rows from there on become what rows of another memory, or of this one, hold: so many tokens each."""
        rows = slice(row, row + len(theirs))
        longest = max(tokens)
        self.rows.lengths[rows] = torch.tensor(tokens, device=self.rows.lengths.device)
        self.rows.max_length, self.rows.is_uniform = (
            max(self.rows.max_length, longest),
            len(self.rows.lengths) == 1,
        )
        of = (
            slice(theirs[0], theirs[0] + 1)
            if len(theirs) == 1
            else torch.tensor(theirs, device=self.rows.lengths.device)
        )
        for (own, _), (given, _) in zip(self.layers, other.layers, strict=True):
            own.keys[rows, :, :longest] = given.keys[of, :, :longest]
            own.values[rows, :, :longest] = given.values[of, :, :longest]

    def reorder(self, index: Int[Tensor, " batch"]) -> None:
        """Row i becomes what row index[i] was, and sees what that saw."""
        self.reorder_self(index)
        self.reorder_cross(index)

    def reorder_self(self, index: Int[Tensor, " row"]) -> None:
        """The same for what was written alone: beams of a sentence split and die, its source stays."""
        self.rows.n_active = len(index)
        self.rows.lengths[: len(index)] = self.rows.lengths.index_select(0, index)
        if (
            self.rows.kv_owner is not None
        ):  # what was written stays where it is; it is told anew whose it is
            self.rows.kv_owner[: len(index)] = self.rows.kv_owner.index_select(0, index)
            return
        for growing, _ in self.layers:
            growing.reorder(index)

    def reorder_cross(self, index: Int[Tensor, " sentence"]) -> None:
        """Sentence i sees what sentence index[i] saw: those that are done have left."""
        for _, frozen in self.layers:
            frozen.reorder(index)
