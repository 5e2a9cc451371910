"""GPT-2. Its linear layers are stored as inputs × outputs, with q, k and v in one."""

from clearhead import config as c
from clearhead.weights.mapping import (
    ACTIVATIONS,
    NONE_IS_ZERO,
    TRANSPOSE,
    Attr,
    Ignore,
    ModelFamily,
    Require,
    WeightMap,
    WeightRule,
    is_causal_mask,
    rename_layer,
    rename_layers,
    split_rows,
)


def weight_map(m: c.ModelConfig) -> WeightMap:
    qkv = split_rows(m.d_model, m.d_model, m.d_model)
    return WeightMap(
        [
            WeightRule("{p}wte.weight", ("embed.tokens.weight",)),
            WeightRule("{p}wpe.weight", ("position.table",)),
            *rename_layers(
                {
                    "{p}h.{i}.ln_1": "blocks.{i}.attn_norm",
                    "{p}h.{i}.ln_2": "blocks.{i}.ffn_norm",
                    "{p}ln_f": "final_norm",
                }
            ),
            *rename_layer(
                "{p}h.{i}.attn.c_attn",
                "blocks.{i}.attn.q",
                "blocks.{i}.attn.k",
                "blocks.{i}.attn.v",
                weight=TRANSPOSE.then(qkv),
                bias=qkv,
            ),
            *rename_layer("{p}h.{i}.attn.c_proj", "blocks.{i}.attn.out", weight=TRANSPOSE),
            *rename_layer("{p}h.{i}.mlp.c_fc", "blocks.{i}.ffn.up", weight=TRANSPOSE),
            *rename_layer("{p}h.{i}.mlp.c_proj", "blocks.{i}.ffn.down", weight=TRANSPOSE),
            WeightRule("lm_head.weight", ("head.unembed.weight",)),
        ],
        ignored_keys=(
            r"lm_head\.weight",  # equal to the embedding, or without a head
            r"h\.\d+\.attn\.masked_bias",  # a large negative number that no version loads
        ),
        tables={r"h\.\d+\.attn\.bias": is_causal_mask},
        prefixes=("transformer.", ""),
    )


GPT2 = ModelFamily(
    name="gpt2",
    base=c.ModelConfig(),
    heads={"GPT2LMHeadModel": c.LMHead(), "GPT2Model": c.NoHead()},
    attributes=(
        Attr("vocab_size", "vocab_size"),
        Attr("n_positions", "context_length", 1024),
        Attr("n_embd", "d_model"),
        Attr("n_layer", "n_layers"),
        Attr("n_head", "attention.n_heads"),
        Attr("n_inner", "ffn.d_ff", None, NONE_IS_ZERO),
        Attr("activation_function", "ffn.activation", "gelu_new", ACTIVATIONS, strict=True),
        Attr("layer_norm_epsilon", "norm.eps", 1e-5),
        Attr("scale_attn_weights", "attention.scale", True),
        Attr("tie_word_embeddings", "head.tie_embeddings", True),
        Attr("embd_pdrop", "dropout.embedding", 0.1),
        Attr("resid_pdrop", "dropout.residual", 0.1),
        Attr("attn_pdrop", "dropout.attention", 0.1),
        Require("scale_attn_by_inverse_layer_idx", False),
        Ignore(
            "n_ctx",
            "n_special",
            "predict_special_tokens",
            "reorder_and_upcast_attn",  # changes the precision only
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        ),
    ),
    weight_map=weight_map,
)
