"""Hook points: the names, shapes and formulas of all activations of a model.

Plots, the web page, docs and tests read this table; a value that is not in it has no name.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from clearhead import config as c
from clearhead.errors import ClearheadError, check_type, suggest
from clearhead.hooks import matches
from clearhead.model.attention import Attention
from clearhead.model.transformer import Transformer

AttentionKind = Literal["attention", "cross", "encoder"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = ("attention", "cross", "encoder")
ATTENTION_PATHS = {
    "attention": "blocks.{}.attn",
    "cross": "blocks.{}.cross_attn",
    "encoder": "encoder.blocks.{}.attn",
}


@dataclass(frozen=True)
class ActivationInfo:
    """A hook point: its name, shape (in words), formula and a short description.

    Words of a shape: batch seq query key head kv_head d_head d_model d_ff vocab_size num_labels;
    `batch|1` where all rows may share one.
    """

    name: str
    shape: str
    formula: str
    description: str


RESIDUAL_SHAPE = "batch seq d_model"
NEURON_SHAPE = "batch seq d_ff"
QUERY_SHAPE = "batch head query d_head"
KEY_SHAPE = "batch kv_head key d_head"
SCORE_SHAPE = "batch head query key"

EMBED_ACTIVATIONS = (
    ActivationInfo("embed", RESIDUAL_SHAPE, "E[w]", "token embeddings"),
    ActivationInfo("pos_embed", "batch|1 seq d_model", "P[i]", "position embeddings"),
    ActivationInfo("full_embed", RESIDUAL_SHAPE, "E[w] + P[i]", "start of the residual stream"),
)
ATTENTION_ACTIVATIONS = (
    ActivationInfo("in", RESIDUAL_SHAPE, "h", "input of the query projection"),
    ActivationInfo("q", QUERY_SHAPE, "h W_Q", "queries, after QK-norm if the model has it"),
    ActivationInfo("k", KEY_SHAPE, "s W_K", "keys, after QK-norm if the model has it"),
    ActivationInfo("v", KEY_SHAPE, "s W_V", "values"),
    ActivationInfo("rot_q", QUERY_SHAPE, "R_i q", "queries after the rotary embedding, if any"),
    ActivationInfo("rot_k", KEY_SHAPE, "R_j k", "keys after the rotary embedding, if any"),
    ActivationInfo("scores", SCORE_SHAPE, "q kᵀ / √d_k + bias", "attention scores before the mask"),
    ActivationInfo(
        "masked_scores", SCORE_SHAPE, "scores + M", "attention scores, −∞ at masked positions"
    ),
    ActivationInfo(
        "pattern", SCORE_SHAPE, "softmax(masked_scores)", "attention weights; each row sums to 1"
    ),
    ActivationInfo("z", QUERY_SHAPE, "pattern · v", "output of each head, before W_O"),
    ActivationInfo("out", RESIDUAL_SHAPE, "concat(z) W_O", "output of the attention layer"),
)
FFN_ACTIVATIONS = (
    ActivationInfo("in", RESIDUAL_SHAPE, "h", "input of the feed-forward layer"),
    ActivationInfo("up", NEURON_SHAPE, "h W_up + b_up", "neurons before the activation function"),
    ActivationInfo("post", NEURON_SHAPE, "f(up)", "neurons after the activation function"),
    ActivationInfo(
        "out", RESIDUAL_SHAPE, "post W_down + b_down", "output of the feed-forward layer"
    ),
)
GATED_FFN_ACTIVATIONS = (
    FFN_ACTIVATIONS[0],
    ActivationInfo("gate", NEURON_SHAPE, "h W_gate", "gate before the activation function"),
    ActivationInfo("up", NEURON_SHAPE, "h W_up", "the branch that the gate multiplies"),
    ActivationInfo("post", NEURON_SHAPE, "f(gate) ⊙ up", "neurons after activation and gate"),
    FFN_ACTIVATIONS[3],
)


@lru_cache(maxsize=32)
def activation_table(m: c.ModelConfig) -> Mapping[str, ActivationInfo]:
    """All hook points of a model by name, in the order in which they are computed."""
    is_encoder_decoder = isinstance(m.architecture, c.EncoderDecoder)
    infos: list[ActivationInfo] = []
    if isinstance(m.architecture, c.EncoderDecoder):
        encoder = _stack_activations(m, m.architecture.encoder_layers, has_cross=False)
        infos += _with_prefix("encoder", encoder)
    infos += _stack_activations(m, m.n_layers, has_cross=is_encoder_decoder)
    if has_pooled_head(m):
        infos.append(
            ActivationInfo("logits", "batch num_labels", "pooled W", "logits, or the prediction")
        )
    elif not isinstance(m.head, c.NoHead):
        infos.append(
            ActivationInfo(
                "logits", "batch seq vocab_size", "final_norm · Eᵀ", "logits, before softmax"
            )
        )
    return MappingProxyType({info.name: info for info in infos})


def _stack_activations(
    m: c.ModelConfig, n_layers: int, has_cross: bool
) -> Iterator[ActivationInfo]:
    has_pos_embed = isinstance(m.position, c.Learned | c.Sinusoidal)
    yield from (info for info in EMBED_ACTIVATIONS if has_pos_embed or info.name != "pos_embed")
    for i in range(n_layers):
        yield from _with_prefix(f"blocks.{i}", _block_activations(m, has_cross))
    yield ActivationInfo(
        "final_norm", RESIDUAL_SHAPE, "norm(x)", "final hidden states (normalized with pre-norm)"
    )


def _block_activations(m: c.ModelConfig, has_cross: bool) -> Iterator[ActivationInfo]:
    yield ActivationInfo("resid_pre", RESIDUAL_SHAPE, "x", "residual stream entering the block")
    yield from _with_prefix("attn", ATTENTION_ACTIVATIONS)
    yield ActivationInfo(
        "resid_mid", RESIDUAL_SHAPE, "resid_pre + attn.out", "residual stream after attention"
    )
    if has_cross:
        yield from _with_prefix("cross_attn", ATTENTION_ACTIVATIONS)
        yield ActivationInfo(
            "resid_cross",
            RESIDUAL_SHAPE,
            "resid_mid + cross_attn.out",
            "residual stream after cross-attention",
        )
    yield from _with_prefix("ffn", GATED_FFN_ACTIVATIONS if m.ffn.is_gated else FFN_ACTIVATIONS)
    before_ffn = "resid_cross" if has_cross else "resid_mid"
    yield ActivationInfo(
        "resid_post", RESIDUAL_SHAPE, f"{before_ffn} + ffn.out", "residual stream leaving the block"
    )


def _with_prefix(prefix: str, infos: Iterable[ActivationInfo]) -> Iterator[ActivationInfo]:
    return (replace(info, name=f"{prefix}.{info.name}") for info in infos)


@lru_cache(maxsize=1024)
def matching_names(m: c.ModelConfig, pattern: str) -> tuple[str, ...]:
    """The activations that a pattern such as `blocks.*.attn.z` matches; none is an error."""
    check_type(pattern, str, "names of activations")
    table = activation_table(m)
    names = tuple(name for name in table if matches(pattern, name))
    if not names:
        raise ClearheadError(
            f"{pattern!r} matches no activation of this model; {_suggest_name(pattern, table)}"
        )
    return names


def _suggest_name(pattern: str, known: Iterable[str]) -> str:
    """The nearest name, with a star or a layer number like the pattern."""
    known = list(known)
    deeper = f"{pattern}*"
    if re.search(r"(?<!\*)\*$", pattern) and any(matches(deeper, name) for name in known):
        return f"* matches one part of a name; did you mean {deeper!r}?"
    layers: dict[str, list[int]] = {}  # by name, with a star for the layer
    for name in known:
        numbers = layers.setdefault(_star_numbers(name), [])
        numbers += map(int, re.findall(r"\d+", name))
    starred = _star_numbers(pattern)
    if layers.get(starred):
        return f"its layers are 0 to {max(layers[starred])}."
    last_parts = {name.rpartition(".")[2]: name for name in layers}
    close = difflib.get_close_matches(starred, [*layers, *last_parts], n=1, cutoff=0.6)
    if not close:
        return f"known: {', '.join(layers)}"
    name = last_parts.get(close[0], close[0])
    layer = re.search(r"\d+", pattern)
    return f"did you mean {name.replace('*', layer.group(0)) if layer else name!r}?"


def _star_numbers(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def has_pooled_head(m: c.ModelConfig) -> bool:
    """Whether the head gives one row of outputs for a whole text."""
    return isinstance(m.head, c.ClassificationHead | c.RegressionHead)


def attention_kinds(m: c.ModelConfig) -> tuple[AttentionKind, ...]:
    """Self-attention; in an encoder-decoder also cross-attention and the encoder's."""
    return ATTENTION_KINDS if isinstance(m.architecture, c.EncoderDecoder) else ATTENTION_KINDS[:1]


