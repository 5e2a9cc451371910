"""Llama and relatives: Mistral (sliding window), Qwen2 (biases), Qwen3 (QK-norm); also SmolLM, …"""

from dataclasses import replace
from typing import Any

import torch

from clearhead import config as c
from clearhead.config.parse import ConfigDict
from clearhead.errors import ClearheadError
from clearhead.model.positions import inverse_frequencies
from clearhead.weights.mapping import (
    GATED_ACTIVATIONS,
    NONE_IS_ZERO,
    Attr,
    AttributeRule,
    Custom,
    Ignore,
    ModelFamily,
    NotRepresentableError,
    Require,
    TableCheck,
    WeightMap,
    WeightRule,
    check_attribute,
    equals_table,
    pop_typed,
    rename_layers,
    unsupported_value,
)


def _frequency_table(m: c.ModelConfig) -> TableCheck:
    """Old files store the unscaled frequencies, which follow from theta."""
    assert isinstance(m.position, c.Rotary)
    frequencies = inverse_frequencies(m.d_head, m.position.theta, torch.device("cpu"))
    return equals_table(lambda rows: frequencies)


def weight_map(m: c.ModelConfig) -> WeightMap:
    ours = "blocks.{i}"
    theirs = "{p}layers.{i}"
    return WeightMap(
        [
            WeightRule("{p}embed_tokens.weight", ("embed.tokens.weight",)),
            *rename_layers(
                {
                    f"{theirs}.input_layernorm": f"{ours}.attn_norm",
                    f"{theirs}.self_attn.q_proj": f"{ours}.attn.q",
                    f"{theirs}.self_attn.k_proj": f"{ours}.attn.k",
                    f"{theirs}.self_attn.v_proj": f"{ours}.attn.v",
                    f"{theirs}.self_attn.o_proj": f"{ours}.attn.out",
                    f"{theirs}.self_attn.q_norm": f"{ours}.attn.q_norm",
                    f"{theirs}.self_attn.k_norm": f"{ours}.attn.k_norm",
                    f"{theirs}.post_attention_layernorm": f"{ours}.ffn_norm",
                    f"{theirs}.mlp.gate_proj": f"{ours}.ffn.gate",
                    f"{theirs}.mlp.up_proj": f"{ours}.ffn.up",
                    f"{theirs}.mlp.down_proj": f"{ours}.ffn.down",
                    "{p}norm": "final_norm",
                }
            ),
            WeightRule("lm_head.weight", ("head.unembed.weight",)),
        ],
        ignored_keys=(r"lm_head\.weight",),  # equal to the embedding, or without a head
        tables={r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq": _frequency_table(m)},
        prefixes=("model.", ""),
    )


# RoPE scaling: their parameters by type, with our names
ROPE_SCALINGS: dict[str, dict[str, str]] = {
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_context_length",
    },
    "linear": {"factor": "factor"},
}


def read_rope(theirs: ConfigDict, ours: ConfigDict) -> None:
    """`rope_theta` and `rope_scaling`, or the newer `rope_parameters` with both.

    In transformers, a `rope_scaling` replaces all `rope_parameters`.
    """
    rope_parameters: ConfigDict = pop_typed(theirs, "rope_parameters", dict, {})
    rope = dict(pop_typed(theirs, "rope_scaling", dict, {}) or rope_parameters)
    theta = theirs.pop("rope_theta", None)
    ours["position"]["theta"] = rope.pop("rope_theta", theta or 10000.0)
    legacy_type = rope.pop("type", None)
    rope_type = rope.pop("rope_type", None) or legacy_type or "default"
    check_attribute("rope_type", rope_type, str, "")
    if rope_type != "default":
        if rope_type not in ROPE_SCALINGS:
            raise unsupported_value("rope_scaling", rope_type, ["default", *ROPE_SCALINGS])
        names = ROPE_SCALINGS[rope_type]
        if missing := names.keys() - rope.keys():
            raise ClearheadError(
                f"config.json: rope_scaling of type {rope_type} has no {min(missing)}."
            )
        scaling = {option: rope.pop(name) for name, option in names.items()}
        ours["position"]["scaling"] = {"kind": rope_type, **scaling}
    for name, value in rope.items():
        if (name, value) != ("partial_rotary_factor", 1.0):
            raise unsupported_value(f"rope_scaling.{name}", value, [])


