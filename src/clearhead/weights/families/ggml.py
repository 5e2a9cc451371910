"""The kinds of model that llama.cpp knows and clearhead writes for it, under the names of .gguf files.

Llama's queries and keys are stored in rotary pairs of neighbours.
"""

from dataclasses import replace

from clearhead import config as c
from clearhead.weights.families import gpt2, llama
from clearhead.weights.families.family import ZERO, Family
from clearhead.weights.fields import Both, Ignored, Is, Only, Tree, unknown
from clearhead.weights.rules import SAME, Op, Rule, Table, by_turns, layer, layers, split

FACTORS = "rope_freqs.weight"  # how much slower each rotary pair turns


def _table(m: c.ModelConfig, q: Op, k: Op) -> Table:
    ours, theirs = "blocks.{i}", "blk.{i}"
    three = split(m.width, m.width, m.width)
    joined = () if isinstance(m.position, c.Rotary) else layer(
        f"{theirs}.attn_qkv", f"{ours}.attn.q", f"{ours}.attn.k", f"{ours}.attn.v", weight=three, bias=three
    )  # fmt: skip
    apart = () if joined else (
        *layer(f"{theirs}.attn_q", f"{ours}.attn.q", weight=q, bias=q),
        *layer(f"{theirs}.attn_k", f"{ours}.attn.k", weight=k, bias=k),
        *layer(f"{theirs}.attn_v", f"{ours}.attn.v"),
    )  # fmt: skip
    up, gate = ("ffn_gate", "ffn_up") if m.ffn.gated else ("ffn_up", "")
    return Table(
        [
            Rule("token_embd.weight", ("embed.tokens.weight",)),
            Rule("position_embd.weight", ("position.table",)),
            Rule("output.weight", ("head.unembed.weight",)),
            *joined,
            *apart,
            *layers(
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
        skips=(FACTORS.replace(".", r"\."),),  # read with the configuration
    )


def paired_table(m: c.ModelConfig) -> Table:
    return _table(m, by_turns(m.attention.heads), by_turns(m.kv_heads))


def plain_table(m: c.ModelConfig) -> Table:
    return _table(m, SAME, SAME)


def _read_rope(theirs: Tree, ours: Tree) -> None:
    """All of a head turns; the scaling is linear, or Llama 3's by its factors."""
    wide = ours["attention"]["head_width"] or ours["width"] // ours["attention"]["heads"]
    Only("rope.dimension_count", wide).read(theirs, ours)
    Only("attention.value_length", wide).read(theirs, ours)
    kind, factor = theirs.pop("rope.scaling.type", "none"), theirs.pop("rope.scaling.factor", 1.0)
    if kind not in ("none", "linear"):
        raise unknown("rope.scaling.type", kind, ["none", "linear"])
    if kind == "linear":
        ours["position"]["scaling"] = {"kind": "linear", "factor": factor}
    made_of = {name: theirs.pop(f"rope.llama3.{name}", None) for name in LLAMA3}
    if made_of["factor"] is not None:
        ours["position"]["scaling"] = {"kind": "llama3", **made_of}


def _write_rope(ours: Tree, theirs: Tree) -> None:
    wide = ours["attention"]["head_width"]
    theirs |= {"rope.dimension_count": wide, "attention.value_length": wide}
    scaling = ours["position"]["scaling"]
    if scaling["kind"] == "linear":
        theirs |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling["factor"]}
    if scaling["kind"] == "llama3":  # llama.cpp reads the factors; this is what they are made of
        theirs |= {f"rope.llama3.{name}": scaling[name] for name in LLAMA3}


LLAMA3 = ("factor", "low", "high", "context")
SIZES = (
    Is("vocab_size", "vocabulary"),
    Is("context_length", "context"),
    Is("embedding_length", "width"),
    Is("block_count", "layers"),
    Is("feed_forward_length", "ffn.width", None, ZERO),
    Is("attention.head_count", "attention.heads"),
    Only("expert_count", 0),
    Ignored("expert_used_count", "attention.causal"),
)
TURNED = (
    *SIZES,
    Is("attention.head_count_kv", "attention.kv_heads", None, ZERO),
    Is("attention.key_length", "attention.head_width", None, ZERO),
    Is("attention.layer_norm_rms_epsilon", "norm.eps"),
    Is("rope.freq_base", "position.theta", 10000.0),
    Both(_read_rope, _write_rope),
)
HEAD = {"decoder": c.Language()}
KINDS = {
    family.name: family
    for family in (
        Family("llama", llama.BASE, HEAD, TURNED, paired_table),
        Family("qwen2", llama.QWEN2.base, HEAD, TURNED, plain_table),
        Family("qwen3", llama.QWEN3.base, HEAD, TURNED, plain_table),
        Family(
            "gpt2",
            replace(gpt2.GPT2.base, ffn=c.FeedForward("gelu-tanh")),
            HEAD,
            (*SIZES, Is("attention.layer_norm_epsilon", "norm.eps"), Only("attention.head_count_kv", None)),
            plain_table,
        ),
    )
}
