"""BERT (also MiniLM and the models of sentence-transformers), and RoFormer: BERT with rotary positions.

RoFormer turns pairs of neighbouring dimensions, so its queries and keys are reordered on the way in and out.
"""

from dataclasses import replace

from clearhead import config as c
from clearhead.weights.families.family import ACTIVATIONS, Family
from clearhead.weights.fields import Both, Ignored, Is, Only, Tree
from clearhead.weights.rules import SAME, Op, Rule, Table, by_turns, layer, layers


def _table(trunk: str, turned: Op, skips: tuple[str, ...]) -> Table:
    block, theirs, predictions = "blocks.{i}", "{p}encoder.layer.{i}", "cls.predictions"
    return Table(
        [
            Rule("{p}embeddings.word_embeddings.weight", ("embed.tokens.weight",)),
            Rule("{p}embeddings.position_embeddings.weight", ("position.table",)),
            Rule("{p}embeddings.token_type_embeddings.weight", ("embed.kinds.weight",)),
            *layer(f"{theirs}.attention.self.query", f"{block}.attn.q", weight=turned, bias=turned),
            *layer(f"{theirs}.attention.self.key", f"{block}.attn.k", weight=turned, bias=turned),
            *layers(
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
            Rule(f"{predictions}.bias", ("head.bias",)),
        ],
        skips=(
            r"embeddings\.position_ids",  # 0, 1, 2 …
            r"cls\.predictions\.decoder\.(weight|bias)",  # tied: the embedding, and the bias once more
            r"cls\.seq_relationship\.(weight|bias)",  # whether one sentence follows another: a head of its own
            r"pooler\.dense\.(weight|bias)",  # read by that head only
            *skips,
        ),
        prefixes=(trunk, ""),
        older={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    )


def bert_table(m: c.ModelConfig) -> Table:
    return _table("bert.", SAME, ())


def roformer_table(m: c.ModelConfig) -> Table:
    skips = (r"encoder\.embed_positions\.weight",)  # the angles, which follow from the position
    return _table("roformer.", by_turns(m.attention.heads), skips)


BASE = c.ModelConfig(
    wiring="post",
    shape=c.Encoder(),
    input=c.Tokens(kinds=2, norm=True),
    ffn=c.FeedForward("gelu"),
    norm=c.LayerNorm(eps=1e-12),
    head=c.MaskedWord(),
)
FIELDS = (
    Is("vocab_size", "vocabulary"),
    Is("hidden_size", "width"),
    Is("num_hidden_layers", "layers"),
    Is("num_attention_heads", "attention.heads"),
    Is("intermediate_size", "ffn.width"),
    Is("hidden_act", "ffn.activation", "gelu", ACTIVATIONS, only_words=True),
    Is("type_vocab_size", "input.kinds", 2),
    Is("layer_norm_eps", "norm.eps", 1e-12),
    Is("attention_probs_dropout_prob", "dropout.attention", 0.1),
    Is("hidden_dropout_prob", "dropout.residual dropout.embedding", 0.1),
    Only("position_embedding_type", "absolute"),
    Only("tie_word_embeddings", True),
    Ignored(
        "classifier_dropout",
        "directionality",
        *(f"pooler_{name}" for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")),
    ),
)
BERT = Family(
    name="bert",
    base=BASE,
    heads={
        "BertForMaskedLM": c.MaskedWord(),
        "BertForPreTraining": c.MaskedWord(),
        "BertForSequenceClassification": c.Classes(pooler=True),
        "BertModel": c.Hidden(),
    },
    fields=(*FIELDS, Is("max_position_embeddings", "context", 512)),
    table=bert_table,
)


def _read_inner(theirs: Tree, ours: Tree) -> None:
    """Embeddings of another width than the model's would need a layer between."""
    Only("embedding_size", ours["width"]).read(theirs, ours)


ROFORMER = Family(
    name="roformer",
    base=replace(BASE, position=c.Rotary()),
    heads={"RoFormerForMaskedLM": c.MaskedWord(), "RoFormerModel": c.Hidden()},
    fields=(
        *FIELDS,
        Is("max_position_embeddings", "context", 1536),
        Only("rotary_value", False),
        Both(_read_inner),
    ),
    table=roformer_table,
)