def write_rope(ours: ConfigDict, theirs: ConfigDict) -> None:
    if ours["position"]["kind"] != "rotary":
        return
    scaling: dict[str, Any] = ours["position"]["scaling"]
    theirs["rope_theta"] = ours["position"]["theta"]
    theirs["rope_scaling"] = None
    if scaling["kind"] != "none":
        names = ROPE_SCALINGS[scaling["kind"]]
        values = {name: scaling[option] for name, option in names.items()}
        theirs["rope_scaling"] = {"rope_type": scaling["kind"], **values}


FULL = "full_attention"
SLIDING = "sliding_attention"


def _check_window(window: object) -> None:
    """transformers lets a token attend to nothing if the window is 0."""
    if window is not None and (type(window) is not int or window < 1):
        raise unsupported_value("sliding_window", window, ["a positive integer", None])


def _read_window(theirs: ConfigDict, ours: ConfigDict) -> None:
    """Qwen's sliding window; it must hold for all layers or for none."""
    window = theirs.pop("sliding_window", 4096)
    use_window = theirs.pop("use_sliding_window", False)
    max_window_layers = pop_typed(theirs, "max_window_layers", int, 28)
    layer_types: list[str] = pop_typed(theirs, "layer_types", list, [])
    for layer_type in layer_types:
        check_attribute("layer_types", layer_type, str, "")
    check_attribute("num_hidden_layers", ours["n_layers"], int, 0)
    if not layer_types:
        if not use_window or max_window_layers > 0:
            layer_types.append(FULL)
        if use_window and max_window_layers < ours["n_layers"]:
            layer_types.append(SLIDING)
    if set(layer_types) not in ({FULL}, {SLIDING}):
        supported = [FULL, f"{SLIDING} for all layers"]
        raise unsupported_value("layer_types", sorted(set(layer_types)), supported)
    is_sliding = set(layer_types) == {SLIDING}
    if is_sliding:
        _check_window(window)
        if not use_window:  # transformers then has no window for these layers
            raise unsupported_value("use_sliding_window", use_window, [True])
    ours["attention"]["sliding_window"] = (window or 0) if is_sliding else 0


def _read_mistral_window(theirs: ConfigDict, ours: ConfigDict) -> None:
    window = theirs.pop("sliding_window", 4096)
    _check_window(window)
    ours["attention"]["sliding_window"] = window or 0


def _write_mistral_window(ours: ConfigDict, theirs: ConfigDict) -> None:
    theirs["sliding_window"] = ours["attention"]["sliding_window"] or None


def _check_divisible(ours: ConfigDict, theirs: ConfigDict) -> None:
    """transformers requires it of Llama, regardless of head_dim."""
    d_model = ours["d_model"]
    n_heads = ours["attention"]["n_heads"]
    if d_model % n_heads:
        raise NotRepresentableError(f"its d_model must be a multiple of its {n_heads} heads")


def _write_window(ours: ConfigDict, theirs: ConfigDict) -> None:
    window = ours["attention"]["sliding_window"]
    n_layers = ours["n_layers"]
    theirs |= {
        "use_sliding_window": bool(window),
        "sliding_window": window or None,
        "max_window_layers": 0 if window else n_layers,
        "layer_types": [SLIDING if window else FULL] * n_layers,
    }


