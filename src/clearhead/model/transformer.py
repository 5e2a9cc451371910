"""The block (L4): parts that read the residual stream and add to it."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import NO_HOOKS, Hooks
from clearhead.model import heads, inputs, positions
from clearhead.model.attention import (
    NO_MASK,
    Attention,
    Mask,
    cross_attention_mask,
    distance_mask,
    positions_from_segments,
    self_attention_mask,
)
from clearhead.model.kv_cache import NO_CACHE, CrossKVCache, KVCache, ModelCache, NoCache
from clearhead.model.layers import make_dropout, make_feed_forward, make_norm
from clearhead.model.positions import NO_POSITION, Position

# ---- block: The block (L4): parts that read the residual stream and add to it.

ResidualStream = Float[Tensor, "batch token d"]
Sublayer = Callable[[ResidualStream], ResidualStream]


@dataclass(frozen=True)
class BlockInputs:
    """What a block needs to know besides the stream: where tokens stand, whom they see, what is remembered.

    No field has a default: the compiler cannot trace objects as defaults of a dataclass.
    """

    position: Position
    mask: Mask
    cache: NoCache | KVCache
    memory: Float[Tensor, "batch key d"] | None  # the encoder's output
    memory_mask: Mask
    cross_cache: NoCache | CrossKVCache


def pre_norm(x: ResidualStream, norm: Sublayer, part: Sublayer) -> ResidualStream:
    return x + part(norm(x))


def post_norm(x: ResidualStream, norm: Sublayer, part: Sublayer) -> ResidualStream:
    return norm(x + part(x))


class Block(nn.Module):
    """Attention moves information between tokens, the feed-forward layer works on each alone (L4.1, L4.3).

        pre ──▶ attention ──▶ mid [──▶ cross-attention ──▶ crossed] ──▶ feed-forward ──▶ post

    Each arrow through a part is wired one of two ways:

        pre:   x ──┬── norm ── part ── + ──▶          post:   x ──┬── part ── + ── norm ──▶
                   └───────────────────┘                          └───────────┘
    """

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__()
        self.residual = pre_norm if m.norm_position == "pre" else post_norm
        self.attn_norm = make_norm(m.norm, m.d_model)
        self.attn = Attention(m)
        self.ffn_norm = make_norm(m.norm, m.d_model)
        self.ffn = make_feed_forward(m)
        self.drop = make_dropout(m.dropout.residual)

    def forward(self, x: ResidualStream, scene: BlockInputs, hooks: Hooks) -> ResidualStream:
        attn = hooks.scope("attn")
        ffn = hooks.scope("ffn")

        def attend(h: ResidualStream) -> ResidualStream:
            h = attn("in", h)
            return self.drop(self.attn(h, h, scene.position, scene.mask, scene.cache, attn))

        def feed(h: ResidualStream) -> ResidualStream:
            return self.drop(self.ffn(ffn("in", h), ffn))

        x = hooks("resid_mid", self.residual(hooks("resid_pre", x), self.attn_norm, attend))
        x = self.cross_attend(x, scene, hooks)
        return hooks("resid_post", self.residual(x, self.ffn_norm, feed))

    def cross_attend(self, x: ResidualStream, scene: BlockInputs, hooks: Hooks) -> ResidualStream:
        """At nothing else."""
        return x


class CrossAttentionBlock(Block):
    """A block that also looks at an encoded source (L3.8)."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__(m)
        self.cross_attn_norm = make_norm(m.norm, m.d_model)
        self.cross_attn = Attention(m)

    def cross_attend(self, x: ResidualStream, scene: BlockInputs, hooks: Hooks) -> ResidualStream:
        cross = hooks.scope("cross_attn")

        def attend(h: ResidualStream) -> ResidualStream:
            source = scene.memory
            assert source is not None
            beams = cross("in", h).reshape(
                source.shape[0], -1, h.shape[-1]
            )  # of one sentence, as so many queries
            seen = self.cross_attn(
                beams, source, NO_POSITION, scene.memory_mask, scene.cross_cache, cross
            )
            return self.drop(seen.reshape(h.shape))

        return hooks("resid_cross", self.residual(x, self.cross_attn_norm, attend))


