"""Every model that can be: all positions × shapes × head layouts, small."""

from hypothesis import assume
from hypothesis import strategies as st

from clearhead import config as c
from clearhead.errors import ClearheadError

POSITIONS = (
    c.NoPositions(),
    c.Learned(),
    c.Sinusoidal(),
    c.Sinusoidal(layout="halves"),
    c.Relative(buckets=8, distance=12),
    c.Shaw(distance=3),
    c.Alibi(),
    c.Rotary(theta=100.0),
    c.Rotary(width=4, scaling=c.Llama3(factor=4.0, context=16)),
)
INPUTS = (
    c.Tokens(),
    c.Tokens(kinds=2, scaled=True, norm=True),
    c.Pictures(size=4, patch=2, channels=2),
    c.Sound(mels=6, frames=9),
    c.Spectrogram(mels=4, frames=6, patch_mels=2, patch_frames=3, first_token=False),
)
HEADS = (
    c.Language(),
    c.Language(tied=False, bias=True, scaled=True),
    c.MaskedWord(),
    c.Classes(3, pooling="mean", pooler=True),
    c.Classes(2),
    c.Number(pooling="mean"),
    c.Hidden(),
)


def _context(source: c.Input) -> int:
    return 24 if isinstance(source, c.Tokens) else c.tokens_of(source)


@st.composite
def models(draw) -> c.ModelConfig:
    heads, group = draw(st.sampled_from([1, 3, 4])), draw(st.sampled_from([1, 2, 4]))
    shape, main = draw(st.sampled_from(["decoder", "encoder", "both"])), draw(st.sampled_from(INPUTS))
    side = draw(st.sampled_from(INPUTS))
    pick = {"decoder": c.Decoder(), "encoder": c.Encoder()}
    vocabulary = draw(st.sampled_from([16, 19]))
    if shape == "both":
        own = draw(st.booleans()) and isinstance(side, c.Tokens)
        pick["both"] = c.EncoderDecoder(draw(st.integers(1, 2)), _context(side), 17 if own else 0, side)
    activation = draw(st.sampled_from(["relu", "relu2", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"]))
    biases = draw(st.sampled_from([("q", "k", "v", "out"), (), ("q", "k", "v"), ("q", "v", "out")]))
    try:
        return c.ModelConfig(
            vocabulary=vocabulary if isinstance(main, c.Tokens) else 0,
            context=_context(main),
            width=24,
            layers=draw(st.integers(1, 2)),
            wiring=draw(st.sampled_from(["pre", "post"])),
            shape=pick[shape],
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
