"""Exact name -> configuration, in one flat dictionary.

Three families: *lecture* (learned or sinusoidal positions, LayerNorm, ReLU, tied: the notes, to the letter),
*published* (the shapes of models whose weights are public), and *recipes*, which also say how they are trained. The
tiny ones are for tests and first steps.
"""

from clearhead.config import (
    Attention,
    Classes,
    Config,
    Dropout,
    Encoder,
    EncoderDecoder,
    FeedForward,
    Language,
    LayerNorm,
    Learned,
    Llama3,
    MaskedWord,
    ModelConfig,
    NoScaling,
    Pictures,
    Position,
    Relative,
    RMSNorm,
    Rotary,
    Sinusoidal,
    Sound,
    Spectrogram,
    Tokens,
)
from clearhead.errors import ClearheadError, nearest
from clearhead.recipes import recipes

TENTH = Dropout(embedding=0.1, residual=0.1, attention=0.1)


def _lecture(vocabulary: int = 2048, context: int = 128, width: int = 192, layers: int = 4, heads: int = 6) -> Config:
    model = ModelConfig(vocabulary=vocabulary, context=context, width=width, layers=layers, attention=Attention(heads))
    return Config(model)


def _vaswani(width: int, heads: int, layers: int = 6, vocabulary: int = 37000, dropout: float = 0.1) -> Config:
    return Config(
        ModelConfig(
            vocabulary=vocabulary,
            context=512,
            width=width,
            layers=layers,
            wiring="post",
            shape=EncoderDecoder(layers=layers, input=Tokens(scaled=True)),
            input=Tokens(scaled=True),
            position=Sinusoidal(),
            attention=Attention(heads, bias=()),
            dropout=Dropout(embedding=dropout, residual=dropout),
        )
    )


def _bert(
    width: int, layers: int, heads: int, position: Position, vocabulary: int = 30522, context: int = 512
) -> Config:
    return Config(
        ModelConfig(
            vocabulary=vocabulary,
            context=context,
            width=width,
            layers=layers,
            wiring="post",
            shape=Encoder(),
            input=Tokens(kinds=2, norm=True),
            position=position,
            attention=Attention(heads),
            ffn=FeedForward("gelu"),
            norm=LayerNorm(eps=1e-12),
            dropout=TENTH,
            head=MaskedWord(),
        )
    )


def _gpt2(width: int, layers: int, heads: int) -> Config:
    return Config(
        ModelConfig(
            vocabulary=50257,
            context=1024,
            width=width,
            layers=layers,
            attention=Attention(heads),
            ffn=FeedForward("gelu-tanh"),
        )
    )


def _llama(
    vocabulary: int,
    context: int,
    width: int,
    layers: int,
    ffn: int,
    attention: Attention,
    theta: float = 10000.0,
    eps: float = 1e-5,
    tied: bool = True,
    scaling: Llama3 | None = None,
) -> Config:
    return Config(
        ModelConfig(
            vocabulary=vocabulary,
            context=context,
            width=width,
            layers=layers,
            position=Rotary(theta=theta, scaling=scaling or NoScaling()),
            attention=attention,
            ffn=FeedForward("swiglu", ffn, bias=False),
            norm=RMSNorm(eps=eps),
            head=Language(tied=tied),
        )
    )


def _heads(heads: int, kv_heads: int, head_width: int = 0, window: int = 0, qk_norm: bool = False) -> Attention:
    return Attention(heads, kv_heads, head_width, window, bias=(), qk_norm=qk_norm)


def _vit(width: int, layers: int, heads: int) -> Config:
    return Config(
        ModelConfig(
            vocabulary=0,
            context=197,
            width=width,
            layers=layers,
            shape=Encoder(),
            input=Pictures(),
            attention=Attention(heads),
            ffn=FeedForward("gelu"),
            norm=LayerNorm(eps=1e-12),
            head=Classes(classes=1000),
        )
    )


def _whisper(width: int, layers: int, heads: int) -> Config:
    return Config(
        ModelConfig(
            vocabulary=51865,
            context=448,
            width=width,
            layers=layers,
            shape=EncoderDecoder(layers=layers, context=1500, input=Sound()),
            attention=Attention(heads, bias=("q", "v", "out")),
            ffn=FeedForward("gelu"),
        )
    )


def _t5(width: int, layers: int, heads: int, head_width: int, ffn: int) -> Config:
    return Config(
        ModelConfig(
            vocabulary=32128,
            context=512,
            width=width,
            layers=layers,
            shape=EncoderDecoder(layers=layers, input=Tokens()),
            position=Relative(),
            attention=Attention(heads, head_width=head_width, bias=(), scaled=False),
            ffn=FeedForward("relu", ffn, bias=False),
            norm=RMSNorm(),
            dropout=TENTH,
            head=Language(scaled=True),
        )
    )


