"""Marian: the encoder-decoder of 2017, with waves in two halves and a bias on its logits."""

from clearhead import config as c
from clearhead.weights.mapping import (
    ACTIVATIONS,
    Attr,
    ConfigDict,
    Custom,
    Ignore,
    ModelFamily,
    Require,
    WeightMap,
    WeightRule,
    rename_layers,
    reshape,
    unsupported_value,
)


def attention_layers(theirs: str, ours: str) -> dict[str, str]:
    return {f"{theirs}.{name}_proj": f"{ours}.{name}" for name in ("q", "k", "v", "out")}


def encoder_decoder_layers() -> dict[str, str]:
    """The blocks of both stacks, as Marian and Whisper call them."""
    found: dict[str, str] = {}
    for theirs, ours in (
        ("model.encoder.layers.{i}", "encoder.blocks.{i}"),
        ("model.decoder.layers.{i}", "blocks.{i}"),
    ):
        found |= attention_layers(f"{theirs}.self_attn", f"{ours}.attn") | attention_layers(
            f"{theirs}.encoder_attn", f"{ours}.cross"
        )
        found |= {
            f"{theirs}.self_attn_layer_norm": f"{ours}.attn_norm",
            f"{theirs}.encoder_attn_layer_norm": f"{ours}.cross_norm",
            f"{theirs}.fc1": f"{ours}.ffn.up",
            f"{theirs}.fc2": f"{ours}.ffn.down",
            f"{theirs}.final_layer_norm": f"{ours}.ffn_norm",
        }
    return found


def check_encoder_sizes(theirs: ConfigDict, ours: ConfigDict) -> None:
    """Heads and widths of the encoder are those of the decoder."""
    for name, option in (
        ("attention_heads", ours["attention"]["heads"]),
        ("ffn_dim", ours["ffn"]["width"]),
    ):
        value = theirs.pop(f"encoder_{name}", option)
        if value != option:
            raise unsupported_value(f"encoder_{name}", value, [f"{option}, the decoder's"])


def write_encoder_sizes(ours: ConfigDict, theirs: ConfigDict) -> None:
    theirs |= {"encoder_attention_heads": theirs["decoder_attention_heads"]}
    theirs |= {
        "encoder_ffn_dim": theirs["decoder_ffn_dim"],
        "num_hidden_layers": theirs.get("encoder_layers"),
    }


ENCODER_DECODER_ATTRIBUTES = (
    Attr("d_model", "width"),
    Attr("encoder_layers", "architecture.encoder_layers"),
    Attr("decoder_layers", "layers"),
    Attr("decoder_attention_heads", "attention.n_heads"),
    Attr("decoder_ffn_dim", "ffn.d_ff"),
    Attr("activation_function", "ffn.activation", "gelu", ACTIVATIONS, strict=True),
    Attr("attention_dropout", "dropout.attention", 0.0),
    Attr("dropout", "dropout.residual dropout.embedding", 0.1),
    Custom(check_encoder_sizes, write_encoder_sizes),
    Require("is_encoder_decoder", True),
    Require("activation_dropout", 0.0),
    Ignore(
        "num_hidden_layers",
        "decoder_layerdrop",
        "encoder_layerdrop",
        "classifier_dropout",
        "classif_dropout",
    ),
)


SHARED_EMBEDDING = "model.shared.weight"
EMBEDDINGS = {
    "encoder.embed.tokens.weight": "model.encoder.embed_tokens.weight",
    "embed.tokens.weight": "model.decoder.embed_tokens.weight",
}


def weight_map(m: c.ModelConfig) -> WeightMap:
    assert isinstance(m.architecture, c.EncoderDecoder)
    own = [WeightRule(theirs, (ours,)) for ours, theirs in EMBEDDINGS.items()]
    return WeightMap(
        [
            *(
                own
                if m.architecture.source_vocab_size
                else [WeightRule(SHARED_EMBEDDING, ("embed.tokens.weight",))]
            ),
            WeightRule("final_logits_bias", ("head.bias",), reshape((1, -1), (-1,))),
            WeightRule("lm_head.weight", ("head.unembed.weight",)),
            *rename_layers(encoder_decoder_layers()),
        ],
        ignored_keys=(
            r"lm_head\.weight",  # tied
            r"model\.(encoder|decoder)\.embed_positions\.weight",  # the waves
        ),
        duplicates=dict.fromkeys(EMBEDDINGS.values(), SHARED_EMBEDDING),
    )


def _read_vocab_sizes(theirs: ConfigDict, ours: ConfigDict) -> None:
    """One for both sides, or one for each."""
    size = theirs.pop("vocab_size", None)
    target = theirs.pop("decoder_vocab_size", None) or size
    shared = theirs.pop("share_encoder_decoder_embeddings", True)
    if shared and target != size:
        raise unsupported_value(
            "decoder_vocab_size", target, [f"{size}, the vocab_size that it is shared with"]
        )
    ours["vocabulary"], ours["shape"]["vocabulary"] = target, 0 if shared else size


def _write_vocab_sizes(ours: ConfigDict, theirs: ConfigDict) -> None:
    own = ours["shape"]["vocabulary"]
    theirs |= {"vocab_size": own or ours["vocabulary"], "decoder_vocab_size": ours["vocabulary"]}
    theirs["share_encoder_decoder_embeddings"] = not own


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
        Attr("max_position_embeddings", "context shape.context", 1024),
        *ENCODER_DECODER_ATTRIBUTES,
        Attr("scale_embedding", "input.scale_embeddings architecture.source_input.scaled", False),
        Attr("tie_word_embeddings", "head.tie_embeddings", True),
        Require("normalize_before", False),
        Require("normalize_embedding", False),
        Require("add_final_layer_norm", False),
        Ignore(
            "add_bias_logits", "static_position_embeddings", "extra_pos_embeddings"
        ),  # of an older program
    ),
    weight_map=weight_map,
)
