"""ViT: a picture as patches. Its convolution over patches is our one matrix for each."""

from clearhead import config as c
from clearhead.weights.mapping import (
    ACTIVATIONS,
    Attr,
    ConfigDict,
    Custom,
    Ignore,
    ModelFamily,
    WeightMap,
    WeightRule,
    rename_layer,
    rename_layers,
    reshape,
)


def weight_map(m: c.ModelConfig) -> WeightMap:
    block = "blocks.{i}"
    theirs = "{p}encoder.layer.{i}"
    p = m.input
    assert isinstance(p, c.Images)
    kernel = (m.d_model, p.num_channels, p.patch_size, p.patch_size)
    return WeightMap(
        [
            WeightRule("{p}embeddings.cls_token", ("embed.first",), reshape((1, 1, -1), (-1,))),
            WeightRule(
                "{p}embeddings.position_embeddings",
                ("position.table",),
                reshape((1, m.context_length, -1), (m.context_length, -1)),
            ),
            *rename_layer(
                "{p}embeddings.patch_embeddings.projection",
                "embed.project",
                weight=reshape(kernel, (m.d_model, p.num_channels * p.patch_size**2)),
            ),
            *rename_layers(
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
        ignored_keys=(r"pooler\.dense\.(weight|bias)",),  # trained for no task
        prefixes=("vit.", ""),
    )


def _read_context_length(theirs: ConfigDict, ours: ConfigDict) -> None:
    size = ours["input"]["size"]
    patch = ours["input"]["patch"]
    if isinstance(size, int) and isinstance(patch, int) and patch > 0:
        ours["context"] = (size // patch) ** 2 + 1


VIT = ModelFamily(
    name="vit",
    base=c.ModelConfig(
        vocab_size=0,
        context_length=197,
        architecture=c.Encoder(),
        input=c.Images(),
        ffn=c.FeedForward("gelu"),
        norm=c.LayerNorm(eps=1e-12),
        head=c.NoHead(),
    ),
    heads={"ViTForImageClassification": c.ClassificationHead(), "ViTModel": c.NoHead()},
    attributes=(
        Attr("hidden_size", "width"),
        Attr("num_hidden_layers", "layers"),
        Attr("num_attention_heads", "attention.n_heads"),
        Attr("intermediate_size", "ffn.d_ff"),
        Attr("hidden_act", "ffn.activation", "gelu", ACTIVATIONS, strict=True),
        Attr("layer_norm_eps", "norm.eps", 1e-12),
        Attr("image_size", "input.image_size", 224),
        Attr("patch_size", "input.patch_size", 16),
        Attr("num_channels", "input.num_channels", 3),
        Attr(
            "qkv_bias",
            "attention.bias",
            True,
            {True: ["q", "k", "v", "out"], False: ["out"]},
            strict=True,
        ),
        Attr("attention_probs_dropout_prob", "dropout.attention", 0.0),
        Attr("hidden_dropout_prob", "dropout.residual dropout.embedding", 0.0),
        Custom(_read_context_length),
        Ignore("encoder_stride", "pooler_act", "pooler_output_size"),
    ),
    weight_map=weight_map,
)
