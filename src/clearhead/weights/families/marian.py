"""Marian: the encoder-decoder of 2017, with waves in two halves and a bias on its logits."""

from clearhead import config as c
from clearhead.weights.families.family import ACTIVATIONS, Family
from clearhead.weights.fields import Both, Ignored, Is, Only, Tree, unknown
from clearhead.weights.rules import Rule, Table, layers, reshaped


def attention(theirs: str, ours: str) -> dict[str, str]:
    return {f"{theirs}.{name}_proj": f"{ours}.{name}" for name in ("q", "k", "v", "out")}


def sides() -> dict[str, str]:
    """The blocks of both stacks, as Marian and Whisper call them."""
    found: dict[str, str] = {}
    for theirs, ours in (
        ("model.encoder.layers.{i}", "encoder.blocks.{i}"),
        ("model.decoder.layers.{i}", "blocks.{i}"),
    ):
        found |= attention(f"{theirs}.self_attn", f"{ours}.attn") | attention(f"{theirs}.encoder_attn", f"{ours}.cross")
        found |= {
            f"{theirs}.self_attn_layer_norm": f"{ours}.attn_norm",
            f"{theirs}.encoder_attn_layer_norm": f"{ours}.cross_norm",
            f"{theirs}.fc1": f"{ours}.ffn.up",
            f"{theirs}.fc2": f"{ours}.ffn.down",
            f"{theirs}.final_layer_norm": f"{ours}.ffn_norm",
        }
    return found


def same_on_both_sides(theirs: Tree, ours: Tree) -> None:
    """Heads and widths of the encoder are those of the decoder."""
    for name, option in (("attention_heads", ours["attention"]["heads"]), ("ffn_dim", ours["ffn"]["width"])):
        value = theirs.pop(f"encoder_{name}", option)
        if value != option:
            raise unknown(f"encoder_{name}", value, [f"{option}, the decoder's"])


def write_both_sides(ours: Tree, theirs: Tree) -> None:
    theirs |= {"encoder_attention_heads": theirs["decoder_attention_heads"]}
    theirs |= {"encoder_ffn_dim": theirs["decoder_ffn_dim"], "num_hidden_layers": theirs.get("encoder_layers")}


STACKS = (
    Is("d_model", "width"),
    Is("encoder_layers", "shape.layers"),
    Is("decoder_layers", "layers"),
    Is("decoder_attention_heads", "attention.heads"),
    Is("decoder_ffn_dim", "ffn.width"),
    Is("activation_function", "ffn.activation", "gelu", ACTIVATIONS, only_words=True),
    Is("attention_dropout", "dropout.attention", 0.0),
    Is("dropout", "dropout.residual dropout.embedding", 0.1),
    Both(same_on_both_sides, write_both_sides),
    Only("is_encoder_decoder", True),
    Only("activation_dropout", 0.0),
    Ignored("num_hidden_layers", "decoder_layerdrop", "encoder_layerdrop", "classifier_dropout", "classif_dropout"),
)


SHARED = "model.shared.weight"
EMBEDDED = {
    "encoder.embed.tokens.weight": "model.encoder.embed_tokens.weight",
    "embed.tokens.weight": "model.decoder.embed_tokens.weight",
}


def table(m: c.ModelConfig) -> Table:
    assert isinstance(m.shape, c.EncoderDecoder)
    own = [Rule(theirs, (ours,)) for ours, theirs in EMBEDDED.items()]
    return Table(
        [
            *(own if m.shape.vocabulary else [Rule(SHARED, ("embed.tokens.weight",))]),
            Rule("final_logits_bias", ("head.bias",), reshaped((1, -1), (-1,))),
            Rule("lm_head.weight", ("head.unembed.weight",)),
            *layers(sides()),
        ],
        skips=(
            r"lm_head\.weight",  # tied
            r"model\.(encoder|decoder)\.embed_positions\.weight",  # the waves
        ),
        copies=dict.fromkeys(EMBEDDED.values(), SHARED),
    )


def _read_vocabularies(theirs: Tree, ours: Tree) -> None:
    """One for both sides, or one for each."""
    size = theirs.pop("vocab_size", None)
    target = theirs.pop("decoder_vocab_size", None) or size
    shared = theirs.pop("share_encoder_decoder_embeddings", True)
    if shared and target != size:
        raise unknown("decoder_vocab_size", target, [f"{size}, the vocab_size that it is shared with"])
    ours["vocabulary"], ours["shape"]["vocabulary"] = target, 0 if shared else size


def _write_vocabularies(ours: Tree, theirs: Tree) -> None:
    own = ours["shape"]["vocabulary"]
    theirs |= {"vocab_size": own or ours["vocabulary"], "decoder_vocab_size": ours["vocabulary"]}
    theirs["share_encoder_decoder_embeddings"] = not own


MARIAN = Family(
    name="marian",
    base=c.ModelConfig(
        wiring="post",
        shape=c.EncoderDecoder(),
        position=c.Sinusoidal(layout="halves"),
        ffn=c.FeedForward("silu"),
        head=c.Language(bias=True),
    ),
    heads={"MarianMTModel": c.Language(bias=True)},
    fields=(
        Both(_read_vocabularies, _write_vocabularies),
        Is("max_position_embeddings", "context shape.context", 1024),
        *STACKS,
        Is("scale_embedding", "input.scaled shape.input.scaled", False),
        Is("tie_word_embeddings", "head.tied", True),
        Only("normalize_before", False),
        Only("normalize_embedding", False),
        Only("add_final_layer_norm", False),
        Ignored("add_bias_logits", "static_position_embeddings", "extra_pos_embeddings"),  # of an older program
    ),
    table=table,
)
