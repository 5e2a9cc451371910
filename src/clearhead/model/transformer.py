"""The Transformer: blocks (L4.1), stacks of blocks (L4.4) and the three architectures (L6)."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import NO_HOOKS, Edit, Hooks, force_eager
from clearhead.model.attention import (
    NO_MASK,
    Attention,
    Mask,
    cross_attention_mask,
    distance_mask,
    positions_from_segments,
    self_attention_mask,
)
from clearhead.model.embeddings import TokenEmbedding, make_input_embedding
from clearhead.model.heads import Loss, make_head
from clearhead.model.kv_cache import NO_CACHE, CrossKVCache, KVCache, ModelCache, NoCache
from clearhead.model.layers import make_dropout, make_feed_forward, make_norm
from clearhead.model.positions import NO_POSITION, Position, make_position_encoding

ResidualStream = Float[Tensor, "batch token d"]
SegmentIds = Int[Tensor, "batch token"]
PositionIds = Int[Tensor, "#batch token"]  # may be shared by all rows
# several consecutive rows may be beams of one source
EncoderOutput = Float[Tensor, "source key d"]
SourceSegmentIds = Int[Tensor, "source key"]
LayerCaches = Sequence[tuple[NoCache | KVCache, NoCache | CrossKVCache]]
Sublayer = Callable[[ResidualStream], ResidualStream]


# --- blocks
@dataclass(frozen=True)
class BlockInputs:
    """What a block needs besides the residual stream.

    No field has a default: the compiler cannot trace objects as defaults of a dataclass.
    """

    position: Position
    mask: Mask
    cache: NoCache | KVCache
    encoder_output: Float[Tensor, "batch key d"] | None
    encoder_mask: Mask
    cross_cache: NoCache | CrossKVCache


def pre_norm(x: ResidualStream, norm: Sublayer, sublayer: Sublayer) -> ResidualStream:
    return x + sublayer(norm(x))


def post_norm(x: ResidualStream, norm: Sublayer, sublayer: Sublayer) -> ResidualStream:
    return norm(x + sublayer(x))


class Block(nn.Module):
    """Attention between tokens, then a feed-forward layer for each token (L4.1, L4.3).

        resid_pre ──▶ attention ──▶ resid_mid ──▶ feed-forward ──▶ resid_post

    With an encoder, between the two: resid_mid ──▶ cross-attention ──▶ resid_cross.

    Each arrow through a sublayer is wired one of two ways:

        pre:   x ──┬── norm ── sublayer ── + ──▶          post:   x ──┬── sublayer ── + ── norm ──▶
                   └───────────────────────┘                          └───────────────┘
    """

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__()
        self.residual = pre_norm if m.norm_position == "pre" else post_norm
        self.attn_norm = make_norm(m.norm, m.d_model)
        self.attn = Attention(m)
        self.ffn_norm = make_norm(m.norm, m.d_model)
        self.ffn = make_feed_forward(m)
        self.drop = make_dropout(m.dropout.residual)

    def forward(self, x: ResidualStream, inputs: BlockInputs, hooks: Hooks) -> ResidualStream:
        attn_hooks = hooks.scope("attn")
        ffn_hooks = hooks.scope("ffn")

        def attend(h: ResidualStream) -> ResidualStream:
            h = attn_hooks("in", h)
            return self.drop(
                self.attn(h, h, inputs.position, inputs.mask, inputs.cache, attn_hooks)
            )

        def feed_forward(h: ResidualStream) -> ResidualStream:
            return self.drop(self.ffn(ffn_hooks("in", h), ffn_hooks))

        x = hooks("resid_mid", self.residual(hooks("resid_pre", x), self.attn_norm, attend))
        x = self.cross_attend(x, inputs, hooks)
        return hooks("resid_post", self.residual(x, self.ffn_norm, feed_forward))

    def cross_attend(self, x: ResidualStream, inputs: BlockInputs, hooks: Hooks) -> ResidualStream:
        """No cross-attention."""
        return x


class CrossAttentionBlock(Block):
    """A block that also attends to an encoded source (L3.8)."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__(m)
        self.cross_attn_norm = make_norm(m.norm, m.d_model)
        self.cross_attn = Attention(m)

    def cross_attend(self, x: ResidualStream, inputs: BlockInputs, hooks: Hooks) -> ResidualStream:
        cross_hooks = hooks.scope("cross_attn")

        def attend(h: ResidualStream) -> ResidualStream:
            encoder_output = inputs.encoder_output
            assert encoder_output is not None
            h = cross_hooks("in", h)
            # all beams of a source in one row
            queries = h.reshape(encoder_output.shape[0], -1, h.shape[-1])
            out = self.cross_attn(
                queries,
                encoder_output,
                NO_POSITION,
                inputs.encoder_mask,
                inputs.cross_cache,
                cross_hooks,
            )
            return self.drop(out.reshape(h.shape))

        return hooks("resid_cross", self.residual(x, self.cross_attn_norm, attend))


