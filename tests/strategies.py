"""Every model that can be: all positions × shapes × head layouts, small."""

from hypothesis import assume
from hypothesis import strategies as st

from clearhead import config as c
from clearhead.errors import ClearheadError

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


def _context(source: c.Input) -> int:
    return 24 if isinstance(source, c.Tokens) else c.num_input_tokens(source)


@st.composite
def models(draw) -> c.ModelConfig:
    heads = draw(st.sampled_from([1, 3, 4]))
    group = draw(st.sampled_from([1, 2, 4]))
    shape = draw(st.sampled_from(["decoder", "encoder", "both"]))
    main = draw(st.sampled_from(INPUTS))
    side = draw(st.sampled_from(INPUTS))
    pick = {"decoder": c.Decoder(), "encoder": c.Encoder()}
    vocabulary = draw(st.sampled_from([16, 19]))
    if shape == "both":
        own = draw(st.booleans()) and isinstance(side, c.Tokens)
        pick["both"] = c.EncoderDecoder(
            draw(st.integers(1, 2)), _context(side), 17 if own else 0, side
        )
    activation = draw(
        st.sampled_from(
            ["relu", "relu2", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"]
        )
    )
    biases = draw(st.sampled_from([("q", "k", "v", "out"), (), ("q", "k", "v"), ("q", "v", "out")]))
    try:
        return c.ModelConfig(
            vocab_size=vocabulary if isinstance(main, c.Tokens) else 0,
            context_length=_context(main),
            d_model=24,
            n_layers=draw(st.integers(1, 2)),
            norm_position=draw(st.sampled_from(["pre", "post"])),
            architecture=pick[shape],
            input=main,
            position=draw(st.sampled_from(POSITIONS)),
            attention=c.Attention(
                heads,
                heads // group if heads % group == 0 else 0,
                draw(st.sampled_from([0, 6])),
                draw(st.sampled_from([0, 0, 3])),
                biases,
                draw(st.booleans()),
                draw(st.booleans()),
            ),
            ffn=c.FeedForward(activation, 40, draw(st.booleans())),
            norm=draw(st.sampled_from([c.LayerNorm(), c.LayerNorm(bias=False), c.RMSNorm()])),
            dropout=c.Dropout(0.1, 0.1, 0.1),
            head=draw(st.sampled_from(HEADS)),
        )
    except ClearheadError:
        assume(False)
        raise
