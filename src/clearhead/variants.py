"""The variants a model is made of, as frozen tagged values, each option with the sentence that explains it."""

from dataclasses import dataclass, field
from typing import Any, Literal


def say(sentence: str, default: Any, least: int = 1, below: int | None = None, most: int | None = None) -> Any:
    """A field with its default, the sentence that explains it wherever it is printed, and what its numbers must be."""
    return field(default=default, metadata={"say": sentence, "least": least, "below": below, "most": most})


def kind(sentence: str, name: str) -> Any:
    """The tag of a variant."""
    return field(default=name, metadata=say(sentence, name).metadata, kw_only=True)


# ---------------------------------------------------------------- what goes in (L1, L6.4)
@dataclass(frozen=True)
class Tokens:
    kind: Literal["tokens"] = kind("vocabulary indices pick rows of the embedding matrix", "tokens")
    kinds: int = say("kinds of sentence with an embedding of their own (BERT: 2); 0 = none", 0, least=0)
    scaled: bool = say("multiply embeddings by the square root of the width, as in 2017", False)
    norm: bool = say("normalise the sum of the embeddings, as BERT does", False)


@dataclass(frozen=True)
class Pictures:
    kind: Literal["pictures"] = kind("square patches of a picture, as ViT", "pictures")
    size: int = say("height and width of the picture in pixels", 224)
    patch: int = say("height and width of a patch in pixels", 16)
    channels: int = say("colours of a pixel", 3)
    first_token: bool = say("put a learned token before the patches, for a head to read", True)
    mean: tuple[float, ...] = say("taken from each pixel, where white is 1; one for all colours or for each", (0.5,))
    deviation: tuple[float, ...] = say("what the rest is divided by, likewise", (0.5,))
    smooth: Literal["bicubic", "bilinear"] = say("how a picture is brought to size", "bicubic")


@dataclass(frozen=True)
class Mel:
    rate: int = say("samples a second", 16000)
    window: int = say("samples under one Fourier window", 400)
    hop: int = say("samples from one window to the next", 160)
    mels: int = say("bands of the mel spectrogram", 80)
    frames: int = say("frames of the spectrogram that the model reads", 3000)


@dataclass(frozen=True)
class Sound(Mel):
    kind: Literal["sound"] = kind("log-mel frames through Whisper's two convolutions, two frames a token", "sound")


@dataclass(frozen=True)
class Spectrogram(Mel):
    kind: Literal["spectrogram"] = kind("patches of the log-mel spectrogram", "spectrogram")
    patch_mels: int = say("height of a patch in bands", 16)
    patch_frames: int = say("length of a patch in frames", 16)
    first_token: bool = say("put a learned token before the patches, for a head to read", True)


Input = Tokens | Pictures | Sound | Spectrogram


