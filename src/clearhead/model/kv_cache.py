"""Key/value caches for incremental decoding.

Attention asks its cache for keys and values and passes the function that computes them. `NoCache`
computes them, `KVCache` computes those of the new tokens and returns all so far, `CrossKVCache`
computes them once per source.
"""

import math
import mmap
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import ClearheadError

MIN_MAPPED_BYTES = 2**20  # smaller caches are not worth a separate mapping
KeysValues = tuple[Float[Tensor, "batch head key d"], Float[Tensor, "batch head key d"]]
ComputeKV = Callable[..., KeysValues]


class NoCache:
    """Caches nothing."""

    def __call__(self, compute: ComputeKV, *args: object) -> KeysValues:
        return compute(*args)


NO_CACHE = NoCache()


class CacheRows:
    """Lengths and write positions of the batch rows of a cache, shared by all layers.

    Only the first `n_active` rows take part in a pass. If `is_static`, every pass reads one token
    per row with the same operations and shapes, whatever the lengths are, so that it can be
    captured in a CUDA graph.
    """

    def __init__(self, batch: int, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.n_active = batch
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)
        # Known on the host, without a device sync: no row is longer than this; whether all rows are
        # as long.
        self.max_length = 0
        self.is_uniform = True
        self.is_static = False
        # the row that holds each token of each row, if not its own
        self.kv_owner: Tensor | None = None
        self.write_positions = self.lengths[:, None]

    def begin_step(
        self, batch: int, tokens: int, segment_ids: Int[Tensor, "batch token"] | None
    ) -> Int[Tensor, "batch token"]:
        """Position ids of the next tokens; `segment_ids` may mark padding on the right only."""
        if batch != self.n_active:
            raise ClearheadError(f"the cache has {self.n_active} rows, got a batch of {batch}.")
        if self.is_static:
            self.max_length = self.capacity
            self.is_uniform = False
            self.write_positions = self.lengths[: self.n_active, None].clamp(max=self.capacity - 1)
            if self.kv_owner is not None:
                rows = torch.arange(
                    self.n_active, device=self.lengths.device, dtype=self.kv_owner.dtype
                )[:, None]
                self.kv_owner[: self.n_active].scatter_(1, self.write_positions, rows)
            return self.write_positions
        if segment_ids is not None and not _is_right_padded(segment_ids):
            raise ClearheadError(
                "with a cache, each row must hold one document, padded on the right."
            )
        if self.max_length + tokens > self.capacity:
            raise ClearheadError(
                f"{self.max_length} + {tokens} tokens exceed the cache capacity of {self.capacity}."
            )
        self.max_length += tokens
        self.is_uniform = self.is_uniform and segment_ids is None
        self.write_positions = self.lengths[: self.n_active, None] + torch.arange(
            tokens, device=self.lengths.device
        )
        return self.write_positions

    def end_step(self, counts: Int[Tensor, " batch"] | int) -> None:
        """Advance the lengths by the number of tokens that were written."""
        self.lengths[: self.n_active] += counts


def _is_right_padded(segment_ids: Int[Tensor, "batch token"]) -> bool:
    return bool(((segment_ids[:, 1:] <= segment_ids[:, :-1]) & (segment_ids[:, :1] == 1)).all())


