"""Whisper: sound in, text out. Its keys have no bias, and its encoder's waves are stored, so here they are learned."""

from clearhead import config as c
from clearhead.weights.families.marian import ENCODER_DECODER_ATTRIBUTES, encoder_decoder_layers
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


def weight_map(m: c.ModelConfig) -> WeightMap:
    return WeightMap(
        [
            WeightRule("model.decoder.embed_tokens.weight", ("embed.tokens.weight",)),
            WeightRule("model.decoder.embed_positions.weight", ("position.table",)),
            WeightRule("model.encoder.embed_positions.weight", ("encoder.position.table",)),
            WeightRule("proj_out.weight", ("head.unembed.weight",)),
            *rename_layers(
                {
                    "model.encoder.conv1": "encoder.embed.near",
                    "model.encoder.conv2": "encoder.embed.halve",
                    "model.encoder.layer_norm": "encoder.norm",
                    "model.decoder.layer_norm": "norm",
                    **encoder_decoder_layers(),
                }
            ),
        ],
        ignored_keys=(r"proj_out\.weight",),  # tied
    )


def _read_frames(theirs: ConfigDict, ours: ConfigDict) -> None:
    ours["shape"]["input"]["frames"] = (
        2 * ours["shape"]["context"]
    )  # the second convolution halves them


SPEC_AUGMENT = (
    "feature_length",
    "feature_min_masks",
    "feature_prob",
    "time_length",
    "time_min_masks",
    "time_prob",
)
WHISPER = ModelFamily(
    name="whisper",
    base=c.ModelConfig(
        architecture=c.EncoderDecoder(source_context_length=1500, source_input=c.Audio()),
        attention=c.Attention(bias=("q", "v", "out")),
        ffn=c.FeedForward("gelu"),
    ),
    heads={"WhisperForConditionalGeneration": c.LMHead()},
    attributes=(
        Attr("vocab_size", "vocabulary"),
        Attr("max_target_positions", "context", 448),
        Attr("max_source_positions", "architecture.source_context_length", 1500),
        Attr("num_mel_bins", "architecture.source_input.mels", 80),
        *ENCODER_DECODER_ATTRIBUTES,
        Custom(_read_frames),
        Attr("tie_word_embeddings", "head.tie_embeddings", True),
        Require("scale_embedding", False),
        Ignore(
            "apply_spec_augment",
            "classifier_proj_size",
            "use_weighted_layer_sum",  # of a head that classifies
            "median_filter_width",  # of word times
            *(f"mask_{name}" for name in SPEC_AUGMENT),
        ),
    ),
    weight_map=weight_map,
)
