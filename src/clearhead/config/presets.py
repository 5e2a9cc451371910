"""Named configurations.

Lecture models (learned or sinusoidal positions, LayerNorm, ReLU, tied embeddings), the shapes of
published models, training recipes, and tiny models for tests.
"""

from functools import partial

from clearhead.config.model import (
    T5,
    Attention,
    Audio,
    ClassificationHead,
    Config,
    Dropout,
    Encoder,
    EncoderDecoder,
    FeedForward,
    Images,
    LayerNorm,
    Learned,
    Llama3Scaling,
    LMHead,
    MLMHead,
    ModelConfig,
    NoScaling,
    PositionScheme,
    RMSNorm,
    Rotary,
    Sinusoidal,
    Spectrogram,
    Tokens,
    num_input_tokens,
)
from clearhead.config.training import (
    WSD,
    Adam,
    AdamW,
    Cosine,
    DataConfig,
    InverseSqrt,
    Muon,
    TrainConfig,
)
from clearhead.errors import ClearheadError, suggest

DROPOUT_10 = Dropout(embedding=0.1, residual=0.1, attention=0.1)


def _lecture(
    vocab_size: int = 2048,
    context_length: int = 128,
    d_model: int = 192,
    n_layers: int = 4,
    n_heads: int = 6,
) -> Config:
    model = ModelConfig(
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        n_layers=n_layers,
        attention=Attention(n_heads),
    )
    return Config(model)


def _vaswani(
    d_model: int, n_heads: int, n_layers: int = 6, vocab_size: int = 37000, dropout: float = 0.1
) -> Config:
    return Config(
        ModelConfig(
            vocab_size=vocab_size,
            context_length=512,
            d_model=d_model,
            n_layers=n_layers,
            norm_position="post",
            architecture=EncoderDecoder(
                encoder_layers=n_layers, source_input=Tokens(scale_embeddings=True)
            ),
            input=Tokens(scale_embeddings=True),
            position=Sinusoidal(),
            attention=Attention(n_heads, bias=()),
            dropout=Dropout(embedding=dropout, residual=dropout),
        )
    )


def _bert(
    d_model: int,
    n_layers: int,
    n_heads: int,
    position: PositionScheme,
    vocab_size: int = 30522,
    context_length: int = 512,
) -> Config:
    return Config(
        ModelConfig(
            vocab_size=vocab_size,
            context_length=context_length,
            d_model=d_model,
            n_layers=n_layers,
            norm_position="post",
            architecture=Encoder(),
            input=Tokens(token_types=2, norm=True),
            position=position,
            attention=Attention(n_heads),
            ffn=FeedForward("gelu"),
            norm=LayerNorm(eps=1e-12),
            dropout=DROPOUT_10,
            head=MLMHead(),
        )
    )


def _gpt2(d_model: int, n_layers: int, n_heads: int) -> Config:
    return Config(
        ModelConfig(
            vocab_size=50257,
            context_length=1024,
            d_model=d_model,
            n_layers=n_layers,
            attention=Attention(n_heads),
            ffn=FeedForward("gelu-tanh"),
        )
    )


def _llama(
    vocab_size: int,
    context_length: int,
    d_model: int,
    n_layers: int,
    d_ff: int,
    attention: Attention,
    theta: float = 10000.0,
    eps: float = 1e-5,
    tie_embeddings: bool = True,
    scaling: NoScaling | Llama3Scaling = NoScaling(),
) -> Config:
    return Config(
        ModelConfig(
            vocab_size=vocab_size,
            context_length=context_length,
            d_model=d_model,
            n_layers=n_layers,
            position=Rotary(theta=theta, scaling=scaling),
            attention=attention,
            ffn=FeedForward("swiglu", d_ff, bias=False),
            norm=RMSNorm(eps=eps),
            head=LMHead(tie_embeddings=tie_embeddings),
        )
    )


_smollm2 = partial(_llama, 49152, 8192)
_llama2 = partial(_llama, 32000, tie_embeddings=False)
_llama3 = partial(_llama, 128256, 131072, theta=500000.0)
_qwen = partial(_llama, 151936, theta=1000000.0, eps=1e-6)


def _attention(
    n_heads: int, n_kv_heads: int, d_head: int = 0, sliding_window: int = 0, qk_norm: bool = False
) -> Attention:
    return Attention(n_heads, n_kv_heads, d_head, sliding_window, bias=(), qk_norm=qk_norm)


def _vit(d_model: int, n_layers: int, n_heads: int) -> Config:
    return Config(
        ModelConfig(
            vocab_size=0,
            context_length=197,
            d_model=d_model,
            n_layers=n_layers,
            architecture=Encoder(),
            input=Images(),
            attention=Attention(n_heads),
            ffn=FeedForward("gelu"),
            norm=LayerNorm(eps=1e-12),
            head=ClassificationHead(num_labels=1000),
        )
    )