def tokens_of(source: Pictures | Sound | Spectrogram) -> int:
    """How many tokens a picture or a sound becomes."""
    match source:
        case Pictures():
            return (source.size // source.patch) ** 2 + source.first_token
        case Sound():
            return (source.frames + 1) // 2  # the second convolution has stride 2
        case Spectrogram():
            bands, times = source.mels // source.patch_mels, source.frames // source.patch_frames
            return bands * times + source.first_token


# ---------------------------------------------------------------- the three shapes (L6)
@dataclass(frozen=True)
class Decoder:
    kind: Literal["decoder"] = kind("each token sees itself and what came before", "decoder")


@dataclass(frozen=True)
class Encoder:
    kind: Literal["encoder"] = kind("each token sees the whole sentence", "encoder")


@dataclass(frozen=True)
class EncoderDecoder:
    kind: Literal["encoder-decoder"] = kind("a decoder that also looks at an encoded source", "encoder-decoder")
    layers: int = say("blocks of the encoder", 6)
    context: int = say("most tokens of a source", 512)
    vocabulary: int = say("tokens of the source language; 0 = the decoder's, in one shared matrix", 0, least=0)
    input: Input = field(default=Tokens())


Shape = Decoder | Encoder | EncoderDecoder


# ---------------------------------------------------------------- positions (L2)
@dataclass(frozen=True)
class NoPositions:
    kind: Literal["none"] = kind("attention cannot tell the order of tokens", "none")


@dataclass(frozen=True)
class Learned:
    kind: Literal["learned"] = kind("one trained vector for each position, added to the embedding", "learned")


@dataclass(frozen=True)
class Sinusoidal:
    kind: Literal["sinusoidal"] = kind("waves of falling frequency, added to the embedding", "sinusoidal")
    layout: Literal["interleaved", "halves"] = say("sine and cosine by turns, or all sines first", "interleaved")


@dataclass(frozen=True)
class Relative:
    kind: Literal["relative"] = kind("a trained bias for each bucket of distances, as T5", "relative")
    buckets: int = say("how many buckets", 32)
    distance: int = say("distances from here on share the last bucket", 128)


@dataclass(frozen=True)
class Shaw:
    kind: Literal["shaw"] = kind("a trained key for each distance, in every layer, as Shaw et al.", "shaw")
    distance: int = say("distances are clipped to this", 16)


@dataclass(frozen=True)
class Alibi:
    kind: Literal["alibi"] = kind("a penalty that grows with distance, at a fixed slope for each head", "alibi")


@dataclass(frozen=True)
class NoScaling:
    kind: Literal["none"] = kind("angles as they are", "none")


@dataclass(frozen=True)
class Linear:
    kind: Literal["linear"] = kind("all rotations are slowed alike, for long contexts", "linear")
    factor: float = say("how much slower they turn", 2.0)


@dataclass(frozen=True)
class Llama3:
    kind: Literal["llama3"] = kind("slow rotations are slowed further, for long contexts", "llama3")
    factor: float = say("how much slower the slowest turn", 8.0)
    low: float = say("waves longer than context/low are slowed in full", 1.0)
    high: float = say("waves shorter than context/high stay as they are", 4.0)
    context: int = say("context before scaling", 8192)


@dataclass(frozen=True)
class Rotary:
    kind: Literal["rotary"] = kind("queries and keys turn by angles that grow with position", "rotary")
    theta: float = say("base of the wave lengths", 10000.0)
    width: int = say("how many dimensions of a head turn; 0 = all", 0, least=0)
    scaling: NoScaling | Linear | Llama3 = field(default=NoScaling())


Position = NoPositions | Learned | Sinusoidal | Relative | Shaw | Alibi | Rotary


# ---------------------------------------------------------------- the block (L3, L4)
@dataclass(frozen=True)
class Attention:
    heads: int = say("heads that look at different things", 4)
    kv_heads: int = say("heads of keys and values, shared by groups of query heads; 0 = one for each", 0, least=0)
    head_width: int = say("width of a head; 0 = width / heads", 0, least=0)
    window: int = say("how far a token sees, itself included; 0 = everything", 0, least=0)
    bias: tuple[Literal["q", "k", "v", "out"], ...] = say("which projections have a bias", ("q", "k", "v", "out"))
    scaled: bool = say("divide scores by the square root of the head width", True)
    qk_norm: bool = say("normalise each query and key before they meet", False)


Activation = Literal["relu", "relu2", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"]


@dataclass(frozen=True)
class FeedForward:
    activation: Activation = say("relu, relu2, gelu, gelu-tanh, silu; gated: swiglu, geglu, geglu-tanh", "relu")
    width: int = say("width between the two layers; 0 = 4 x width", 0, least=0)
    bias: bool = say("whether its layers have a bias", True)

    @property
    def gated(self) -> bool:
        return "glu" in self.activation


@dataclass(frozen=True)
class LayerNorm:
    kind: Literal["layer"] = kind("subtract the mean, divide by the deviation, scale and shift", "layer")
    eps: float = say("added to the variance", 1e-5)
    bias: bool = say("whether it shifts", True)


@dataclass(frozen=True)
class RMSNorm:
    kind: Literal["rms"] = kind("divide by the root mean square, scale", "rms")
    eps: float = say("added to the mean square", 1e-6)


Norm = LayerNorm | RMSNorm


@dataclass(frozen=True)
class Dropout:
    embedding: float = say("on the sum of embeddings", 0.0, least=0, below=1)
    residual: float = say("on what each part adds to the residual stream", 0.0, least=0, below=1)
    attention: float = say("on attention patterns", 0.0, least=0, below=1)


# ---------------------------------------------------------------- what comes out (L5)
@dataclass(frozen=True)
class Language:
    kind: Literal["language"] = kind("one logit for each token of the vocabulary", "language")
    tied: bool = say("the unembedding is the embedding matrix", True)
    bias: bool = say("add a bias to the logits", False)
    scaled: bool = say("divide by the square root of the width first, as T5", False)


@dataclass(frozen=True)
class MaskedWord:
    kind: Literal["masked-word"] = kind("layer, activation, norm, then tied logits with a bias, as BERT", "masked-word")


@dataclass(frozen=True)
class Classes:
    kind: Literal["classes"] = kind("one logit for each class", "classes")
    classes: int = say("how many classes", 2)
    pooling: Literal["first", "mean"] = say("read the first token, or the mean of all", "first")
    pooler: bool = say("a tanh layer before, as BERT", False)


@dataclass(frozen=True)
class Number:
    kind: Literal["number"] = kind("one number (regression)", "number")
    pooling: Literal["first", "mean"] = say("read the first token, or the mean of all", "first")
    pooler: bool = say("a tanh layer before, as BERT", False)


@dataclass(frozen=True)
class Hidden:
    kind: Literal["hidden"] = kind("no head: the hidden states are the result", "hidden")


Head = Language | MaskedWord | Classes | Number | Hidden