# --- stacks
class Stack(nn.Module):
    """Input embedding, positions, blocks, and the final norm of a pre-norm stack."""

    def __init__(
        self,
        m: c.ModelConfig,
        source: c.Input,
        vocab_size: int,
        context_length: int,
        layers: int,
        block: type[Block] = Block,
        is_causal: bool = False,
        shared: nn.Embedding | None = None,
    ) -> None:
        super().__init__()
        self.context_length = context_length
        self.is_causal = is_causal
        self.sliding_window = m.attention.sliding_window
        self.embed = make_input_embedding(m, source, vocab_size, shared)
        self.position = make_position_encoding(m, context_length, layers, is_causal)
        self.blocks = nn.ModuleList(block(m) for _ in range(layers))
        self.final_norm = (
            make_norm(m.norm, m.d_model) if m.norm_position == "pre" else nn.Identity()
        )

    def run(
        self,
        x: Tensor,
        position_ids: PositionIds | None,
        segment_ids: SegmentIds | None,
        token_type_ids: SegmentIds | None,
        hooks: Hooks,
        cache: ModelCache | None = None,
        encoder_output: EncoderOutput | None = None,
        encoder_mask: Mask = NO_MASK,
    ) -> ResidualStream:
        """Token ids, images or mel frames to the last hidden states."""
        is_text = isinstance(self.embed, TokenEmbedding)
        x = self.embed(x, token_type_ids) if is_text else self.embed(x)
        positions, key_positions, mask = self.positions_and_mask(
            x, position_ids, segment_ids, cache
        )
        caches = cache.layers if cache is not None else [(NO_CACHE, NO_CACHE)] * len(self.blocks)
        return self.run_blocks(
            x, positions, key_positions, mask, caches, hooks, encoder_output, encoder_mask
        )

    def positions_and_mask(
        self,
        x: ResidualStream,
        position_ids: PositionIds | None,
        segment_ids: SegmentIds | None,
        cache: ModelCache | None,
    ) -> tuple[Tensor, Tensor, Mask]:
        """Positions of the queries, positions of the keys, and the mask between them."""
        tokens = x.shape[1]
        device = x.device
        if tokens > self.context_length:
            raise ClearheadError(
                f"{tokens} tokens exceed the context length of {self.context_length}."
            )
        if cache is None:
            if position_ids is None:
                index = torch.arange(tokens, device=device)[None]
                position_ids = (
                    index if segment_ids is None else positions_from_segments(segment_ids)
                )
            mask = self_attention_mask(
                tokens,
                segment_ids,
                is_causal=self.is_causal,
                window=self.sliding_window,
                device=device,
            )
            return position_ids, position_ids, mask
        if position_ids is not None:
            raise ClearheadError("pass either position_ids or a cache, which determines them.")
        position_ids = cache.rows.begin_step(len(x), tokens, segment_ids)
        key_positions = torch.arange(cache.rows.max_length, device=device)[None]
        return position_ids, key_positions, self._cached_mask(position_ids, key_positions, cache)

    def _cached_mask(self, position_ids: Tensor, key_positions: Tensor, cache: ModelCache) -> Mask:
        rows = cache.rows
        tokens = position_ids.shape[1]
        # The cache was empty: as without one.
        if tokens == rows.max_length and not self.sliding_window:
            return Mask(is_causal=True)
        if tokens == 1 and not self.sliding_window:
            if rows.is_uniform and not position_ids.is_cuda:
                return NO_MASK
            return Mask(kv_lengths=position_ids[:, 0] + 1, kv_owner=rows.kv_owner)
        return Mask(
            allowed=distance_mask(
                position_ids, key_positions, is_causal=True, window=self.sliding_window
            )
        )

    def run_blocks(
        self,
        x: ResidualStream,
        positions: Tensor,
        key_positions: Tensor,
        mask: Mask,
        caches: LayerCaches,
        hooks: Hooks,
        encoder_output: EncoderOutput | None = None,
        encoder_mask: Mask = NO_MASK,
    ) -> ResidualStream:
        """Token embeddings to the last hidden states."""
        x = self.embed.add_positions(x, self.position.embed(positions, x.dtype), hooks)
        layer_positions = self.position.layer_positions(positions, key_positions, len(self.blocks))
        for i, (block, position, (cache, cross_cache)) in enumerate(
            zip(self.blocks, layer_positions, caches, strict=True)
        ):
            inputs = BlockInputs(position, mask, cache, encoder_output, encoder_mask, cross_cache)
            x = block(x, inputs, hooks.scope("blocks", i))
        return hooks("final_norm", self.final_norm(x))


