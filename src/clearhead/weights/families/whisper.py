"""Whisper: speech to text. Keys have no bias; the encoder's sinusoids are stored weights."""

from clearhead import config as c
from clearhead.config.parse import ConfigDict
from clearhead.weights.families.marian import ENCODER_DECODER_ATTRIBUTES, encoder_decoder_layers
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


def weight_map(m: c.ModelConfig) -> WeightMap:
    return WeightMap(
        [
            WeightRule("model.decoder.embed_tokens.weight", ("embed.tokens.weight",)),
            WeightRule("model.decoder.embed_positions.weight", ("position.table",)),
            WeightRule("model.encoder.embed_positions.weight", ("encoder.position.table",)),
            WeightRule("proj_out.weight", ("head.unembed.weight",)),
            *rename_layers(
                {
                    "model.encoder.conv1": "encoder.embed.conv1",
                    "model.encoder.conv2": "encoder.embed.conv2",
                    "model.encoder.layer_norm": "encoder.final_norm",
                    "model.decoder.layer_norm": "final_norm",
                    **encoder_decoder_layers(),
                }
            ),
        ],
        ignored_keys=(r"proj_out\.weight",),  # equal to the embedding
    )


def _read_frames(theirs: ConfigDict, ours: ConfigDict) -> None:
    architecture = ours["architecture"]
    # the second convolution has stride 2
    architecture["source_input"]["n_frames"] = 2 * architecture["source_context_length"]


WHISPER = ModelFamily(
    name="whisper",
    base=c.ModelConfig(
        architecture=c.EncoderDecoder(source_context_length=1500, source_input=c.Audio()),
        attention=c.Attention(bias=("q", "v", "out")),
        ffn=c.FeedForward("gelu"),
    ),
    heads={"WhisperForConditionalGeneration": c.LMHead()},
    attributes=(
        Attr("vocab_size", "vocab_size"),
        Attr("max_target_positions", "context_length", 448),
        Attr("max_source_positions", "architecture.source_context_length", 1500),
        Attr("num_mel_bins", "architecture.source_input.n_mels", 80),
        *ENCODER_DECODER_ATTRIBUTES,
        Custom(_read_frames),
        Attr("tie_word_embeddings", "head.tie_embeddings", True),
        Require("scale_embedding", False),
        Ignore(
            "apply_spec_augment",
            "classifier_proj_size",
            "mask_feature_length",
            "mask_feature_min_masks",
            "mask_feature_prob",
            "mask_time_length",
            "mask_time_min_masks",
            "mask_time_prob",
            "median_filter_width",  # for word timestamps
            "use_weighted_layer_sum",  # for classification
        ),
    ),
    weight_map=weight_map,
)
