"""The variants a model is made of, as frozen tagged values, each option with the sentence that explains it."""

import functools
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from clearhead.config.parse import (
    ConfigDict,
    apply_overrides,
    dataclass_from_dict,
    dataclass_to_dict,
    dataclass_to_toml,
    kind,
    option,
    parse_field,
    read_config_file,
)
from clearhead.config.training import DataConfig, TrainConfig
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    pass

# ---- variants: The variants a model is made of, as frozen tagged values, each option with the sentence that explains it.


# ---------------------------------------------------------------- what goes in (L1, L6.4)
@dataclass(frozen=True)
class Tokens:
    kind: Literal["tokens"] = kind("vocabulary indices pick rows of the embedding matrix", "tokens")
    token_types: int = option(
        "kinds of sentence with an embedding of their own (BERT: 2); 0 = none", 0, ge=0
    )
    scale_embeddings: bool = option(
        "multiply embeddings by the square root of the width, as in 2017", False
    )
    norm: bool = option("normalise the sum of the embeddings, as BERT does", False)


@dataclass(frozen=True)
class Images:
    kind: Literal["images"] = kind("square patches of a picture, as ViT", "images")
    image_size: int = option("height and width of the picture in pixels", 224)
    patch_size: int = option("height and width of a patch in pixels", 16)
    num_channels: int = option("colours of a pixel", 3)
    cls_token: bool = option("put a learned token before the patches, for a head to read", True)
    mean: tuple[float, ...] = option(
        "taken from each pixel, where white is 1; one for all colours or for each", (0.5,)
    )
    std: tuple[float, ...] = option("what the rest is divided by, likewise", (0.5,))
    resample: Literal["bicubic", "bilinear"] = option("how a picture is brought to size", "bicubic")


@dataclass(frozen=True)
class MelSpectrogram:
    sample_rate: int = option("samples a second", 16000)
    n_fft: int = option("samples under one Fourier window", 400)
    hop_length: int = option("samples from one window to the next", 160)
    n_mels: int = option("bands of the mel spectrogram", 80)
    n_frames: int = option("frames of the spectrogram that the model reads", 3000)


@dataclass(frozen=True)
class Audio(MelSpectrogram):
    kind: Literal["audio"] = kind(
        "log-mel frames through Whisper's two convolutions, two frames a token", "audio"
    )


@dataclass(frozen=True)
class Spectrogram(MelSpectrogram):
    kind: Literal["spectrogram"] = kind("patches of the log-mel spectrogram", "spectrogram")
    patch_mels: int = option("height of a patch in bands", 16)
    patch_frames: int = option("length of a patch in frames", 16)
    cls_token: bool = option("put a learned token before the patches, for a head to read", True)


Input = Tokens | Images | Audio | Spectrogram


