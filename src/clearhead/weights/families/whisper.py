"""Whisper: sound in, text out. Its keys have no bias, and its encoder's waves are stored, so here they are learned."""

from clearhead import config as c
from clearhead.weights.families.family import Family
from clearhead.weights.families.marian import STACKS, sides
from clearhead.weights.fields import Both, Ignored, Is, Only, Tree
from clearhead.weights.rules import Rule, Table, layers


def table(m: c.ModelConfig) -> Table:
    return Table(
        [
            Rule("model.decoder.embed_tokens.weight", ("embed.tokens.weight",)),
            Rule("model.decoder.embed_positions.weight", ("position.table",)),
            Rule("model.encoder.embed_positions.weight", ("encoder.position.table",)),
            Rule("proj_out.weight", ("head.unembed.weight",)),
            *layers(
                {
                    "model.encoder.conv1": "encoder.embed.near",
                    "model.encoder.conv2": "encoder.embed.halve",
                    "model.encoder.layer_norm": "encoder.norm",
                    "model.decoder.layer_norm": "norm",
                    **sides(),
                }
            ),
        ],
        skips=(r"proj_out\.weight",),  # tied
    )


def _read_frames(theirs: Tree, ours: Tree) -> None:
    ours["shape"]["input"]["frames"] = 2 * ours["shape"]["context"]  # the second convolution halves them


MASKING = ("feature_length", "feature_min_masks", "feature_prob", "time_length", "time_min_masks", "time_prob")
WHISPER = Family(
    name="whisper",
    base=c.ModelConfig(
        shape=c.EncoderDecoder(context=1500, input=c.Sound()),
        attention=c.Attention(bias=("q", "v", "out")),
        ffn=c.FeedForward("gelu"),
    ),
    heads={"WhisperForConditionalGeneration": c.Language()},
    fields=(
        Is("vocab_size", "vocabulary"),
        Is("max_target_positions", "context", 448),
        Is("max_source_positions", "shape.context", 1500),
        Is("num_mel_bins", "shape.input.mels", 80),
        *STACKS,
        Both(_read_frames),
        Is("tie_word_embeddings", "head.tied", True),
        Only("scale_embedding", False),
        Ignored(
            "apply_spec_augment",
            "classifier_proj_size",
            "use_weighted_layer_sum",  # of a head that classifies
            "median_filter_width",  # of word times
            *(f"mask_{name}" for name in MASKING),
        ),
    ),
    table=table,
)