# ---- initial: The weights a model starts with.

_INIT_STD = 0.02


def init_weights(net: nn.Module, m: c.ModelConfig, seed: int) -> None:
    """Fills every parameter, the same for the same seed.

    | what                                                     | starts as                          |
    |----------------------------------------------------------|------------------------------------|
    | token embedding (and a tied unembedding)                 | N(0, 0.02²), or N(0, 1/d) where it |
    |                                                          | is multiplied by √d                |
    | own unembedding, sentence kinds, first token,            | N(0, 0.02²)                        |
    | learned, relative and Shaw positions, class outputs      |                                    |
    | W_Q, W_K, W_V, W_1, W_G, patches, convolutions, other    | N(0, 1/inputs)                     |
    | W_O, W_2: what writes into the stream                    | N(0, 1/(inputs · parts written)),  |
    |                                                          | 2 or 3 for each layer of the stack |
    | gains of norms                                           | 1                                  |
    | biases                                                   | 0                                  |
    """
    generator = torch.Generator().manual_seed(seed)
    sides = {"": (m.input, m.n_layers * 2)}
    if isinstance(m.architecture, c.EncoderDecoder):
        sides = {
            "": (m.input, m.n_layers * 3),
            "encoder.": (m.architecture.source_input, m.architecture.encoder_layers * 2),
        }
    with torch.no_grad():
        for name, p in net.named_parameters():
            source, parts = sides["encoder." if name.startswith("encoder.") else ""]
            if name.endswith("bias"):
                p.zero_()
            elif "norm." in name:
                p.fill_(1.0)
            else:
                p.copy_(
                    torch.randn(p.shape, generator=generator) * _init_std(name, p, source, parts)
                )


def _init_std(name: str, p: nn.Parameter, source: c.Input, parts: int) -> float:
    if name.endswith("embed.tokens.weight"):
        return (
            p.shape[1] ** -0.5
            if isinstance(source, c.Tokens) and source.scale_embeddings
            else _INIT_STD
        )
    if re.search(r"(embed\.kinds|unembed|head\.out)\.weight$|embed\.first$|position\.table$", name):
        return _INIT_STD
    inputs = math.prod(p.shape[1:])
    return (
        inputs * (parts if re.search(r"(attn|cross)\.out\.weight$|ffn\.down\.weight$", name) else 1)
    ) ** -0.5


# ---- transformer: The whole Transformer: stacks of blocks, three shapes, one code path (L4.4, L6).