def num_input_tokens(source: Images | Audio | Spectrogram) -> int:
    """How many tokens a picture or a sound becomes."""
    match source:
        case Images():
            return (source.image_size // source.patch_size) ** 2 + source.cls_token
        case Audio():
            return (source.n_frames + 1) // 2  # the second convolution has stride 2
        case Spectrogram():
            bands = source.n_mels // source.patch_mels
            times = source.n_frames // source.patch_frames
            return bands * times + source.cls_token


# ---------------------------------------------------------------- the three shapes (L6)
@dataclass(frozen=True)
class Decoder:
    kind: Literal["decoder"] = kind("each token sees itself and what came before", "decoder")


@dataclass(frozen=True)
class Encoder:
    kind: Literal["encoder"] = kind("each token sees the whole sentence", "encoder")


@dataclass(frozen=True)
class EncoderDecoder:
    kind: Literal["encoder-decoder"] = kind(
        "a decoder that also looks at an encoded source", "encoder-decoder"
    )
    encoder_layers: int = option("blocks of the encoder", 6)
    source_context_length: int = option("most tokens of a source", 512)
    source_vocab_size: int = option(
        "tokens of the source language; 0 = the decoder's, in one shared matrix", 0, ge=0
    )
    source_input: Input = field(default=Tokens())


Architecture = Decoder | Encoder | EncoderDecoder


# ---------------------------------------------------------------- positions (L2)
@dataclass(frozen=True)
class NoPosition:
    kind: Literal["none"] = kind("attention cannot tell the order of tokens", "none")


@dataclass(frozen=True)
class Learned:
    kind: Literal["learned"] = kind(
        "one trained vector for each position, added to the embedding", "learned"
    )


@dataclass(frozen=True)
class Sinusoidal:
    kind: Literal["sinusoidal"] = kind(
        "waves of falling frequency, added to the embedding", "sinusoidal"
    )
    layout: Literal["interleaved", "halves"] = option(
        "sine and cosine by turns, or all sines first", "interleaved"
    )


@dataclass(frozen=True)
class T5:
    kind: Literal["t5"] = kind("a trained bias for each bucket of distances, as T5", "t5")
    num_buckets: int = option("how many buckets", 32)
    max_distance: int = option("distances from here on share the last bucket", 128)


@dataclass(frozen=True)
class Shaw:
    kind: Literal["shaw"] = kind(
        "a trained key for each distance, in every layer, as Shaw et al.", "shaw"
    )
    max_distance: int = option("distances are clipped to this", 16)


@dataclass(frozen=True)
class ALiBi:
    kind: Literal["alibi"] = kind(
        "a penalty that grows with distance, at a fixed slope for each head", "alibi"
    )


@dataclass(frozen=True)
class NoScaling:
    kind: Literal["none"] = kind("angles as they are", "none")


@dataclass(frozen=True)
class LinearScaling:
    kind: Literal["linear"] = kind("all rotations are slowed alike, for long contexts", "linear")
    factor: float = option("how much slower they turn", 2.0)


@dataclass(frozen=True)
class Llama3Scaling:
    kind: Literal["llama3"] = kind("slow rotations are slowed further, for long contexts", "llama3")
    factor: float = option("how much slower the slowest turn", 8.0)
    low_freq_factor: float = option("waves longer than context/low are slowed in full", 1.0)
    high_freq_factor: float = option("waves shorter than context/high stay as they are", 4.0)
    original_context_length: int = option("context before scaling", 8192)


@dataclass(frozen=True)
class Rotary:
    kind: Literal["rotary"] = kind(
        "queries and keys turn by angles that grow with position", "rotary"
    )
    theta: float = option("base of the wave lengths", 10000.0)
    rotary_dim: int = option("how many dimensions of a head turn; 0 = all", 0, ge=0)
    scaling: NoScaling | LinearScaling | Llama3Scaling = field(default=NoScaling())


PositionScheme = NoPosition | Learned | Sinusoidal | T5 | Shaw | ALiBi | Rotary


# ---------------------------------------------------------------- the block (L3, L4)
@dataclass(frozen=True)
class Attention:
    n_heads: int = option("heads that look at different things", 4)
    n_kv_heads: int = option(
        "heads of keys and values, shared by groups of query heads; 0 = one for each", 0, ge=0
    )
    d_head: int = option("width of a head; 0 = width / heads", 0, ge=0)
    sliding_window: int = option("how far a token sees, itself included; 0 = everything", 0, ge=0)
    bias: tuple[Literal["q", "k", "v", "out"], ...] = option(
        "which projections have a bias", ("q", "k", "v", "out")
    )
    scale: bool = option("divide scores by the square root of the head width", True)
    qk_norm: bool = option("normalise each query and key before they meet", False)


Activation = Literal["relu", "relu2", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"]


@dataclass(frozen=True)
class FeedForward:
    activation: Activation = option(
        "relu, relu2, gelu, gelu-tanh, silu; gated: swiglu, geglu, geglu-tanh", "relu"
    )
    d_ff: int = option("width between the two layers; 0 = 4 x width", 0, ge=0)
    bias: bool = option("whether its layers have a bias", True)

    @property
    def is_gated(self) -> bool:
        return "glu" in self.activation


@dataclass(frozen=True)
class LayerNorm:
    kind: Literal["layernorm"] = kind(
        "subtract the mean, divide by the deviation, scale and shift", "layernorm"
    )
    eps: float = option("added to the variance", 1e-5)
    bias: bool = option("whether it shifts", True)


@dataclass(frozen=True)
class RMSNorm:
    kind: Literal["rmsnorm"] = kind("divide by the root mean square, scale", "rmsnorm")
    eps: float = option("added to the mean square", 1e-6)


Norm = LayerNorm | RMSNorm


@dataclass(frozen=True)
class Dropout:
    embedding: float = option("on the sum of embeddings", 0.0, ge=0, lt=1)
    residual: float = option("on what each part adds to the residual stream", 0.0, ge=0, lt=1)
    attention: float = option("on attention patterns", 0.0, ge=0, lt=1)


# ---------------------------------------------------------------- what comes out (L5)
@dataclass(frozen=True)
class LMHead:
    kind: Literal["lm"] = kind("one logit for each token of the vocabulary", "lm")
    tie_embeddings: bool = option("the unembedding is the embedding matrix", True)
    bias: bool = option("add a bias to the logits", False)
    scale_logits: bool = option("divide by the square root of the width first, as T5", False)


@dataclass(frozen=True)
class MLMHead:
    kind: Literal["mlm"] = kind(
        "layer, activation, norm, then tied logits with a bias, as BERT", "mlm"
    )


@dataclass(frozen=True)
class ClassificationHead:
    kind: Literal["classification"] = kind("one logit for each class", "classification")
    num_labels: int = option("how many classes", 2)
    pooling: Literal["first", "mean"] = option("read the first token, or the mean of all", "first")
    pooler: bool = option("a tanh layer before, as BERT", False)


@dataclass(frozen=True)
class RegressionHead:
    kind: Literal["regression"] = kind("one number (regression)", "regression")
    pooling: Literal["first", "mean"] = option("read the first token, or the mean of all", "first")
    pooler: bool = option("a tanh layer before, as BERT", False)


@dataclass(frozen=True)
class NoHead:
    kind: Literal["none"] = kind("no head: the hidden states are the result", "none")


Head = LMHead | MLMHead | ClassificationHead | RegressionHead | NoHead


# ---- check: What a configuration must not ask for, each with the sentence that says why.

WRITTEN_TOKENS = (
    "decoder_start_tokens", "eos_tokens", "suppress_tokens", "begin_suppress_tokens", "pad_token", "mask_token",
)  # fmt: skip


@functools.cache
def _type_hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def check_model(m: "ModelConfig") -> None:
    """Raises the first thing that cannot be."""
    for mistake in _model_errors(m):
        raise ClearheadError(mistake)


def check_ranges(value: Any, path: str) -> None:
    """Raises the first value that is out of its range."""
    for mistake in _range_errors(value, path):
        raise ClearheadError(mistake)


def check_inference(u: "InferenceConfig", m: "ModelConfig") -> None:
    """Ids must be in the vocabulary that they are read from or written to, and every class may have a name."""
    check_ranges(u, "inference")
    both = m.architecture if isinstance(m.architecture, EncoderDecoder) else None
    read = both.source_vocab_size or m.vocab_size if both else m.vocab_size
    for name, size in {
        "bos_tokens": read,
        "sep_tokens": read,
        **dict.fromkeys(WRITTEN_TOKENS, m.vocab_size),
    }.items():
        for i in getattr(u, name):
            if not 0 <= i < size:
                raise ClearheadError(
                    f"inference.{name} = {i} is no token; the vocabulary has {size}."
                )
    classes = m.head.num_labels if isinstance(m.head, ClassificationHead) else 0
    if u.labels and len(u.labels) != classes:
        raise ClearheadError(
            f"inference.labels names {len(u.labels)} classes, but the model has {classes}."
        )


def _model_errors(m: "ModelConfig") -> Iterator[str]:
    yield from _range_errors(m, "model")
    yield from _attention_errors(m)
    yield from _position_errors(m)
    yield from _architecture_errors(m)
    yield from _input_errors(m.input, m.vocab_size, m.context_length, "model")
    if isinstance(m.architecture, EncoderDecoder):
        shared = (
            isinstance(m.architecture.source_input, Tokens) and not m.architecture.source_vocab_size
        )
        vocabulary = m.vocab_size if shared else m.architecture.source_vocab_size
        yield from _input_errors(
            m.architecture.source_input,
            vocabulary,
            m.architecture.source_context_length,
            "model.architecture",
        )


def _range_errors(value: Any, path: str) -> Iterator[str]:
    hints = _type_hints(type(value))  # type: ignore[arg-type]
    for f in fields(value):
        item = getattr(value, f.name)
        where = f"{path}.{f.name}"
        if is_dataclass(item):
            yield from _range_errors(item, where)
            continue
        item = parse_field(hints[f.name], item, where)
        least, below, most = (f.metadata[name] for name in ("least", "below", "most"))
        if isinstance(item, tuple):
            if not all(math.isfinite(number) for number in item if isinstance(number, float)):
                yield f"{where} = {list(item)} must be finite numbers."
        elif most is not None:
            if not least <= item <= most:
                yield f"{where} = {item} must be a share from {least} to {most}."
        elif below is not None:
            if not least <= item < below:
                yield f"{where} = {item} must be at least {least} and less than {below}."
        elif type(item) is int and item < least:
            yield f"{where} = {item} is too small; it must be at least {least}."
        elif isinstance(item, float) and not (0 < item < math.inf or item == least):
            yield f"{where} = {item} must be a finite, positive number{'' if least else ', or 0'}."


def _attention_errors(m: "ModelConfig") -> Iterator[str]:
    a = m.attention
    if not a.d_head and m.d_model % a.n_heads:
        middle = min(a.n_heads, m.d_model)
        near = next(
            n for far in range(middle) for n in (middle - far, middle + far) if m.d_model % n == 0
        )
        choose = f"choose model.attention.n_heads among its divisors, such as {near}, or give model.attention.d_head"
        yield f"model.d_model = {m.d_model} does not split into {a.n_heads} heads; {choose}."
    if a.n_heads % m.n_kv_heads:
        yield f"model.attention.n_heads = {a.n_heads} cannot share {m.n_kv_heads} kv_heads evenly."


def _position_errors(m: "ModelConfig") -> Iterator[str]:
    match m.position:
        case Sinusoidal() if m.d_model % 2:
            yield f"model.d_model = {m.d_model} is odd; sinusoidal positions need pairs of sine and cosine."
        case Rotary(rotary_dim=width):
            if (width or m.d_head) % 2:
                yield f"rotary positions turn pairs of dimensions, so {width or m.d_head} dimensions cannot turn."
            if width > m.d_head:
                yield f"model.position.rotary_dim = {width} is more than the head's {m.d_head} dimensions."
            s = m.position.scaling
            if isinstance(s, Llama3Scaling) and s.low_freq_factor >= s.high_freq_factor:
                yield f"model.position.scaling.low_freq_factor = {s.low_freq_factor} must be less than high = {s.high_freq_factor}."
        case T5(num_buckets=buckets, max_distance=distance):
            if buckets % 4:
                yield f"model.position.num_buckets = {buckets} must be a multiple of 4: two directions, near and far."
            if distance <= buckets:
                yield f"model.position.max_distance = {distance} must be more than the {buckets} buckets."


def _architecture_errors(m: "ModelConfig") -> Iterator[str]:
    match m.architecture, m.head:
        case Encoder(), LMHead():
            yield "an encoder sees the word it would have to predict; use head masked-word, or shape decoder."
        case ((Decoder() | EncoderDecoder()), MLMHead()):
            yield "a masked-word head reads both sides of the gap; it needs shape encoder."
        case EncoderDecoder(), (ClassificationHead() | RegressionHead()):
            yield f"an encoder-decoder writes text; head {m.head.kind} needs shape encoder or decoder."
        case Decoder(), (ClassificationHead(pooling="first") | RegressionHead(pooling="first")):
            yield "the first token of a decoder has seen nothing yet; use pooling mean."
    if not isinstance(m.input, Tokens):
        if not isinstance(m.architecture, Encoder):
            yield f"a decoder reads the tokens it writes; {m.input.kind} belong in an encoder, or in architecture.source_input."
        if isinstance(m.head, MLMHead):
            yield f"a masked-word head needs words; the input is {m.input.kind}."
    if isinstance(m.head, LMHead | MLMHead) and not m.vocab_size:
        yield f"head {m.head.kind} needs model.vocab_size, which is 0."


def _input_errors(source: Input, vocabulary: int, context: int, path: str) -> Iterator[str]:
    match source:
        case Tokens():
            if not vocabulary:
                yield f"{path}.vocabulary = 0, but the input is tokens; say how many different ones there are."
            return
        case Images():
            if source.image_size % source.patch_size:
                yield f"{path}.input.image_size = {source.image_size} is not a whole number of patches of {source.patch_size}."
            for name, values in (("mean", source.mean), ("deviation", source.std)):
                if len(values) not in (1, source.num_channels):
                    yield f"{path}.input.{name} needs one number, or one for each of {source.num_channels} colours."
            if not all(value > 0 for value in source.std):
                yield f"{path}.input.std = {source.std} must be positive numbers."
        case Spectrogram() if (
            source.n_mels % source.patch_mels or source.n_frames % source.patch_frames
        ):
            yield (
                f"{path}.input: {source.n_mels} mels x {source.n_frames} frames are not whole patches of "
                f"{source.patch_mels} x {source.patch_frames}."
            )
    if vocabulary:
        yield f"{path}.vocabulary = {vocabulary}, but {source.kind} has no vocabulary; it must be 0."
    if context != (needed := num_input_tokens(source)):
        yield f"{path}.context = {context}, but this input becomes {needed} tokens; write {needed}."


# ---- count: Parameters by part, from the configuration alone. A law in the tests holds it to the built model.


def parameters_by_part(m: "ModelConfig") -> dict[str, int]:
    """{"embedding": …, "positions": …, "attention": …, …}: adds up to the whole model."""
    deep = m.architecture.encoder_layers if isinstance(m.architecture, EncoderDecoder) else 0
    blocks = m.n_layers + deep
    cross = m.n_layers if deep else 0
    norms = 2 * blocks + cross + ((2 if deep else 1) if m.norm_position == "pre" else 0)
    sides = [(m.input, m.vocab_size, m.context_length, m.n_layers)]
    if isinstance(m.architecture, EncoderDecoder):
        sides.append(
            (
                m.architecture.source_input,
                m.architecture.source_vocab_size,
                m.architecture.source_context_length,
                deep,
            )
        )
    return {
        "embedding": sum(
            _input_parameters(m, source, vocabulary) for source, vocabulary, _, _ in sides
        ),
        "positions": sum(
            _position_parameters(m, context, layers) for _, _, context, layers in sides
        ),
        "attention": (blocks + cross) * _attention_parameters(m),
        "feed-forward": blocks * _ffn_parameters(m),
        "norms": norms * _norm_parameters(m.norm, m.d_model),
        "head": _head_parameters(m),
    }


def _norm_parameters(norm: Norm, width: int) -> int:
    return 2 * width if isinstance(norm, LayerNorm) and norm.bias else width


def _input_parameters(m: "ModelConfig", source: Input, vocabulary: int) -> int:
    d = m.d_model
    match source:
        case Tokens():
            return (vocabulary + source.token_types) * d + (
                _norm_parameters(m.norm, d) if source.norm else 0
            )
        case Images():
            return (source.num_channels * source.patch_size**2 + 1 + source.cls_token) * d
        case Audio():
            return (3 * source.n_mels + 1) * d + (3 * d + 1) * d
        case Spectrogram():
            return (source.patch_mels * source.patch_frames + 1 + source.cls_token) * d


def _position_parameters(m: "ModelConfig", context: int, layers: int) -> int:
    match m.position:
        case Learned():
            return context * m.d_model
        case T5():
            return m.position.num_buckets * m.attention.n_heads
        case Shaw():
            return layers * (2 * m.position.max_distance + 1) * m.d_head
        case _:
            return 0


def _attention_parameters(m: "ModelConfig") -> int:
    d = m.d_model
    q = m.attention.n_heads * m.d_head
    kv = m.n_kv_heads * m.d_head
    biases = {"q": q, "k": kv, "v": kv, "out": d}
    normed = 2 * _norm_parameters(m.norm, m.d_head) if m.attention.qk_norm else 0
    return 2 * d * q + 2 * d * kv + sum(biases[name] for name in set(m.attention.bias)) + normed


def _ffn_parameters(m: "ModelConfig") -> int:
    d = m.d_model
    wide = m.d_ff
    ups = 2 if m.ffn.is_gated else 1
    return (ups + 1) * d * wide + (ups * wide + d if m.ffn.bias else 0)


def _head_parameters(m: "ModelConfig") -> int:
    d = m.d_model
    head = m.head
    match head:
        case LMHead():
            return (0 if head.tie_embeddings else m.vocab_size * d) + (
                m.vocab_size if head.bias else 0
            )
        case MLMHead():
            return d * d + d + _norm_parameters(m.norm, d) + m.vocab_size
        case ClassificationHead() | RegressionHead():
            outputs = head.num_labels if isinstance(head, ClassificationHead) else 1
            return (d + 1) * outputs + (d * d + d if head.pooler else 0)
        case NoHead():
            return 0


# ---- config: What a model is, and a run, as frozen values. Stdlib only: reading a configuration never waits for torch.

# mypy: implicit-reexport
# The variants are names of this module too: whoever needs `c.ModelConfig` needs `c.Rotary` next to it.


@dataclass(frozen=True)
class ModelConfig:
    """One Transformer. The defaults are the lecture's decoder."""

    vocab_size: int = option("how many different tokens; 0 where the input is no text", 512, ge=0)
    context_length: int = option("most tokens it reads at once", 128)
    d_model: int = option("width of the residual stream", 128)
    n_layers: int = option("how many blocks", 4)
    norm_position: Literal["pre", "post"] = option(
        "norm before each part (pre), or after its sum (post, 2017)", "pre"
    )
    architecture: Architecture = field(default=Decoder())
    input: Input = field(default=Tokens())
    position: PositionScheme = field(default=Learned())
    attention: Attention = field(default=Attention())
    ffn: FeedForward = field(default=FeedForward())
    norm: Norm = field(default=LayerNorm())
    dropout: Dropout = field(default=Dropout())
    head: Head = field(default=LMHead())

    @property
    def n_kv_heads(self) -> int:
        return self.attention.n_kv_heads or self.attention.n_heads

    @property
    def d_head(self) -> int:
        return self.attention.d_head or self.d_model // self.attention.n_heads

    @property
    def d_ff(self) -> int:
        return self.ffn.d_ff or 4 * self.d_model

    @property
    def main_input(self) -> Input:
        """What the model is given: the source, where there is one, else its only input."""
        return (
            self.architecture.source_input
            if isinstance(self.architecture, EncoderDecoder)
            else self.input
        )

    def __post_init__(self) -> None:
        check_model(self)


@dataclass(frozen=True)
class InferenceConfig:
    """How a model is used: what stands around the texts it reads and writes, as ids unless said otherwise."""

    bos_tokens: tuple[int, ...] = option("tokens put before a text that is read: [CLS], <s>", ())
    sep_tokens: tuple[int, ...] = option("tokens put after it: [SEP], </s>", ())
    decoder_start_tokens: tuple[int, ...] = option(
        "tokens that an encoder-decoder's output starts with", ()
    )
    eos_tokens: tuple[int, ...] = option("tokens that end what is written", ())
    forced_eos: bool = option(
        "whether beam search ends a text with the first of those where it must break off", False
    )
    suppress_tokens: tuple[int, ...] = option("tokens that are never written", ())
    begin_suppress_tokens: tuple[int, ...] = option("tokens that are never written first", ())
    renormalize_logits: bool = option(
        "whether the probability of those goes to the others in beam search", False
    )
    pad_token: tuple[int, ...] = option(
        "the token that fills up rows, for engines that need one", ()
    )
    mask_token: tuple[int, ...] = option("the token that hides a word", ())
    pooling: Literal["mean", "first"] = option(
        "how the vectors of a text become one: their mean, or the first", "mean"
    )
    normalize: bool = option("whether that vector is scaled to length 1", False)
    max_length: int = option(
        "tokens after which a text is cut for its vector or class; 0 = as many as fit", 0, ge=0
    )
    labels: tuple[str, ...] = option("names of the classes", ())
    chat_template: str = option("how a conversation is written out, as a Jinja template", "")


@dataclass(frozen=True)
class Config:
    """Everything a run is made of."""

    model: ModelConfig = field(default=ModelConfig())
    inference: InferenceConfig = field(default=InferenceConfig())
    data: DataConfig = field(default=DataConfig())
    train: TrainConfig = field(default=TrainConfig())

    def __post_init__(self) -> None:
        check_inference(self.inference, self.model)
        check_ranges(self.data, "data")
        check_ranges(self.train, "train")

    @classmethod
    def read(cls, path: str | Path, **changes: object) -> Self:
        """From a .toml or .json file, with dotted changes on top."""
        return cls.from_dict(read_config_file(path)).replace(**changes)

    @classmethod
    def from_dict(cls, tree: ConfigDict) -> Self:
        """From nested dictionaries, as a file of TOML or JSON holds them; unknown names are refused."""
        return dataclass_from_dict(cls, tree)

    def replace(self, **changes: object) -> Self:
        """The same with some options replaced: `width=64`, `attention__n_heads=8`, `**{"model.position": "rotary"}`.

        Two underscores are a dot, and a key without a section belongs to the model.
        """
        tree = self.to_dict()
        dotted = {key.replace("__", "."): value for key, value in changes.items()}
        in_section = {
            key if key.split(".")[0] in tree else f"model.{key}": value
            for key, value in dotted.items()
        }
        return self.from_dict(apply_overrides(tree, in_section))

    def to_dict(self) -> ConfigDict:
        """Nested dictionaries with every option, which `of` reads back to this very configuration."""
        return dataclass_to_dict(self)

    def to_toml(self) -> str:
        """TOML with a sentence for each option; reads back to this very configuration."""
        return dataclass_to_toml(self)

    def num_parameters(self) -> int:
        """How many trainable numbers, counted without building the model."""
        return sum(parameters_by_part(self.model).values())