class KVCache:
    """Keys and values so far, in preallocated memory indexed by position.

    Entries beyond the end of a row are never read: the mask allows no key after the query.
    """

    def __init__(self, rows: CacheRows, heads: int, d_head: int, dtype: torch.dtype) -> None:
        shape = (len(rows.lengths), heads, rows.capacity, d_head)
        self.rows = rows
        self.keys = _zeros(shape, dtype, rows.lengths.device)
        self.values = _zeros(shape, dtype, rows.lengths.device)

    def __call__(self, compute: ComputeKV, *args: object) -> KeysValues:
        new_keys, new_values = compute(*args)
        if torch.is_grad_enabled():  # backward of earlier steps needs the old contents
            self.keys = self.keys.clone()
            self.values = self.values.clone()
        rows = self.rows
        keys = self.keys[: rows.n_active, :, : rows.max_length]
        values = self.values[: rows.n_active, :, : rows.max_length]
        for cached, new in ((keys, new_keys), (values, new_values)):
            if rows.is_uniform:
                cached[:, :, rows.max_length - new.shape[2] :] = new
            else:
                cached.scatter_(2, rows.write_positions[:, None, :, None].expand_as(new), new)
        return keys, values

    def reorder(self, index: Tensor) -> None:
        for cached in (self.keys, self.values):
            used = cached[:, :, : self.rows.max_length]
            used[: len(index)] = used.index_select(0, index)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, which take memory only once they are overwritten if they are many and on a CPU."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes < MIN_MAPPED_BYTES:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class CrossKVCache:
    """Keys and values of an encoded source, computed once."""

    def __init__(self) -> None:
        self.keys_values: KeysValues | None = None

    def __call__(self, compute: ComputeKV, *args: object) -> KeysValues:
        if self.keys_values is None:
            self.keys_values = compute(*args)
        return self.keys_values

    def reorder(self, index: Tensor) -> None:
        if self.keys_values is not None:
            keys, values = self.keys_values
            self.keys_values = keys.index_select(0, index), values.index_select(0, index)


class ModelCache:
    """The caches of all layers, for one batch with up to `capacity` tokens per row."""

    def __init__(
        self,
        layers: int,
        batch: int,
        capacity: int,
        heads: int,
        d_head: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.rows = CacheRows(batch, capacity, device)
        self.layers = [
            (KVCache(self.rows, heads, d_head, dtype), CrossKVCache()) for _ in range(layers)
        ]

    def reset(self, n_active: int) -> None:
        """Empty the cache and use its first `n_active` rows."""
        self.rows.n_active = n_active
        self.rows.max_length = 0
        self.rows.is_uniform = True
        self.rows.is_static = False
        self.rows.lengths.zero_()
        for _, cross in self.layers:
            cross.keys_values = None

    def copy_rows(
        self, row: int, other: "ModelCache", other_rows: Sequence[int], lengths: Sequence[int]
    ) -> None:
        """Copy rows of a cache, of these lengths, to the rows of this one from `row` on."""
        device = self.rows.lengths.device
        target = slice(row, row + len(other_rows))
        max_length = max(lengths)
        self.rows.lengths[target] = torch.tensor(lengths, device=device)
        self.rows.max_length = max(self.rows.max_length, max_length)
        self.rows.is_uniform = len(self.rows.lengths) == 1
        source: slice | Tensor = slice(other_rows[0], other_rows[0] + 1)
        if len(other_rows) > 1:
            source = torch.tensor(other_rows, device=device)
        for (own, _), (theirs, _) in zip(self.layers, other.layers, strict=True):
            own.keys[target, :, :max_length] = theirs.keys[source, :, :max_length]
            own.values[target, :, :max_length] = theirs.values[source, :, :max_length]

    def reorder(self, index: Int[Tensor, " batch"]) -> None:
        """Row i becomes what row index[i] was, including its source."""
        self.reorder_self(index)
        self.reorder_cross(index)

    def reorder_self(self, index: Int[Tensor, " row"]) -> None:
        """Reorder the written tokens only: beams of one source are reordered, the source stays."""
        self.rows.n_active = len(index)
        self.rows.lengths[: len(index)] = self.rows.lengths.index_select(0, index)
        # Keys and values stay in place; only the owner table is reordered.
        if self.rows.kv_owner is not None:
            self.rows.kv_owner[: len(index)] = self.rows.kv_owner.index_select(0, index)
            return
        for own, _ in self.layers:
            own.reorder(index)

    def reorder_cross(self, index: Int[Tensor, " source"]) -> None:
        """Reorder the sources only: those that have finished are dropped."""
        for _, cross in self.layers:
            cross.reorder(index)