def _read_head_dim(theirs: ConfigDict, ours: ConfigDict) -> None:
    """Qwen2 has no `head_dim` of its own; some files state the implied one."""
    d_model = check_attribute("hidden_size", ours["d_model"], int, 0)
    n_heads = check_attribute("num_attention_heads", ours["attention"]["n_heads"], int, 1)
    if n_heads < 1:
        raise ClearheadError("num_attention_heads must be at least 1.")
    Require("head_dim", d_model // n_heads).read(theirs, ours)


COMMON_ATTRIBUTES = (
    Attr("vocab_size", "vocab_size"),
    Attr("hidden_size", "d_model"),
    Attr("num_hidden_layers", "n_layers"),
    Attr("num_attention_heads", "attention.n_heads"),
    Attr("intermediate_size", "ffn.d_ff"),
    Attr("hidden_act", "ffn.activation", "silu", GATED_ACTIVATIONS, strict=True),
    Attr("rms_norm_eps", "norm.eps", 1e-6),
    Attr("attention_dropout", "dropout.attention", 0.0),
    Attr("tie_word_embeddings", "head.tie_embeddings", False),
    Custom(read_rope, write_rope),
    Require("rope_interleaved", False),
    Require("use_mrope", False),
    Ignore("is_llama_config"),
)
ALL_BIASES = {False: [], True: ["q", "k", "v", "out"]}
ATTENTION_BIAS = Attr("attention_bias", "attention.bias", False, ALL_BIASES, strict=True)
SLIDING_WINDOW = Custom(_read_window, _write_window)
CONTEXT_LENGTH = Attr("max_position_embeddings", "context_length", 32768)


def _family(name: str, title: str, base: c.ModelConfig, *attributes: AttributeRule) -> ModelFamily:
    heads: dict[str, c.Head] = {
        f"{title}ForCausalLM": c.LMHead(tie_embeddings=False),
        f"{title}Model": c.NoHead(),
    }
    return ModelFamily(name, base, heads, (*COMMON_ATTRIBUTES, *attributes), weight_map)


BASE = c.ModelConfig(
    position=c.Rotary(),
    attention=c.Attention(bias=()),
    ffn=c.FeedForward("swiglu", bias=False),
    norm=c.RMSNorm(),
)
LLAMA = _family(
    "llama",
    "Llama",
    BASE,
    Attr("max_position_embeddings", "context_length", 2048),
    Attr("num_key_value_heads", "attention.n_kv_heads", None, NONE_IS_ZERO),
    Attr("head_dim", "attention.d_head", None, NONE_IS_ZERO),
    ATTENTION_BIAS,
    Attr("mlp_bias", "ffn.bias", False),
    Custom(lambda theirs, ours: None, _check_divisible),
    Ignore("pretraining_tp"),  # computes the same sums in slices
)
MISTRAL = _family(
    "mistral",
    "Mistral",
    BASE,
    Attr("max_position_embeddings", "context_length", 131072),
    Attr("num_key_value_heads", "attention.n_kv_heads", 8, NONE_IS_ZERO),
    Attr("head_dim", "attention.d_head", None, NONE_IS_ZERO),
    Custom(_read_mistral_window, _write_mistral_window),
)
QWEN2 = _family(
    "qwen2",
    "Qwen2",
    replace(BASE, attention=c.Attention(bias=("q", "k", "v"))),
    CONTEXT_LENGTH,
    SLIDING_WINDOW,
    Attr("num_key_value_heads", "attention.n_kv_heads", 32, NONE_IS_ZERO),
    Custom(_read_head_dim),
)
QWEN3 = _family(
    "qwen3",
    "Qwen3",
    replace(BASE, attention=c.Attention(bias=(), qk_norm=True)),
    CONTEXT_LENGTH,
    SLIDING_WINDOW,
    Attr("num_key_value_heads", "attention.n_kv_heads", 32, NONE_IS_ZERO),
    Attr("head_dim", "attention.d_head", 128, NONE_IS_ZERO),
    ATTENTION_BIAS,
)
