"""A network in CTranslate2's terms: its specification, filled with our weights."""

from typing import Any

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.model import positions
from clearhead.model.attention import Attention
from clearhead.model.block import Block, CrossBlock
from clearhead.model.heads import LanguageHead
from clearhead.model.inputs import SoundInput, TokenInput
from clearhead.model.layers import Gated
from clearhead.model.transformer import Stack, Transformer

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu-tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELU",
    "geglu-tanh": "GELUTanh",
}


class Writer:
    """Writes one network into a specification. Each parameter is ticked off where it is taken."""

    def __init__(self, net: Transformer, specs: Any) -> None:
        self.net, self.m, self.specs = net, net.config, specs
        self.left = {id(p): name for name, p in net.named_parameters()}
        self.dtype = next(net.parameters()).dtype

    def take(self, p: Tensor) -> Tensor:
        self.left.pop(id(p), None)  # a shared matrix is taken more than once
        return p.detach().cpu()

    def whole(self, never: tuple[int, ...]) -> Any:
        net = self.net
        if isinstance(self.m.shape, c.Encoder):
            return self.specs.TransformerEncoderModelSpec(self.encoder(net))
        decoder = self.decoder(net, never)
        if net.encoder is None:
            return self.specs.TransformerDecoderModelSpec(decoder)
        encoder = self.encoder(net.encoder)
        if isinstance(net.encoder.embed, SoundInput):
            return self.whisper(net.encoder.embed, encoder, decoder)
        return self.specs.TransformerSpec(encoder, decoder)

    def encoder(self, s: Stack) -> Any:
        kinds = s.embed.kinds if isinstance(s.embed, TokenInput) else None
        tables = {
            "num_source_embeddings": 1 if kinds is None else 2,
            "embeddings_merge": self.specs.EmbeddingsMerge.ADD,
        }
        spec = self.specs.TransformerEncoderSpec(**self.options(s), **tables)
        if isinstance(s.embed, TokenInput):
            spec.embeddings[0].weight = self.take(s.embed.tokens.weight)
            if kinds is not None:
                spec.embeddings[1].weight = self.take(kinds.weight) / s.embed.scale  # theirs scales the sum
        self.fill(spec, s)
        return spec

    def decoder(self, net: Transformer, never: tuple[int, ...]) -> Any:
        assert isinstance(net.embed, TokenInput)
        assert isinstance(net.head, LanguageHead)
        own = {"with_encoder_attention": net.encoder is not None, "alibi": isinstance(self.m.position, c.Alibi)}
        spec = self.specs.TransformerDecoderSpec(**self.options(net), **own)
        spec.embeddings.weight = self.take(net.embed.tokens.weight)
        spec.projection.weight = self.take(net.head.unembed.weight)
        if net.head.bias is not None:
            spec.projection.bias = self.take(net.head.bias).clone()
        elif never:
            spec.projection.bias = torch.zeros(self.m.vocabulary, dtype=self.dtype)
        if never:
            spec.projection.bias[list(never)] = torch.finfo(self.dtype).min
        if net.head.scale != 1.0:
            spec.scale_outputs = net.head.scale
        self.fill(spec, net)
        return spec

    def whisper(self, sound: SoundInput, encoder: Any, decoder: Any) -> Any:
        heads = self.m.attention.heads
        spec = self.specs.WhisperSpec(len(encoder.layer), heads, len(decoder.layer), heads)
        for part in ("layer", "layer_norm", "position_encodings"):
            setattr(spec.encoder, part, getattr(encoder, part))
        spec.decoder = decoder
        for theirs, ours in ((spec.encoder.conv1, sound.near), (spec.encoder.conv2, sound.halve)):
            assert ours.bias is not None
            theirs.weight, theirs.bias = self.take(ours.weight), self.take(ours.bias)
        return spec

    def options(self, s: Stack) -> dict[str, Any]:
        """What an encoder and a decoder are told alike."""
        m, p = self.m, self.m.position
        told = {
            "num_layers": len(s.blocks),
            "num_heads": m.attention.heads,
            "num_heads_kv": m.kv_heads,
            "head_dim": m.head_width,
            "qk_norm": m.attention.qk_norm,
            "pre_norm": m.wiring == "pre",
            "rms_norm": isinstance(m.norm, c.RMSNorm),
            "layernorm_embedding": not isinstance(s.embed.norm, nn.Identity),
            "activation": self.specs.Activation[ACTIVATIONS[m.ffn.activation]],
            "ffn_glu": m.ffn.gated,
            "relative_position": isinstance(p, c.Shaw),
            "relative_attention_bias": isinstance(p, c.Relative),
        }
        if isinstance(p, c.Rotary):
            told |= {"rotary_dim": p.width or m.head_width, "rotary_base": p.theta, "rotary_interleave": False}
            kinds = self.specs.RotaryScalingType
            named = {c.NoScaling: None, c.Linear: kinds.Linear, c.Llama3: kinds.Llama3}
            told["rotary_scaling_type"] = named[type(p.scaling)]
        return told

    def fill(self, spec: Any, s: Stack) -> None:
        """A stack but for its tables of embeddings."""
        spec.scale_embeddings = isinstance(s.embed, TokenInput) and s.embed.scale != 1.0
        if not isinstance(s.embed.norm, nn.Identity):
            self.norm(spec.layernorm_embedding, s.embed.norm)
        if not isinstance(s.norm, nn.Identity):
            self.norm(spec.layer_norm, s.norm)
        if isinstance(self.m.position, c.NoPositions | c.Learned | c.Sinusoidal):
            spec.position_encodings.encodings = self.added(s)
        for i, (layer, block) in enumerate(zip(spec.layer, s.blocks, strict=True)):
            assert isinstance(block, Block)
            self.attention(layer.self_attention, block.attn_norm, block.attn)
            self.place(layer.self_attention, s.position, i)
            if isinstance(block, CrossBlock):
                self.attention(layer.attention, block.cross_norm, block.cross)
            self.norm(layer.ffn.layer_norm, block.ffn_norm)
            self.linear(layer.ffn.linear_0, block.ffn.up)
            self.linear(layer.ffn.linear_1, block.ffn.down)
            if isinstance(block.ffn, Gated):
                self.linear(layer.ffn.linear_0_noact, block.ffn.gate)

    def added(self, s: Stack) -> Tensor:
        """What each position adds to the embedding: zeros where it is nothing, for without a table waves are added."""
        if isinstance(s.position, positions.Learned):
            return self.take(s.position.table)
        waves = s.position.embed(torch.arange(s.context)[None], self.dtype)
        return torch.zeros(s.context, self.m.width, dtype=self.dtype) if waves is None else waves[0]

    def place(self, spec: Any, p: positions.Positions, layer: int) -> None:
        """What attention knows of positions."""
        match p:
            case positions.Relative():
                spec.relative_attention_bias = self.take(p.table)
                spec.relative_attention_max_distance = torch.tensor(p.distance, dtype=torch.int32)
            case positions.Shaw():
                spec.relative_position_keys = self.take(p.table)[layer].flip(0)  # theirs begins with what comes last
                spec.relative_position_values = self.specs.model_spec.OPTIONAL
            case positions.Rotary(scaling=c.Linear() as scaling):
                spec.rotary_scaling_factor = scaling.factor
            case positions.Rotary(scaling=c.Llama3() as scaling):
                spec.rotary_low_freq_factor, spec.rotary_high_freq_factor = scaling.low, scaling.high
                before = torch.tensor(scaling.context, dtype=torch.int32)
                # The engine reads these two, though the specification has no fields for them.
                vars(spec).update(rotary_scaling_factor=scaling.factor, original_max_position_embeddings=before)

    def attention(self, spec: Any, norm: nn.Module, a: Attention) -> None:
        self.norm(spec.layer_norm, norm)
        *inputs, out = spec.linear
        self.linear(out, a.out)
        if len(inputs) == 1:
            self.linear(inputs[0], a.q, a.k, a.v)
        else:  # cross-attention
            self.linear(inputs[0], a.q)
            self.linear(inputs[1], a.k, a.v)
        if not self.m.attention.scaled:
            spec.queries_scale = 1.0
        if self.m.attention.qk_norm:
            for theirs, ours in (("q_norm", a.q_norm), ("k_norm", a.k_norm)):
                setattr(spec, theirs, self.specs.common_spec.LayerNormSpec(rms_norm=isinstance(ours, nn.RMSNorm)))
                self.norm(getattr(spec, theirs), ours)

    def linear(self, spec: Any, *layers: nn.Linear) -> None:
        """Several layers as one: their rows below each other."""
        spec.weight = torch.cat([self.take(layer.weight) for layer in layers])
        if any(layer.bias is not None for layer in layers):
            zeros = [torch.zeros(layer.out_features, dtype=self.dtype) for layer in layers]
            both = zip(layers, zeros, strict=True)
            spec.bias = torch.cat([zero if layer.bias is None else self.take(layer.bias) for layer, zero in both])

    def norm(self, spec: Any, norm: nn.Module) -> None:
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        spec.gamma = self.take(norm.weight)
        if isinstance(norm, nn.LayerNorm):  # without a shift it would be taken for an RMSNorm
            spec.beta = torch.zeros_like(spec.gamma) if norm.bias is None else self.take(norm.bias)
