"""Marian: the encoder-decoder of 2017, with sinusoidal positions and a bias on the logits."""

from clearhead import config as c
from clearhead.config.parse import ConfigDict
from clearhead.weights.mapping import (
    ACTIVATIONS,
    Attr,
    Custom,
    Ignore,
    ModelFamily,
    Require,
    WeightMap,
    WeightRule,
    rename_layers,
    reshape,
    sinusoid_table,
    unsupported_value,
)


def _attention_layers(theirs: str, ours: str) -> dict[str, str]:
    return {f"{theirs}.{name}_proj": f"{ours}.{name}" for name in ("q", "k", "v", "out")}


def encoder_decoder_layers() -> dict[str, str]:
    """The blocks of both stacks under the names that Marian and Whisper share."""
    layers: dict[str, str] = {}
    for theirs, ours in (
        ("model.encoder.layers.{i}", "encoder.blocks.{i}"),
        ("model.decoder.layers.{i}", "blocks.{i}"),
    ):
        layers |= _attention_layers(f"{theirs}.self_attn", f"{ours}.attn")
        layers |= _attention_layers(f"{theirs}.encoder_attn", f"{ours}.cross_attn")
        layers |= {
            f"{theirs}.self_attn_layer_norm": f"{ours}.attn_norm",
            f"{theirs}.encoder_attn_layer_norm": f"{ours}.cross_attn_norm",
            f"{theirs}.fc1": f"{ours}.ffn.up",
            f"{theirs}.fc2": f"{ours}.ffn.down",
            f"{theirs}.final_layer_norm": f"{ours}.ffn_norm",
        }
    return layers


def _check_encoder_sizes(theirs: ConfigDict, ours: ConfigDict) -> None:
    """The encoder must have the decoder's number of heads and feed-forward size."""
    encoder_layers = ours["architecture"]["encoder_layers"]
    for name, size in (
        ("encoder_attention_heads", ours["attention"]["n_heads"]),
        ("encoder_ffn_dim", ours["ffn"]["d_ff"]),
        ("num_hidden_layers", encoder_layers),  # another name of encoder_layers
    ):
        value = theirs.pop(name, size)
        if value != size:
            raise unsupported_value(name, value, [size])


def _write_encoder_sizes(ours: ConfigDict, theirs: ConfigDict) -> None:
    theirs["encoder_attention_heads"] = theirs["decoder_attention_heads"]
    theirs["encoder_ffn_dim"] = theirs["decoder_ffn_dim"]
    theirs["num_hidden_layers"] = theirs.get("encoder_layers")


ENCODER_DECODER_ATTRIBUTES = (
    Attr("d_model", "d_model"),
    Attr("encoder_layers", "architecture.encoder_layers"),
    Attr("decoder_layers", "n_layers"),
    Attr("decoder_attention_heads", "attention.n_heads"),
    Attr("decoder_ffn_dim", "ffn.d_ff"),
    Attr("activation_function", "ffn.activation", "gelu", ACTIVATIONS, strict=True),
    Attr("attention_dropout", "dropout.attention", 0.0),
    Attr("dropout", "dropout.residual dropout.embedding", 0.1),
    Custom(_check_encoder_sizes, _write_encoder_sizes),
    Require("is_encoder_decoder", True),
    Require("activation_dropout", 0.0),
    Ignore(
        "decoder_layerdrop",
        "encoder_layerdrop",
        "classifier_dropout",
        "classif_dropout",
    ),
)

SHARED_EMBEDDING = "model.shared.weight"
ENCODER_EMBEDDING = "model.encoder.embed_tokens.weight"
DECODER_EMBEDDING = "model.decoder.embed_tokens.weight"


def weight_map(m: c.ModelConfig) -> WeightMap:
    assert isinstance(m.architecture, c.EncoderDecoder)
    if m.architecture.source_vocab_size:
        embeddings = [
            WeightRule(ENCODER_EMBEDDING, ("encoder.embed.tokens.weight",)),
            WeightRule(DECODER_EMBEDDING, ("embed.tokens.weight",)),
        ]
    else:
        embeddings = [WeightRule(SHARED_EMBEDDING, ("embed.tokens.weight",))]
    return WeightMap(
        [
            *embeddings,
            WeightRule("final_logits_bias", ("head.bias",), reshape((1, -1), (-1,))),
            WeightRule("lm_head.weight", ("head.unembed.weight",)),
            *rename_layers(encoder_decoder_layers()),
        ],
        ignored_keys=(r"lm_head\.weight",),  # equal to the embedding
        tables={r"model\.(encoder|decoder)\.embed_positions\.weight": sinusoid_table(m.d_model)},
        duplicates=dict.fromkeys((ENCODER_EMBEDDING, DECODER_EMBEDDING), SHARED_EMBEDDING),
    )


def _read_vocab_sizes(theirs: ConfigDict, ours: ConfigDict) -> None:
    """One shared vocabulary, or one for the source and one for the target."""
    source = theirs.pop("vocab_size", None)
    target = theirs.pop("decoder_vocab_size", None) or source
    is_shared = theirs.pop("share_encoder_decoder_embeddings", True)
    if is_shared and target != source:
        supported = [f"{source}, the size of the vocab it is shared with"]
        raise unsupported_value("decoder_vocab_size", target, supported)
    ours["vocab_size"] = target
    ours["architecture"]["source_vocab_size"] = 0 if is_shared else source


def _write_vocab_sizes(ours: ConfigDict, theirs: ConfigDict) -> None:
    source = ours["architecture"]["source_vocab_size"]
    theirs["vocab_size"] = source or ours["vocab_size"]
    theirs["decoder_vocab_size"] = ours["vocab_size"]
    theirs["share_encoder_decoder_embeddings"] = not source


MARIAN = ModelFamily(
    name="marian",
    base=c.ModelConfig(
        norm_position="post",
        architecture=c.EncoderDecoder(),
        position=c.Sinusoidal(layout="halves"),
        ffn=c.FeedForward("silu"),
        head=c.LMHead(bias=True),
    ),
    heads={"MarianMTModel": c.LMHead(bias=True)},
    attributes=(
        Custom(_read_vocab_sizes, _write_vocab_sizes),
        Attr("max_position_embeddings", "context_length architecture.source_context_length", 1024),
        *ENCODER_DECODER_ATTRIBUTES,
        Attr(
            "scale_embedding",
            "input.scale_embeddings architecture.source_input.scale_embeddings",
            False,
        ),
        Attr("tie_word_embeddings", "head.tie_embeddings", True),
        Require("normalize_before", False),
        Require("normalize_embedding", False),
        Require("add_final_layer_norm", False),
        # left over from conversion
        Ignore("add_bias_logits", "static_position_embeddings", "extra_pos_embeddings"),
    ),
    weight_map=weight_map,
)
