"""GPT-2. Its layers are stored as inputs × outputs, with q, k and v in one."""

from clearhead import config as c
from clearhead.weights.families.family import ACTIVATIONS, ZERO, Family
from clearhead.weights.fields import Ignored, Is, Only
from clearhead.weights.rules import TRANSPOSED, Rule, Table, layer, layers, split


def table(m: c.ModelConfig) -> Table:
    three = split(m.width, m.width, m.width)
    return Table(
        [
            Rule("{p}wte.weight", ("embed.tokens.weight",)),
            Rule("{p}wpe.weight", ("position.table",)),
            *layers(
                {
                    "{p}h.{i}.ln_1": "blocks.{i}.attn_norm",
                    "{p}h.{i}.ln_2": "blocks.{i}.ffn_norm",
                    "{p}ln_f": "norm",
                }
            ),
            *layer(
                "{p}h.{i}.attn.c_attn",
                "blocks.{i}.attn.q",
                "blocks.{i}.attn.k",
                "blocks.{i}.attn.v",
                weight=TRANSPOSED.then(three),
                bias=three,
            ),
            *layer("{p}h.{i}.attn.c_proj", "blocks.{i}.attn.out", weight=TRANSPOSED),
            *layer("{p}h.{i}.mlp.c_fc", "blocks.{i}.ffn.up", weight=TRANSPOSED),
            *layer("{p}h.{i}.mlp.c_proj", "blocks.{i}.ffn.down", weight=TRANSPOSED),
            Rule("lm_head.weight", ("head.unembed.weight",)),
        ],
        skips=(
            r"lm_head\.weight",  # tied: the embedding once more
            r"h\.\d+\.attn\.(bias|masked_bias)",  # the causal mask
        ),
        prefixes=("transformer.", ""),
    )


GPT2 = Family(
    name="gpt2",
    base=c.ModelConfig(),
    heads={"GPT2LMHeadModel": c.Language(), "GPT2Model": c.Hidden()},
    fields=(
        Is("vocab_size", "vocabulary"),
        Is("n_positions", "context", 1024),
        Is("n_embd", "width"),
        Is("n_layer", "layers"),
        Is("n_head", "attention.heads"),
        Is("n_inner", "ffn.width", None, ZERO),
        Is("activation_function", "ffn.activation", "gelu_new", ACTIVATIONS, only_words=True),
        Is("layer_norm_epsilon", "norm.eps", 1e-5),
        Is("scale_attn_weights", "attention.scaled", True),
        Is("tie_word_embeddings", "head.tied", True),
        Is("embd_pdrop", "dropout.embedding", 0.1),
        Is("resid_pdrop", "dropout.residual", 0.1),
        Is("attn_pdrop", "dropout.attention", 0.1),
        Only("scale_attn_by_inverse_layer_idx", False),
        Ignored(
            "n_ctx",
            "n_special",
            "predict_special_tokens",
            "reorder_and_upcast_attn",  # the same numbers, in another precision
            *(f"summary_{name}" for name in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")),
        ),
    ),
    table=table,
)
