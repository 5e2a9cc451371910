"""Export to CTranslate2: `model.bin`, `config.json`, vocabularies, and our tokenizers beside them.

Load a decoder with `ctranslate2.Generator`, an encoder-decoder with `Translator`, an encoder with
`Encoder`, a model of audio with `models.Whisper`. The specification is filled here, because
CTranslate2's own converters know published families only, not our variants. What CTranslate2 would
compute differently is refused.

The export disables CTranslate2's own special tokens. Pass them as `config.inference` says, which
`config.json` repeats in ids:

- bos_tokens before and sep_tokens after each input.
- A single decoder_start_token is set as CTranslate2's own. If there are none or several, pass them
  as target_prefix (the result omits the first). For audio they are the prompt, which must end with
  <|notimestamps|>, or Whisper's timestamp rules apply.
- Generation stops at the first eos token. If there are several, pass them all as end_token.
- suppress_tokens get a bias of minus infinity on their logits.

A token without a name in the tokenizer is called `<unused12>`. Pass tokens of the vocabulary only:
CTranslate2 does not check.
"""

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
from clearhead.model.embeddings import AudioEmbedding, TokenEmbedding
from clearhead.model.heads import LMHead
from clearhead.model.layers import GatedFeedForward
from clearhead.model.transformer import Block, CrossAttentionBlock, Stack, Transformer
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.weights.checkpoint import Checkpoint, export_tokenizers
from clearhead.weights.huggingface import write_preprocessor_config

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu-tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELU",
    "geglu-tanh": "GELUTanh",
}
SUPPORTED_POSITIONS = (c.NoPosition, c.Learned, c.Sinusoidal, c.T5, c.Shaw, c.ALiBi, c.Rotary)
# tokens that CTranslate2's Whisper looks up by name
WHISPER_START = "<|startoftranscript|>"
WHISPER_END = "<|endoftext|>"
WHISPER_NO_TIMESTAMPS = "<|notimestamps|>"