Stream = Float[Tensor, "batch token d"]
Ids = Int[Tensor, "batch token"]
PositionIds = Int[Tensor, "#batch token"]  # positions may be the same for all rows
Memory = Float[Tensor, "sentence key d"]  # several rows in a row may be beams of one sentence
SourceSegmentIds = Int[Tensor, "sentence key"]
LayerCaches = Sequence[tuple[NoCache | KVCache, NoCache | CrossKVCache]]


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
        is_causal: bool = False,
        shared: nn.Embedding | None = None,
    ) -> None:
        super().__init__()
        self.context_length = context
        self.is_causal = is_causal
        self.sliding_window = m.attention.sliding_window
        self.embed = inputs.make_input_embedding(m, source, vocabulary, shared)
        self.position = positions.make_position_encoding(m, context, layers, is_causal)
        self.blocks = nn.ModuleList(block(m) for _ in range(layers))
        self.final_norm = (
            make_norm(m.norm, m.d_model) if m.norm_position == "pre" else nn.Identity()
        )

    def run(
        self,
        x: Tensor,
        at: PositionIds | None,
        segment_ids: Ids | None,
        kinds: Ids | None,
        hooks: Hooks,
        memory: ModelCache | None = None,
        source: Memory | None = None,
        source_mask: Mask = NO_MASK,
    ) -> Stream:
        """Tokens, or what stands in their place, all the way through the stack."""
        x = self.embed(x, kinds) if isinstance(self.embed, inputs.TokenEmbedding) else self.embed(x)
        at, keys, mask = self.positions_and_mask(x, at, segment_ids, memory)
        caches = memory.layers if memory is not None else [(NO_CACHE, NO_CACHE)] * len(self.blocks)
        return self.run_blocks(x, at, keys, mask, caches, hooks, source, source_mask)

    def run_blocks(
        self,
        x: Stream,
        at: Tensor,
        keys: Tensor,
        mask: Mask,
        caches: LayerCaches,
        hooks: Hooks,
        source: Memory | None = None,
        source_mask: Mask = NO_MASK,
    ) -> Stream:
        """From embeddings to the last norm; it is known where everything stands and who sees whom."""
        x = self.embed.add_positions(x, self.position.embed(at, x.dtype), hooks)
        places = self.position.layer_positions(at, keys, len(self.blocks))
        for i, (block, place, (own, cross)) in enumerate(
            zip(self.blocks, places, caches, strict=True)
        ):
            x = block(
                x,
                BlockInputs(place, mask, own, source, source_mask, cross),
                hooks.scope("blocks", i),
            )
        return hooks("final_norm", self.final_norm(x))

    def positions_and_mask(
        self, x: Stream, at: PositionIds | None, segment_ids: Ids | None, memory: ModelCache | None
    ) -> tuple[Tensor, Tensor, Mask]:
        """Where queries and keys stand, and who sees whom."""
        tokens = x.shape[1]
        device = x.device
        if tokens > self.context_length:
            raise ClearheadError(
                f"{tokens} tokens are more than this model's context of {self.context_length}."
            )
        if memory is None:
            if at is None:
                at = (
                    torch.arange(tokens, device=device)[None]
                    if segment_ids is None
                    else positions_from_segments(segment_ids)
                )
            return (
                at,
                at,
                self_attention_mask(
                    tokens,
                    segment_ids,
                    is_causal=self.is_causal,
                    window=self.sliding_window,
                    device=device,
                ),
            )
        if at is not None:
            raise ClearheadError("positions follow from the memory; give one or the other.")
        at = memory.rows.begin_step(len(x), tokens, segment_ids)
        keys = torch.arange(memory.rows.max_length, device=device)[None]
        if (
            memory.rows.max_length == tokens and not self.sliding_window
        ):  # nothing held yet: whole rows, as without a memory
            return at, keys, Mask(is_causal=True)
        if tokens == 1 and not self.sliding_window:
            owner = memory.rows.kv_owner
            return (
                at,
                keys,
                NO_MASK
                if memory.rows.is_uniform and not x.is_cuda
                else Mask(kv_lengths=at[:, 0] + 1, kv_owner=owner),
            )
        return (
            at,
            keys,
            Mask(allowed=distance_mask(at, keys, is_causal=True, window=self.sliding_window)),
        )