class Transformer(Stack):
    """A stack with a head; an encoder-decoder also has an `encoder` stack.

    `forward` returns hidden states, `compute_logits` turns them into logits, `loss` into a sum and
    a count.
    """

    def __init__(self, m: c.ModelConfig) -> None:
        a = m.architecture
        has_encoder = isinstance(a, c.EncoderDecoder)
        block = CrossAttentionBlock if has_encoder else Block
        is_causal = not isinstance(a, c.Encoder)
        super().__init__(m, m.input, m.vocab_size, m.context_length, m.n_layers, block, is_causal)
        self.config = m
        table = self.embed.tokens if isinstance(self.embed, TokenEmbedding) else None
        self.encoder: Stack | None = None
        if isinstance(a, c.EncoderDecoder):
            shared = None if a.source_vocab_size else table
            self.encoder = Stack(
                m,
                a.source_input,
                a.source_vocab_size,
                a.source_context_length,
                a.encoder_layers,
                shared=shared,
            )
        self.head = make_head(m, table)

    def forward(
        self,
        tokens: Tensor,
        *,
        segment_ids: SegmentIds | None = None,
        position_ids: PositionIds | None = None,
        token_type_ids: SegmentIds | None = None,
        source: Tensor | None = None,
        source_segment_ids: SourceSegmentIds | None = None,
        encoder_output: EncoderOutput | None = None,
        cache: ModelCache | None = None,
        hooks: Hooks = NO_HOOKS,
    ) -> ResidualStream:
        """Hidden states of the last layer.

        Args:
            tokens: token ids, images or mel frames.
            segment_ids: the documents packed into a row, numbered from 1; 0 is padding. With a
                cache, a row holds one document, padded on the right.
            position_ids: positions other than 0, 1, 2 …
            source: the input of the encoder of an encoder-decoder.
            encoder_output: the result of `encode(source)`, instead of `source`.
            cache: keys and values of the tokens before these.
        """
        if source is not None and encoder_output is None:
            encoder_output = self.encode(source, source_segment_ids, hooks)
        encoder_mask = self.encoder_mask(segment_ids, encoder_output, source_segment_ids)
        x = self.run(
            tokens,
            position_ids,
            segment_ids,
            token_type_ids,
            hooks,
            cache,
            encoder_output,
            encoder_mask,
        )
        if cache is not None:
            cache.rows.end_step(
                tokens.shape[1] if segment_ids is None else (segment_ids != 0).sum(dim=1)
            )
        return x

    def encoder_mask(
        self,
        segment_ids: SegmentIds | None,
        encoder_output: EncoderOutput | None,
        source_segment_ids: SourceSegmentIds | None,
    ) -> Mask:
        """The mask of cross-attention; a side without segment ids is all segment 1."""
        if (encoder_output is None) is not (self.encoder is None):
            kind = self.config.architecture.kind
            requirement = "takes no" if self.encoder is None else "needs a"
            raise ClearheadError(f"a model of architecture {kind} {requirement} source.")
        if encoder_output is None or (segment_ids is None and source_segment_ids is None):
            return NO_MASK
        one = torch.ones((), dtype=torch.long, device=encoder_output.device)
        queries = one.expand(encoder_output.shape[0], 1) if segment_ids is None else segment_ids
        keys = (
            one.expand(encoder_output.shape[:2])
            if source_segment_ids is None
            else source_segment_ids
        )
        return cross_attention_mask(queries, keys)

    def encode(
        self, source: Tensor, segment_ids: SegmentIds | None = None, hooks: Hooks = NO_HOOKS
    ) -> ResidualStream:
        """The encoder's output, which cross-attention reads."""
        if self.encoder is None:
            raise ClearheadError(
                f"a model of architecture {self.config.architecture.kind} has no separate encoder."
            )
        return self.encoder.run(source, None, segment_ids, None, hooks.scope("encoder"))

    def compute_logits(
        self, hidden: ResidualStream, segment_ids: SegmentIds | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        """Logits; without a head, the hidden states themselves."""
        if isinstance(self.config.head, c.NoHead):
            return hidden
        return hooks("logits", self.head(hidden, segment_ids))

    def loss(
        self,
        hidden: ResidualStream,
        targets: Tensor,
        segment_ids: SegmentIds | None = None,
        label_smoothing: float = 0.0,
    ) -> Loss:
        """The summed loss and the number of targets."""
        return self.head.loss(hidden, targets, segment_ids, label_smoothing)

    def init_cache(self, batch: int, capacity: int | None = None) -> ModelCache:
        """An empty cache for `batch` rows of `capacity` tokens (default: the context length)."""
        if not self.is_causal:
            raise ClearheadError("an encoder has no KV cache: it reads all tokens at once.")
        m = self.config
        if (capacity or 0) > m.context_length:
            raise ClearheadError(
                f"a cache of {capacity} tokens exceeds the context length of {m.context_length}."
            )
        p = next(self.parameters())
        capacity = capacity or m.context_length
        return ModelCache(m.n_layers, batch, capacity, m.n_kv_heads, m.d_head, p.dtype, p.device)


# --- construction
class SkipInit(TorchFunctionMode):
    """Skips `nn.init`: its values are overwritten, and on meta tensors it imports the compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def build_transformer(
    m: c.ModelConfig, seed: int | None = 0, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Transformer:
    """A new network with random weights; with seed=None on the meta device, without weights."""
    with torch.device("meta"), SkipInit():
        net = Transformer(m).to(dtype)
    if seed is not None:
        init_weights(net.to_empty(device=device), m, seed)
    return net


INIT_STD = 0.02


def init_weights(net: nn.Module, m: c.ModelConfig, seed: int) -> None:
    """Initialize every parameter, deterministically by seed.

    | parameter                                             | initial value                       |
    |-------------------------------------------------------|-------------------------------------|
    | token embedding (and a tied unembedding)              | N(0, 0.02²); N(0, 1/d) with         |
    |                                                       | scale_embeddings                    |
    | untied unembedding, token types, cls token, position  | N(0, 0.02²)                         |
    | tables, classifier output                             |                                     |
    | W_Q, W_K, W_V, W_up, W_gate, all others               | N(0, 1/fan_in)                      |
    | W_O, W_down: what writes to the residual stream       | N(0, 1/(fan_in · writes)), 2 or 3   |
    |                                                       | writes per layer of the stack       |
    | norm gains                                            | 1                                   |
    | biases                                                | 0                                   |
    """
    generator = torch.Generator().manual_seed(seed)
    a = m.architecture
    stacks = {"": (m.input, m.n_layers * 2)}
    if isinstance(a, c.EncoderDecoder):
        stacks = {"": (m.input, m.n_layers * 3), "encoder.": (a.source_input, a.encoder_layers * 2)}
    with torch.no_grad():
        for name, p in net.named_parameters():
            source, residual_writes = stacks["encoder." if name.startswith("encoder.") else ""]
            if name.endswith("bias"):
                p.zero_()
            elif "norm." in name:
                p.fill_(1.0)
            else:
                std = _init_std(name, p, source, residual_writes)
                p.copy_(torch.randn(p.shape, generator=generator, device="cpu") * std)


def _init_std(name: str, p: nn.Parameter, source: c.Input, residual_writes: int) -> float:
    if name.endswith("embed.tokens.weight"):
        is_scaled = isinstance(source, c.Tokens) and source.scale_embeddings
        return p.shape[1] ** -0.5 if is_scaled else INIT_STD
    if re.search(
        r"(embed\.token_types|unembed|head\.out)\.weight$|embed\.cls_token$|position\.table$", name
    ):
        return INIT_STD
    fan_in = math.prod(p.shape[1:])
    writes_residual = re.search(r"attn\.out\.weight$|ffn\.down\.weight$", name)
    return (fan_in * (residual_writes if writes_residual else 1)) ** -0.5


# Modules that return to training mode, and how many blocks they are in. Networks share modules.
_EVAL_USERS: Counter[nn.Module] = Counter()
_EVAL_LOCK = Lock()


@contextmanager
def eval_mode(net: Transformer) -> Iterator[None]:
    """Turn dropout off inside the block, and until all threads have left theirs."""
    with _EVAL_LOCK:
        modules: list[nn.Module] = []
        if net.training or _EVAL_USERS:
            modules = [m for m in net.modules() if m.training or m in _EVAL_USERS]
        _EVAL_USERS.update(modules)
        for module in modules:
            module.training = False
    try:
        yield
    finally:
        with _EVAL_LOCK:
            _EVAL_USERS.subtract(modules)
            for module in modules:
                if not _EVAL_USERS[module]:
                    del _EVAL_USERS[module]
                    module.training = True


class EditedTransformer(Transformer):
    """A network with the same weights whose activations are edited in every pass; always eager.

    An edit sees only the tokens of one pass, so it must change each token by itself.
    """

    edits: Mapping[str, Edit]

    def __init__(self, net: Transformer, edits: Mapping[str, Edit]) -> None:
        self.__dict__.update(net.__dict__, _compiled_call_impl=None, edits=edits)

    def forward(self, tokens: Tensor, *, hooks: Hooks = NO_HOOKS, **options: Any) -> Tensor:
        with force_eager():
            return super().forward(tokens, hooks=hooks.with_edits(self.edits), **options)

    def encode(
        self, source: Tensor, segment_ids: Tensor | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        return super().encode(source, segment_ids, self._with_edits(hooks))

    def compute_logits(
        self, hidden: Tensor, segment_ids: Tensor | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        return super().compute_logits(hidden, segment_ids, self._with_edits(hooks))

    def _with_edits(self, hooks: Hooks) -> Hooks:
        return hooks.with_edits(self.edits) if hooks is NO_HOOKS else hooks
