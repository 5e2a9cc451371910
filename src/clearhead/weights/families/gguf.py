"""Families of .gguf files under llama.cpp's names: Llama, Qwen2, Qwen3 and GPT-2.

Llama's queries and keys are stored with rotary pairs interleaved.
"""

from dataclasses import replace
from functools import partial

from clearhead import config as c
from clearhead.config.parse import ConfigDict
from clearhead.errors import ClearheadError
from clearhead.weights.families import gpt2, llama
from clearhead.weights.mapping import (
    IDENTITY,
    NONE_IS_ZERO,
    Attr,
    Custom,
    Ignore,
    ModelFamily,
    Require,
    WeightMap,
    WeightRule,
    check_attribute,
    deinterleave_rotary,
    rename_layer,
    rename_layers,
    split_rows,
    unsupported_value,
)

ROPE_FACTORS = "rope_freqs.weight"  # divisors of the frequency of each rotary pair


def weight_map(m: c.ModelConfig, is_interleaved: bool = False) -> WeightMap:
    q = deinterleave_rotary(m.attention.n_heads) if is_interleaved else IDENTITY
    k = deinterleave_rotary(m.n_kv_heads) if is_interleaved else IDENTITY
    ours = "blocks.{i}"
    theirs = "blk.{i}"
    attn = f"{ours}.attn"
    if isinstance(m.position, c.Rotary):
        qkv = [
            *rename_layer(f"{theirs}.attn_q", f"{attn}.q", weight=q, bias=q),
            *rename_layer(f"{theirs}.attn_k", f"{attn}.k", weight=k, bias=k),
            *rename_layer(f"{theirs}.attn_v", f"{attn}.v"),
        ]
    else:
        split = split_rows(m.d_model, m.d_model, m.d_model)
        projections = (f"{attn}.q", f"{attn}.k", f"{attn}.v")
        qkv = rename_layer(f"{theirs}.attn_qkv", *projections, weight=split, bias=split)
    return WeightMap(
        [
            WeightRule("token_embd.weight", ("embed.tokens.weight",)),
            WeightRule("position_embd.weight", ("position.table",)),
            WeightRule("output.weight", ("head.unembed.weight",)),
            *qkv,
            *rename_layers(
                {
                    f"{theirs}.attn_norm": f"{ours}.attn_norm",
                    f"{theirs}.attn_output": f"{ours}.attn.out",
                    f"{theirs}.attn_q_norm": f"{ours}.attn.q_norm",
                    f"{theirs}.attn_k_norm": f"{ours}.attn.k_norm",
                    f"{theirs}.ffn_norm": f"{ours}.ffn_norm",
                    f"{theirs}.ffn_gate": f"{ours}.ffn.gate",
                    f"{theirs}.ffn_up": f"{ours}.ffn.up",
                    f"{theirs}.ffn_down": f"{ours}.ffn.down",
                    "output_norm": "final_norm",
                }
            ),
        ],
        ignored_keys=(ROPE_FACTORS.replace(".", r"\."),),  # read with the configuration
    )


# Stored as clearhead-specific keys, rope.llama3.*; llama.cpp reads the resulting ROPE_FACTORS.
LLAMA3_OPTIONS = ("factor", "low_freq_factor", "high_freq_factor", "original_context_length")


def _read_rope(theirs: ConfigDict, ours: ConfigDict) -> None:
    """All dimensions of a head rotate, without scaling, with linear scaling, or Llama 3's.

    As in llama.cpp, scaling is linear unless a type is given, and type "none" ignores the factor.
    """
    d_model = check_attribute("embedding_length", ours["d_model"], int, 0)
    n_heads = check_attribute("attention.head_count", ours["attention"]["n_heads"], int, 1)
    if n_heads < 1:
        raise ClearheadError("attention.head_count must be at least 1.")
    d_head = ours["attention"]["d_head"] or d_model // n_heads
    Require("rope.dimension_count", d_head).read(theirs, ours)
    Require("attention.value_length", d_head).read(theirs, ours)
    scaling_type = theirs.pop("rope.scaling.type", "linear")
    factor = theirs.pop("rope.scaling.factor", 0.0)
    if scaling_type not in ("none", "linear"):
        raise unsupported_value("rope.scaling.type", scaling_type, ["none", "linear"])
    if scaling_type == "linear" and factor != 0:  # 0 is no factor
        ours["position"]["scaling"] = {"kind": "linear", "factor": factor}
    llama3 = {name: theirs.pop(f"rope.llama3.{name}", None) for name in LLAMA3_OPTIONS}
    if llama3["factor"] is not None:
        if ours["position"]["scaling"]["kind"] == "linear":
            raise unsupported_value("rope.llama3.factor", llama3["factor"], [])
        ours["position"]["scaling"] = {"kind": "llama3", **llama3}


def _write_rope(ours: ConfigDict, theirs: ConfigDict) -> None:
    d_head = ours["attention"]["d_head"]
    theirs |= {"rope.dimension_count": d_head, "attention.value_length": d_head}
    scaling = ours["position"]["scaling"]
    if scaling["kind"] == "linear":
        theirs |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling["factor"]}
    if scaling["kind"] == "llama3":
        theirs |= {f"rope.llama3.{name}": scaling[name] for name in LLAMA3_OPTIONS}


COMMON_ATTRIBUTES = (
    Attr("vocab_size", "vocab_size"),
    Attr("context_length", "context_length"),
    Attr("embedding_length", "d_model"),
    Attr("block_count", "n_layers"),
    Attr("feed_forward_length", "ffn.d_ff", None, NONE_IS_ZERO),
    Attr("attention.head_count", "attention.n_heads"),
    Require("expert_count", 0),
    Require("attention.causal", True),
    Ignore("expert_used_count"),
)
ROTARY_ATTRIBUTES = (
    *COMMON_ATTRIBUTES,
    Attr("attention.head_count_kv", "attention.n_kv_heads", None, NONE_IS_ZERO),
    Attr("attention.key_length", "attention.d_head", None, NONE_IS_ZERO),
    Attr("attention.layer_norm_rms_epsilon", "norm.eps"),
    Attr("rope.freq_base", "position.theta", 10000.0),
    Custom(_read_rope, _write_rope),
)
GPT2_ATTRIBUTES = (
    *COMMON_ATTRIBUTES,
    Attr("attention.layer_norm_epsilon", "norm.eps"),
    Require("attention.head_count_kv", None),
)
GPT2_BASE = replace(gpt2.GPT2.base, ffn=c.FeedForward("gelu-tanh"))
HEADS = {"decoder": c.LMHead()}
interleaved_weight_map = partial(weight_map, is_interleaved=True)
GGUF_FAMILIES = {
    family.name: family
    for family in (
        ModelFamily("llama", llama.BASE, HEADS, ROTARY_ATTRIBUTES, interleaved_weight_map),
        ModelFamily("qwen2", llama.QWEN2.base, HEADS, ROTARY_ATTRIBUTES, weight_map),
        ModelFamily("qwen3", llama.QWEN3.base, HEADS, ROTARY_ATTRIBUTES, weight_map),
        ModelFamily("gpt2", GPT2_BASE, HEADS, GPT2_ATTRIBUTES, weight_map),
    )
}