class Transformer(Stack):
    """A stack with a head; an encoder-decoder has an `encoder` stack beside it.

    `forward` returns hidden states; `predict` turns them into logits and `loss` into a sum and a count.
    """

    def __init__(self, m: c.ModelConfig) -> None:
        both = isinstance(m.architecture, c.EncoderDecoder)
        causal = not isinstance(m.architecture, c.Encoder)
        super().__init__(
            m,
            m.input,
            m.vocab_size,
            m.context_length,
            m.n_layers,
            CrossAttentionBlock if both else Block,
            causal,
        )
        self.config = m
        table = self.embed.tokens if isinstance(self.embed, inputs.TokenEmbedding) else None
        self.encoder: Stack | None = None
        if isinstance(s := m.architecture, c.EncoderDecoder):
            self.encoder = Stack(
                m,
                s.source_input,
                s.source_vocab_size,
                s.source_context_length,
                s.encoder_layers,
                shared=None if s.source_vocab_size else table,
            )
        self.head = heads.make_head(m, table)

    def forward(
        self,
        tokens: Tensor,
        *,
        segment_ids: Ids | None = None,
        position_ids: PositionIds | None = None,
        token_type_ids: Ids | None = None,
        source: Tensor | None = None,
        source_segment_ids: SourceSegmentIds | None = None,
        encoder_output: Memory | None = None,
        cache: ModelCache | None = None,
        hooks: Hooks = NO_HOOKS,
    ) -> Stream:
        """Hidden states of the last layer.

        `tokens` are ids, pictures or mel frames. `segments` number the documents packed into a row (0 = padding),
        `at` gives positions other than 0, 1, 2 …; `source` is what an encoder-decoder reads, or `encoded` what
        `encode` made of it. `memory` holds the tokens before these; then `segments` only tell what is padding.
        """
        if source is not None and encoder_output is None:
            encoder_output = self.encode(source, source_segment_ids, hooks)
        mask = self.memory_mask(segment_ids, encoder_output, source_segment_ids)
        x = self.run(
            tokens, position_ids, segment_ids, token_type_ids, hooks, cache, encoder_output, mask
        )
        if cache is not None:
            cache.rows.end_step(
                tokens.shape[1] if segment_ids is None else (segment_ids != 0).sum(dim=1)
            )
        return x

    def memory_mask(
        self,
        segment_ids: Ids | None,
        encoded: Memory | None,
        source_segment_ids: SourceSegmentIds | None,
    ) -> Mask:
        """Who sees what of the source; a side that is not numbered is all segment 1."""
        if (encoded is None) is not (self.encoder is None):
            needs = (
                "has no source to look at" if self.encoder is None else "needs a source to look at"
            )
            raise ClearheadError(f"a model of shape {self.config.architecture.kind} {needs}.")
        if encoded is None or (segment_ids is None and source_segment_ids is None):
            return NO_MASK
        one = torch.ones((), dtype=torch.long, device=encoded.device)
        own = (
            one.expand(encoded.shape[0], 1) if segment_ids is None else segment_ids
        )  # all tokens see the same
        return cross_attention_mask(
            own, one.expand(encoded.shape[:2]) if source_segment_ids is None else source_segment_ids
        )

    def encode(
        self, source: Tensor, segment_ids: Ids | None = None, hooks: Hooks = NO_HOOKS
    ) -> Stream:
        """The encoder's output, which cross-attention reads."""
        if self.encoder is None:
            raise ClearheadError(
                f"a model of shape {self.config.architecture.kind} has no encoder beside it."
            )
        return self.encoder.run(source, None, segment_ids, None, hooks.scope("encoder"))

    def compute_logits(
        self, hidden: Stream, segment_ids: Ids | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        """Logits; without a head, the hidden states themselves."""
        return (
            hooks("logits", self.head(hidden, segment_ids))
            if not isinstance(self.config.head, c.NoHead)
            else hidden
        )

    def loss(
        self,
        hidden: Stream,
        targets: Tensor,
        segment_ids: Ids | None = None,
        label_smoothing: float = 0.0,
    ) -> heads.Loss:
        """The summed loss and the count of what it is of."""
        return self.head.loss(hidden, targets, segment_ids, label_smoothing)

    def init_cache(self, batch: int, capacity: int | None = None) -> ModelCache:
        """Empty caches for `batch` rows of up to `capacity` tokens."""
        if not self.is_causal:
            raise ClearheadError(
                "an encoder reads a sentence at once; there is nothing to remember between tokens."
            )
        p = next(self.parameters())
        m = self.config
        if (capacity or 0) > m.context_length:
            raise ClearheadError(
                f"a memory of {capacity} tokens is more than this model's context of {m.context_length}."
            )
        return ModelCache(
            m.n_layers,
            batch,
            capacity or m.context_length,
            m.n_kv_heads,
            m.d_head,
            p.dtype,
            p.device,
        )


class _SkipInit(TorchFunctionMode):
    """Modules are made without the weights that torch would give them: ours are set, or read, afterwards."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def build_transformer(
    m: c.ModelConfig, seed: int | None = 0, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Transformer:
    """A new network with random weights; with seed None, on no device and without any (`meta`)."""
    with torch.device("meta"), _SkipInit():
        net = Transformer(m).to(dtype)
    if seed is not None:
        init_weights(net.to_empty(device=device), m, seed)
    return net
