"""Llama and its relatives by configuration: Mistral (a window), Qwen2 (biases), Qwen3 (QK-norm), SmolLM, TinyLlama."""

from dataclasses import replace
from typing import Any

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.weights.mapping import (
    GATED_ACTIVATIONS,
    NONE_IS_ZERO,
    Attr,
    AttributeRule,
    ConfigDict,
    Custom,
    Ignore,
    ModelFamily,
    Require,
    WeightMap,
    WeightRule,
    rename_layers,
    unsupported_value,
)


def weight_map(m: c.ModelConfig) -> WeightMap:
    block = "blocks.{i}"
    theirs = "{p}layers.{i}"
    return WeightMap(
        [
            WeightRule("{p}embed_tokens.weight", ("embed.tokens.weight",)),
            *rename_layers(
                {
                    f"{theirs}.input_layernorm": f"{block}.attn_norm",
                    f"{theirs}.self_attn.q_proj": f"{block}.attn.q",
                    f"{theirs}.self_attn.k_proj": f"{block}.attn.k",
                    f"{theirs}.self_attn.v_proj": f"{block}.attn.v",
                    f"{theirs}.self_attn.o_proj": f"{block}.attn.out",
                    f"{theirs}.self_attn.q_norm": f"{block}.attn.q_norm",
                    f"{theirs}.self_attn.k_norm": f"{block}.attn.k_norm",
                    f"{theirs}.post_attention_layernorm": f"{block}.ffn_norm",
                    f"{theirs}.mlp.gate_proj": f"{block}.ffn.up",  # theirs is called after what it does to the other
                    f"{theirs}.mlp.up_proj": f"{block}.ffn.gate",
                    f"{theirs}.mlp.down_proj": f"{block}.ffn.down",
                    "{p}norm": "norm",
                }
            ),
            WeightRule("lm_head.weight", ("head.unembed.weight",)),
        ],
        ignored_keys=(
            r"lm_head\.weight",  # tied: the embedding once more
            r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",  # follows from theta
        ),
        prefixes=("model.", ""),
    )


ROPE_SCALINGS: dict[str, dict[str, str]] = {
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
        "original_max_position_embeddings": "context",
    },
    "linear": {"factor": "factor"},
}


def read_rope(theirs: ConfigDict, ours: ConfigDict) -> None:
    """`rope_theta` and `rope_scaling`, or both in the newer `rope_parameters`."""
    rope, older_rope = (
        theirs.pop(name, None) or {} for name in ("rope_parameters", "rope_scaling")
    )
    rope = dict(rope or older_rope)
    theta = theirs.pop("rope_theta", None)
    ours["position"]["theta"] = rope.pop("rope_theta", theta or 10000.0)
    older = rope.pop("type", None)
    kind = rope.pop("rope_type", None)
    kind = kind or older or "default"
    if kind != "default":
        if kind not in ROPE_SCALINGS:
            raise unsupported_value("rope_scaling", kind, ["default", *ROPE_SCALINGS])
        names = ROPE_SCALINGS[kind]
        if lacking := names.keys() - rope.keys():
            raise ClearheadError(f"config.json: rope_scaling of type {kind} lacks {min(lacking)}.")
        ours["position"]["scaling"] = {"kind": kind} | {
            mine: rope.pop(name) for name, mine in names.items()
        }
    for name, value in rope.items():
        if (name, value) != ("partial_rotary_factor", 1.0):
            raise unsupported_value(f"rope_scaling.{name}", value, [])


def write_rope(ours: ConfigDict, theirs: ConfigDict) -> None:
    if ours["position"]["kind"] == "rotary":
        scaling: dict[str, Any] = ours["position"]["scaling"]
        theirs["rope_theta"] = ours["position"]["theta"]
        theirs["rope_scaling"] = None
        if scaling["kind"] != "none":
            names = ROPE_SCALINGS[scaling["kind"]]
            theirs["rope_scaling"] = {"rope_type": scaling["kind"]} | {
                k: scaling[v] for k, v in names.items()
            }


def _bias_values(*names: str) -> dict[bool, list[str]]:
    return {False: [], True: list(names)}