def _whisper(d_model: int, n_layers: int, n_heads: int) -> Config:
    return Config(
        ModelConfig(
            vocab_size=51865,
            context_length=448,
            d_model=d_model,
            n_layers=n_layers,
            architecture=EncoderDecoder(
                encoder_layers=n_layers, source_context_length=1500, source_input=Audio()
            ),
            attention=Attention(n_heads, bias=("q", "v", "out")),
            ffn=FeedForward("gelu"),
        )
    )


def _t5(d_model: int, n_layers: int, n_heads: int, d_head: int, d_ff: int) -> Config:
    return Config(
        ModelConfig(
            vocab_size=32128,
            context_length=512,
            d_model=d_model,
            n_layers=n_layers,
            architecture=EncoderDecoder(encoder_layers=n_layers, source_input=Tokens()),
            position=T5(),
            attention=Attention(n_heads, d_head=d_head, bias=(), scale=False),
            ffn=FeedForward("relu", d_ff, bias=False),
            norm=RMSNorm(),
            dropout=DROPOUT_10,
            head=LMHead(scale_logits=True),
        )
    )


MODELS: dict[str, Config] = {
    # lectures
    "lecture-small": _lecture(1024, 64, 128, 2, 4),
    "lecture-lm": _lecture(),
    "vaswani-base": _vaswani(512, 8),
    "vaswani-big": _vaswani(1024, 16, dropout=0.3),
    # encoders
    "bert-base": _bert(768, 12, 12, Learned()),
    "bert-large": _bert(1024, 24, 16, Learned()),
    "roformer-base": _bert(768, 12, 12, Rotary(), vocab_size=50000, context_length=1536),
    # decoders; _llama: vocab_size, context_length, d_model, n_layers, d_ff, attention, theta
    "gpt2-124m": _gpt2(768, 12, 12),
    "gpt2-355m": _gpt2(1024, 24, 16),
    "gpt2-774m": _gpt2(1280, 36, 20),
    "gpt2-1558m": _gpt2(1600, 48, 25),
    "smollm2-135m": _smollm2(576, 30, 1536, _attention(9, 3), 100000.0),
    "smollm2-360m": _smollm2(960, 32, 2560, _attention(15, 5), 100000.0),
    "smollm2-1.7b": _smollm2(2048, 24, 8192, _attention(32, 32), 130000.0),
    "tinyllama-1.1b": _llama2(2048, 2048, 22, 5632, _attention(32, 4)),
    "llama-2-7b": _llama2(4096, 4096, 32, 11008, _attention(32, 32)),
    "llama-3.1-8b": _llama3(
        4096, 32, 14336, _attention(32, 8), tie_embeddings=False, scaling=Llama3Scaling(factor=8.0)
    ),
    "llama-3.2-1b": _llama3(
        2048, 16, 8192, _attention(32, 8, 64), scaling=Llama3Scaling(factor=32.0)
    ),
    "llama-3.2-3b": _llama3(
        3072, 28, 8192, _attention(24, 8, 128), scaling=Llama3Scaling(factor=32.0)
    ),
    "mistral-7b": _llama2(32768, 4096, 32, 14336, _attention(32, 8, sliding_window=4096)),
    "qwen2.5-0.5b": _qwen(32768, 896, 24, 4864, Attention(14, 2, bias=("q", "k", "v"))),
    "qwen3-0.6b": _qwen(40960, 1024, 28, 3072, _attention(16, 8, 128, qk_norm=True)),
    # encoder-decoders
    "t5-small": _t5(512, 6, 8, 64, 2048),
    "t5-base": _t5(768, 12, 12, 64, 3072),
    "whisper-tiny": _whisper(384, 4, 6),
    "whisper-base": _whisper(512, 6, 8),
    # image encoders
    "vit-tiny": _vit(192, 12, 3),
    "vit-small": _vit(384, 12, 6),
    "vit-base": _vit(768, 12, 12),
    "vit-large": _vit(1024, 24, 16),
    # tiny models, for tests
    "tiny-decoder": _lecture(vocab_size=64, context_length=32, d_model=32, n_layers=2, n_heads=4),
    "tiny-encoder": _bert(32, 2, 4, Learned(), vocab_size=64, context_length=32),
    "tiny-encoder-decoder": _vaswani(32, 4, n_layers=2, vocab_size=64),
    "tiny-llama": _llama(64, 32, 32, 2, 96, _attention(4, 2)),
    "tiny-images": _vit(32, 2, 4).replace(
        context_length=17,
        input__image_size=8,
        input__patch_size=2,
        input__num_channels=1,
        head__num_labels=10,
    ),
    "tiny-audio": Config(
        ModelConfig(
            vocab_size=0,
            context_length=9,
            d_model=32,
            n_layers=2,
            architecture=Encoder(),
            input=Spectrogram(
                sample_rate=8000,
                n_fft=200,
                hop_length=80,
                n_mels=16,
                n_frames=32,
                patch_mels=8,
                patch_frames=8,
            ),
            head=ClassificationHead(num_labels=10),
        )
    ),
}


