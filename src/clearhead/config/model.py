"""Configuration of models, inference and runs. Impossible combinations are errors.

Variants are tagged unions (`position = {kind = "rotary", theta = 10000}`), so an option of one
variant cannot be set on another.
"""

import math
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Self

from clearhead.config.options import kind, option
from clearhead.config.parse import (
    ConfigDict,
    apply_overrides,
    dataclass_from_dict,
    parse_field,
    read_config_file,
    type_hints,
)
from clearhead.config.serialize import dataclass_to_dict, dataclass_to_toml
from clearhead.config.training import DataConfig, TrainConfig
from clearhead.errors import ClearheadError, check_int

CLS_TOKEN = "prepend a learned [CLS] token"
POOLING = "what the head reads: the first token, or the mean of all"
POOLER = "add a dense layer with tanh before the output, as BERT does"


# --- input (L1, L6.4)
@dataclass(frozen=True)
class Tokens:
    kind: Literal["tokens"] = kind("token ids, looked up in an embedding matrix", "tokens")
    token_types: int = option("number of token types (segment embeddings); BERT: 2", 0, ge=0)
    scale_embeddings: bool = option("multiply embeddings by sqrt(d_model)", False)
    norm: bool = option("normalize the sum of embeddings, as BERT does", False)


@dataclass(frozen=True)
class Images:
    kind: Literal["images"] = kind("square image patches, as in ViT", "images")
    image_size: int = option("height and width of the image in pixels", 224)
    patch_size: int = option("height and width of a patch in pixels", 16)
    num_channels: int = option("color channels", 3)
    cls_token: bool = option(CLS_TOKEN, True)
    mean: tuple[float, ...] = option("pixel mean (0 to 1), one value or one per channel", (0.5,))
    std: tuple[float, ...] = option(
        "pixel standard deviation, one value or one per channel", (0.5,)
    )
    resample: Literal["bicubic", "bilinear"] = option("resampling filter for resizing", "bicubic")


@dataclass(frozen=True)
class MelSpectrogram:
    """Options of a log-mel spectrogram."""

    sample_rate: int = option("samples per second", 16000)
    n_fft: int = option("size of the Fourier transform in samples", 400)
    hop_length: int = option("samples between frames", 160)
    n_mels: int = option("mel bands", 80)
    n_frames: int = option("frames the model reads", 3000)


@dataclass(frozen=True)
class Audio(MelSpectrogram):
    kind: Literal["audio"] = kind(
        "log-mel frames through two convolutions (2 frames per token), as in Whisper", "audio"
    )


@dataclass(frozen=True)
class Spectrogram(MelSpectrogram):
    kind: Literal["spectrogram"] = kind("patches of the log-mel spectrogram", "spectrogram")
    patch_mels: int = option("height of a patch in mel bands", 16)
    patch_frames: int = option("width of a patch in frames", 16)
    cls_token: bool = option(CLS_TOKEN, True)


Input = Tokens | Images | Audio | Spectrogram