def num_layers(m: c.ModelConfig, kind: str) -> int:
    """The number of layers with this kind of attention."""
    if kind not in ATTENTION_KINDS:
        raise ClearheadError(
            f"there is no attention kind {kind!r}; {suggest(str(kind), ATTENTION_KINDS)}"
        )
    if kind not in attention_kinds(m):
        raise ClearheadError(
            f"kind={kind!r} needs an encoder-decoder; this model has architecture "
            f"{m.architecture.kind}."
        )
    if kind == "encoder" and isinstance(m.architecture, c.EncoderDecoder):
        return m.architecture.encoder_layers
    return m.n_layers


def attention_path(kind: str, layer: int) -> str:
    """The prefix of an attention layer's activations, such as `blocks.0.attn`."""
    return ATTENTION_PATHS[kind].format(layer)


def attention_module(net: Transformer, kind: str, layer: int) -> Attention:
    """The attention layer of this kind."""
    stack = net.encoder if kind == "encoder" and net.encoder is not None else net
    module = stack.get_submodule(attention_path(kind, layer).removeprefix("encoder."))
    assert isinstance(module, Attention)
    return module


def is_source_activation(m: c.ModelConfig, name: str) -> bool:
    """Whether the tokens of an activation are those of the source."""
    is_by_key = activation_table(m)[name].shape == KEY_SHAPE
    return name.startswith("encoder.") or (is_by_key and ".cross_attn." in name)
