"""Llama and its relatives by configuration: Mistral (a window), Qwen2 (biases), Qwen3 (QK-norm), SmolLM, TinyLlama."""

from dataclasses import replace
from typing import Any

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.weights.families.family import GATED, ZERO, Family
from clearhead.weights.fields import Both, Field, Ignored, Is, Only, Tree, unknown
from clearhead.weights.rules import Rule, Table, layers


def table(m: c.ModelConfig) -> Table:
    block, theirs = "blocks.{i}", "{p}layers.{i}"
    return Table(
        [
            Rule("{p}embed_tokens.weight", ("embed.tokens.weight",)),
            *layers(
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
            Rule("lm_head.weight", ("head.unembed.weight",)),
        ],
        skips=(
            r"lm_head\.weight",  # tied: the embedding once more
            r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",  # follows from theta
        ),
        prefixes=("model.", ""),
    )


SCALINGS: dict[str, dict[str, str]] = {
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
        "original_max_position_embeddings": "context",
    },
    "linear": {"factor": "factor"},
}


def read_rope(theirs: Tree, ours: Tree) -> None:
    """`rope_theta` and `rope_scaling`, or both in the newer `rope_parameters`."""
    rope, older_rope = (theirs.pop(name, None) or {} for name in ("rope_parameters", "rope_scaling"))
    rope = dict(rope or older_rope)
    theta = theirs.pop("rope_theta", None)
    ours["position"]["theta"] = rope.pop("rope_theta", theta or 10000.0)
    older, kind = rope.pop("type", None), rope.pop("rope_type", None)
    kind = kind or older or "default"
    if kind != "default":
        if kind not in SCALINGS:
            raise unknown("rope_scaling", kind, ["default", *SCALINGS])
        names = SCALINGS[kind]
        if lacking := names.keys() - rope.keys():
            raise ClearheadError(f"config.json: rope_scaling of type {kind} lacks {min(lacking)}.")
        ours["position"]["scaling"] = {"kind": kind} | {mine: rope.pop(name) for name, mine in names.items()}
    for name, value in rope.items():
        if (name, value) != ("partial_rotary_factor", 1.0):
            raise unknown(f"rope_scaling.{name}", value, [])


def write_rope(ours: Tree, theirs: Tree) -> None:
    if ours["position"]["kind"] == "rotary":
        scaling: dict[str, Any] = ours["position"]["scaling"]
        theirs["rope_theta"] = ours["position"]["theta"]
        theirs["rope_scaling"] = None
        if scaling["kind"] != "none":
            names = SCALINGS[scaling["kind"]]
            theirs["rope_scaling"] = {"rope_type": scaling["kind"]} | {k: scaling[v] for k, v in names.items()}


def _biases(*names: str) -> dict[bool, list[str]]:
    return {False: [], True: list(names)}


def _read_window(theirs: Tree, ours: Tree) -> None:
    """Qwen's window holds for all layers or for none."""
    window, used = theirs.pop("sliding_window", None), theirs.pop("use_sliding_window", False)
    first, kinds = theirs.pop("max_window_layers", 28), theirs.pop("layer_types", None)
    full, sliding = "full_attention", "sliding_attention"
    if kinds is None:
        kinds = [full] * (not used or first > 0) + [sliding] * bool(used and first < ours["layers"])
    if set(kinds) not in ({full}, {sliding}):
        raise unknown("layer_types", sorted(set(kinds)), [full, f"{sliding} for all layers"])
    ours["attention"]["window"] = (window or 0) if set(kinds) == {sliding} else 0


def _write_window(ours: Tree, theirs: Tree) -> None:
    window, deep = ours["attention"]["window"], ours["layers"]
    kind = "sliding_attention" if window else "full_attention"
    theirs |= {"use_sliding_window": bool(window), "sliding_window": window or None}
    theirs |= {"max_window_layers": 0 if window else deep, "layer_types": [kind] * deep}


COMMON = (
    Is("vocab_size", "vocabulary"),
    Is("hidden_size", "width"),
    Is("num_hidden_layers", "layers"),
    Is("num_attention_heads", "attention.heads"),
    Is("intermediate_size", "ffn.width"),
    Is("hidden_act", "ffn.activation", "silu", GATED, only_words=True),
    Is("rms_norm_eps", "norm.eps", 1e-6),
    Is("attention_dropout", "dropout.attention", 0.0),
    Is("tie_word_embeddings", "head.tied", False),
    Both(read_rope, write_rope),
    Only("rope_interleaved", False),
    Only("use_mrope", False),
    Ignored("is_llama_config"),
)
ALL = ("q", "k", "v", "out")
WINDOW = Both(_read_window, _write_window)
LONG = Is("max_position_embeddings", "context", 32768)


def _family(name: str, title: str, base: c.ModelConfig, *fields: Field) -> Family:
    heads: dict[str, c.Head] = {f"{title}ForCausalLM": c.Language(tied=False), f"{title}Model": c.Hidden()}
    return Family(name, base, heads, (*COMMON, *fields), table)


BASE = c.ModelConfig(
    position=c.Rotary(),
    attention=c.Attention(bias=()),
    ffn=c.FeedForward("swiglu", bias=False),
    norm=c.RMSNorm(),
)
LLAMA = _family(
    "llama", "Llama", BASE,
    Is("max_position_embeddings", "context", 2048),
    Is("num_key_value_heads", "attention.kv_heads", None, ZERO),
    Is("head_dim", "attention.head_width", None, ZERO),
    Is("attention_bias", "attention.bias", False, _biases(*ALL), only_words=True),
    Is("mlp_bias", "ffn.bias", False),
    Ignored("pretraining_tp"),  # the same sums, in pieces
)  # fmt: skip
MISTRAL = _family(
    "mistral", "Mistral", BASE,
    Is("max_position_embeddings", "context", 131072),
    Is("num_key_value_heads", "attention.kv_heads", 8, ZERO),
    Is("head_dim", "attention.head_width", None, ZERO),
    Is("sliding_window", "attention.window", 4096, ZERO),
)  # fmt: skip
QWEN2 = _family(
    "qwen2", "Qwen2", replace(BASE, attention=c.Attention(bias=("q", "k", "v"))), LONG, WINDOW,
    Is("num_key_value_heads", "attention.kv_heads", 32, ZERO),
)  # fmt: skip
QWEN3 = _family(
    "qwen3", "Qwen3", replace(BASE, attention=c.Attention(bias=(), qk_norm=True)), LONG, WINDOW,
    Is("num_key_value_heads", "attention.kv_heads", 32, ZERO),
    Is("head_dim", "attention.head_width", 128, ZERO),
    Is("attention_bias", "attention.bias", False, _biases(*ALL), only_words=True),
)  # fmt: skip