def num_input_tokens(source: Images | Audio | Spectrogram) -> int:
    """Number of tokens that an image or an audio clip becomes."""
    match source:
        case Images():
            return (source.image_size // source.patch_size) ** 2 + source.cls_token
        case Audio():
            return (source.n_frames + 1) // 2  # the second convolution has stride 2
        case Spectrogram():
            rows = source.n_mels // source.patch_mels
            columns = source.n_frames // source.patch_frames
            return rows * columns + source.cls_token


# --- architecture (L6)
@dataclass(frozen=True)
class Decoder:
    kind: Literal["decoder"] = kind("causal attention", "decoder")


@dataclass(frozen=True)
class Encoder:
    kind: Literal["encoder"] = kind("bidirectional attention", "encoder")


@dataclass(frozen=True)
class EncoderDecoder:
    kind: Literal["encoder-decoder"] = kind(
        "a decoder with cross-attention to an encoder", "encoder-decoder"
    )
    encoder_layers: int = option("number of encoder blocks", 6)
    source_context_length: int = option("maximum number of source tokens", 512)
    source_vocab_size: int = option(
        "source vocabulary size; 0 = share vocabulary and embeddings with the decoder", 0, ge=0
    )
    source_input: Input = Tokens()


Architecture = Decoder | Encoder | EncoderDecoder


# --- positions (L2)
@dataclass(frozen=True)
class NoPosition:
    kind: Literal["none"] = kind("no position information", "none")


@dataclass(frozen=True)
class Learned:
    kind: Literal["learned"] = kind("learned absolute position embeddings", "learned")


@dataclass(frozen=True)
class Sinusoidal:
    kind: Literal["sinusoidal"] = kind("fixed sinusoidal position embeddings", "sinusoidal")
    layout: Literal["interleaved", "halves"] = option(
        "sine and cosine interleaved, or all sines first", "interleaved"
    )


@dataclass(frozen=True)
class T5:
    kind: Literal["t5"] = kind("learned bias per bucket of relative distances, as in T5", "t5")
    num_buckets: int = option("number of buckets", 32)
    max_distance: int = option("larger distances share the last bucket", 128)


@dataclass(frozen=True)
class Shaw:
    kind: Literal["shaw"] = kind("learned relative keys in every layer (Shaw et al.)", "shaw")
    max_distance: int = option("distances are clipped to this", 16)


@dataclass(frozen=True)
class ALiBi:
    kind: Literal["alibi"] = kind("linear distance penalty with a fixed slope per head", "alibi")


@dataclass(frozen=True)
class NoScaling:
    kind: Literal["none"] = kind("unscaled frequencies", "none")


@dataclass(frozen=True)
class LinearScaling:
    kind: Literal["linear"] = kind("divide all frequencies (position interpolation)", "linear")
    factor: float = option("divisor", 2.0)


@dataclass(frozen=True)
class Llama3Scaling:
    kind: Literal["llama3"] = kind("divide low frequencies only, as in Llama 3.1", "llama3")
    factor: float = option("divisor of the lowest frequencies", 8.0)
    low_freq_factor: float = option(
        "wavelengths above original_context_length / this are scaled in full", 1.0
    )
    high_freq_factor: float = option(
        "wavelengths below original_context_length / this are not scaled", 4.0
    )
    original_context_length: int = option("context length before scaling", 8192)


@dataclass(frozen=True)
class Rotary:
    kind: Literal["rotary"] = kind("rotary position embeddings (RoPE)", "rotary")
    theta: float = option("base of the wavelengths", 10000.0)
    rotary_dim: int = option("dimensions of a head that rotate; 0 = all", 0, ge=0)
    scaling: NoScaling | LinearScaling | Llama3Scaling = NoScaling()


PositionScheme = NoPosition | Learned | Sinusoidal | T5 | Shaw | ALiBi | Rotary


# --- block (L3, L4)
@dataclass(frozen=True)
class Attention:
    n_heads: int = option("attention heads", 4)
    n_kv_heads: int = option("key/value heads (grouped-query attention); 0 = n_heads", 0, ge=0)
    d_head: int = option("dimensions per head; 0 = d_model / n_heads", 0, ge=0)
    sliding_window: int = option("attend to this many last tokens; 0 = all", 0, ge=0)
    bias: tuple[Literal["q", "k", "v", "out"], ...] = option(
        "projections that have a bias", ("q", "k", "v", "out")
    )
    scale: bool = option("divide scores by sqrt(d_head)", True)
    qk_norm: bool = option("normalize queries and keys per head", False)


Activation = Literal["relu", "relu2", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"]


@dataclass(frozen=True)
class FeedForward:
    activation: Activation = option(
        "relu, relu2, gelu, gelu-tanh, silu; gated: swiglu, geglu, geglu-tanh", "relu"
    )
    d_ff: int = option("hidden dimensions; 0 = 4 * d_model", 0, ge=0)
    bias: bool = option("linear layers have a bias", True)

    @property
    def is_gated(self) -> bool:
        return "glu" in self.activation


@dataclass(frozen=True)
class LayerNorm:
    kind: Literal["layernorm"] = kind("layer normalization", "layernorm")
    eps: float = option("added to the variance", 1e-5)
    bias: bool = option("has a bias", True)


@dataclass(frozen=True)
class RMSNorm:
    kind: Literal["rmsnorm"] = kind("root mean square normalization", "rmsnorm")
    eps: float = option("added to the mean square", 1e-6)


Norm = LayerNorm | RMSNorm


@dataclass(frozen=True)
class Dropout:
    embedding: float = option("on the embeddings", 0.0, ge=0, lt=1)
    residual: float = option("on the output of attention and feed-forward", 0.0, ge=0, lt=1)
    attention: float = option("on the attention pattern", 0.0, ge=0, lt=1)


# --- head (L5)
@dataclass(frozen=True)
class LMHead:
    kind: Literal["lm"] = kind("next-token prediction", "lm")
    tie_embeddings: bool = option("use the embedding matrix as the unembedding", True)
    bias: bool = option("add a bias to the logits", False)
    scale_logits: bool = option("divide by sqrt(d_model) before the unembedding, as T5", False)


@dataclass(frozen=True)
class MLMHead:
    kind: Literal["mlm"] = kind(
        "masked-token prediction: dense, activation, norm, tied unembedding, as BERT", "mlm"
    )


@dataclass(frozen=True)
class ClassificationHead:
    kind: Literal["classification"] = kind("one logit per class", "classification")
    num_labels: int = option("number of classes", 2)
    pooling: Literal["first", "mean"] = option(POOLING, "first")
    pooler: bool = option(POOLER, False)


@dataclass(frozen=True)
class RegressionHead:
    kind: Literal["regression"] = kind("one number", "regression")
    pooling: Literal["first", "mean"] = option(POOLING, "first")
    pooler: bool = option(POOLER, False)


@dataclass(frozen=True)
class NoHead:
    kind: Literal["none"] = kind("hidden states only", "none")


Head = LMHead | MLMHead | ClassificationHead | RegressionHead | NoHead


# --- validation
def check_ranges(value: Any, path: str) -> None:
    """Raise if an option is out of range; `path` is the name of the section."""
    hints = type_hints(type(value))
    for f in fields(value):
        item = getattr(value, f.name)
        name = f"{path}.{f.name}"
        if is_dataclass(item):
            check_ranges(item, name)
            continue
        item = parse_field(hints[f.name], item, name)
        ge = f.metadata["ge"]
        lt = f.metadata["lt"]
        le = f.metadata["le"]
        expected = ""
        if isinstance(item, tuple):
            if not all(math.isfinite(number) for number in item if isinstance(number, float)):
                expected = "finite numbers"
        elif le is not None:
            if not ge <= item <= le:
                expected = f"from {ge} to {le}"
        elif lt is not None:
            if not ge <= item < lt:
                expected = f"at least {ge} and less than {lt}"
        elif type(item) is int:
            check_int(name, item, ge)
        elif isinstance(item, float) and not (0 < item < math.inf or item == ge):
            expected = f"a finite, positive number{'' if ge else ', or 0'}"
        if expected:
            raise ClearheadError(f"{name} must be {expected}, got {item}.")


def _check_attention(m: "ModelConfig") -> None:
    a = m.attention
    if not a.d_head and m.d_model % a.n_heads:
        divisor = _closest_divisor(m.d_model, a.n_heads)
        raise ClearheadError(
            f"model.d_model = {m.d_model} is not divisible by model.attention.n_heads = "
            f"{a.n_heads}; choose a divisor such as {divisor}, or set model.attention.d_head."
        )
    if a.n_heads % m.n_kv_heads:
        raise ClearheadError(
            f"model.attention.n_heads = {a.n_heads} must be divisible by "
            f"model.attention.n_kv_heads = {m.n_kv_heads}."
        )


def _closest_divisor(n: int, wanted: int) -> int:
    wanted = min(n, wanted)
    candidates = (c for offset in range(wanted) for c in (wanted - offset, wanted + offset))
    return next(c for c in candidates if n % c == 0)


def _check_position(m: "ModelConfig") -> None:
    match m.position:
        case Sinusoidal() if m.d_model % 2:
            raise ClearheadError(
                f"sinusoidal positions need an even model.d_model, got {m.d_model}."
            )
        case Rotary() as p:
            if (p.rotary_dim or m.d_head) % 2:
                raise ClearheadError(
                    "rotary positions rotate pairs of dimensions, so their number must be even, "
                    f"got {p.rotary_dim or m.d_head}."
                )
            if p.rotary_dim > m.d_head:
                raise ClearheadError(
                    f"model.position.rotary_dim = {p.rotary_dim} must not exceed "
                    f"the {m.d_head} dimensions of a head."
                )
            s = p.scaling
            if isinstance(s, Llama3Scaling) and s.low_freq_factor >= s.high_freq_factor:
                raise ClearheadError(
                    f"model.position.scaling.low_freq_factor = {s.low_freq_factor} must be less "
                    f"than high_freq_factor = {s.high_freq_factor}."
                )
        case T5() as p:
            if p.num_buckets % 4:
                raise ClearheadError(
                    f"model.position.num_buckets must be a multiple of 4, got {p.num_buckets}."
                )
            if p.max_distance <= p.num_buckets:
                raise ClearheadError(
                    f"model.position.max_distance = {p.max_distance} must exceed "
                    f"num_buckets = {p.num_buckets}."
                )


def _check_architecture(m: "ModelConfig") -> None:
    match m.architecture, m.head:
        case Encoder(), LMHead():
            raise ClearheadError(
                "an encoder attends to the token that head lm predicts; "
                "use head mlm, or architecture decoder."
            )
        case ((Decoder() | EncoderDecoder()), MLMHead()):
            raise ClearheadError(
                "head mlm attends to both sides of a mask; it needs architecture encoder."
            )
        case EncoderDecoder(), (ClassificationHead() | RegressionHead()):
            raise ClearheadError(f"head {m.head.kind} needs architecture encoder or decoder.")
        case Decoder(), (ClassificationHead(pooling="first") | RegressionHead(pooling="first")):
            raise ClearheadError(
                "the first token of a decoder attends only to itself; use pooling mean."
            )
    if not isinstance(m.input, Tokens):
        if not isinstance(m.architecture, Encoder):
            raise ClearheadError(
                f"a decoder reads tokens, so input {m.input.kind} needs architecture encoder, "
                "or belongs in architecture.source_input."
            )
        if isinstance(m.head, MLMHead):
            raise ClearheadError(f"head mlm needs input tokens, got {m.input.kind}.")
    if isinstance(m.head, LMHead | MLMHead) and not m.vocab_size:
        raise ClearheadError(f"head {m.head.kind} needs a positive model.vocab_size.")


def _check_input(source: Input, vocab_size: int, context_length: int, prefix: str) -> None:
    """Check one input; `prefix` comes before the names of its options."""
    name = f"{prefix}input"
    match source:
        case Tokens():
            if not vocab_size:
                raise ClearheadError(
                    f"{prefix}vocab_size must be positive for input tokens, got 0."
                )
            return
        case Images():
            if source.image_size % source.patch_size:
                raise ClearheadError(
                    f"{name}.image_size = {source.image_size} is not divisible by "
                    f"patch_size = {source.patch_size}."
                )
            for option_name, values in (("mean", source.mean), ("std", source.std)):
                if len(values) not in (1, source.num_channels):
                    raise ClearheadError(
                        f"{name}.{option_name} needs 1 or {source.num_channels} values."
                    )
            if not all(value > 0 for value in source.std):
                raise ClearheadError(f"{name}.std must be positive, got {list(source.std)}.")
        case Spectrogram() if (
            source.n_mels % source.patch_mels or source.n_frames % source.patch_frames
        ):
            raise ClearheadError(
                f"{name}: {source.n_mels} mels x {source.n_frames} frames are not divisible into "
                f"patches of {source.patch_mels} x {source.patch_frames}."
            )
    if vocab_size:
        raise ClearheadError(
            f"{prefix}vocab_size must be 0 for input {source.kind}, got {vocab_size}."
        )
    num_tokens = num_input_tokens(source)
    if context_length != num_tokens:
        raise ClearheadError(
            f"{prefix}context_length must be {num_tokens}, the number of tokens of this "
            f"input, got {context_length}."
        )


# --- model
@dataclass(frozen=True)
class ModelConfig:
    """A Transformer. The defaults are the decoder of the lectures."""

    vocab_size: int = option("vocabulary size; 0 for non-text input", 512, ge=0)
    context_length: int = option("maximum number of tokens", 128)
    d_model: int = option("dimensions of the residual stream", 128)
    n_layers: int = option("number of blocks", 4)
    norm_position: Literal["pre", "post"] = option(
        "norm before each sublayer (pre), or after the residual sum (post)", "pre"
    )
    architecture: Architecture = Decoder()
    input: Input = Tokens()
    position: PositionScheme = Learned()
    attention: Attention = Attention()
    ffn: FeedForward = FeedForward()
    norm: Norm = LayerNorm()
    dropout: Dropout = Dropout()
    head: Head = LMHead()

    def __post_init__(self) -> None:
        check_ranges(self, "model")
        _check_attention(self)
        _check_position(self)
        _check_architecture(self)
        _check_input(self.input, self.vocab_size, self.context_length, "model.")
        if isinstance(a := self.architecture, EncoderDecoder):
            shares_vocab = isinstance(a.source_input, Tokens) and not a.source_vocab_size
            vocab_size = self.vocab_size if shares_vocab else a.source_vocab_size
            prefix = "model.architecture.source_"
            _check_input(a.source_input, vocab_size, a.source_context_length, prefix)

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
        """The input of the encoder of an encoder-decoder, else the only input."""
        if isinstance(self.architecture, EncoderDecoder):
            return self.architecture.source_input
        return self.input


# --- counting parameters
def parameters_by_part(m: ModelConfig) -> dict[str, int]:
    """Number of parameters of each part, computed without building the model."""
    stacks = [(m.input, m.vocab_size, m.context_length, m.n_layers)]
    if isinstance(a := m.architecture, EncoderDecoder):
        source = (a.source_input, a.source_vocab_size, a.source_context_length, a.encoder_layers)
        stacks.append(source)
    blocks = sum(n_layers for _, _, _, n_layers in stacks)
    cross_attentions = m.n_layers * (len(stacks) - 1)
    norms = 2 * blocks + cross_attentions + (len(stacks) if m.norm_position == "pre" else 0)
    return {
        "embedding": sum(
            _input_parameters(m, source, vocab_size) for source, vocab_size, _, _ in stacks
        ),
        "positions": sum(
            _position_parameters(m, context_length, n_layers)
            for _, _, context_length, n_layers in stacks
        ),
        "attention": (blocks + cross_attentions) * _attention_parameters(m),
        "feed-forward": blocks * _ffn_parameters(m),
        "norms": norms * _norm_parameters(m.norm, m.d_model),
        "head": _head_parameters(m),
    }


def _norm_parameters(norm: Norm, size: int) -> int:
    return 2 * size if isinstance(norm, LayerNorm) and norm.bias else size


def _input_parameters(m: ModelConfig, source: Input, vocab_size: int) -> int:
    d = m.d_model
    match source:
        case Tokens():
            norm = _norm_parameters(m.norm, d) if source.norm else 0
            return (vocab_size + source.token_types) * d + norm
        case Images():
            return (source.num_channels * source.patch_size**2 + 1 + source.cls_token) * d
        case Audio():
            return (3 * source.n_mels + 1) * d + (3 * d + 1) * d
        case Spectrogram():
            return (source.patch_mels * source.patch_frames + 1 + source.cls_token) * d


def _position_parameters(m: ModelConfig, context_length: int, n_layers: int) -> int:
    match m.position:
        case Learned():
            return context_length * m.d_model
        case T5():
            return m.position.num_buckets * m.attention.n_heads
        case Shaw():
            return n_layers * (2 * m.position.max_distance + 1) * m.d_head
        case _:
            return 0


def _attention_parameters(m: ModelConfig) -> int:
    d = m.d_model
    q = m.attention.n_heads * m.d_head
    kv = m.n_kv_heads * m.d_head
    bias_size = {"q": q, "k": kv, "v": kv, "out": d}
    biases = sum(bias_size[name] for name in set(m.attention.bias))
    qk_norm = 2 * _norm_parameters(m.norm, m.d_head) if m.attention.qk_norm else 0
    return 2 * d * q + 2 * d * kv + biases + qk_norm


def _ffn_parameters(m: ModelConfig) -> int:
    inputs = 2 if m.ffn.is_gated else 1  # up, or gate and up
    weights = (inputs + 1) * m.d_model * m.d_ff
    biases = inputs * m.d_ff + m.d_model if m.ffn.bias else 0
    return weights + biases


def _head_parameters(m: ModelConfig) -> int:
    d = m.d_model
    match m.head:
        case LMHead():
            unembedding = 0 if m.head.tie_embeddings else m.vocab_size * d
            return unembedding + (m.vocab_size if m.head.bias else 0)
        case MLMHead():
            return d * d + d + _norm_parameters(m.norm, d) + m.vocab_size
        case ClassificationHead() | RegressionHead():
            outputs = m.head.num_labels if isinstance(m.head, ClassificationHead) else 1
            return (d + 1) * outputs + (d * d + d if m.head.pooler else 0)
        case NoHead():
            return 0


# --- inference and run
@dataclass(frozen=True)
class InferenceConfig:
    """Special tokens (as ids) and defaults for using a model."""

    bos_tokens: tuple[int, ...] = option("prepended to each input text: [CLS], <s>", ())
    sep_tokens: tuple[int, ...] = option("appended to each input text: [SEP], </s>", ())
    decoder_start_tokens: tuple[int, ...] = option("the decoder's output starts with these", ())
    eos_tokens: tuple[int, ...] = option("any of these ends generation", ())
    forced_eos: bool = option("beam search ends texts of maximum length with eos", False)
    suppress_tokens: tuple[int, ...] = option("never generated", ())
    begin_suppress_tokens: tuple[int, ...] = option("never generated first", ())
    renormalize_logits: bool = option(
        "beam search renormalizes probabilities after suppressing tokens", False
    )
    pad_token: tuple[int, ...] = option("padding token, for exports that need one", ())
    mask_token: tuple[int, ...] = option("replaced by the model's prediction: [MASK]", ())
    pooling: Literal["mean", "first"] = option("how text embeddings are pooled", "mean")
    normalize: bool = option("scale text embeddings to length 1", False)
    max_length: int = option(
        "truncate texts to embed or classify to this many tokens; 0 = context length", 0, ge=0
    )
    labels: tuple[str, ...] = option("class names", ())
    chat_template: str = option("Jinja template of a conversation", "")


OUTPUT_TOKENS = (
    "decoder_start_tokens",
    "eos_tokens",
    "suppress_tokens",
    "begin_suppress_tokens",
    "pad_token",
    "mask_token",
)


def check_inference(inference: InferenceConfig, m: ModelConfig) -> None:
    """Raise if special tokens are outside the vocabulary, or labels do not match the classes."""
    check_ranges(inference, "inference")
    input_vocab_size = m.vocab_size
    if isinstance(m.architecture, EncoderDecoder) and m.architecture.source_vocab_size:
        input_vocab_size = m.architecture.source_vocab_size
    vocab_sizes = dict.fromkeys(("bos_tokens", "sep_tokens"), input_vocab_size)
    vocab_sizes |= dict.fromkeys(OUTPUT_TOKENS, m.vocab_size)
    for name, vocab_size in vocab_sizes.items():
        for token in getattr(inference, name):
            if not 0 <= token < vocab_size:
                raise ClearheadError(
                    f"inference.{name} contains {token}, outside the vocabulary of {vocab_size}."
                )
    num_labels = m.head.num_labels if isinstance(m.head, ClassificationHead) else 0
    if inference.labels and len(inference.labels) != num_labels:
        raise ClearheadError(
            f"inference.labels has {len(inference.labels)} names, but the model has "
            f"{num_labels} classes."
        )


@dataclass(frozen=True)
class Config:
    """A model, how it is used, and how it is trained."""

    model: ModelConfig = ModelConfig()
    inference: InferenceConfig = InferenceConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()

    def __post_init__(self) -> None:
        check_inference(self.inference, self.model)
        check_ranges(self.data, "data")
        check_ranges(self.train, "train")

    @classmethod
    def read(cls, path: str | Path, **changes: object) -> Self:
        """Read a .toml or .json file and apply changes as in `replace`."""
        tree = read_config_file(path)
        try:
            config = cls.from_dict(tree)
        except ClearheadError as error:
            raise ClearheadError(f"{path}: {error}") from None
        return config.replace(**changes)

    @classmethod
    def from_dict(cls, tree: ConfigDict) -> Self:
        """Build a configuration from nested dictionaries; unknown names are errors."""
        return dataclass_from_dict(cls, tree)

    def replace(self, **changes: object) -> Self:
        """Copy with changed options: `d_model=64`, `attention__n_heads=8`, `train={"seed": 1}`.

        Two underscores stand for a dot; names without a section belong to the model. Dotted names
        work too: `replace(**{"model.position": "rotary"})`.
        """
        tree = self.to_dict()
        options: ConfigDict = {}
        for key, value in changes.items():
            name = key.replace("__", ".")
            if name in tree and isinstance(value, dict):
                options |= {f"{name}.{option}": item for option, item in value.items()}
            else:
                options[name if name.split(".")[0] in tree else f"model.{name}"] = value
        return self.from_dict(apply_overrides(tree, options))

    def to_dict(self) -> ConfigDict:
        """Nested dictionaries with every option; `from_dict` reads them back."""
        return dataclass_to_dict(self)

    def to_toml(self) -> str:
        """TOML with every option and a comment on each; it reads back to the same configuration."""
        return dataclass_to_toml(self)

    def num_parameters(self) -> int:
        """Number of parameters, computed without building the model."""
        return sum(parameters_by_part(self.model).values())