_QWEN2 = Attention(14, 2, bias=("q", "k", "v"))
_LONG_8, _LONG_32 = Llama3(factor=8.0), Llama3(factor=32.0)


class Presets(dict[str, Config]):
    """Exact names and the configurations they stand for; `clearhead presets` lists them. A missing one is told."""

    def __missing__(self, name: str) -> Config:
        raise NoPreset(f"{name!r} is no preset of those that clearhead presets lists; {nearest(str(name), self)}")


class NoPreset(ClearheadError, KeyError):
    """A name that is not in the dictionary."""

    __str__ = Exception.__str__  # a KeyError would quote the sentence


_ALL: dict[str, Config] = {
    # lecture
    "lecture-small": _lecture(1024, 64, 128, 2, 4),
    "lecture-lm": _lecture(),
    "vaswani-base": _vaswani(512, 8),
    "vaswani-big": _vaswani(1024, 16, dropout=0.3),
    # encoders
    "bert-base": _bert(768, 12, 12, Learned()),
    "bert-large": _bert(1024, 24, 16, Learned()),
    "roformer-base": _bert(768, 12, 12, Rotary(), vocabulary=50000, context=1536),
    # decoders
    "gpt2-124m": _gpt2(768, 12, 12),
    "gpt2-355m": _gpt2(1024, 24, 16),
    "gpt2-774m": _gpt2(1280, 36, 20),
    "gpt2-1558m": _gpt2(1600, 48, 25),
    "smollm2-135m": _llama(49152, 8192, 576, 30, 1536, _heads(9, 3), 100000.0),
    "smollm2-360m": _llama(49152, 8192, 960, 32, 2560, _heads(15, 5), 100000.0),
    "smollm2-1.7b": _llama(49152, 8192, 2048, 24, 8192, _heads(32, 32), 130000.0),
    "tinyllama-1.1b": _llama(32000, 2048, 2048, 22, 5632, _heads(32, 4), tied=False),
    "llama-2-7b": _llama(32000, 4096, 4096, 32, 11008, _heads(32, 32), tied=False),
    "llama-3.1-8b": _llama(128256, 131072, 4096, 32, 14336, _heads(32, 8), 500000.0, tied=False, scaling=_LONG_8),
    "llama-3.2-1b": _llama(128256, 131072, 2048, 16, 8192, _heads(32, 8, 64), 500000.0, scaling=_LONG_32),
    "llama-3.2-3b": _llama(128256, 131072, 3072, 28, 8192, _heads(24, 8, 128), 500000.0, scaling=_LONG_32),
    "mistral-7b": _llama(32000, 32768, 4096, 32, 14336, _heads(32, 8, window=4096), tied=False),
    "qwen2.5-0.5b": _llama(151936, 32768, 896, 24, 4864, _QWEN2, 1000000.0, eps=1e-6),
    "qwen3-0.6b": _llama(151936, 40960, 1024, 28, 3072, _heads(16, 8, 128, qk_norm=True), 1000000.0, eps=1e-6),
    # encoder-decoders
    "t5-small": _t5(512, 6, 8, 64, 2048),
    "t5-base": _t5(768, 12, 12, 64, 3072),
    "whisper-tiny": _whisper(384, 4, 6),
    "whisper-base": _whisper(512, 6, 8),
    # pictures
    "vit-tiny": _vit(192, 12, 3),
    "vit-small": _vit(384, 12, 6),
    "vit-base": _vit(768, 12, 12),
    "vit-large": _vit(1024, 24, 16),
    # tiny
    "tiny-decoder": _lecture(vocabulary=64, context=32, width=32, layers=2, heads=4),
    "tiny-encoder": _bert(32, 2, 4, Learned(), vocabulary=64, context=32),
    "tiny-encoder-decoder": _vaswani(32, 4, layers=2, vocabulary=64),
    "tiny-llama": _llama(64, 32, 32, 2, 96, _heads(4, 2)),
    "tiny-pictures": _vit(32, 2, 4).change(
        **{"context": 17, "input.size": 8, "input.patch": 2, "input.channels": 1, "head.classes": 10}
    ),
    "tiny-sound": Config(
        ModelConfig(
            vocabulary=0,
            context=9,
            width=32,
            layers=2,
            shape=Encoder(),
            input=Spectrogram(rate=8000, window=200, hop=80, mels=16, frames=32, patch_mels=8, patch_frames=8),
            head=Classes(classes=10),
        )
    ),
}

presets = Presets(_ALL | recipes(_ALL))