def save_ctranslate2(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the files into an empty folder."""
    try:
        from ctranslate2 import specs  # type: ignore[import-untyped]
    except ImportError:
        raise ClearheadError(
            "CTranslate2 is not installed; run pip install 'clearhead[ctranslate2]'."
        ) from None
    m = checkpoint.config.model
    inference = checkpoint.config.inference
    tokens = _token_names(checkpoint.tokenizer, m.vocab_size)
    for problem in _problems(checkpoint, tokens):
        raise ClearheadError(problem)
    is_whisper = _is_whisper(m)
    builder = SpecBuilder(checkpoint.net, specs)
    spec = builder.model(() if is_whisper else inference.suppress_tokens)
    for name in builder.unused.values():
        raise ClearheadError(f"CTranslate2 does not support the parameter {name}.")
    source_tokens = tokens
    if isinstance(m.architecture, c.EncoderDecoder) and not is_whisper:
        source_vocab_size = m.architecture.source_vocab_size or m.vocab_size
        source_tokens = _token_names(checkpoint.tokenizers[1], source_vocab_size)
        spec.register_source_vocabulary(source_tokens)
        spec.register_target_vocabulary(tokens)
    else:
        spec.register_vocabulary(tokens)
    if is_whisper:
        attributes = _whisper_config(m, inference, tokens)
    else:
        attributes = _text_config(m, inference, tokens, source_tokens)
    attributes |= {"layer_norm_epsilon": m.norm.eps, "inference": asdict(inference)}
    for name, value in attributes.items():
        spec.config.add_attribute(name, value)
    spec.validate()
    spec.optimize()  # stores tied matrices once
    spec.save(str(folder))
    write_preprocessor_config(folder, m)
    export_tokenizers(folder, checkpoint)


def _is_whisper(m: c.ModelConfig) -> bool:
    return isinstance(m.architecture, c.EncoderDecoder) and isinstance(m.main_input, c.Audio)


# --- limits of CTranslate2
def _problems(checkpoint: Checkpoint, tokens: list[str]) -> Iterator[str]:
    """What CTranslate2 cannot express, or would compute differently."""
    m = checkpoint.config.model
    inference = checkpoint.config.inference
    for name, parameter in checkpoint.net.named_parameters():
        if parameter.dtype not in DTYPES:
            dtype = str(parameter.dtype).removeprefix("torch.")
            yield f"CTranslate2 supports float32, float16 and bfloat16, but {name} is {dtype}."
    yield from _model_problems(m)
    if _is_whisper(m):
        yield from _whisper_problems(m, inference, tokens)
    else:
        yield from text_problems(m, inference)


def _model_problems(m: c.ModelConfig) -> Iterator[str]:
    is_encoder = isinstance(m.architecture, c.Encoder)
    inputs = [m.input]
    context_length = m.context_length
    if isinstance(m.architecture, c.EncoderDecoder):
        inputs.append(m.architecture.source_input)
        context_length = max(context_length, m.architecture.source_context_length)
        if m.attention.qk_norm:
            yield "CTranslate2 does not support attention.qk_norm in cross-attention."
    if is_encoder and not isinstance(m.head, c.NoHead):
        yield f"CTranslate2 supports encoders without a head only; this one has head {m.head.kind}."
    if not is_encoder and not isinstance(m.head, c.LMHead):
        yield f"CTranslate2 supports decoders with head lm only; this one has {m.head.kind}."
    if not is_encoder and any(isinstance(i, c.Tokens) and i.token_types for i in inputs):
        yield "CTranslate2 supports input.token_types in encoders only."
    if m.ffn.activation not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        yield f"CTranslate2 has no activation {m.ffn.activation}; it supports {supported}."
    if 0 < m.attention.sliding_window < context_length:
        yield (
            f"CTranslate2 does not support attention.sliding_window = {m.attention.sliding_window},"
            f" which is less than the context length {context_length}."
        )


def text_problems(m: c.ModelConfig, inference: c.InferenceConfig) -> Iterator[str]:
    """What CTranslate2 cannot do in models of text."""
    inputs = [m.input]
    if isinstance(m.architecture, c.EncoderDecoder):
        inputs.append(m.architecture.source_input)
    for source in inputs:
        if not isinstance(source, c.Tokens):
            yield (
                f"CTranslate2 does not support {source.kind} as input here, only text, or audio in"
                " an encoder-decoder."
            )
    match m.position, m.architecture:
        case c.ALiBi(), c.Encoder() | c.EncoderDecoder():
            kind = m.architecture.kind
            yield f"CTranslate2 supports alibi positions in decoders only, not in {kind} models."
        case c.T5(), c.Decoder():
            yield "CTranslate2 computes t5 positions incorrectly in a decoder-only model."
    if not isinstance(m.position, SUPPORTED_POSITIONS):
        yield f"CTranslate2 does not support {m.position.kind} positions."
    if inference.begin_suppress_tokens:
        yield (
            "CTranslate2 does not support inference.begin_suppress_tokens"
            f" = {inference.begin_suppress_tokens}."
        )


def _whisper_problems(
    m: c.ModelConfig, inference: c.InferenceConfig, tokens: list[str]
) -> Iterator[str]:
    if m.norm_position != "pre" or ACTIVATIONS.get(m.ffn.activation) != "GELU":
        yield (
            "CTranslate2's Whisper requires norm_position pre and activation gelu or geglu, not"
            f" {m.norm_position} and {m.ffn.activation}."
        )
    if not isinstance(m.position, c.NoPosition | c.Learned | c.Sinusoidal):
        yield (
            "CTranslate2's Whisper requires positions that are added to embeddings, not"
            f" {m.position.kind}."
        )
    for token in (WHISPER_START, WHISPER_END, WHISPER_NO_TIMESTAMPS):
        if token not in tokens:
            yield f"CTranslate2's Whisper requires the token {token}, which the tokenizer lacks."
    if [tokens[i] for i in inference.eos_tokens] != [WHISPER_END]:
        yield (
            f"CTranslate2's Whisper stops at {WHISPER_END}, but inference.eos_tokens is"
            f" {inference.eos_tokens}."
        )


# --- vocabulary and config.json
def _token_names(tokenizer: Tokenizer | None, vocab_size: int) -> list[str]:
    """The name of each id; unique names for ids that the tokenizer does not use."""
    tokens: list[str | None] = [None] * vocab_size
    if tokenizer is not None:
        tokens = [tokenizer.backend.id_to_token(i) for i in range(vocab_size)]
    used_names = {token for token in tokens if token is not None}
    return [
        _unique_name(f"<unused{i}>", used_names) if token is None else token
        for i, token in enumerate(tokens)
    ]


def _unique_name(name: str, used_names: set[str]) -> str:
    while name in used_names:
        name = f"<{name}>"
    return name


def _text_config(
    m: c.ModelConfig, inference: c.InferenceConfig, tokens: list[str], source_tokens: list[str]
) -> dict[str, Any]:
    """Special tokens. Without an EOS token, `eos_token` is a name that no vocabulary contains."""
    if inference.eos_tokens:
        eos_token = tokens[inference.eos_tokens[0]]
    else:
        eos_token = _unique_name("<nothing>", {*tokens, *source_tokens})
    attributes: dict[str, Any] = {
        "bos_token": source_tokens[inference.bos_tokens[0]] if inference.bos_tokens else eos_token,
        "eos_token": eos_token,
        "unk_token": eos_token,
    }
    if inference.eos_tokens or isinstance(m.architecture, c.Encoder):
        unknown = (token for token in ("<unk>", "[UNK]") if token in tokens)
        attributes["unk_token"] = next(unknown, eos_token)
    if isinstance(m.architecture, c.EncoderDecoder):
        start = inference.decoder_start_tokens
        attributes["decoder_start_token"] = tokens[start[0]] if len(start) == 1 else None
    return attributes


def _whisper_config(
    m: c.ModelConfig, inference: c.InferenceConfig, tokens: list[str]
) -> dict[str, Any]:
    language = re.compile(r"<\|[a-z]{2,3}\|>")
    upper_layers = range(m.n_layers // 2, m.n_layers)
    return {
        "suppress_ids": inference.suppress_tokens,
        "suppress_ids_begin": inference.begin_suppress_tokens,
        "lang_ids": [i for i, token in enumerate(tokens) if language.fullmatch(token)],
        "alignment_heads": list(product(upper_layers, range(m.attention.n_heads))),
    }


# --- the network
class SpecBuilder:
    """Fills a CTranslate2 specification with a network's weights; `unused` are those left over."""

    def __init__(self, net: Transformer, specs: Any) -> None:
        self.net = net
        self.m = net.config
        self.specs = specs
        self.unused = {id(p): name for name, p in net.named_parameters()}
        self.dtype = next(net.parameters()).dtype

    def take(self, parameter: Tensor) -> Tensor:
        self.unused.pop(id(parameter), None)  # tied matrices are taken more than once
        return parameter.detach().cpu()

    def model(self, suppress_tokens: tuple[int, ...]) -> Any:
        net = self.net
        if isinstance(self.m.architecture, c.Encoder):
            return self.specs.TransformerEncoderModelSpec(self.encoder(net))
        decoder = self.decoder(net, suppress_tokens)
        if net.encoder is None:
            return self.specs.TransformerDecoderModelSpec(decoder)
        encoder = self.encoder(net.encoder)
        if isinstance(net.encoder.embed, AudioEmbedding):
            return self.whisper(net.encoder.embed, encoder, decoder)
        return self.specs.TransformerSpec(encoder, decoder)

    def encoder(self, stack: Stack) -> Any:
        token_types = stack.embed.token_types if isinstance(stack.embed, TokenEmbedding) else None
        spec = self.specs.TransformerEncoderSpec(
            **self.options(stack),
            num_source_embeddings=1 if token_types is None else 2,
            embeddings_merge=self.specs.EmbeddingsMerge.ADD,
        )
        if isinstance(stack.embed, TokenEmbedding):
            spec.embeddings[0].weight = self.take(stack.embed.tokens.weight)
            if token_types is not None:  # CTranslate2 scales the sum
                spec.embeddings[1].weight = self.take(token_types.weight) / stack.embed.scale
        self.fill_stack(spec, stack)
        return spec

    def decoder(self, net: Transformer, suppress_tokens: tuple[int, ...]) -> Any:
        assert isinstance(net.embed, TokenEmbedding)
        assert isinstance(net.head, LMHead)
        spec = self.specs.TransformerDecoderSpec(
            **self.options(net),
            with_encoder_attention=net.encoder is not None,
            alibi=isinstance(self.m.position, c.ALiBi),
        )
        spec.embeddings.weight = self.take(net.embed.tokens.weight)
        spec.projection.weight = self.take(net.head.unembed.weight)
        if net.head.bias is not None:
            spec.projection.bias = self.take(net.head.bias).clone()
        elif suppress_tokens:
            spec.projection.bias = torch.zeros(self.m.vocab_size, dtype=self.dtype)
        if suppress_tokens:
            spec.projection.bias[list(suppress_tokens)] = torch.finfo(self.dtype).min
        if net.head.scale != 1.0:
            spec.scale_outputs = net.head.scale
        self.fill_stack(spec, net)
        return spec

    def whisper(self, audio: AudioEmbedding, encoder: Any, decoder: Any) -> Any:
        n_heads = self.m.attention.n_heads
        spec = self.specs.WhisperSpec(len(encoder.layer), n_heads, len(decoder.layer), n_heads)
        spec.encoder.layer = encoder.layer
        spec.encoder.layer_norm = encoder.layer_norm
        spec.encoder.position_encodings = encoder.position_encodings
        spec.decoder = decoder
        self.convolution(spec.encoder.conv1, audio.conv1)
        self.convolution(spec.encoder.conv2, audio.conv2)
        return spec

    def convolution(self, spec: Any, layer: nn.Conv1d) -> None:
        assert layer.bias is not None
        spec.weight = self.take(layer.weight)
        spec.bias = self.take(layer.bias)

    def options(self, stack: Stack) -> dict[str, Any]:
        """Arguments that encoders and decoders share."""
        m = self.m
        position = self.m.position
        options = {
            "num_layers": len(stack.blocks),
            "num_heads": m.attention.n_heads,
            "num_heads_kv": m.n_kv_heads,
            "head_dim": m.d_head,
            "qk_norm": m.attention.qk_norm,
            "pre_norm": m.norm_position == "pre",
            "rms_norm": isinstance(m.norm, c.RMSNorm),
            "layernorm_embedding": not isinstance(stack.embed.norm, nn.Identity),
            "activation": self.specs.Activation[ACTIVATIONS[m.ffn.activation]],
            "ffn_glu": m.ffn.is_gated,
            "relative_position": isinstance(position, c.Shaw),
            "relative_attention_bias": isinstance(position, c.T5),
        }
        if isinstance(position, c.Rotary):
            scaling_type = {
                c.NoScaling: None,
                c.LinearScaling: self.specs.RotaryScalingType.Linear,
                c.Llama3Scaling: self.specs.RotaryScalingType.Llama3,
            }[type(position.scaling)]
            options |= {
                "rotary_dim": position.rotary_dim or m.d_head,
                "rotary_base": position.theta,
                "rotary_interleave": False,
                "rotary_scaling_type": scaling_type,
            }
        return options

    def fill_stack(self, spec: Any, stack: Stack) -> None:
        """Fill everything but the embedding tables."""
        embed = stack.embed
        spec.scale_embeddings = isinstance(embed, TokenEmbedding) and embed.scale != 1.0
        if not isinstance(embed.norm, nn.Identity):
            self.norm(spec.layernorm_embedding, embed.norm)
        if not isinstance(stack.final_norm, nn.Identity):
            self.norm(spec.layer_norm, stack.final_norm)
        if isinstance(self.m.position, c.NoPosition | c.Learned | c.Sinusoidal):
            spec.position_encodings.encodings = self.position_encodings(stack)
        for i, (layer, block) in enumerate(zip(spec.layer, stack.blocks, strict=True)):
            assert isinstance(block, Block)
            self.attention(layer.self_attention, block.attn_norm, block.attn)
            self.position(layer.self_attention, stack.position, i)
            if isinstance(block, CrossAttentionBlock):
                self.attention(layer.attention, block.cross_attn_norm, block.cross_attn)
            self.norm(layer.ffn.layer_norm, block.ffn_norm)
            self.linear(layer.ffn.linear_1, block.ffn.down)
            if isinstance(block.ffn, GatedFeedForward):
                self.linear(layer.ffn.linear_0, block.ffn.gate)
                self.linear(layer.ffn.linear_0_noact, block.ffn.up)
            else:
                self.linear(layer.ffn.linear_0, block.ffn.up)

    def position_encodings(self, stack: Stack) -> Tensor:
        """What is added to embeddings; without positions zeros, or CTranslate2 adds sinusoids."""
        if isinstance(stack.position, positions.Learned):
            return self.take(stack.position.table)
        encodings = stack.position.embed(torch.arange(stack.context_length)[None], self.dtype)
        if encodings is None:
            return torch.zeros(stack.context_length, self.m.d_model, dtype=self.dtype)
        return encodings[0]

    def position(self, spec: Any, position: positions.PositionEncoding, layer: int) -> None:
        """Fill the positions that act within attention."""
        match position:
            case positions.T5():
                max_distance = torch.tensor(position.max_distance, dtype=torch.int32)
                spec.relative_attention_bias = self.take(position.table)
                spec.relative_attention_max_distance = max_distance
            case positions.Shaw():
                # CTranslate2 starts with keys after the query, we with keys before it
                spec.relative_position_keys = self.take(position.table)[layer].flip(0)
                spec.relative_position_values = self.specs.model_spec.OPTIONAL
            case positions.Rotary(scaling=c.LinearScaling() as scaling):
                spec.rotary_scaling_factor = scaling.factor
            case positions.Rotary(scaling=c.Llama3Scaling() as scaling):
                spec.rotary_low_freq_factor = scaling.low_freq_factor
                spec.rotary_high_freq_factor = scaling.high_freq_factor
                # The engine reads these two, though the specification does not declare them.
                context_length = torch.tensor(scaling.original_context_length, dtype=torch.int32)
                vars(spec)["rotary_scaling_factor"] = scaling.factor
                vars(spec)["original_max_position_embeddings"] = context_length

    def attention(self, spec: Any, norm: nn.Module, attention: Attention) -> None:
        self.norm(spec.layer_norm, norm)
        *inputs, out = spec.linear
        self.linear(out, attention.out)
        if len(inputs) == 1:
            self.linear(inputs[0], attention.q, attention.k, attention.v)
        else:  # cross-attention
            self.linear(inputs[0], attention.q)
            self.linear(inputs[1], attention.k, attention.v)
        if not self.m.attention.scale:
            spec.queries_scale = 1.0
        if self.m.attention.qk_norm:
            is_rms = isinstance(attention.q_norm, nn.RMSNorm)
            spec.q_norm = self.specs.common_spec.LayerNormSpec(rms_norm=is_rms)
            spec.k_norm = self.specs.common_spec.LayerNormSpec(rms_norm=is_rms)
            self.norm(spec.q_norm, attention.q_norm)
            self.norm(spec.k_norm, attention.k_norm)

    def linear(self, spec: Any, *layers: nn.Linear) -> None:
        """Fill a layer with one or more of ours, stacked along their outputs."""
        spec.weight = torch.cat([self.take(layer.weight) for layer in layers])
        if any(layer.bias is not None for layer in layers):
            spec.bias = torch.cat(
                [
                    torch.zeros(layer.out_features, dtype=self.dtype)
                    if layer.bias is None
                    else self.take(layer.bias)
                    for layer in layers
                ]
            )

    def norm(self, spec: Any, norm: nn.Module) -> None:
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        spec.gamma = self.take(norm.weight)
        if isinstance(norm, nn.LayerNorm):  # without beta, CTranslate2 computes RMSNorm
            spec.beta = torch.zeros_like(spec.gamma) if norm.bias is None else self.take(norm.bias)
