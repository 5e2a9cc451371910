"""The kinds of model that llama.cpp knows and clearhead writes for it, under the names of .gguf files.

Llama's queries and keys are stored in rotary pairs of neighbours.
"""

from dataclasses import replace

from clearhead import config as c
from clearhead.weights.families import gpt2, llama
from clearhead.weights.mapping import (
    IDENTITY,
    NONE_IS_ZERO,
    Attr,
    ConfigDict,
    Custom,
    Ignore,
    ModelFamily,
    Require,
    WeightMap,
    WeightOp,
    WeightRule,
    deinterleave_rotary,
    rename_layer,
    rename_layers,
    split_rows,
    unsupported_value,
)

ROPE_FACTORS = "rope_freqs.weight"  # how much slower each rotary pair turns


def _weight_map(m: c.ModelConfig, q: WeightOp, k: WeightOp) -> WeightMap:
    ours = "blocks.{i}"
    theirs = "blk.{i}"
    three = split_rows(m.d_model, m.d_model, m.d_model)
    joined = () if isinstance(m.position, c.Rotary) else rename_layer(
        f"{theirs}.attn_qkv", f"{ours}.attn.q", f"{ours}.attn.k", f"{ours}.attn.v", weight=three, bias=three
    )  # fmt: skip
    apart = () if joined else (
        *rename_layer(f"{theirs}.attn_q", f"{ours}.attn.q", weight=q, bias=q),
        *rename_layer(f"{theirs}.attn_k", f"{ours}.attn.k", weight=k, bias=k),
        *rename_layer(f"{theirs}.attn_v", f"{ours}.attn.v"),
    )  # fmt: skip
    up, gate = ("ffn_gate", "ffn_up") if m.ffn.is_gated else ("ffn_up", "")
    return WeightMap(
        [
            WeightRule("token_embd.weight", ("embed.tokens.weight",)),
            WeightRule("position_embd.weight", ("position.table",)),
            WeightRule("output.weight", ("head.unembed.weight",)),
            *joined,
            *apart,
            *rename_layers(
                {
                    f"{theirs}.attn_norm": f"{ours}.attn_norm",
                    f"{theirs}.attn_output": f"{ours}.attn.out",
                    f"{theirs}.attn_q_norm": f"{ours}.attn.q_norm",
                    f"{theirs}.attn_k_norm": f"{ours}.attn.k_norm",
                    f"{theirs}.ffn_norm": f"{ours}.ffn_norm",
                    f"{theirs}.{up}": f"{ours}.ffn.up",
                    f"{theirs}.{gate}": f"{ours}.ffn.gate",
                    f"{theirs}.ffn_down": f"{ours}.ffn.down",
                    "output_norm": "norm",
                }
            ),
        ],
        ignored_keys=(ROPE_FACTORS.replace(".", r"\."),),  # read with the configuration
    )


def interleaved_weight_map(m: c.ModelConfig) -> WeightMap:
    return _weight_map(
        m, deinterleave_rotary(m.attention.n_heads), deinterleave_rotary(m.n_kv_heads)
    )


def weight_map(m: c.ModelConfig) -> WeightMap:
    return _weight_map(m, IDENTITY, IDENTITY)


def _read_rope(theirs: ConfigDict, ours: ConfigDict) -> None:
    """All of a head turns; the scaling is linear, or Llama 3's by its factors."""
    wide = ours["attention"]["head_width"] or ours["width"] // ours["attention"]["heads"]
    Require("rope.dimension_count", wide).read(theirs, ours)
    Require("attention.value_length", wide).read(theirs, ours)
    kind = theirs.pop("rope.scaling.type", "none")
    factor = theirs.pop("rope.scaling.factor", 1.0)
    if kind not in ("none", "linear"):
        raise unsupported_value("rope.scaling.type", kind, ["none", "linear"])
    if kind == "linear":
        ours["position"]["scaling"] = {"kind": "linear", "factor": factor}
    made_of = {name: theirs.pop(f"rope.llama3.{name}", None) for name in LLAMA3}
    if made_of["factor"] is not None:
        ours["position"]["scaling"] = {"kind": "llama3", **made_of}


def _write_rope(ours: ConfigDict, theirs: ConfigDict) -> None:
    wide = ours["attention"]["head_width"]
    theirs |= {"rope.dimension_count": wide, "attention.value_length": wide}
    scaling = ours["position"]["scaling"]
    if scaling["kind"] == "linear":
        theirs |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling["factor"]}
    if scaling["kind"] == "llama3":  # llama.cpp reads the factors; this is what they are made of
        theirs |= {f"rope.llama3.{name}": scaling[name] for name in LLAMA3}


LLAMA3 = ("factor", "low", "high", "context")
COMMON_ATTRIBUTES = (
    Attr("vocab_size", "vocabulary"),
    Attr("context_length", "context"),
    Attr("embedding_length", "width"),
    Attr("block_count", "layers"),
    Attr("feed_forward_length", "ffn.d_ff", None, NONE_IS_ZERO),
    Attr("attention.head_count", "attention.n_heads"),
    Require("expert_count", 0),
    Ignore("expert_used_count", "attention.causal"),
)
ROTARY_ATTRIBUTES = (
    *COMMON_ATTRIBUTES,
    Attr("attention.head_count_kv", "attention.n_kv_heads", None, NONE_IS_ZERO),
    Attr("attention.key_length", "attention.d_head", None, NONE_IS_ZERO),
    Attr("attention.layer_norm_rms_epsilon", "norm.eps"),
    Attr("rope.freq_base", "position.theta", 10000.0),
    Custom(_read_rope, _write_rope),
)
HEADS = {"decoder": c.LMHead()}
GGUF_FAMILIES = {
    family.name: family
    for family in (
        ModelFamily("llama", llama.BASE, HEADS, ROTARY_ATTRIBUTES, interleaved_weight_map),
        ModelFamily("qwen2", llama.QWEN2.base, HEADS, ROTARY_ATTRIBUTES, weight_map),
        ModelFamily("qwen3", llama.QWEN3.base, HEADS, ROTARY_ATTRIBUTES, weight_map),
        ModelFamily(
            "gpt2",
            replace(gpt2.GPT2.base, ffn=c.FeedForward("gelu-tanh")),
            HEADS,
            (
                *COMMON_ATTRIBUTES,
                Attr("attention.layer_norm_epsilon", "norm.eps"),
                Require("attention.head_count_kv", None),
            ),
            weight_map,
        ),
    )
}