def _read_window(theirs: ConfigDict, ours: ConfigDict) -> None:
    """Qwen's window holds for all layers or for none."""
    window = theirs.pop("sliding_window", None)
    used = theirs.pop("use_sliding_window", False)
    first = theirs.pop("max_window_layers", 28)
    kinds = theirs.pop("layer_types", None)
    full = "full_attention"
    sliding = "sliding_attention"
    if kinds is None:
        kinds = [full] * (not used or first > 0) + [sliding] * bool(used and first < ours["layers"])
    if set(kinds) not in ({full}, {sliding}):
        raise unsupported_value(
            "layer_types", sorted(set(kinds)), [full, f"{sliding} for all layers"]
        )
    ours["attention"]["window"] = (window or 0) if set(kinds) == {sliding} else 0


def _write_window(ours: ConfigDict, theirs: ConfigDict) -> None:
    window = ours["attention"]["window"]
    deep = ours["layers"]
    kind = "sliding_attention" if window else "full_attention"
    theirs |= {"use_sliding_window": bool(window), "sliding_window": window or None}
    theirs |= {"max_window_layers": 0 if window else deep, "layer_types": [kind] * deep}


COMMON_ATTRIBUTES = (
    Attr("vocab_size", "vocabulary"),
    Attr("hidden_size", "width"),
    Attr("num_hidden_layers", "layers"),
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
ALL_PROJECTIONS = ("q", "k", "v", "out")
SLIDING_WINDOW = Custom(_read_window, _write_window)
CONTEXT_LENGTH = Attr("max_position_embeddings", "context", 32768)


def _family(name: str, title: str, base: c.ModelConfig, *fields: AttributeRule) -> ModelFamily:
    heads: dict[str, c.Head] = {
        f"{title}ForCausalLM": c.LMHead(tie_embeddings=False),
        f"{title}Model": c.NoHead(),
    }
    return ModelFamily(name, base, heads, (*COMMON_ATTRIBUTES, *fields), weight_map)


BASE = c.ModelConfig(
    position=c.Rotary(),
    attention=c.Attention(bias=()),
    ffn=c.FeedForward("swiglu", bias=False),
    norm=c.RMSNorm(),
)
LLAMA = _family(
    "llama", "Llama", BASE,
    Attr("max_position_embeddings", "context", 2048),
    Attr("num_key_value_heads", "attention.n_kv_heads", None, NONE_IS_ZERO),
    Attr("head_dim", "attention.d_head", None, NONE_IS_ZERO),
    Attr("attention_bias", "attention.bias", False, _bias_values(*ALL_PROJECTIONS), strict=True),
    Attr("mlp_bias", "ffn.bias", False),
    Ignore("pretraining_tp"),  # the same sums, in pieces
)  # fmt: skip
MISTRAL = _family(
    "mistral", "Mistral", BASE,
    Attr("max_position_embeddings", "context", 131072),
    Attr("num_key_value_heads", "attention.n_kv_heads", 8, NONE_IS_ZERO),
    Attr("head_dim", "attention.d_head", None, NONE_IS_ZERO),
    Attr("sliding_window", "attention.sliding_window", 4096, NONE_IS_ZERO),
)  # fmt: skip
QWEN2 = _family(
    "qwen2", "Qwen2", replace(BASE, attention=c.Attention(bias=("q", "k", "v"))), CONTEXT_LENGTH, SLIDING_WINDOW,
    Attr("num_key_value_heads", "attention.n_kv_heads", 32, NONE_IS_ZERO),
)  # fmt: skip
QWEN3 = _family(
    "qwen3", "Qwen3", replace(BASE, attention=c.Attention(bias=(), qk_norm=True)), CONTEXT_LENGTH, SLIDING_WINDOW,
    Attr("num_key_value_heads", "attention.n_kv_heads", 32, NONE_IS_ZERO),
    Attr("head_dim", "attention.d_head", 128, NONE_IS_ZERO),
    Attr("attention_bias", "attention.bias", False, _bias_values(*ALL_PROJECTIONS), strict=True),
)  # fmt: skip
