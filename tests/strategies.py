"""Hypothesis strategy for model configurations: all positions × architectures × heads, small."""

from hypothesis import assume, settings
from hypothesis import strategies as st

from clearhead import config as c
from clearhead.errors import ClearheadError


def examples(count):
    """Settings of a test that draws `count` examples, fewer in the fast profile."""
    thorough = settings.get_profile("thorough").max_examples
    return settings(max_examples=max(1, count * settings.default.max_examples // thorough))


POSITIONS = (
    c.NoPosition(),
    c.Learned(),
    c.Sinusoidal(),
    c.Sinusoidal(layout="halves"),
    c.T5(num_buckets=8, max_distance=12),
    c.Shaw(max_distance=3),
    c.ALiBi(),
    c.Rotary(theta=100.0),
    c.Rotary(rotary_dim=4, scaling=c.Llama3Scaling(factor=4.0, original_context_length=16)),
)
INPUTS = (
    c.Tokens(),
    c.Tokens(token_types=2, scale_embeddings=True, norm=True),
    c.Images(image_size=4, patch_size=2, num_channels=2),
    c.Audio(n_mels=6, n_frames=9),
    c.Spectrogram(n_mels=4, n_frames=6, patch_mels=2, patch_frames=3, cls_token=False),
)
HEADS = (
    c.LMHead(),
    c.LMHead(tie_embeddings=False, bias=True, scale_logits=True),
    c.MLMHead(),
    c.ClassificationHead(3, pooling="mean", pooler=True),
    c.ClassificationHead(2),
    c.RegressionHead(pooling="mean"),
    c.NoHead(),
)
ACTIVATIONS = ("relu", "relu2", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh")
BIASES = (("q", "k", "v", "out"), (), ("q", "k", "v"), ("q", "v", "out"))
NORMS = (c.LayerNorm(), c.LayerNorm(bias=False), c.RMSNorm())


def _context_length(source: c.Input) -> int:
    return 24 if isinstance(source, c.Tokens) else c.num_input_tokens(source)


@st.composite
def architectures(draw) -> c.Architecture:
    kind = draw(st.sampled_from(["decoder", "encoder", "encoder-decoder"]))
    if kind != "encoder-decoder":
        return c.Decoder() if kind == "decoder" else c.Encoder()
    source = draw(st.sampled_from(INPUTS))
    has_own_vocab = draw(st.booleans()) and isinstance(source, c.Tokens)
    return c.EncoderDecoder(
        encoder_layers=draw(st.integers(1, 2)),
        source_context_length=_context_length(source),
        source_vocab_size=17 if has_own_vocab else 0,
        source_input=source,
    )


@st.composite
def models(draw) -> c.ModelConfig:
    n_heads = draw(st.sampled_from([1, 3, 4]))
    group = draw(st.sampled_from([1, 2, 4]))
    main_input = draw(st.sampled_from(INPUTS))
    vocab_size = draw(st.sampled_from([16, 19]))
    try:
        return c.ModelConfig(
            vocab_size=vocab_size if isinstance(main_input, c.Tokens) else 0,
            context_length=_context_length(main_input),
            d_model=24,
            n_layers=draw(st.integers(1, 2)),
            norm_position=draw(st.sampled_from(["pre", "post"])),
            architecture=draw(architectures()),
            input=main_input,
            position=draw(st.sampled_from(POSITIONS)),
            attention=c.Attention(
                n_heads=n_heads,
                n_kv_heads=n_heads // group if n_heads % group == 0 else 0,
                d_head=draw(st.sampled_from([0, 6])),
                sliding_window=draw(st.sampled_from([0, 0, 3])),
                bias=draw(st.sampled_from(BIASES)),
                scale=draw(st.booleans()),
                qk_norm=draw(st.booleans()),
            ),
            ffn=c.FeedForward(draw(st.sampled_from(ACTIVATIONS)), 40, draw(st.booleans())),
            norm=draw(st.sampled_from(NORMS)),
            dropout=c.Dropout(0.1, 0.1, 0.1),
            head=draw(st.sampled_from(HEADS)),
        )
    except ClearheadError:  # an impossible combination
        assume(False)
        raise
