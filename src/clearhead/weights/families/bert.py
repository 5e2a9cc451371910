"""BERT (also MiniLM and the models of sentence-transformers), and RoFormer: BERT with rotary positions.

RoFormer turns pairs of neighbouring dimensions, so its queries and keys are reordered on the way in and out.
"""

from dataclasses import replace

from clearhead import config as c
from clearhead.weights.mapping import (
    ACTIVATIONS,
    IDENTITY,
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
)


def _weight_map(trunk: str, turned: WeightOp, skips: tuple[str, ...]) -> WeightMap:
    block = "blocks.{i}"
    theirs = "{p}encoder.layer.{i}"
    predictions = "cls.predictions"
    return WeightMap(
        [
            WeightRule("{p}embeddings.word_embeddings.weight", ("embed.tokens.weight",)),
            WeightRule("{p}embeddings.position_embeddings.weight", ("position.table",)),
            WeightRule("{p}embeddings.token_type_embeddings.weight", ("embed.kinds.weight",)),
            *rename_layer(
                f"{theirs}.attention.self.query", f"{block}.attn.q", weight=turned, bias=turned
            ),
            *rename_layer(
                f"{theirs}.attention.self.key", f"{block}.attn.k", weight=turned, bias=turned
            ),
            *rename_layers(
                {
                    "{p}embeddings.LayerNorm": "embed.norm",
                    f"{theirs}.attention.self.value": f"{block}.attn.v",
                    f"{theirs}.attention.output.dense": f"{block}.attn.out",
                    f"{theirs}.attention.output.LayerNorm": f"{block}.attn_norm",
                    f"{theirs}.intermediate.dense": f"{block}.ffn.up",
                    f"{theirs}.output.dense": f"{block}.ffn.down",
                    f"{theirs}.output.LayerNorm": f"{block}.ffn_norm",
                    f"{predictions}.transform.dense": "head.dense",
                    f"{predictions}.transform.LayerNorm": "head.norm",
                    "{p}pooler.dense": "head.pooler",
                    "classifier": "head.out",
                }
            ),
            WeightRule(f"{predictions}.bias", ("head.bias",)),
        ],
        ignored_keys=(
            r"embeddings\.position_ids",  # 0, 1, 2 …
            r"cls\.predictions\.decoder\.(weight|bias)",  # tied: the embedding, and the bias once more
            r"cls\.seq_relationship\.(weight|bias)",  # whether one sentence follows another: a head of its own
            r"pooler\.dense\.(weight|bias)",  # read by that head only
            *skips,
        ),
        prefixes=(trunk, ""),
        legacy_suffixes={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    )


def bert_weight_map(m: c.ModelConfig) -> WeightMap:
    return _weight_map("bert.", IDENTITY, ())


def roformer_weight_map(m: c.ModelConfig) -> WeightMap:
    skips = (r"encoder\.embed_positions\.weight",)  # the angles, which follow from the position
    return _weight_map("roformer.", deinterleave_rotary(m.attention.n_heads), skips)


BASE = c.ModelConfig(
    norm_position="post",
    architecture=c.Encoder(),
    input=c.Tokens(token_types=2, norm=True),
    ffn=c.FeedForward("gelu"),
    norm=c.LayerNorm(eps=1e-12),
    head=c.MLMHead(),
)
ATTRIBUTES = (
    Attr("vocab_size", "vocabulary"),
    Attr("hidden_size", "width"),
    Attr("num_hidden_layers", "layers"),
    Attr("num_attention_heads", "attention.n_heads"),
    Attr("intermediate_size", "ffn.d_ff"),
    Attr("hidden_act", "ffn.activation", "gelu", ACTIVATIONS, strict=True),
    Attr("type_vocab_size", "input.token_types", 2),
    Attr("layer_norm_eps", "norm.eps", 1e-12),
    Attr("attention_probs_dropout_prob", "dropout.attention", 0.1),
    Attr("hidden_dropout_prob", "dropout.residual dropout.embedding", 0.1),
    Require("position_embedding_type", "absolute"),
    Require("tie_word_embeddings", True),
    Ignore(
        "classifier_dropout",
        "directionality",
        *(
            f"pooler_{name}"
            for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")
        ),
    ),
)
BERT = ModelFamily(
    name="bert",
    base=BASE,
    heads={
        "BertForMaskedLM": c.MLMHead(),
        "BertForPreTraining": c.MLMHead(),
        "BertForSequenceClassification": c.ClassificationHead(pooler=True),
        "BertModel": c.NoHead(),
    },
    attributes=(*ATTRIBUTES, Attr("max_position_embeddings", "context", 512)),
    weight_map=bert_weight_map,
)


def _read_embedding_size(theirs: ConfigDict, ours: ConfigDict) -> None:
    """Embeddings of another width than the model's would need a layer between."""
    Require("embedding_size", ours["width"]).read(theirs, ours)


ROFORMER = ModelFamily(
    name="roformer",
    base=replace(BASE, position=c.Rotary()),
    heads={"RoFormerForMaskedLM": c.MLMHead(), "RoFormerModel": c.NoHead()},
    attributes=(
        *ATTRIBUTES,
        Attr("max_position_embeddings", "context", 1536),
        Require("rotary_value", False),
        Custom(_read_embedding_size),
    ),
    weight_map=roformer_weight_map,
)
