"""T5 (also Flan-T5 and v1.1): buckets of distances, RMSNorm, scores that are not scaled, a tied head that is."""

from clearhead import config as c
from clearhead.weights.families.family import Family
from clearhead.weights.fields import Both, Ignored, Is, Only, Tree
from clearhead.weights.rules import Rule, Table, layers

FEED = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu-tanh", "gated-silu": "swiglu", "silu": "silu"}


def _side(theirs: str, ours: str, feed: int) -> dict[str, str]:
    block, parts = theirs + ".block.{i}.layer", {0: ("SelfAttention", "attn")}
    if feed == 2:
        parts[1] = ("EncDecAttention", "cross")
    found = {f"{theirs}.final_layer_norm": ours + "norm"}
    for number, (their_part, part) in parts.items():
        for name, our_name in {"q": "q", "k": "k", "v": "v", "o": "out"}.items():
            found[f"{block}.{number}.{their_part}.{name}"] = f"{ours}blocks.{{i}}.{part}.{our_name}"
        found[f"{block}.{number}.layer_norm"] = f"{ours}blocks.{{i}}.{part}_norm"
    found[f"{block}.{feed}.layer_norm"] = ours + "blocks.{i}.ffn_norm"
    found[f"{block}.{feed}.DenseReluDense.wo"] = ours + "blocks.{i}.ffn.down"
    return found


def table(m: c.ModelConfig) -> Table:
    rules = [
        Rule("shared.weight", ("embed.tokens.weight",)),
        Rule("lm_head.weight", ("head.unembed.weight",)),
    ]
    for theirs, ours, feed in (("encoder", "encoder.", 1), ("decoder", "", 2)):
        rules += layers(_side(theirs, ours, feed))
        bias = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rules.append(Rule(bias, (ours + "position.table",)))  # read by all blocks
        up, gate = (f"{theirs}.block.{{i}}.layer.{feed}.DenseReluDense.{n}.weight" for n in ("wi_0", "wi_1"))
        rules.append(Rule(up if m.ffn.gated else up.replace("wi_0", "wi"), (ours + "blocks.{i}.ffn.up.weight",)))
        rules.append(Rule(gate, (ours + "blocks.{i}.ffn.gate.weight",)))
    return Table(
        rules,
        skips=(
            r"lm_head\.weight",  # tied
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",  # never read
        ),
        copies=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"),
    )


def _read_rest(theirs: Tree, ours: Tree) -> None:
    """Both stacks are alike but for their depth; a tied head is scaled unless it is said otherwise."""
    ours["layers"] = theirs.pop("num_decoder_layers", None) or ours["shape"]["layers"]
    tied = theirs.pop("tie_word_embeddings", True)
    scaled = theirs.pop("scale_decoder_outputs", tied)
    ours["head"] |= {"tied": tied, "scaled": scaled}


def _write_rest(ours: Tree, theirs: Tree) -> None:
    theirs |= {"num_decoder_layers": ours["layers"], "tie_word_embeddings": ours["head"]["tied"]}
    theirs["scale_decoder_outputs"] = ours["head"]["scaled"]


T5 = Family(
    name="t5",
    base=c.ModelConfig(
        shape=c.EncoderDecoder(),
        position=c.Relative(),
        attention=c.Attention(bias=(), scaled=False),
        ffn=c.FeedForward("relu", bias=False),
        norm=c.RMSNorm(),
        head=c.Language(scaled=True),
    ),
    heads={"T5ForConditionalGeneration": c.Language(scaled=True)},
    fields=(
        Is("vocab_size", "vocabulary"),
        Is("n_positions", "context shape.context", 512),  # what it was trained on; buckets know no end
        Is("d_model", "width"),
        Is("num_layers", "shape.layers"),
        Is("num_heads", "attention.heads"),
        Is("d_kv", "attention.head_width", 64),
        Is("d_ff", "ffn.width"),
        Is("feed_forward_proj", "ffn.activation", "relu", FEED, only_words=True),
        Is("relative_attention_num_buckets", "position.buckets", 32),
        Is("relative_attention_max_distance", "position.distance", 128),
        Is("layer_norm_epsilon", "norm.eps", 1e-6),
        Is("dropout_rate", "dropout.residual dropout.embedding dropout.attention", 0.1),
        Both(_read_rest, _write_rest),
        Only("is_encoder_decoder", True),
        Ignored("classifier_dropout", "dense_act_fn", "is_gated_act"),  # the last two follow from feed_forward_proj
    ),
    table=table,
)