RECIPE_DATA = {  # recipe -> the data it needs
    "shakespeare-char": "one text of about a million characters, such as tinyshakespeare",
    "shakespeare-char-cpu": "the same, in two minutes on two CPU cores",
    "lm-small": "text, a few megabytes or more",
    "gpt2-124m": "text, a gigabyte or more",
    "mt-small": "10,000+ sentence pairs, such as Multi30k: 2 files, .tsv, .jsonl, .tmx, .po",
    "vaswani-base": "hundreds of thousands of sentence pairs",
    "mlm-small": "text, ten megabytes or more",
    "roformer-small": "text, ten megabytes or more",
    "finetune-classify": "a .csv, .tsv or .jsonl of labeled texts, and train.init_from = a model",
    "image-patches": "a folder of images per class, an .npz, or idx files such as MNIST",
    "audio-patches": "a folder of audio files per class, or data.label_column = stem, such as FSDD",
}

MEASURED_ON = {  # recipe -> the data on which its train.expected_loss was measured
    "shakespeare-char": "tinyshakespeare",
    "shakespeare-char-cpu": "tinyshakespeare",
    "mt-small": "Multi30k, English to German",
}

SHAKESPEARE_CHAR_LOSS = (  # step, lowest, highest
    200, 1.64, 1.76,
    500, 1.48, 1.57,
    1000, 1.42, 1.49,
    1400, 1.39, 1.46,
)  # fmt: skip
SHAKESPEARE_CHAR_CPU_LOSS = (  # step, lowest, highest
    350, 1.7, 1.8,
    700, 1.53, 1.61,
)  # fmt: skip
MT_SMALL_LOSS = (  # step, lowest, highest
    1000, 1.93, 2.13,
    2000, 1.49, 1.6,
    3000, 1.42, 1.52,
    4000, 1.39, 1.49,
    5000, 1.4, 1.52,
)  # fmt: skip


