"""T5, Flan-T5 and T5 v1.1: relative position buckets, RMSNorm, unscaled attention scores."""

from clearhead import config as c
from clearhead.config.parse import ConfigDict
from clearhead.weights.mapping import (
    Attr,
    Custom,
    Ignore,
    ModelFamily,
    Require,
    WeightMap,
    WeightRule,
    rename_layers,
)

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gated-gelu": "geglu-tanh",
    "gated-silu": "swiglu",
    "silu": "silu",
}


def _stack_rules(stack: str, ours: str, ffn_index: int, is_gated: bool) -> list[WeightRule]:
    """One stack. Its blocks are lists of layers: attention, cross-attention, feed-forward."""
    block = f"{stack}.block.{{i}}.layer"
    ffn = f"{block}.{ffn_index}.DenseReluDense"
    our_block = f"{ours}blocks.{{i}}"
    layers = {
        f"{stack}.final_layer_norm": f"{ours}final_norm",
        f"{block}.{ffn_index}.layer_norm": f"{our_block}.ffn_norm",
        f"{ffn}.wo": f"{our_block}.ffn.down",
    }
    if is_gated:
        layers[f"{ffn}.wi_0"] = f"{our_block}.ffn.gate"
        layers[f"{ffn}.wi_1"] = f"{our_block}.ffn.up"
    else:
        layers[f"{ffn}.wi"] = f"{our_block}.ffn.up"
    attentions = [("SelfAttention", "attn"), ("EncDecAttention", "cross_attn")]
    for index, (theirs, attn) in enumerate(attentions[:ffn_index]):
        layers[f"{block}.{index}.layer_norm"] = f"{our_block}.{attn}_norm"
        for name, projection in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out")):
            layers[f"{block}.{index}.{theirs}.{name}"] = f"{our_block}.{attn}.{projection}"
    # stored in the first block, used by all
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [*rename_layers(layers), WeightRule(bias, (f"{ours}position.table",))]


def weight_map(m: c.ModelConfig) -> WeightMap:
    return WeightMap(
        [
            WeightRule("shared.weight", ("embed.tokens.weight",)),
            WeightRule("lm_head.weight", ("head.unembed.weight",)),
            *_stack_rules("encoder", "encoder.", 1, m.ffn.is_gated),
            *_stack_rules("decoder", "", 2, m.ffn.is_gated),
        ],
        ignored_keys=(
            r"lm_head\.weight",  # equal to the embedding
            # stored by old versions, but never used
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
        ),
        duplicates={
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
        },
    )


def _check_activation(theirs: ConfigDict, ours: ConfigDict) -> None:
    """Attributes that follow from feed_forward_proj, but win over it in transformers."""
    name = theirs.get("feed_forward_proj", "relu")
    gate, _, activation = str(name).rpartition("-")
    Require("is_gated_act", gate == "gated").read(theirs, ours)
    Require("dense_act_fn", "gelu_new" if name == "gated-gelu" else activation).read(theirs, ours)


def _read_depth_and_head(theirs: ConfigDict, ours: ConfigDict) -> None:
    """The stacks differ in depth only; a tied head scales its input by default."""
    encoder_layers = ours["architecture"]["encoder_layers"]
    ours["n_layers"] = theirs.pop("num_decoder_layers", None) or encoder_layers
    tie_embeddings = theirs.pop("tie_word_embeddings", True)
    scale_logits = theirs.pop("scale_decoder_outputs", tie_embeddings)
    ours["head"] |= {"tie_embeddings": tie_embeddings, "scale_logits": scale_logits}


def _write_depth_and_head(ours: ConfigDict, theirs: ConfigDict) -> None:
    theirs["num_decoder_layers"] = ours["n_layers"]
    theirs["tie_word_embeddings"] = ours["head"]["tie_embeddings"]
    theirs["scale_decoder_outputs"] = ours["head"]["scale_logits"]


T5 = ModelFamily(
    name="t5",
    base=c.ModelConfig(
        architecture=c.EncoderDecoder(),
        position=c.T5(),
        attention=c.Attention(bias=(), scale=False),
        ffn=c.FeedForward("relu", bias=False),
        norm=c.RMSNorm(),
        head=c.LMHead(scale_logits=True),
    ),
    heads={"T5ForConditionalGeneration": c.LMHead(scale_logits=True)},
    attributes=(
        Attr("vocab_size", "vocab_size"),
        # the length of training texts; the position buckets have no limit
        Attr("n_positions", "context_length architecture.source_context_length", 512),
        Attr("d_model", "d_model"),
        Attr("num_layers", "architecture.encoder_layers"),
        Attr("num_heads", "attention.n_heads"),
        Attr("d_kv", "attention.d_head", 64),
        Attr("d_ff", "ffn.d_ff"),
        Custom(_check_activation),
        Attr("feed_forward_proj", "ffn.activation", "relu", ACTIVATIONS, strict=True),
        Attr("relative_attention_num_buckets", "position.num_buckets", 32),
        Attr("relative_attention_max_distance", "position.max_distance", 128),
        Attr("layer_norm_epsilon", "norm.eps", 1e-6),
        Attr("dropout_rate", "dropout.residual dropout.embedding dropout.attention", 0.1),
        Custom(_read_depth_and_head, _write_depth_and_head),
        Require("is_encoder_decoder", True),
        Ignore("classifier_dropout"),
    ),
    weight_map=weight_map,
)
