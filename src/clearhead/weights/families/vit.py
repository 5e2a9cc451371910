"""ViT: images as patches. Its convolution over patches is our linear projection of each patch."""

from clearhead import config as c
from clearhead.config.parse import ConfigDict
from clearhead.weights.mapping import (
    ACTIVATIONS,
    Attr,
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
    ours = "blocks.{i}"
    theirs = "{p}encoder.layer.{i}"
    images = m.input
    assert isinstance(images, c.Images)
    kernel = (m.d_model, images.num_channels, images.patch_size, images.patch_size)
    projection = (m.d_model, images.num_channels * images.patch_size**2)
    return WeightMap(
        [
            WeightRule("{p}embeddings.cls_token", ("embed.cls_token",), reshape((1, 1, -1), (-1,))),
            WeightRule(
                "{p}embeddings.position_embeddings",
                ("position.table",),
                reshape((1, m.context_length, -1), (m.context_length, -1)),
            ),
            *rename_layer(
                "{p}embeddings.patch_embeddings.projection",
                "embed.projection",
                weight=reshape(kernel, projection),
            ),
            *rename_layers(
                {
                    f"{theirs}.layernorm_before": f"{ours}.attn_norm",
                    f"{theirs}.attention.attention.query": f"{ours}.attn.q",
                    f"{theirs}.attention.attention.key": f"{ours}.attn.k",
                    f"{theirs}.attention.attention.value": f"{ours}.attn.v",
                    f"{theirs}.attention.output.dense": f"{ours}.attn.out",
                    f"{theirs}.layernorm_after": f"{ours}.ffn_norm",
                    f"{theirs}.intermediate.dense": f"{ours}.ffn.up",
                    f"{theirs}.output.dense": f"{ours}.ffn.down",
                    "{p}layernorm": "final_norm",
                    "classifier": "head.out",
                }
            ),
        ],
        ignored_keys=(r"pooler\.dense\.(weight|bias)",),  # not trained for any task
        prefixes=("vit.", ""),
    )


def _read_context_length(theirs: ConfigDict, ours: ConfigDict) -> None:
    image_size = ours["input"]["image_size"]
    patch_size = ours["input"]["patch_size"]
    if isinstance(image_size, int) and isinstance(patch_size, int) and patch_size > 0:
        ours["context_length"] = (image_size // patch_size) ** 2 + 1


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
        Attr("hidden_size", "d_model"),
        Attr("num_hidden_layers", "n_layers"),
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
