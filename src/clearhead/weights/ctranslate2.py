"""A network in CTranslate2's terms: its specification, filled with our weights."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.model import positions
from clearhead.model.attention import Attention
from clearhead.model.heads import LMHead
from clearhead.model.inputs import AudioEmbedding, TokenEmbedding
from clearhead.model.layers import GatedFeedForward
from clearhead.model.transformer import Block, CrossAttentionBlock, Stack, Transformer
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.huggingface import write_preprocessor_config

# ---- ctranslate2_spec: A network in CTranslate2's terms: its specification, filled with our weights.

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu-tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELU",
    "geglu-tanh": "GELUTanh",
}


class SpecBuilder:
    """Writes one network into a specification. Each parameter is ticked off where it is taken."""

    def __init__(self, net: Transformer, specs: Any) -> None:
        self.net = net
        self.m = net.config
        self.specs = specs
        self.unused = {id(p): name for name, p in net.named_parameters()}
        self.dtype = next(net.parameters()).dtype

    def take(self, p: Tensor) -> Tensor:
        self.unused.pop(id(p), None)  # a shared matrix is taken more than once
        return p.detach().cpu()

    def model(self, never: tuple[int, ...]) -> Any:
        net = self.net
        if isinstance(self.m.architecture, c.Encoder):
            return self.specs.TransformerEncoderModelSpec(self.encoder(net))
        decoder = self.decoder(net, never)
        if net.encoder is None:
            return self.specs.TransformerDecoderModelSpec(decoder)
        encoder = self.encoder(net.encoder)
        if isinstance(net.encoder.embed, AudioEmbedding):
            return self.whisper(net.encoder.embed, encoder, decoder)
        return self.specs.TransformerSpec(encoder, decoder)

    def encoder(self, s: Stack) -> Any:
        kinds = s.embed.token_types if isinstance(s.embed, TokenEmbedding) else None
        tables = {
            "num_source_embeddings": 1 if kinds is None else 2,
            "embeddings_merge": self.specs.EmbeddingsMerge.ADD,
        }
        spec = self.specs.TransformerEncoderSpec(**self.options(s), **tables)
        if isinstance(s.embed, TokenEmbedding):
            spec.embeddings[0].weight = self.take(s.embed.tokens.weight)
            if kinds is not None:
                spec.embeddings[1].weight = (
                    self.take(kinds.weight) / s.embed.scale
                )  # theirs scales the sum
        self.fill_stack(spec, s)
        return spec

    def decoder(self, net: Transformer, never: tuple[int, ...]) -> Any:
        assert isinstance(net.embed, TokenEmbedding)
        assert isinstance(net.head, LMHead)
        own = {
            "with_encoder_attention": net.encoder is not None,
            "alibi": isinstance(self.m.position, c.ALiBi),
        }
        spec = self.specs.TransformerDecoderSpec(**self.options(net), **own)
        spec.embeddings.weight = self.take(net.embed.tokens.weight)
        spec.projection.weight = self.take(net.head.unembed.weight)
        if net.head.bias is not None:
            spec.projection.bias = self.take(net.head.bias).clone()
        elif never:
            spec.projection.bias = torch.zeros(self.m.vocab_size, dtype=self.dtype)
        if never:
            spec.projection.bias[list(never)] = torch.finfo(self.dtype).min
        if net.head.scale != 1.0:
            spec.scale_outputs = net.head.scale
        self.fill_stack(spec, net)
        return spec

    def whisper(self, sound: AudioEmbedding, encoder: Any, decoder: Any) -> Any:
        heads = self.m.attention.n_heads
        spec = self.specs.WhisperSpec(len(encoder.layer), heads, len(decoder.layer), heads)
        for part in ("layer", "layer_norm", "position_encodings"):
            setattr(spec.encoder, part, getattr(encoder, part))
        spec.decoder = decoder
        for theirs, ours in ((spec.encoder.conv1, sound.conv1), (spec.encoder.conv2, sound.conv2)):
            assert ours.bias is not None
            theirs.weight, theirs.bias = self.take(ours.weight), self.take(ours.bias)
        return spec

    def options(self, s: Stack) -> dict[str, Any]:
        """What an encoder and a decoder are told alike."""
        m = self.m
        p = self.m.position
        told = {
            "num_layers": len(s.blocks),
            "num_heads": m.attention.n_heads,
            "num_heads_kv": m.n_kv_heads,
            "head_dim": m.d_head,
            "qk_norm": m.attention.qk_norm,
            "pre_norm": m.norm_position == "pre",
            "rms_norm": isinstance(m.norm, c.RMSNorm),
            "layernorm_embedding": not isinstance(s.embed.norm, nn.Identity),
            "activation": self.specs.Activation[ACTIVATIONS[m.ffn.activation]],
            "ffn_glu": m.ffn.is_gated,
            "relative_position": isinstance(p, c.Shaw),
            "relative_attention_bias": isinstance(p, c.T5),
        }
        if isinstance(p, c.Rotary):
            told |= {
                "rotary_dim": p.rotary_dim or m.d_head,
                "rotary_base": p.theta,
                "rotary_interleave": False,
            }
            kinds = self.specs.RotaryScalingType
            named = {
                c.NoScaling: None,
                c.LinearScaling: kinds.Linear,
                c.Llama3Scaling: kinds.Llama3,
            }
            told["rotary_scaling_type"] = named[type(p.scaling)]
        return told

    def fill_stack(self, spec: Any, s: Stack) -> None:
        """A stack but for its tables of embeddings."""
        spec.scale_embeddings = isinstance(s.embed, TokenEmbedding) and s.embed.scale != 1.0
        if not isinstance(s.embed.norm, nn.Identity):
            self.norm(spec.layernorm_embedding, s.embed.norm)
        if not isinstance(s.final_norm, nn.Identity):
            self.norm(spec.layer_norm, s.final_norm)
        if isinstance(self.m.position, c.NoPosition | c.Learned | c.Sinusoidal):
            spec.position_encodings.encodings = self.position_encodings(s)
        for i, (layer, block) in enumerate(zip(spec.layer, s.blocks, strict=True)):
            assert isinstance(block, Block)
            self.attention(layer.self_attention, block.attn_norm, block.attn)
            self.position(layer.self_attention, s.position, i)
            if isinstance(block, CrossAttentionBlock):
                self.attention(layer.attention, block.cross_attn_norm, block.cross_attn)
            self.norm(layer.ffn.layer_norm, block.ffn_norm)
            self.linear(layer.ffn.linear_0, block.ffn.up)
            self.linear(layer.ffn.linear_1, block.ffn.down)
            if isinstance(block.ffn, GatedFeedForward):
                self.linear(layer.ffn.linear_0_noact, block.ffn.gate)

    def position_encodings(self, s: Stack) -> Tensor:
        """What each position adds to the embedding: zeros where it is nothing, for without a table waves are added."""
        if isinstance(s.position, positions.Learned):
            return self.take(s.position.table)
        waves = s.position.embed(torch.arange(s.context_length)[None], self.dtype)
        return (
            torch.zeros(s.context_length, self.m.d_model, dtype=self.dtype)
            if waves is None
            else waves[0]
        )

    def position(self, spec: Any, p: positions.PositionEncoding, layer: int) -> None:
        """What attention knows of positions."""
        match p:
            case positions.T5():
                spec.relative_attention_bias = self.take(p.table)
                spec.relative_attention_max_distance = torch.tensor(
                    p.max_distance, dtype=torch.int32
                )
            case positions.Shaw():
                spec.relative_position_keys = self.take(p.table)[layer].flip(
                    0
                )  # theirs begins with what comes last
                spec.relative_position_values = self.specs.model_spec.OPTIONAL
            case positions.Rotary(scaling=c.LinearScaling() as scaling):
                spec.rotary_scaling_factor = scaling.factor
            case positions.Rotary(scaling=c.Llama3Scaling() as scaling):
                spec.rotary_low_freq_factor = scaling.low_freq_factor
                spec.rotary_high_freq_factor = scaling.high_freq_factor
                before = torch.tensor(scaling.original_context_length, dtype=torch.int32)
                # The engine reads these two, though the specification has no fields for them.
                vars(spec).update(
                    rotary_scaling_factor=scaling.factor, original_max_position_embeddings=before
                )

    def attention(self, spec: Any, norm: nn.Module, a: Attention) -> None:
        self.norm(spec.layer_norm, norm)
        *inputs, out = spec.linear
        self.linear(out, a.out)
        if len(inputs) == 1:
            self.linear(inputs[0], a.q, a.k, a.v)
        else:  # cross-attention
            self.linear(inputs[0], a.q)
            self.linear(inputs[1], a.k, a.v)
        if not self.m.attention.scale:
            spec.queries_scale = 1.0
        if self.m.attention.qk_norm:
            for theirs, ours in (("q_norm", a.q_norm), ("k_norm", a.k_norm)):
                setattr(
                    spec,
                    theirs,
                    self.specs.common_spec.LayerNormSpec(rms_norm=isinstance(ours, nn.RMSNorm)),
                )
                self.norm(getattr(spec, theirs), ours)

    def linear(self, spec: Any, *layers: nn.Linear) -> None:
        """Several layers as one: their rows below each other."""
        spec.weight = torch.cat([self.take(layer.weight) for layer in layers])
        if any(layer.bias is not None for layer in layers):
            zeros = [torch.zeros(layer.out_features, dtype=self.dtype) for layer in layers]
            both = zip(layers, zeros, strict=True)
            spec.bias = torch.cat(
                [zero if layer.bias is None else self.take(layer.bias) for layer, zero in both]
            )

    def norm(self, spec: Any, norm: nn.Module) -> None:
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        spec.gamma = self.take(norm.weight)
        if isinstance(norm, nn.LayerNorm):  # without a shift it would be taken for an RMSNorm
            spec.beta = torch.zeros_like(spec.gamma) if norm.bias is None else self.take(norm.bias)


# ---- ctranslate2: A model as a folder for CTranslate2: `model.bin`, `config.json`, its vocabularies, and the tokenizers beside them.

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SUPPORTED_POSITIONS = (
    c.NoPosition,
    c.Learned,
    c.Sinusoidal,
    c.T5,
    c.Shaw,
    c.ALiBi,
    c.Rotary,
)  # what the writer expresses
# what its Whisper looks for
WHISPER_START = "<|startoftranscript|>"
WHISPER_END = "<|endoftext|>"
WHISPER_NO_TIMESTAMPS = "<|notimestamps|>"


def save_ctranslate2(folder: Path, model: Checkpoint) -> None:
    """Fills an empty folder."""
    try:
        from ctranslate2 import specs  # type: ignore[import-untyped]
    except ImportError:
        raise ClearheadError(
            "CTranslate2 is not installed; pip install 'clearhead[ctranslate2]'."
        ) from None
    m = model.config.model
    use = model.config.inference
    names = _token_names(model.tokenizer, m.vocab_size)
    reasons = _unsupported_audio(m, use, names) if _is_whisper(m) else _unsupported_text(m, use)
    for reason in (*_unsupported_weights(model.net), *_unsupported_model(m), *reasons):
        raise ClearheadError(reason)
    writer = SpecBuilder(model.net, specs)
    spec = writer.model(() if _is_whisper(m) else use.suppress_tokens)
    for name in writer.unused.values():
        raise ClearheadError(
            f"CTranslate2 has no place for {name}, which the configuration does not tell of."
        )
    source = names
    if isinstance(m.architecture, c.EncoderDecoder) and not _is_whisper(m):
        source = _token_names(model.tokenizers[1], m.architecture.source_vocab_size or m.vocab_size)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(names)
    else:
        spec.register_vocabulary(names)
    told = _whisper_config(m, use, names) if _is_whisper(m) else _text_config(m, use, names, source)
    for key, value in {**told, "layer_norm_epsilon": m.norm.eps, "use": asdict(use)}.items():
        spec.config.add_attribute(key, value)
    spec.validate()
    spec.optimize()  # a shared matrix is stored once
    spec.save(str(folder))
    write_preprocessor_config(folder, m)
    model.export_tokenizers(folder)


def _is_whisper(m: c.ModelConfig) -> bool:
    return isinstance(m.architecture, c.EncoderDecoder) and isinstance(
        m.architecture.source_input, c.Audio
    )


# ---------------------------------------------------------------- what cannot be said
def _unsupported_weights(net: Transformer) -> Iterator[str]:
    for name, p in net.named_parameters():
        if p.dtype not in DTYPES:
            dtype = str(p.dtype).removeprefix("torch.")
            yield f"CTranslate2 holds float32, float16 or bfloat16, but {name} is {dtype}."


def _unsupported_model(m: c.ModelConfig) -> Iterator[str]:
    both = m.architecture if isinstance(m.architecture, c.EncoderDecoder) else None
    if isinstance(m.architecture, c.Encoder) and not isinstance(m.head, c.NoHead):
        yield f"CTranslate2's encoders end with hidden states, not with head {m.head.kind}; give the model head hidden."
    if not isinstance(m.architecture, c.Encoder) and not isinstance(m.head, c.LMHead):
        yield f"CTranslate2's decoders write tokens; they need head language, not {m.head.kind}."
    if not isinstance(m.architecture, c.Encoder) and any(
        getattr(s, "kinds", 0) for s in (m.input, both and both.source_input)
    ):
        yield f"CTranslate2 knows kinds of sentence in an encoder alone, not in shape {m.architecture.kind}."
    if m.ffn.activation not in ACTIVATIONS:
        yield f"CTranslate2 has no activation {m.ffn.activation}; it has {', '.join(ACTIVATIONS)}."
    if (
        0
        < m.attention.sliding_window
        < (longest := max(m.context_length, both.source_context_length if both else 0))
    ):
        window = f"attention.sliding_window = {m.attention.sliding_window} is less than the context of {longest}"
        yield f"CTranslate2 fails where a window ends, and {window}; it can only do without one."
    if both and m.attention.qk_norm:
        yield "CTranslate2's cross-attention does not normalise each head, which attention.qk_norm asks for."


def _unsupported_text(m: c.ModelConfig, use: c.InferenceConfig) -> Iterator[str]:
    for source in (
        (m.input, m.architecture.source_input)
        if isinstance(m.architecture, c.EncoderDecoder)
        else (m.input,)
    ):
        if not isinstance(source, c.Tokens):
            yield f"CTranslate2 does not read {source.kind} here; it reads tokens, or sound in an encoder-decoder."
    match m.position, m.architecture:
        case c.ALiBi(), c.Encoder() | c.EncoderDecoder():
            yield f"CTranslate2 knows alibi positions in a decoder alone, not in shape {m.architecture.kind}."
        case c.T5(), c.Decoder():
            yield "CTranslate2 misplaces the tokens of a prompt among relative positions; a decoder alone needs others."
    if not isinstance(m.position, SUPPORTED_POSITIONS):
        yield f"CTranslate2 has no {m.position.kind} positions."
    if use.begin_suppress_tokens:
        yield f"CTranslate2 cannot forbid first tokens, as inference.begin_suppress_tokens = {use.begin_suppress_tokens} does."


def _unsupported_audio(m: c.ModelConfig, use: c.InferenceConfig, names: list[str]) -> Iterator[str]:
    if m.norm_position != "pre" or ACTIVATIONS.get(m.ffn.activation) != "GELU":
        yield f"CTranslate2 hears with wiring pre and gelu or geglu, not with {m.norm_position} and {m.ffn.activation}."
    if not isinstance(m.position, c.NoPosition | c.Learned | c.Sinusoidal):
        yield f"CTranslate2 hears with positions that are added to embeddings, not with {m.position.kind} ones."
    for token in (WHISPER_START, WHISPER_END, WHISPER_NO_TIMESTAMPS):
        if token not in names:
            yield f"CTranslate2 hears with Whisper's tokens, but there is no {token} in the tokenizer."
    if [names[i] for i in use.eos_tokens] != [WHISPER_END]:
        yield f"CTranslate2 stops at {WHISPER_END} when it hears, but inference.eos_tokens is {use.eos_tokens}."


# ---------------------------------------------------------------- tokens
def _token_names(tokenizer: Tokenizer | None, size: int) -> list[str]:
    """What each id is called."""
    found = [None if tokenizer is None else tokenizer.backend.id_to_token(i) for i in range(size)]
    known = {token for token in found if token is not None}
    return [
        _unique_name(f"<unused{i}>", known) if token is None else token
        for i, token in enumerate(found)
    ]


def _unique_name(name: str, known: set[str]) -> str:
    return name if name not in known else _unique_name(f"<{name}>", known)


def _text_config(
    m: c.ModelConfig, use: c.InferenceConfig, names: list[str], source: list[str]
) -> dict[str, Any]:
    """Where texts begin and end. What is in no vocabulary is never written: the end, where there is none."""
    end = (
        names[use.eos_tokens[0]] if use.eos_tokens else _unique_name("<nothing>", {*names, *source})
    )
    told: dict[str, Any] = {
        "bos_token": source[use.bos_tokens[0]] if use.bos_tokens else end,
        "eos_token": end,
        "unk_token": end,
    }
    if use.eos_tokens or isinstance(m.architecture, c.Encoder):
        told["unk_token"] = next((token for token in ("<unk>", "[UNK]") if token in names), end)
    if isinstance(m.architecture, c.EncoderDecoder):
        told["decoder_start_token"] = (
            names[use.decoder_start_tokens[0]] if len(use.decoder_start_tokens) == 1 else None
        )
    return told


def _whisper_config(m: c.ModelConfig, use: c.InferenceConfig, names: list[str]) -> dict[str, Any]:
    return {
        "suppress_ids": use.suppress_tokens,
        "suppress_ids_begin": use.begin_suppress_tokens,
        "lang_ids": [
            i for i, token in enumerate(names) if re.fullmatch(r"<\|[a-z]{2,3}\|>", token)
        ],
        "alignment_heads": list(
            product(range(m.n_layers // 2, m.n_layers), range(m.attention.n_heads))
        ),
    }
