"""BERT (also MiniLM and sentence-transformers), and RoFormer: BERT with rotary positions.

RoFormer stores queries and keys with rotary pairs interleaved.
"""

from collections.abc import Mapping
from dataclasses import replace

from clearhead import config as c
from clearhead.config.parse import ConfigDict
from clearhead.weights.mapping import (
    ACTIVATIONS,
    IDENTITY,
    Attr,
    Custom,
    Ignore,
    ModelFamily,
    Require,
    TableCheck,
    WeightMap,
    WeightOp,
    WeightRule,
    deinterleave_rotary,
    is_position_ids,
    rename_layer,
    rename_layers,
    sinusoid_table,
)


def _weight_map(prefix: str, qk: WeightOp, tables: Mapping[str, TableCheck]) -> WeightMap:
    ours = "blocks.{i}"
    theirs = "{p}encoder.layer.{i}"
    predictions = "cls.predictions"
    return WeightMap(
        [
            WeightRule("{p}embeddings.word_embeddings.weight", ("embed.tokens.weight",)),
            WeightRule("{p}embeddings.position_embeddings.weight", ("position.table",)),
            WeightRule("{p}embeddings.token_type_embeddings.weight", ("embed.token_types.weight",)),
            *rename_layer(f"{theirs}.attention.self.query", f"{ours}.attn.q", weight=qk, bias=qk),
            *rename_layer(f"{theirs}.attention.self.key", f"{ours}.attn.k", weight=qk, bias=qk),
            *rename_layers(
                {
                    "{p}embeddings.LayerNorm": "embed.norm",
                    f"{theirs}.attention.self.value": f"{ours}.attn.v",
                    f"{theirs}.attention.output.dense": f"{ours}.attn.out",
                    f"{theirs}.attention.output.LayerNorm": f"{ours}.attn_norm",
                    f"{theirs}.intermediate.dense": f"{ours}.ffn.up",
                    f"{theirs}.output.dense": f"{ours}.ffn.down",
                    f"{theirs}.output.LayerNorm": f"{ours}.ffn_norm",
                    f"{predictions}.transform.dense": "head.dense",
                    f"{predictions}.transform.LayerNorm": "head.norm",
                    "{p}pooler.dense": "head.pooler",
                    "classifier": "head.out",
                }
            ),
            WeightRule(f"{predictions}.bias", ("head.bias",)),
        ],
        ignored_keys=(
            r"cls\.seq_relationship\.(weight|bias)",  # the head for next-sentence prediction
            r"pooler\.dense\.(weight|bias)",  # used by that head only
        ),
        duplicates={
            f"{predictions}.decoder.weight": "{p}embeddings.word_embeddings.weight",
            f"{predictions}.decoder.bias": f"{predictions}.bias",
        },
        tables={r"embeddings\.position_ids": is_position_ids, **tables},
        prefixes=(prefix, ""),
        legacy_suffixes={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    )


def bert_weight_map(m: c.ModelConfig) -> WeightMap:
    return _weight_map("bert.", IDENTITY, {})


def roformer_weight_map(m: c.ModelConfig) -> WeightMap:
    tables = {r"encoder\.embed_positions\.weight": sinusoid_table(m.d_head)}
    return _weight_map("roformer.", deinterleave_rotary(m.attention.n_heads), tables)


BASE = c.ModelConfig(
    norm_position="post",
    architecture=c.Encoder(),
    input=c.Tokens(token_types=2, norm=True),
    ffn=c.FeedForward("gelu"),
    norm=c.LayerNorm(eps=1e-12),
    head=c.MLMHead(),
)
ATTRIBUTES = (
    Attr("vocab_size", "vocab_size"),
    Attr("hidden_size", "d_model"),
    Attr("num_hidden_layers", "n_layers"),
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
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
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
    attributes=(*ATTRIBUTES, Attr("max_position_embeddings", "context_length", 512)),
    weight_map=bert_weight_map,
)


def _read_embedding_size(theirs: ConfigDict, ours: ConfigDict) -> None:
    """Embeddings of another size would need a projection."""
    Require("embedding_size", ours["d_model"]).read(theirs, ours)


ROFORMER = ModelFamily(
    name="roformer",
    base=replace(BASE, position=c.Rotary()),
    heads={"RoFormerForMaskedLM": c.MLMHead(), "RoFormerModel": c.NoHead()},
    attributes=(
        *ATTRIBUTES,
        Attr("max_position_embeddings", "context_length", 1536),
        Require("rotary_value", False),
        Custom(_read_embedding_size),
    ),
    weight_map=roformer_weight_map,
)
