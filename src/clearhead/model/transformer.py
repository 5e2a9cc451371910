"""The whole Transformer: stacks of blocks, three shapes, one code path (L4.4, L6)."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.model import heads, inputs, masks, positions
from clearhead.model.block import Block, CrossBlock, Scene
from clearhead.model.caches import FRESH, Fresh, Frozen, Growing, Memory
from clearhead.model.initial import initialise
from clearhead.model.layers import make_norm
from clearhead.model.masks import EVERYTHING, Mask
from clearhead.tap import SILENT, Tap

Stream = Float[Tensor, "batch token d"]
Ids = Int[Tensor, "batch token"]
At = Int[Tensor, "#batch token"]  # positions may be the same for all rows
Source = Float[Tensor, "sentence key d"]  # several rows in a row may be beams of one sentence
SourceIds = Int[Tensor, "sentence key"]
Caches = Sequence[tuple[Fresh | Growing, Fresh | Frozen]]


class Stack(nn.Module):
    """Input, positions, blocks, and the norm that closes a pre-norm stack."""

    def __init__(
        self,
        m: c.ModelConfig,
        source: c.Input,
        vocabulary: int,
        context: int,
        layers: int,
        block: type[Block] = Block,
        causal: bool = False,
        shared: nn.Embedding | None = None,
    ) -> None:
        super().__init__()
        self.context, self.causal, self.window = context, causal, m.attention.window
        self.embed = inputs.make(m, source, vocabulary, shared)
        self.position = positions.make(m, context, layers, causal)
        self.blocks = nn.ModuleList(block(m) for _ in range(layers))
        self.norm = make_norm(m.norm, m.width) if m.wiring == "pre" else nn.Identity()

    def run(
        self,
        x: Tensor,
        at: At | None,
        segments: Ids | None,
        kinds: Ids | None,
        tap: Tap,
        memory: Memory | None = None,
        source: Source | None = None,
        source_mask: Mask = EVERYTHING,
    ) -> Stream:
        """Tokens, or what stands in their place, all the way through the stack."""
        x = self.embed(x, kinds) if isinstance(self.embed, inputs.TokenInput) else self.embed(x)
        at, keys, mask = self.stand(x, at, segments, memory)
        caches = memory.layers if memory is not None else [(FRESH, FRESH)] * len(self.blocks)
        return self.through(x, at, keys, mask, caches, tap, source, source_mask)

    def through(
        self,
        x: Stream,
        at: Tensor,
        keys: Tensor,
        mask: Mask,
        caches: Caches,
        tap: Tap,
        source: Source | None = None,
        source_mask: Mask = EVERYTHING,
    ) -> Stream:
        """From embeddings to the last norm; it is known where everything stands and who sees whom."""
        x = self.embed.join(x, self.position.embed(at, x.dtype), tap)
        places = self.position.places(at, keys, len(self.blocks))
        for i, (block, place, (own, cross)) in enumerate(zip(self.blocks, places, caches, strict=True)):
            x = block(x, Scene(place, mask, own, source, source_mask, cross), tap.at("blocks", i))
        return tap("norm", self.norm(x))

    def stand(
        self, x: Stream, at: At | None, segments: Ids | None, memory: Memory | None
    ) -> tuple[Tensor, Tensor, Mask]:
        """Where queries and keys stand, and who sees whom."""
        tokens, device = x.shape[1], x.device
        if tokens > self.context:
            raise ClearheadError(f"{tokens} tokens are more than this model's context of {self.context}.")
        if memory is None:
            if at is None:
                at = torch.arange(tokens, device=device)[None] if segments is None else masks.positions_in(segments)
            return at, at, masks.in_a_row(tokens, segments, causal=self.causal, window=self.window, device=device)
        if at is not None:
            raise ClearheadError("positions follow from the memory; give one or the other.")
        at = memory.rows.begin(len(x), tokens, segments)
        keys = torch.arange(memory.rows.longest, device=device)[None]
        if memory.rows.longest == tokens and not self.window:  # nothing held yet: whole rows, as without a memory
            return at, keys, Mask(causal=True)
        if tokens == 1 and not self.window:
            owner = memory.rows.owner
            return at, keys, EVERYTHING if memory.rows.even and not x.is_cuda else Mask(seen=at[:, 0] + 1, owner=owner)
        return at, keys, Mask(allowed=masks.between(at, keys, causal=True, window=self.window))


class Transformer(Stack):
    """A stack with a head; an encoder-decoder has an `encoder` stack beside it.

    `forward` returns hidden states; `predict` turns them into logits and `loss` into a sum and a count.
    """

    def __init__(self, m: c.ModelConfig) -> None:
        both = isinstance(m.shape, c.EncoderDecoder)
        causal = not isinstance(m.shape, c.Encoder)
        super().__init__(m, m.input, m.vocabulary, m.context, m.layers, CrossBlock if both else Block, causal)
        self.config = m
        table = self.embed.tokens if isinstance(self.embed, inputs.TokenInput) else None
        self.encoder: Stack | None = None
        if isinstance(s := m.shape, c.EncoderDecoder):
            self.encoder = Stack(m, s.input, s.vocabulary, s.context, s.layers, shared=None if s.vocabulary else table)
        self.head = heads.make(m, table)

    def forward(
        self,
        tokens: Tensor,
        *,
        segments: Ids | None = None,
        at: At | None = None,
        kinds: Ids | None = None,
        source: Tensor | None = None,
        source_segments: SourceIds | None = None,
        encoded: Source | None = None,
        memory: Memory | None = None,
        tap: Tap = SILENT,
    ) -> Stream:
        """Hidden states of the last layer.

        `tokens` are ids, pictures or mel frames. `segments` number the documents packed into a row (0 = padding),
        `at` gives positions other than 0, 1, 2 …; `source` is what an encoder-decoder reads, or `encoded` what
        `encode` made of it. `memory` holds the tokens before these; then `segments` only tell what is padding.
        """
        if source is not None and encoded is None:
            encoded = self.encode(source, source_segments, tap)
        mask = self.look(segments, encoded, source_segments)
        x = self.run(tokens, at, segments, kinds, tap, memory, encoded, mask)
        if memory is not None:
            memory.rows.end(tokens.shape[1] if segments is None else (segments != 0).sum(dim=1))
        return x

    def look(self, segments: Ids | None, encoded: Source | None, source_segments: SourceIds | None) -> Mask:
        """Who sees what of the source; a side that is not numbered is all segment 1."""
        if (encoded is None) is not (self.encoder is None):
            needs = "has no source to look at" if self.encoder is None else "needs a source to look at"
            raise ClearheadError(f"a model of shape {self.config.shape.kind} {needs}.")
        if encoded is None or (segments is None and source_segments is None):
            return EVERYTHING
        one = torch.ones((), dtype=torch.long, device=encoded.device)
        own = one.expand(encoded.shape[0], 1) if segments is None else segments  # all tokens see the same
        return masks.across(own, one.expand(encoded.shape[:2]) if source_segments is None else source_segments)

    def encode(self, source: Tensor, segments: Ids | None = None, tap: Tap = SILENT) -> Stream:
        """The encoder's output, which cross-attention reads."""
        if self.encoder is None:
            raise ClearheadError(f"a model of shape {self.config.shape.kind} has no encoder beside it.")
        return self.encoder.run(source, None, segments, None, tap.at("encoder"))

    def predict(self, hidden: Stream, segments: Ids | None = None, tap: Tap = SILENT) -> Tensor:
        """Logits; without a head, the hidden states themselves."""
        return tap("logits", self.head(hidden, segments)) if not isinstance(self.config.head, c.Hidden) else hidden

    def loss(self, hidden: Stream, targets: Tensor, segments: Ids | None = None, smoothing: float = 0.0) -> heads.Loss:
        """The summed loss and the count of what it is of."""
        return self.head.loss(hidden, targets, segments, smoothing)

    def remember(self, batch: int, capacity: int | None = None) -> Memory:
        """Empty caches for `batch` rows of up to `capacity` tokens."""
        if not self.causal:
            raise ClearheadError("an encoder reads a sentence at once; there is nothing to remember between tokens.")
        p, m = next(self.parameters()), self.config
        if (capacity or 0) > m.context:
            raise ClearheadError(f"a memory of {capacity} tokens is more than this model's context of {m.context}.")
        return Memory(m.layers, batch, capacity or m.context, m.kv_heads, m.head_width, p.dtype, p.device)


class _Bare(TorchFunctionMode):
    """Modules are made without the weights that torch would give them: ours are set, or read, afterwards."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def build(
    m: c.ModelConfig, seed: int | None = 0, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Transformer:
    """A new network with random weights; with seed None, on no device and without any (`meta`)."""
    with torch.device("meta"), _Bare():
        net = Transformer(m).to(dtype)
    if seed is not None:
        initialise(net.to_empty(device=device), m, seed)
    return net
