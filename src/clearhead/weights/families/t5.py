"""T5 (also Flan-T5 and v1.1): buckets of distances, RMSNorm, scores that are not scaled, a tied head that is."""

from clearhead import config as c
from clearhead.weights.mapping import (
    Attr,
    ConfigDict,
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


def _stack_layers(theirs: str, ours: str, feed: int) -> dict[str, str]:
    block = theirs + ".block.{i}.layer"
    parts = {0: ("SelfAttention", "attn")}
    if feed == 2:
        parts[1] = ("EncDecAttention", "cross")
    found = {f"{theirs}.final_layer_norm": ours + "norm"}
    for number, (their_part, part) in parts.items():
        for name, our_name in {"q": "q", "k": "k", "v": "v", "o": "out"}.items():
            found[f"{block}.{number}.{their_part}.{name}"] = f"{ours}blocks.{{i}}.{part}.{our_name}"
        found[f"{block}.{number}.layer_norm"] = f"{ours}blocks.{{i}}.{part}_norm"
    found[f"{block}.{feed}.layer_norm"] = ours + "blocks.{i}.ffn_norm"
    found[f"{block}.{feed}.DenseReluDense.wo"] = ours + "blocks.{i}.ffn.down"
    return found


def weight_map(m: c.ModelConfig) -> WeightMap:
    rules = [
        WeightRule("shared.weight", ("embed.tokens.weight",)),
        WeightRule("lm_head.weight", ("head.unembed.weight",)),
    ]
    for theirs, ours, feed in (("encoder", "encoder.", 1), ("decoder", "", 2)):
        rules += rename_layers(_stack_layers(theirs, ours, feed))
        bias = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rules.append(WeightRule(bias, (ours + "position.table",)))  # read by all blocks
        up, gate = (
            f"{theirs}.block.{{i}}.layer.{feed}.DenseReluDense.{n}.weight" for n in ("wi_0", "wi_1")
        )
        rules.append(
            WeightRule(
                up if m.ffn.is_gated else up.replace("wi_0", "wi"),
                (ours + "blocks.{i}.ffn.up.weight",),
            )
        )
        rules.append(WeightRule(gate, (ours + "blocks.{i}.ffn.gate.weight",)))
    return WeightMap(
        rules,
        ignored_keys=(
            r"lm_head\.weight",  # tied
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",  # never read
        ),
        duplicates=dict.fromkeys(
            ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"
        ),
    )


def _read_depth_and_head(theirs: ConfigDict, ours: ConfigDict) -> None:
    """Both stacks are alike but for their depth; a tied head is scaled unless it is said otherwise."""
    ours["layers"] = theirs.pop("num_decoder_layers", None) or ours["shape"]["layers"]
    tied = theirs.pop("tie_word_embeddings", True)
    scaled = theirs.pop("scale_decoder_outputs", tied)
    ours["head"] |= {"tied": tied, "scaled": scaled}


def _write_depth_and_head(ours: ConfigDict, theirs: ConfigDict) -> None:
    theirs |= {"num_decoder_layers": ours["layers"], "tie_word_embeddings": ours["head"]["tied"]}
    theirs["scale_decoder_outputs"] = ours["head"]["scaled"]


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
        Attr("vocab_size", "vocabulary"),
        Attr(
            "n_positions", "context shape.context", 512
        ),  # what it was trained on; buckets know no end
        Attr("d_model", "width"),
        Attr("num_layers", "architecture.encoder_layers"),
        Attr("num_heads", "attention.n_heads"),
        Attr("d_kv", "attention.d_head", 64),
        Attr("d_ff", "ffn.d_ff"),
        Attr("feed_forward_proj", "ffn.activation", "relu", ACTIVATIONS, strict=True),
        Attr("relative_attention_num_buckets", "position.num_buckets", 32),
        Attr("relative_attention_max_distance", "position.max_distance", 128),
        Attr("layer_norm_epsilon", "norm.eps", 1e-6),
        Attr("dropout_rate", "dropout.residual dropout.embedding dropout.attention", 0.1),
        Custom(_read_depth_and_head, _write_depth_and_head),
        Require("is_encoder_decoder", True),
        Ignore(
            "classifier_dropout", "dense_act_fn", "is_gated_act"
        ),  # the last two follow from feed_forward_proj
    ),
    weight_map=weight_map,
)
