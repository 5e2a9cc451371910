"""ViT: a picture as patches. Its convolution over patches is our one matrix for each."""

from clearhead import config as c
from clearhead.weights.families.family import ACTIVATIONS, Family
from clearhead.weights.fields import Both, Ignored, Is, Tree
from clearhead.weights.rules import Rule, Table, layer, layers, reshaped


def table(m: c.ModelConfig) -> Table:
    block, theirs, p = "blocks.{i}", "{p}encoder.layer.{i}", m.input
    assert isinstance(p, c.Pictures)
    kernel = (m.width, p.channels, p.patch, p.patch)
    return Table(
        [
            Rule("{p}embeddings.cls_token", ("embed.first",), reshaped((1, 1, -1), (-1,))),
            Rule(
                "{p}embeddings.position_embeddings", ("position.table",), reshaped((1, m.context, -1), (m.context, -1))
            ),
            *layer(
                "{p}embeddings.patch_embeddings.projection",
                "embed.project",
                weight=reshaped(kernel, (m.width, p.channels * p.patch**2)),
            ),
            *layers(
                {
                    f"{theirs}.layernorm_before": f"{block}.attn_norm",
                    f"{theirs}.attention.attention.query": f"{block}.attn.q",
                    f"{theirs}.attention.attention.key": f"{block}.attn.k",
                    f"{theirs}.attention.attention.value": f"{block}.attn.v",
                    f"{theirs}.attention.output.dense": f"{block}.attn.out",
                    f"{theirs}.layernorm_after": f"{block}.ffn_norm",
                    f"{theirs}.intermediate.dense": f"{block}.ffn.up",
                    f"{theirs}.output.dense": f"{block}.ffn.down",
                    "{p}layernorm": "norm",
                    "classifier": "head.out",
                }
            ),
        ],
        skips=(r"pooler\.dense\.(weight|bias)",),  # trained for no task
        prefixes=("vit.", ""),
    )


def _read_context(theirs: Tree, ours: Tree) -> None:
    size, patch = ours["input"]["size"], ours["input"]["patch"]
    if isinstance(size, int) and isinstance(patch, int) and patch > 0:
        ours["context"] = (size // patch) ** 2 + 1


VIT = Family(
    name="vit",
    base=c.ModelConfig(
        vocabulary=0,
        context=197,
        shape=c.Encoder(),
        input=c.Pictures(),
        ffn=c.FeedForward("gelu"),
        norm=c.LayerNorm(eps=1e-12),
        head=c.Hidden(),
    ),
    heads={"ViTForImageClassification": c.Classes(), "ViTModel": c.Hidden()},
    fields=(
        Is("hidden_size", "width"),
        Is("num_hidden_layers", "layers"),
        Is("num_attention_heads", "attention.heads"),
        Is("intermediate_size", "ffn.width"),
        Is("hidden_act", "ffn.activation", "gelu", ACTIVATIONS, only_words=True),
        Is("layer_norm_eps", "norm.eps", 1e-12),
        Is("image_size", "input.size", 224),
        Is("patch_size", "input.patch", 16),
        Is("num_channels", "input.channels", 3),
        Is("qkv_bias", "attention.bias", True, {True: ["q", "k", "v", "out"], False: ["out"]}, only_words=True),
        Is("attention_probs_dropout_prob", "dropout.attention", 0.0),
        Is("hidden_dropout_prob", "dropout.residual dropout.embedding", 0.0),
        Both(_read_context),
        Ignored("encoder_stride", "pooler_act", "pooler_output_size"),
    ),
    table=table,
)