def _modern_decoder(
    vocab_size: int, context_length: int, d_model: int, n_layers: int, n_heads: int, dropout: float
) -> ModelConfig:
    """A modern decoder, which other engines can load as Qwen3."""
    return ModelConfig(
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        n_layers=n_layers,
        position=Rotary(),
        attention=Attention(n_heads, bias=(), qk_norm=True),
        ffn=FeedForward("swiglu", d_model * 8 // 3 // 32 * 32, bias=False),
        norm=RMSNorm(eps=1e-6),
        dropout=Dropout(embedding=dropout, residual=dropout),
    )


def _mlm_recipe(position: PositionScheme) -> Config:
    return Config(
        ModelConfig(
            vocab_size=8192,
            context_length=128,
            d_model=256,
            n_layers=6,
            architecture=Encoder(),
            position=position,
            attention=Attention(4),
            ffn=FeedForward("gelu"),
            dropout=Dropout(embedding=0.1, residual=0.1),
            head=MLMHead(),
        ),
        data=DataConfig(vocab_size=8192),
        train=TrainConfig(
            max_steps=6000,
            batch_size=64,
            warmup_steps=300,
            optimizer=Muon(lr=0.02, adam=Adam(lr=2e-3)),
            schedule=WSD(decay_fraction=0.4),
        ),
    )


def _patch_classifier(
    source: Images | Spectrogram, max_steps: int, batch_size: int, data: DataConfig
) -> Config:
    return Config(
        ModelConfig(
            vocab_size=0,
            context_length=num_input_tokens(source),
            d_model=128,
            n_layers=6,
            architecture=Encoder(),
            input=source,
            attention=Attention(4),
            ffn=FeedForward("gelu"),
            dropout=Dropout(embedding=0.1, residual=0.1),
            head=ClassificationHead(num_labels=10),
        ),
        data=data,
        train=TrainConfig(
            max_steps=max_steps,
            batch_size=batch_size,
            warmup_steps=max_steps // 20,
            optimizer=Muon(adam=Adam(lr=2e-3)),
            schedule=WSD(decay_fraction=0.5),
        ),
    )


_FAST_MUON = Muon(lr=0.02, weight_decay=0.1, adam=Adam(lr=3e-3))
_TRANSLATION_MODEL = ModelConfig(
    vocab_size=8192,
    context_length=256,
    d_model=256,
    n_layers=4,
    architecture=EncoderDecoder(encoder_layers=4, source_context_length=256),
    position=Rotary(),
    attention=Attention(4, bias=()),
    ffn=FeedForward("relu", 1024),
    dropout=Dropout(embedding=0.3, residual=0.3),
)

# Recipes that are named like a published model train that model.
RECIPES: dict[str, Config] = {
    "shakespeare-char": Config(
        _modern_decoder(66, 256, 384, 6, 6, 0.2),
        data=DataConfig(tokenizer="characters"),
        train=TrainConfig(
            max_steps=1400,
            batch_size=32,
            warmup_steps=50,
            optimizer=Muon(lr=0.02, weight_decay=0.3, adam=Adam(lr=3e-3)),
            schedule=WSD(decay_fraction=0.6),
            ema_decay=0.985,
            eval_every=100,
            save_every=700,
            expected_loss=SHAKESPEARE_CHAR_LOSS,
        ),
    ),
    "shakespeare-char-cpu": Config(
        _modern_decoder(66, 128, 128, 4, 4, 0.0),
        data=DataConfig(tokenizer="characters"),
        train=TrainConfig(
            max_steps=700,
            batch_size=16,
            warmup_steps=20,
            optimizer=_FAST_MUON,
            schedule=WSD(decay_fraction=0.7),
            eval_every=350,
            expected_loss=SHAKESPEARE_CHAR_CPU_LOSS,
        ),
    ),
    "lm-small": Config(
        _modern_decoder(8192, 256, 384, 6, 6, 0.1),
        data=DataConfig(vocab_size=8192),
        train=TrainConfig(
            max_steps=4000,
            batch_size=32,
            warmup_steps=100,
            optimizer=_FAST_MUON,
            schedule=WSD(decay_fraction=0.4),
        ),
    ),
    "gpt2-124m": Config(
        MODELS["gpt2-124m"].model,
        data=DataConfig(vocab_size=50257, valid_fraction=0.005),
        train=TrainConfig(
            max_steps=20000,
            batch_size=16,
            grad_accum=32,
            warmup_steps=700,
            optimizer=AdamW(lr=6e-4),
            schedule=Cosine(min_lr_ratio=0.1),
            eval_every=250,
            save_every=250,
        ),
    ),
    "mt-small": Config(
        _TRANSLATION_MODEL,
        data=DataConfig(vocab_size=8192, valid_fraction=0.03),
        train=TrainConfig(
            max_steps=5000,
            batch_size=32,
            seq_len=128,
            warmup_steps=200,
            label_smoothing=0.1,
            optimizer=Muon(lr=0.01, adam=Adam(lr=3e-3)),
            schedule=WSD(decay_fraction=0.5),
            ema_decay=0.998,
            eval_every=250,
            save_every=500,
            expected_loss=MT_SMALL_LOSS,
        ),
    ),
    "vaswani-base": Config(
        MODELS["vaswani-base"].model,
        data=DataConfig(vocab_size=37000, valid_fraction=0.01),
        train=TrainConfig(
            max_steps=100000,
            batch_size=64,
            seq_len=384,
            warmup_steps=4000,
            label_smoothing=0.1,
            grad_clip=0.0,
            optimizer=AdamW(lr=7e-4, beta2=0.98, eps=1e-9, weight_decay=0.0),
            schedule=InverseSqrt(),
            average_checkpoints=5,
            keep_checkpoints=5,
            eval_every=1000,
            save_every=1000,
        ),
    ),
    "mlm-small": _mlm_recipe(Learned()),
    "roformer-small": _mlm_recipe(Rotary()),
    "finetune-classify": Config(
        ModelConfig(
            architecture=Encoder(),
            dropout=Dropout(embedding=0.1, residual=0.1),
            head=ClassificationHead(num_labels=2, pooling="mean", pooler=False),
        ),
        train=TrainConfig(
            max_steps=2000,
            batch_size=32,
            warmup_steps=100,
            optimizer=AdamW(lr=5e-5, beta2=0.999, weight_decay=0.01),
            patience=5,
        ),
    ),
    "image-patches": _patch_classifier(
        Images(image_size=28, patch_size=4, num_channels=1, mean=(0.13,), std=(0.31,)),
        max_steps=4000,
        batch_size=128,
        data=DataConfig(random_shift=2, valid_fraction=0.05),
    ),
    "audio-patches": _patch_classifier(
        Spectrogram(
            sample_rate=8000,
            n_fft=200,
            hop_length=80,
            n_mels=64,
            n_frames=96,
            patch_mels=16,
            patch_frames=8,
        ),
        max_steps=2000,
        batch_size=64,
        data=DataConfig(),
    ),
}


class UnknownPresetError(ClearheadError, KeyError):
    """A preset name that does not exist."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class Presets(dict[str, Config]):
    """Preset name -> configuration; `clearhead presets` lists them."""

    def __missing__(self, name: str) -> Config:
        raise UnknownPresetError(f"there is no preset {name!r}; {suggest(str(name), self)}")


presets = Presets(MODELS | RECIPES)
